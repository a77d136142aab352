"""The live files of a version, with their deletion vectors."""

from __future__ import annotations

import structlog

from sparktxlog.delta.commit_contents import LiveFiles, NeededFile
from sparktxlog.delta.file_paths import may_be_data
from sparktxlog.delta.log_files import TablePlace, has_log, store_of
from sparktxlog.delta.log_segments import LogSegment
from sparktxlog.errors import StorageError

_log = structlog.get_logger("sparktxlog.delta")


def live_files(table: TablePlace, version: int | None = None) -> LiveFiles:
    """Return the files that readers of a version need.

    Args:
        version: None = the newest.

    Raises:
        CorruptLogError: The directory has no log, or lacks the version, or it cannot be read.
        StorageError: The table needs features that are not known here; or as `Store`.
    """
    segment, live = LogSegment.of(table, version), LiveFiles()
    with segment.reading():
        if segment.checkpoint is not None:
            segment.check_known(segment.checkpoint.protocol())
            live.begin(segment.checkpoint.adds())
        for content in segment.commits():
            segment.check_known(live.read(content))
    return live


def needed_files(table: TablePlace, version: int) -> dict[str, NeededFile]:
    """Return the files that readers of a version need, by path; never less than these.

    If the log cannot be read, all files count that may be data.

    Raises:
        StorageError: There is no table, or as `Store`.
    """
    store = store_of(table)
    try:
        return live_files(store, version).needed
    except StorageError as error:
        if not has_log(table):
            raise
        _log.warning("files by directory", path=store.url, version=version, reason=str(error))
    return {
        found.key: NeededFile(path=found.key, size=found.size_bytes)
        for found in store.list()
        if may_be_data(found.key)
    }
