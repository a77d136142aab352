"""The log of a commit table that was given back, without what only a catalog's table needs.

Every commit table has deletion vectors, checkpoints of version 2, a check of VACUUM and in-commit
timestamps among its features, and many readers refuse the names alone.  A released table keeps a
feature that something in it uses, in any of its versions; its other ones go from all versions, so
older ones are as readable as the newest.  Commits get their in-commit timestamps as times of their
files, where Delta looks without that feature.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sparktxlog.codec.delta_catalog.table_states import REQUIRED_PROPERTIES, TABLE_ID
from sparktxlog.delta.checkpoints import Checkpoint, newest_of_twin
from sparktxlog.delta.classic_checkpoints import replace_by_classic
from sparktxlog.delta.commit_contents import read_commit_file
from sparktxlog.delta.commit_files import commit_bytes
from sparktxlog.delta.log_files import newest_commit
from sparktxlog.files.durability import (
    storing,
    sync_directory,
    sync_file,
    write_durably,
)
from sparktxlog.model.tables.commit_table import COMMIT_LOG, commit_file_name
from sparktxlog.storage.commit_tables.twin import (
    FEATURES,
    with_actions,
)

#: Makes commits say their times themselves.
IN_COMMIT_TIMES = "inCommitTimestamp"
_VECTORS, _V2 = "deletionVectors", "v2Checkpoint"
#: What every commit table has, whether it uses it or not.
_FORCED = frozenset({_VECTORS, _V2, IN_COMMIT_TIMES, "vacuumProtocolCheck"})
#: Features that version 2 of a writer's protocol stands for.
_OLDEST = frozenset({"appendOnly", "invariants"})
#: Feature → beginnings of the properties that go with it.
_PROPERTIES = {
    _VECTORS: ("delta.enableDeletionVectors",),
    _V2: ("delta.checkpointPolicy",),
    IN_COMMIT_TIMES: ("delta.enableInCommitTimestamps", "delta.inCommitTimestampEnablement"),
}
assert {*REQUIRED_PROPERTIES} == {names[0] for names in _PROPERTIES.values()}


def drop_unused_features(table: Path, kept: str = "") -> tuple[str, ...]:
    """Take the features that nothing in it uses from a plain twin's log.

    Args:
        table: A twin with all its versions, which nobody else uses.
        kept: A feature that stays, used or not.

    Returns:
        The features that the newest version has then, sorted.

    Raises:
        CorruptLogError: The log lacks a version.
        DiskFullError, StorageError: Some versions may have all features still.
    """
    newest = newest_commit(table)
    checkpoint = newest_of_twin(table, newest)
    first = 0 if checkpoint is None else checkpoint.version
    raws = {number: commit_bytes(table, number) for number in range(first, newest + 1)}
    dropped = _FORCED - {kept}
    if _has_vectors(raws, checkpoint):
        dropped -= {_VECTORS}
    before = b""
    if checkpoint is not None:
        before = checkpoint.read_top()
        replace_by_classic(table, checkpoint, lambda raw: _reduced(raw, dropped))
    with storing(table):
        for number, raw in raws.items():
            # A new file: the old one may be that of the commit table, too.
            path = table / commit_file_name(number)
            write_durably(path, _reduced(raw, dropped))
            at_ns = read_commit_file(raw).timestamp * 1_000_000
            os.utime(path, ns=(at_ns, at_ns))
            sync_file(path)
        sync_directory(table / COMMIT_LOG)
    return _features(_reduced(b"".join([before, *raws.values()]), dropped))


def _features(log: bytes) -> tuple[str, ...]:
    """Return the features that the last protocol in the lines of a log names, sorted."""
    actions = (json.loads(line) for line in log.splitlines() if b'"protocol"' in line)
    (*_, last) = (action["protocol"] for action in actions if "protocol" in action)
    return tuple(sorted({name for key in FEATURES for name in last.get(key) or ()}))


def _has_vectors(raws: dict[int, bytes], checkpoint: Checkpoint | None) -> bool:
    if any(b'"deletionVector"' in raw for raw in raws.values()):
        return True
    return checkpoint is not None and any(add.get("deletionVector") for add in checkpoint.adds())


def _reduced(raw: bytes, dropped: frozenset[str]) -> bytes:
    """Return the lines of a log without some features and their properties."""
    return with_actions(
        raw,
        {
            "protocol": lambda given: _protocol(given, dropped),
            "metaData": lambda given: _metadata(given, dropped),
        },
    )


def _protocol(given: dict[str, Any], dropped: frozenset[str]) -> dict[str, Any]:
    """Return the lowest protocol that has the other features."""
    readers, writers = (sorted({*(given.get(key) or ())} - dropped) for key in FEATURES)
    if not readers and {*writers} <= _OLDEST:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    found: dict[str, Any] = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7}
    return found | ({FEATURES[0]: readers} if readers else {}) | {FEATURES[1]: writers}


def _metadata(given: dict[str, Any], dropped: frozenset[str]) -> dict[str, Any]:
    gone = (TABLE_ID, *(name for feature in dropped for name in _PROPERTIES.get(feature, ())))
    settings = given.get("configuration") or {}
    kept = {key: value for key, value in settings.items() if not key.startswith(gone)}
    return given | {"configuration": kept}
