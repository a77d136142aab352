"""Which files make one version of a table."""

from __future__ import annotations

from sparktxlog.delta.log_files import log_paths, missing_commit, whole_checkpoints
from sparktxlog.model.tables.commit_table import COMMIT_LOG


def _commit(version: int) -> str:
    return f"{COMMIT_LOG}{version:020}.json"


def _checkpoint(version: int, rest: str = ".parquet") -> str:
    return f"{COMMIT_LOG}{version:020}.checkpoint{rest}"


PARTS = [_checkpoint(4, f".{part:010}.{2:010}.parquet") for part in (1, 2)]
COMPACTED = f"{COMMIT_LOG}{0:020}.{3:020}.compacted.json"
CHECKSUM = f"{COMMIT_LOG}{4:020}.crc"
SIDECAR = f"{COMMIT_LOG}_sidecars/1.parquet"
LOG_FILES = [
    *(_commit(version) for version in range(7)),
    _checkpoint(2),
    *PARTS,
    COMPACTED,
    CHECKSUM,
    SIDECAR,
]
OTHERS = [
    "a.parquet",
    f"{COMMIT_LOG}_last_checkpoint",
    f"{COMMIT_LOG}_sidecars/.2.parquet",
    f"{COMMIT_LOG}.x.tmp",
]


def test_a_reader_needs_the_newest_whole_checkpoint_and_what_follows() -> None:
    wanted = {_commit(4), _commit(5), *PARTS, CHECKSUM, SIDECAR}
    assert set(log_paths(LOG_FILES + OTHERS, 5, whole=False)) == wanted


def test_a_table_that_takes_over_a_log_needs_all_of_it() -> None:
    assert log_paths(LOG_FILES + OTHERS, 6) == LOG_FILES
    gone = {_commit(5), _commit(6)}
    assert log_paths(LOG_FILES + OTHERS, 4) == [path for path in LOG_FILES if path not in gone]


def test_a_checkpoint_without_all_of_its_parts_does_not_count() -> None:
    paths = [path for path in LOG_FILES if path != PARTS[1]]
    assert whole_checkpoints(paths, 6) == [(2, (_checkpoint(2),))]
    assert whole_checkpoints(LOG_FILES, 6)[-1] == (4, tuple(PARTS))
    assert whole_checkpoints(paths, 1) == []
    assert _commit(2) in log_paths(paths, 5, whole=False)


def test_a_log_with_a_gap() -> None:
    assert missing_commit(LOG_FILES, 6) is None
    assert missing_commit(LOG_FILES, 8) == 7
    # What a checkpoint covers may be gone.
    assert missing_commit([path for path in LOG_FILES if path != _commit(3)], 6) is None
    assert missing_commit([path for path in LOG_FILES if path != _commit(3)], 3) == 3
