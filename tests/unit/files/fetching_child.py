"""A process that fetches, to be killed: arguments LAKE COPY_ID STREAMS, the lease on stdin."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from tests.unit.files.conftest import fetch_all

from sparktxlog.files.workspace import CopyWorkspace
from sparktxlog.model.copying import Lease

if __name__ == "__main__":
    lease = msgspec.json.decode(sys.stdin.buffer.read(), type=Lease)
    workspace = CopyWorkspace(Path(sys.argv[1]), sys.argv[2])
    fetch_all(workspace, lease, streams=int(sys.argv[3]))
