"""The files of a site by way of its node: for a feed on a machine that sees none of its disks.

The node gives them to who has its worker's token.  Bytes are compared here before they are put
anywhere, and a transfer that broke goes on where it stopped.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from sparktxlog.errors import (
    ApplyError,
    InvalidNameError,
    ManifestMismatchError,
    NotFoundError,
    PayloadStoreError,
    TransportError,
)
from sparktxlog.files.foreign_files import digest_of
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.store import Created
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.worker.lakes.payload_files import check_payload
from sparktxlog.worker.replica.source import HttpLogSource

#: Attempts in a row that bring no byte, and the pause between two, seconds.
_ATTEMPTS, _PAUSE_S = 3, 1.0
#: The node has no such file, or a damaged one.
_HAS_NOT = (InvalidNameError, ManifestMismatchError, NotFoundError, PayloadStoreError)


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """One kind of files of a site, as its node sends them; methods block.

    Args:
        where: As in `HttpLogSource.file`.
    """

    source: HttpLogSource
    where: str

    def put(self, file: StagedFile, into: PartOfStore, key: str) -> Created:
        """Put a file under a key that nobody else gives.

        One that is there with the digest does not travel again.  One that has the size and other
        bytes is OTHER, and nothing is asked of the node.

        Raises:
            ApplyError: The site does not have it as its manifest says (definite).
            UnauthorizedError: The node wants the token of its worker (definite).
            TransportError: The node does not answer; nothing was put.
            TxLogError: As `Store`.
        """
        there = into.find(key)
        if there is not None and there.size_bytes == file.size_bytes:
            with into.reader(key) as content:
                is_whole = digest_of(content, into.url_of(key)) == file.digest
            return Created.EQUAL if is_whole else Created.OTHER
        with tempfile.TemporaryDirectory(prefix="sparktxlog-feed-") as directory:
            copy = Path(directory) / "file"
            self._fetch(file, copy)
            check_payload(file, copy)
            return into.create(key, copy, alone=True)

    def _fetch(self, file: StagedFile, copy: Path) -> None:
        failures = 0
        with copy.open("xb") as out:
            while (begun := out.tell()) < file.size_bytes:
                try:
                    out.writelines(self.source.file(self.where, file, begun))
                except TransportError as error:
                    failures = 0 if out.tell() > begun else failures + 1
                    gives_up = not error.retryable or failures == _ATTEMPTS
                    if gives_up or self.source.closed.wait(_PAUSE_S):
                        raise
                except _HAS_NOT as error:
                    raise ApplyError(error.message, hint=error.hint, path=file.path) from error
