"""Where the Delta table of a dropped table goes, in the lake of a replica (protocol P33).

    lake/orders                        the table, until the replica has applied its drop
    lake/_sparktxlog/dropped/orders-57  the same directory after that; dropped at position 57

One rename leads from the one to the other, so files are all there or all there.  A table that is
created again under the name gets a directory of its own.  The modification time of the directory
says when it was dropped here.  Nothing removes it but an operator (`sparktxlog maintain`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sparktxlog.storage.durability import free_name, sync_directory

_DROPPED = Path("_sparktxlog", "dropped")


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedTable:
    """The directory of a table that was dropped."""

    path: Path
    table: str
    #: Where the log drops it.
    position: int
    #: Wall clock, microseconds since 1970 UTC.
    dropped_at: int


def dropped_path(lake: Path, table: str, position: int) -> Path:
    """Return where the directory of a table goes that is dropped at a position."""
    return lake / _DROPPED / f"{table}-{position}"


def put_aside(lake: Path, table: str, position: int) -> Path:
    """Move the directory of a table that is dropped at a position, durably; return its new path.

    A replica that went back, by a copy or an image, drops a table once more: what the first drop
    left gets another name.

    Raises:
        OSError: Nothing was moved, or it is not known to be durable; repeat it.
    """
    source, target = lake / table, dropped_path(lake, table, position)
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(target):
        target.rename(free_name(target.with_name(f"{target.name}.earlier")))
    os.utime(source)
    source.rename(target)
    for directory in (target.parent, target.parent.parent, lake):
        sync_directory(directory)
    return target


def dropped_tables(lake: Path) -> Iterator[DroppedTable]:
    """Yield the directories of dropped tables, by name; others there are left out."""
    root = lake / _DROPPED
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        # A name may have a dot, as `bronze.orders`; the rest may begin with one, as `.earlier`.
        table, _, rest = path.name.partition("-")
        position = rest.partition(".")[0]
        if table and position.isdecimal():
            yield DroppedTable(
                path=path,
                table=table,
                position=int(position),
                dropped_at=path.lstat().st_mtime_ns // 1000,
            )
