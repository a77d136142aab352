"""Uploads staged files to a node, from executors that do not see its payload store.

A file is sent in parts.  After each one the node says how many bytes it has, so after a failure of
the link, or of the node, the upload goes on there.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from urllib.parse import quote

import msgspec

from sparktxlog.errors import TxLogError
from sparktxlog.http.link import GrowingPause, Http
from sparktxlog.model.transactions.operation import StagedFile

#: Bytes of a part: the most that a node takes.
_PART_BYTES = 4 << 20
#: Seconds for one part; it may wait for its turn at the node.
_PART_S = 60.0
#: Seconds without progress after which an upload is given up: a node that restarts is waited for.
_PATIENCE_S = 60.0
#: Shortest and longest pause after a failure, seconds.
_PAUSES_S = 0.05, 2.0


class _Received(msgspec.Struct):
    received: int


class UploadLink(Http):
    """Kept connections to one node; safe to share between threads."""

    def upload(
        self, path: Path, file: StagedFile, table: str, *, patience_s: float = _PATIENCE_S
    ) -> None:
        """Send a file; afterwards it is in the node's payload store.

        Args:
            path: The file here.
            file: Its name in the payload store, size, rows and digest.
            table: The table that its rows are for.
            patience_s: Seconds without progress after which it is given up.

        Raises:
            TransportError: The node did not answer for so long (nothing is committed).
            BusyError, DiskFullError: It took nothing for so long (definite).
            TxLogError: The node's refusal, in its class (definite).
        """
        query = {
            "table": table,
            "size": file.size_bytes,
            "rows": file.rows,
            "digest": file.digest,
        }
        target, pause = f"/v1/staged/{quote(file.path)}", GrowingPause(*_PAUSES_S)
        # True: what the node has is not known, so an empty part asks.
        held, is_asking = 0, False
        until = time.monotonic() + patience_s
        with path.open("rb") as source, mmap.mmap(source.fileno(), 0, prot=mmap.PROT_READ) as data:
            while held < file.size_bytes:
                size = 0 if is_asking else _PART_BYTES
                try:
                    with memoryview(data) as whole, whole[held : held + size] as part:
                        answer = self.request(
                            "PUT",
                            target,
                            body=part,
                            content_type="application/octet-stream",
                            query=query | {"offset": held},
                            timeout_s=_PART_S,
                        )
                    found: _Received = self._decoded(answer, _Received)
                except TxLogError as error:
                    if not error.retryable or time.monotonic() > until:
                        raise
                    is_asking = True
                    pause.wait()
                    continue
                if found.received > held:
                    until = time.monotonic() + patience_s
                    pause.begin_again()
                held, is_asking = found.received, False
