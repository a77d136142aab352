"""Reads the files of the queue table: old ones are seldom read, so damage there stays unseen.

The node appends to `log/synchronized_queue` and reads only its end; questions about history, views
and images read the rest.  A check reads whole files, every page with its checksum, the oldest
first, for a bounded time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sparktxlog.cli.doctor.findings import Finding, good, problem
from sparktxlog.delta.log_files import has_log
from sparktxlog.errors import ManifestMismatchError, StorageError

#: Seconds after which no further file is begun.
_PATIENCE_S = 10.0
#: Most damaged files that are named.
_NAMED = 20
_FIX = (
    "Put the file back from a copy of data-dir.  Other nodes have the same rows in their own "
    "log/synchronized_queue; the order and the tables are not affected."
)


def check_queue_files(
    log: Path, *, clock: Callable[[], float] = time.monotonic, patience_s: float = _PATIENCE_S
) -> Iterator[Finding]:
    """Yield each damaged or missing file of a node's queue table, or that those read are whole.

    Args:
        log: The node's `log/`; without a queue table nothing is yielded.
    """
    from sparktxlog.delta.live_files import live_files
    from sparktxlog.storage.log_tables.queue_table import QUEUE_NAME
    from sparktxlog.storage.parquet_files import inspect_parquet

    table = log / QUEUE_NAME
    if not has_log(table):
        return
    try:
        # Their names are in the order of their rows.
        sizes = sorted(live_files(table).sizes.items())
    except StorageError as error:
        yield problem("queue", f"{table} cannot be read: {error}", _FIX)
        return
    until, read, wrong = clock() + patience_s, 0, 0
    for name, size in sizes:
        if clock() >= until or wrong == _NAMED:
            break
        path = table / name
        why = _damage_of(path, size, lambda p: inspect_parquet(p, lambda _: None))
        read += 1
        if why:
            wrong += 1
            yield problem("queue", f"{path} is damaged: {why}", _FIX)
    if not wrong:
        yield good("queue", f"{read:,} of {len(sizes):,} files of the queue table are whole")


def _damage_of(path: Path, size: int, inspect: Callable[[Path], object]) -> str:
    """Return what is wrong with a file, empty = nothing."""
    try:
        found = path.stat().st_size
        if found != size:
            return f"it has {found:,} bytes, the table says {size:,}"
        inspect(path)
    except (ManifestMismatchError, StorageError) as error:
        return error.message
    except OSError as error:
        return str(error.strerror or error)
    return ""
