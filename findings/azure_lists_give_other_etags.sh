#!/usr/bin/env bash
# obstore says another ETag of the same object of Azure in a list than in a look at it: a program that compares them,
# to find what changed since it listed a directory, takes each object for changed.
#
# obstore 0.12.1, azurite 3.37.0 (Azure's emulator), azure-storage-blob 12.30.0 (only to make the container); Linux or
# macOS; needs node.
#
# The header of a HEAD has the ETag in quotes, the XML of List Blobs has it without, and the library passes on both as
# they are.  On S3 a list has the quotes, too.
#
# Output seen (the ETag differs):
#   head: "0x1F8E0E7C2B2C7A0"
#   list: 0x1F8E0E7C2B2C7A0
#   as described
set -euo pipefail
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet obstore==0.12.1 azure-storage-blob==12.30.0
(cd "$folder" && npm install --silent --no-audit --no-fund --prefix "$folder/npm" azurite@3.37.0 >/dev/null)
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
key=$(head -c 32 /dev/urandom | base64)
mkdir "$folder/state"
AZURITE_ACCOUNTS="lake:$key" "$folder/npm/node_modules/.bin/azurite-blob" --blobHost 127.0.0.1 --blobPort "$port" \
    --location "$folder/state" --silent --skipApiVersionCheck --disableTelemetry >"$folder/log" 2>&1 &
server=$!
cat > "$folder/look.py" <<'PY'
import sys
import time

import obstore
from azure.core.exceptions import ServiceRequestError
from azure.storage.blob import BlobServiceClient
from obstore.store import AzureStore

port, key = sys.argv[1:]
endpoint = f"http://127.0.0.1:{port}/lake"
service = BlobServiceClient(endpoint, credential={"account_name": "lake", "account_key": key}, retry_total=0)
deadline = time.monotonic() + 60
while True:
    try:
        service.create_container("lake")
        break
    except ServiceRequestError:
        assert time.monotonic() < deadline
store = AzureStore(
    "lake",
    account_name="lake",
    account_key=key,
    endpoint=endpoint,
    client_options={"allow_http": True},
)
obstore.put(store, "d/object", b"first")


looked = obstore.head(store, "d/object")["e_tag"]
(listed,) = [found["e_tag"] for page in obstore.list(store, "d") for found in page]
print(f"head: {looked}")
print(f"list: {listed}")
same = looked == f'"{listed}"'
print("as described" if same else "no longer as described")
sys.exit(0 if same else 1)
PY
"$folder/venv/bin/python" "$folder/look.py" "$port" "$key"
