"""Makes the commits of each step durable, and undoes those that a power cut damaged.

Neither Spark nor delta-rs calls fsync.  So before the next step the worker syncs a step's commit,
the files that it adds and its checkpoints, and at the end of the batch its state.  Versions after
the recorded one are *unsettled*: after a crash any of them may be torn.  If one is, all of them are
removed, and the batch is done again from the recorded version.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

from sparktxlog.delta.checkpoints import drop_torn, files_to_sync, forget_last, last_checkpoint
from sparktxlog.delta.commit_files import lowest_torn, read_actions
from sparktxlog.delta.log_files import commit_path, log_of
from sparktxlog.files.durability import (
    drop_uncreated,
    rewrite_file,
    sync_directory,
    sync_file,
    sync_parents,
)
from sparktxlog.worker.apply.batches import Batch
from sparktxlog.worker.apply.tables import check_expected, read_commit

_logger = logging.getLogger(__name__)

#: A file of the log, or Hadoop's checksum of one; of a compacted range the last version counts.
_NUMBERED = re.compile(r"\.?(?:\d{20}\.)?(\d{20})\.")


def settle(table: Path, first: int, last: int, *, found: bool = False) -> None:
    """Make commits `first … last` of a table durable: their files, and checkpoints of them.

    Args:
        found: They were found after a failure.  If an fsync failed, the system treats unwritten
            pages as written, so files that the worker wrote are written again in their place.

    Raises:
        OSError: A file is missing, or the disk failed.
    """
    files: list[Path] = []
    for version in range(first, last + 1):
        commit = read_commit(table, version)
        written = [commit_path(table, version), *(table / name for name in commit.added)]
        there = [path for path in written if path.exists()]
        files += there
        if found and commit.own is not None:
            for path in there:
                # The node made linked files durable when it accepted them.
                if path.stat().st_nlink == 1:
                    rewrite_file(path)
    files += files_to_sync(table, first, last)
    for path in files:
        sync_file(path)
        checksum = _checksum(path)
        if checksum.exists():
            sync_file(checksum)
    sync_parents([*files, commit_path(table, last)], table)


def _checksum(path: Path) -> Path:
    """Return where Hadoop's local file system keeps the checksum of a file."""
    return path.with_name(f".{path.name}.crc")


def undo_torn(table: Path, recorded: int, log_id: str, batch: Batch | None, name: str) -> list[int]:
    """Remove all versions after the recorded one if a power cut tore one; return them.

    If none is torn they stay; torn checkpoints and checksums, which are not needed, are removed.
    So is what killed workers left of commits without a name.

    Args:
        batch: The batch under way, whose commits are expected; None = none are.

    Raises:
        DivergedError: Another writer made a whole one: nothing is removed (definite).
    """
    log = log_of(table)
    drop_uncreated(log)
    found = sorted(_unsettled(log, recorded), reverse=True) if log.is_dir() else []
    if not found:
        return []
    commits = sorted(number for number, path in found if path == commit_path(table, number))
    if commits == list(range(recorded + 1, recorded + 1 + len(commits))) and (
        lowest_torn(table, commits) is None
    ):
        drop_torn(table, recorded)
        for number, path in found:
            if path.name.startswith("."):
                path.unlink(missing_ok=True)
            if number in commits and path == commit_path(table, number):
                for added in read_commit(table, number).added:
                    _checksum(table / added).unlink(missing_ok=True)
        return []
    for number in commits:
        if read_actions(table, number) is not None:
            check_expected(read_commit(table, number), batch, log_id, name)
    _logger.warning("table %s: versions %s are torn, and done again", name, commits)
    # The newest first: after a kill in between, the rest is found in the same way.
    for _, path in found:
        path.unlink(missing_ok=True)
    if not 0 <= last_checkpoint(table) <= recorded:
        forget_last(table)
    sync_directory(log)
    return commits


def _unsettled(log: Path, recorded: int) -> Iterator[tuple[int, Path]]:
    for path in log.iterdir():
        match = _NUMBERED.match(path.name)
        if match and int(match[1]) > recorded:
            yield int(match[1]), path
