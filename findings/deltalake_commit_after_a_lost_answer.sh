#!/usr/bin/env bash
# deltalake 1.6.6: if the answer to a commit on S3 is lost, one append makes two versions; with an
# application transaction it fails instead, although it was committed.
#
# The store took version 1.  The client sends it again, gets 412, and takes its own commit for that
# of another writer.  Without a transaction it writes the same actions as version 2, and the call
# succeeds: a query sees the file once, since both versions add one path, but a reader of one version
# after the other finds it twice.  With one, it finds the id in "the other" commit and raises
# CommitFailedError; a caller that appends again under a new id has the rows twice.
#
# Output seen (Python 3.11, Linux; an S3 server on loopback, and a proxy that drops one answer):
#   without a transaction  no error, newest version 2, equal actions True, rows 2
#   with one               CommitFailedError, newest version 1, rows 2
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    'moto[server]==5.2.5' deltalake==1.6.6 pyarrow==26.0.1
cd "$work"
cat >run.py <<'PY'
import atexit
import http.client
import json
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import Request, urlopen

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    PORT = free.getsockname()[1]


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on; the answer to the first PUT of one key is lost on its way back."""

    protocol_version = "HTTP/1.1"
    key = "-"
    answers = []
    bodies = {}

    def forward(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "PUT":
            Proxy.bodies[self.path] = body
        store = http.client.HTTPConnection("127.0.0.1", PORT)
        store.request(self.command, self.path, body, dict(self.headers))
        answer = store.getresponse()
        content = answer.read()
        if self.command == "PUT" and Proxy.key in self.path:
            Proxy.answers.append(answer.status)
            if len(Proxy.answers) == 1:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else len(content)
        self.send_header("Content-Length", str(length or 0))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

    def log_message(self, *_):
        pass


moto = Path(sys.executable).with_name("moto_server")
server = subprocess.Popen([moto, "-H", "127.0.0.1", "-p", str(PORT)], stdout=-3, stderr=-3)
atexit.register(server.terminate)
while socket.socket().connect_ex(("127.0.0.1", PORT)):
    time.sleep(0.1)
proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
Thread(target=proxy.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{proxy.server_address[1]}"
urlopen(Request(f"{URL}/lake", method="PUT"))

options = {
    "AWS_ENDPOINT_URL": URL,
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
    "AWS_REGION": "us-east-1",
}
rows = pa.table({"id": [1]})


def append(name, **properties):
    table = f"s3://lake/{name}"
    write_deltalake(table, rows, storage_options=options)
    Proxy.key, Proxy.answers = f"/{name}/_delta_log/{1:020}.json", []
    try:
        write_deltalake(table, rows, mode="append", storage_options=options, **properties)
        found = "no error"
    except CommitFailedError as error:
        found = type(error).__name__
    assert Proxy.answers == [200, 412]
    newest = DeltaTable(table, storage_options=options)
    return found, newest.version(), newest.to_pyarrow_table().num_rows


def actions(version):
    said = Proxy.bodies[f"/lake/plain/_delta_log/{version:020}.json"].splitlines()
    return [line for line in map(json.loads, said) if "commitInfo" not in line]


plain = append("plain")
equal = actions(1) == actions(2)
once = CommitProperties(app_transactions=[Transaction("app", 7)])
marked = append("marked", commit_properties=once)
said = "%s, newest version %d" % plain[:2]
print("without a transaction ", f"{said}, equal actions {equal}, rows {plain[2]}")
print("with one              ", "%s, newest version %d, rows %d" % marked)
assert plain == ("no error", 2, 2) and equal, "deltalake is no longer so"
assert marked == ("CommitFailedError", 1, 2), "deltalake is no longer so"
PY
"$work/venv/bin/python" run.py
