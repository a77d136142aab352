#!/usr/bin/env bash
# s3fs 2026.9.0: open(path, "xb") empties an object that is there, if nothing is written before the file is closed.
#
# Versions: s3fs 2026.9.0 with fsspec 2026.9.0, against moto 5.2.5 as the server of S3.
#
# "x" creates a file, or fails if there is one.  s3fs sends `If-None-Match: *` for it, and so FileExistsError comes where
# the object exists: with bytes, with pipe_file(…, mode="create"), and there also without bytes.  A file that is closed
# without a byte is put by touch() instead, without the condition: no error comes, and the bytes of the object are gone.
# So each of several that make an empty lock or marker file is the first.  Python's own open() refuses, and so does
# fsspec's file system of a directory, with bytes and without.
#
# Output seen (Python 3.11, Linux):
#   a directory, open "xb" of b'new':  FileExistsError, there is b'old'
#   a directory, open "xb" of b'':     FileExistsError, there is b'old'
#   S3, open "xb" of b'new':           FileExistsError, there is b'old'
#   S3, open "xb" of b'':              no error, there is b''
#   S3, pipe_file "create" of b'':     FileExistsError, there is b'old'
#   S3, 3 that open "xb" of b'':       3 succeed
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    s3fs==2026.9.0 fsspec==2026.9.0 'moto[server,s3]==5.2.5'
cd "$work"
cat >run.py <<'PY'
import os

os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}

import fsspec
import s3fs
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
bucket = s3fs.S3FileSystem(endpoint_url=f"http://{host}:{port}")
bucket.mkdir("lake")
directory = fsspec.filesystem("file")
seen = []


def opened(files, path, data):
    with files.open(path, "xb") as file:
        if data:
            file.write(data)


def created(files, path, data):
    files.pipe_file(path, data, mode="create")


def look(shown, files, path, write, data):
    files.pipe_file(path, b"old")
    try:
        write(files, path, data)
        said = "no error"
    except FileExistsError:
        said = "FileExistsError"
    seen.append((said, files.cat_file(path)))
    print(f"{f'{shown} of {data}:':34} {said}, there is {seen[-1][1]}")


here = os.path.abspath("object")
look('a directory, open "xb"', directory, here, opened, b"new")
look('a directory, open "xb"', directory, here, opened, b"")
look('S3, open "xb"', bucket, "lake/object", opened, b"new")
look('S3, open "xb"', bucket, "lake/object", opened, b"")
look('S3, pipe_file "create"', bucket, "lake/object", created, b"")
first = 0
for _ in range(3):
    opened(bucket, "lake/lock", b"")
    first += 1
print(f"S3, 3 that open \"xb\" of b'':       {first} succeed")
server.stop()
refused = ("FileExistsError", b"old")
assert first == 3
assert seen == [refused, refused, refused, ("no error", b""), refused], "it is no longer so"
PY
"$work/venv/bin/python" run.py 2>server.log || { tail -5 server.log >&2; exit 1; }
