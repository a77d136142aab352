"""A process that fetches, to be killed: arguments LAKE COPY_ID STREAMS, the grant on stdin."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from tests.unit.worker.copy.fetch.conftest import tasks_of

from sparktxlog.model.copying import Grant
from sparktxlog.worker.copy.fetch.fetch import fetch_files
from sparktxlog.worker.copy.fetch.workspace import CopyWorkspace

if __name__ == "__main__":
    grant = msgspec.json.decode(sys.stdin.buffer.read(), type=Grant)
    workspace = CopyWorkspace(Path(sys.argv[1]), sys.argv[2])
    fetch_files(workspace, [grant], tasks_of(grant), streams=int(sys.argv[3]))
