#!/usr/bin/env bash
# obstore 0.12.1: put(mode="create") says AlreadyExistsError for the object that it has just created,
# if the answer to its first request is lost.
#
# The library sends the PUT again, with `If-None-Match: *` as before; the store has the object by
# then, and answers 412.  So the error does not say that another writer was first: a caller must
# compare what is there with what it wrote.  mode="overwrite" has no such case.
#
# Output seen (Python 3.11, Linux; an S3 server on loopback, and a proxy that drops one answer):
#   answers of the store [200, 412]
#   create               AlreadyExistsError, the object is b'mine'
#   overwrite            no error, the object is b'mine'
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    'moto[server]==5.2.5' obstore==0.12.1
cd "$work"
cat >run.py <<'PY'
import atexit
import http.client
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import Request, urlopen

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    PORT = free.getsockname()[1]


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on; the answer to the first PUT of one key is lost on its way back."""

    protocol_version = "HTTP/1.1"
    key = "-"
    answers = []

    def forward(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
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

store = S3Store(
    "lake",
    endpoint=URL,
    client_options={"allow_http": True},
    access_key_id="any",
    secret_access_key="any",
    region="us-east-1",
)


def put(key, mode):
    Proxy.key, Proxy.answers = f"/{key}", []
    try:
        obstore.put(store, key, b"mine", mode=mode)
    except AlreadyExistsError as error:
        return type(error).__name__
    return "no error"


created, answers = put("one", "create"), Proxy.answers
written = put("two", "overwrite")
there = [bytes(obstore.get(store, key).bytes()) for key in ("one", "two")]
print("answers of the store", answers)
print("create              ", f"{created}, the object is {there[0]}")
print("overwrite           ", f"{written}, the object is {there[1]}")
assert answers == [200, 412] and there == [b"mine", b"mine"]
assert (created, written) == ("AlreadyExistsError", "no error"), "obstore is no longer so"
PY
"$work/venv/bin/python" run.py
