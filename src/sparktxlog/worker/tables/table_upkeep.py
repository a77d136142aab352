"""Upkeep of tables, one after the other; what is done to one differs by its kind.

A second call does only what is due then.  A table that fails says so in its line, and the others
are maintained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from sparktxlog.errors import InvalidRequestError, NotPlacedError, TxLogError, first_lines
from sparktxlog.storage.commit_tables.table_sweep import RETENTION, retention_ms

#: Files below this are small; so many of them make a table worth compacting.
SMALL_BYTES = 32 << 20
MANY_FILES = 20
#: Seconds to wait for a worker that holds the replica.
WAIT_S = 30.0
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """What to do."""

    #: Only these tables; empty = all.
    tables: Sequence[str] = ()
    optimize: bool = True
    vacuum: bool = True
    dry_run: bool = False
    #: Small files from which a table is compacted.
    many_files: int = MANY_FILES
    #: Files that were removed from a table within so many hours stay: a restore point needs them.
    keep_hours: int = 0
    #: Seconds to wait for a worker that holds the replica.
    wait_s: float = WAIT_S


@dataclass(slots=True, kw_only=True)
class TableUpkeep:
    """What was done to one table, or would be."""

    table: str
    #: Live data files, and how many of them are small, or not clustered yet.
    files_before: int = 0
    files: int = 0
    small_files: int = 0
    optimized: bool = False
    seconds: float = 0.0
    #: What was skipped, and why; a later run may do it.
    skipped: str = ""
    #: The error.
    failed: str = ""
    #: Of a row table: bytes of the live data files, and of its directory with old versions and log.
    bytes_before: int = 0
    bytes: int = 0
    disk_before: int = 0
    disk: int = 0
    #: Of a row table: `full`, `lite`, or empty.
    vacuumed: str = ""
    #: Versions of a commit table, -1 = not known.
    version_before: int = -1
    version: int = -1
    #: How often a commit table was compacted until that was a version.
    attempts: int = 0
    #: The version of the checkpoint that was written of a commit table, -1 = none.
    checkpoint: int = -1
    #: Of a commit table: files that no version needs, and staged commits that were decided.
    vacuumed_files: int = 0
    vacuumed_bytes: int = 0
    staged_commits: int = 0

    def describe(self) -> str:
        """Return the table's line for people."""
        acts = ["compacted" if self.version < 0 else f"compacted as version {self.version}"]
        acts = acts if self.optimized else []
        acts += [f"checkpoint at version {self.checkpoint}"] if self.checkpoint >= 0 else []
        acts += [f"vacuumed ({self.vacuumed})"] if self.vacuumed else []
        text = (
            f"{self.table}: {', '.join(acts) or 'not compacted'}; files {self.files_before:,} to "
            f"{self.files:,}"
        )
        if self.disk_before:
            text += f", on disk {self.disk_before:,} to {self.disk:,} bytes"
        if self.vacuumed_files or self.staged_commits:
            text += f", {self.vacuumed_files:,} old files of {self.vacuumed_bytes:,} bytes"
            text += f" and {self.staged_commits:,} staged commits removed"
        text += f", {self.seconds:.1f} s"
        for label, reason in (("skipped", self.skipped), ("FAILED", self.failed)):
            text += f"; {label}: {reason}" if reason else ""
        return text


def maintain_each(
    kind: str,
    known: Collection[str],
    wanted: Upkeep,
    maintain: Callable[[TableUpkeep], None],
    tell: Callable[[str], None],
) -> list[TableUpkeep]:
    """Maintain the tables of one kind that are wanted; hold `one_at_a_time` of their directory.

    Args:
        kind: What they are called.
        known: All that there are.
        maintain: Maintains one, and notes what is done.
        tell: Called with a line after each table.

    Raises:
        InvalidRequestError: A table that is named is none of them (definite).
    """
    names = sorted(wanted.tables or known)
    if unknown := sorted({*names}.difference(known)):
        raise InvalidRequestError(
            f"there is no {kind} {unknown[0]!r} at this site",
            hint=f"Those that are here: {', '.join(sorted(known)) or 'none'}.",
            table=unknown[0],
        )
    done = []
    for name in names:
        found, began = TableUpkeep(table=name), monotonic()
        try:
            maintain(found)
        except (PySparkException, Py4JError) as error:
            found.failed = first_lines(error)[:400]
        except NotPlacedError as error:
            found.skipped = error.message
        except (TxLogError, OSError) as error:
            found.failed = str(error)[:400]
        found.seconds = round(monotonic() - began, 3)
        tell(found.describe())
        done.append(found)
    return done


def kept_ms(found: TableUpkeep, wanted: Upkeep, properties: Mapping[str, str]) -> int | None:
    """Return how long VACUUM keeps what was removed; None = not known: it is skipped."""
    own_ms = retention_ms(properties)
    if own_ms is None:
        value = properties[RETENTION]
        found.skipped = f"VACUUM, for {RETENTION} is {value!r}, expected like 'interval 7 days'"
        return None
    return max(own_ms, wanted.keep_hours * HOUR_MS)
