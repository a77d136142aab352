"""The calendar of the dates in a Parquet file.

Spark 2, and any Spark whose rebase mode in write is LEGACY, writes days before 15 October 1582 and
moments before 1900 in the calendar of their time (Julian, and local mean times).  Their footers say
so, to Spark only: it shifts such values when it reads them.  Arrow, and every reader that is built
on it, does not: it sees other days, up to ten of them.  So files of the log never hold such values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from sparktxlog.codec.parquet_columns import leaves
from sparktxlog.errors import InvalidRowsError
from sparktxlog.lazy_arrow import pa, pc, pq

_VERSION = "org.apache.spark.version"
#: In the footers of our own files: whatever a session's rebase mode is, Spark reads them in
#: today's calendar.  Without a version, it does what the mode says.
TODAYS_CALENDAR = {_VERSION: "4.0.0"}
#: How a session reads files without a version: its settings of dates and of INT96 timestamps.
READ_MODES = (
    "spark.sql.parquet.datetimeRebaseModeInRead",
    "spark.sql.parquet.int96RebaseModeInRead",
)
#: As Spark: which footers are old, of dates and of INT96 timestamps.
_OLD_BEFORE = (b"3.0.0", b"3.1.0")
_OLD_KEYS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
#: From here on all calendars, and all time zones' offsets, are those of today.
_FIRST_DAY = (date(1582, 10, 15) - date(1970, 1, 1)).days
_FIRST_SECOND = -2_208_988_800  # 1900-01-01T00:00:00Z
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
#: Ways out: of a file that is staged, and of one that is in a table.
WRITE_AGAIN = (
    "Write the file again with spark.sql.parquet.datetimeRebaseModeInWrite and "
    "int96RebaseModeInWrite = CORRECTED, or commit its rows as a DataFrame."
)
SPARK_READS_IT = (
    "Read the table by log.table(name), and write its rows again once: log.overwrite(name, "
    "log.table(name)).  A stream begins after that."
)


def open_parquet(source: Any, **options: Any) -> pq.ParquetFile:
    """Open a file of the log; INT96 timestamps, which Arrow would change, come in microseconds."""
    return pq.ParquetFile(source, coerce_int96_timestamp_unit="us", **options)


def batches_of(
    file: pq.ParquetFile, path: str | Path, hint: str = WRITE_AGAIN, **options: Any
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file; Arrow and Spark see the same days in them; options of Arrow.

    Raises:
        InvalidRowsError: It has others (definite).
    """
    calendar = FileCalendar(file)
    for batch in file.iter_batches(**options):
        if name := calendar.old_column(batch):
            raise InvalidRowsError(
                f"{Path(path).name!r}: column {name!r} has dates before 1582-10-15 or timestamps "
                "before 1900 in the old calendar, as its footer says: readers without Spark would "
                "see other days",
                hint=hint,
                path=str(path),
                column=name,
            )
        yield batch


class FileCalendar:
    """Which columns of a file Spark may shift when it reads them.

    Args:
        file: Opened by `open_parquet`.
        modes: The values of `READ_MODES`.
    """

    def __init__(
        self, file: pq.ParquetFile, modes: Sequence[str] = ("CORRECTED", "CORRECTED")
    ) -> None:
        said = file.metadata.metadata or {}
        version = said.get(_VERSION.encode())
        self._days, self._int96 = (
            mode.upper() == "LEGACY" if version is None else version < least or key in said
            for least, key, mode in zip(_OLD_BEFORE, _OLD_KEYS, modes, strict=True)
        )
        leaves = [file.schema.column(number) for number in range(len(file.schema))]
        self._with_int96 = {
            leaf.path.partition(".")[0] for leaf in leaves if leaf.physical_type == "INT96"
        }
        names = file.schema_arrow.names if self._days or self._int96 else []
        #: Columns that may have such values.
        self.columns = [name for name in names if self._may_shift(file.schema_arrow.field(name))]

    def old_column(self, batch: pa.RecordBatch) -> str:
        """Return a column with a value that Spark shifts, empty = there is none."""
        old = (name for name in self.columns if self._has_old(batch.column(name), name))
        return next(old, "")

    def _may_shift(self, field: pa.Field) -> bool:
        return any(self._first(kind, field.name) is not None for _, kind in leaves(field))

    def _has_old(self, column: pa.Array, name: str) -> bool:
        for leaf in _leaves(column):
            first = self._first(leaf.type, name)
            if first is None:
                continue
            whole = pa.int32() if pa.types.is_date32(leaf.type) else pa.int64()
            least = pc.min(leaf.view(whole)).as_py()
            if least is not None and least < first:
                return True
        return False

    def _first(self, kind: pa.DataType, name: str) -> int | None:
        """Return the value from which on a type has nothing to shift; None = it never has."""
        if pa.types.is_date32(kind):
            return _FIRST_DAY if self._days else None
        if not pa.types.is_timestamp(kind):
            return None
        # Arrow reads INT96 as a local time, and Spark as an instant.
        is_int96 = kind.tz is None and name.partition(".")[0] in self._with_int96
        is_old = self._int96 if is_int96 else self._days and kind.tz is not None
        return _FIRST_SECOND * _PER_SECOND[kind.unit] if is_old else None


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    """Yield the plain arrays that a column consists of."""
    kind = column.type
    if pa.types.is_struct(kind):
        parts = column.flatten()
    elif pa.types.is_map(kind):
        parts = [column.keys, column.items]
    elif pa.types.is_nested(kind):
        parts = [column.flatten()]
    else:
        yield column
        return
    for part in parts:
        yield from _leaves(part)
