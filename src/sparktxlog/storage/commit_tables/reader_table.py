"""A plain Delta table with the rows of a commit table, for readers without a catalog.

It has the same files, as hard links, and a version for each of the table's.  Its protocol lacks
what those readers do not know and do not need: `catalogManaged`, and features that concern
checkpoints and vacuum: it has neither.  Deletion vectors are named from the first version that has
one.  Nobody writes into it; if somebody did, it is made again.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import structlog

from sparktxlog.delta.classic_checkpoints import write_classic
from sparktxlog.delta.commit_contents import LiveFiles
from sparktxlog.delta.commit_files import commit_bytes
from sparktxlog.delta.log_files import newest_commit
from sparktxlog.errors import CorruptLogError, StorageError
from sparktxlog.files.durability import (
    create_file,
    move_durably,
    read_whole,
    storing,
    write_durably,
)
from sparktxlog.files.foreign_files import Linked
from sparktxlog.model.tables.commit_table import COMMIT_LOG, commit_file_name
from sparktxlog.storage.commit_tables.twin import (
    FEATURES,
    link_files,
)

#: Says whose table a directory is; without it the directory is somebody else's.
_MARK = ".sparktxlog"
_VECTORS = "deletionVectors"
#: Versions between two checkpoints of a reader table.
_CHECKPOINT_EVERY = 100
_DROPPED = frozenset({"catalogManaged", "v2Checkpoint", "vacuumProtocolCheck"})
_PROPERTIES = ("delta.checkpointPolicy", "delta.enableDeletionVectors")


_log = structlog.get_logger("sparktxlog.readers")


class _TouchedError(Exception):
    """The directory has something that the table does not have."""


class ReaderTable:
    """The reader table of one commit table; its methods block, and run one at a time.

    Args:
        table: The commit table's directory.
        target: Where the reader table is.
    """

    def __init__(self, table: Path, target: Path) -> None:
        self._table = table
        self._target = target
        self._version = -1
        #: Of the newest version, as it is in the log of the reader table.
        self._protocol: dict[str, Any] = {}
        self._is_open = False

    def follow(self, version: int) -> None:
        """Bring the reader table to a version; all versions up to it are placed.

        Raises:
            CorruptLogError: The table's log does not begin with version 0, or lacks a file; or the
                directory is somebody else's.
            DiskFullError, StorageError: Some versions may be there; try again.
        """
        with storing(self._target):
            try:
                self._open()
                before = self._version
                self._add(self._target, version)
            except _TouchedError:
                before = -1
                self._make_again(version)
        if version // _CHECKPOINT_EVERY > max(before, 0) // _CHECKPOINT_EVERY:
            try:
                write_classic(self._target, cleans=False)
            except StorageError as error:
                # delta-rs does not know a feature: readers get all commit files.
                _log.warning("no checkpoint", path=str(self._target), reason=str(error)[:300])

    def _open(self) -> None:
        """Check what is there: at the first time all of it, then the newest version."""
        mark = self._target / _MARK
        if not self._target.exists():
            self._version, self._protocol = -1, {}
            (self._target / COMMIT_LOG).mkdir(parents=True)
            write_durably(mark, self._table.name.encode())
        elif not mark.is_file():
            raise CorruptLogError(
                f"{self._target} is no reader table of this node",
                hint="Move it away, or choose another reader-table-dir.",
                path=str(self._target),
            )
        elif read_whole(mark) != self._table.name.encode():
            raise _TouchedError  # of a table that had the name before
        if not self._is_open:
            self._version, self._protocol = -1, {}
            for number in range(newest_commit(self._target) + 1):
                self._check(number)
            self._is_open = True
        elif not self._has(self._version) or self._has(self._version + 1):
            raise _TouchedError

    def _has(self, number: int) -> bool:
        return number < 0 or (self._target / commit_file_name(number)).is_file()

    def _check(self, number: int) -> None:
        """Read a version that is there, which must be that of the table."""
        path = self._target / commit_file_name(number)
        raw = read_whole(path) if path.is_file() else b""
        if (self._table / commit_file_name(number)).exists():
            if self._rewritten(number) != raw:
                raise _TouchedError
        else:  # Delta cleaned the table's log up
            for line in raw.splitlines():
                self._protocol = json.loads(line).get("protocol", self._protocol)
        self._version = number

    def _add(self, target: Path, version: int) -> None:
        numbers = range(self._version + 1, version + 1)
        link_files(self._table, numbers, target, LiveFiles())
        for number in numbers:
            # What a power loss tears is found at the next start.
            place = target / commit_file_name(number)
            if create_file(place, self._rewritten(number), durable=False) is Linked.OTHER:
                raise _TouchedError
            self._version = number

    def _make_again(self, version: int) -> None:
        """Make the table again next to the touched one, and put it in its place."""
        fresh = self._target.with_name(f".{self._target.name}.new")
        old = self._target.with_name(f".{self._target.name}.old")
        for directory in (fresh, old):
            shutil.rmtree(directory, ignore_errors=True)
        (fresh / COMMIT_LOG).mkdir(parents=True)
        write_durably(fresh / _MARK, self._table.name.encode())
        self._version, self._protocol = -1, {}
        self._add(fresh, version)
        move_durably(self._target, old)
        move_durably(fresh, self._target)
        self._is_open = True
        shutil.rmtree(old, ignore_errors=True)

    def _rewritten(self, number: int) -> bytes:
        """Return a version for the log of the reader table, and take note of its protocol."""
        raw = commit_bytes(self._table, number)
        lines = raw.splitlines()
        protocol = self._protocol
        found = []
        for line in lines:
            if b'"protocol"' in line or b'"metaData"' in line:
                action = json.loads(line)
                if "protocol" in action:
                    protocol = action["protocol"]
                    continue
                if "metaData" in action:
                    settings = action["metaData"].get("configuration") or {}
                    for name in _PROPERTIES:
                        settings.pop(name, None)
                    line = json.dumps(action, separators=(",", ":")).encode()
            found.append(line)
        has = _VECTORS in self._protocol.get(FEATURES[0], ()) or b'"deletionVector"' in raw
        protocol = _reduced(protocol, has)
        if protocol != self._protocol:
            # The first line stays commitInfo.
            action = {"protocol": protocol}
            found.insert(1, json.dumps(action, separators=(",", ":")).encode())
            self._protocol = protocol
        return b"".join(line + b"\n" for line in found)


def _reduced(protocol: dict[str, Any], has_vectors: bool) -> dict[str, Any]:
    """Return a protocol for readers without a catalog."""
    kept = dict(protocol)
    for key in FEATURES:
        features = {*(protocol.get(key) or ())} - _DROPPED - {_VECTORS}
        kept[key] = sorted(features | ({_VECTORS} if has_vectors else set()))
    return kept


def remove_unknown(root: Path, known: set[Path]) -> list[Path]:
    """Remove reader tables of no table of the log; return them.

    Args:
        known: Where the tables are that stay.

    Raises:
        StorageError: Some may be left; try again.
    """
    gone = [mark.parent for mark in root.glob(f"*/*/{_MARK}") if mark.parent not in known]
    for directory in gone:
        with storing(directory):
            shutil.rmtree(directory)
    return gone
