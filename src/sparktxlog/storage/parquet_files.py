"""Parquet files of the payload store: those of submitters, and those made of inline rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from sparktxlog.codec.arrow import schema_of_file
from sparktxlog.codec.calendars import TODAYS_CALENDAR, batches_of, open_parquet
from sparktxlog.codec.parquet_columns import exact_columns
from sparktxlog.codec.row_statistics import RowStatistics, repeating_columns
from sparktxlog.errors import ManifestMismatchError, TxLogError
from sparktxlog.files.durability import storage_error
from sparktxlog.files.foreign_files import goes_on

#: Rows that are decoded at once, and bytes that are read at once of each column.
_BATCH_ROWS = 65_536
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFacts:
    """Facts of a Parquet file, read from its footer and its pages."""

    #: Decoded rows, which equal the footer's number.
    rows: int
    size_bytes: int
    #: Schema as Arrow reads it.
    schema: pa.Schema
    #: NULLs of each column, counted.
    nulls: dict[str, int]
    #: Delta's statistics JSON.
    stats: str


def inspect_parquet(
    path: str | Path,
    check: Callable[[pa.Schema], None],
    check_values: Callable[[pa.RecordBatch, int], None] = lambda _, before: None,
) -> ParquetFacts:
    """Read an untrusted file: its footer, then every page.

    Memory is that of a batch, not of the file.  Only the footer's schema and number of rows are
    used, and checked: reading the statistics of a damaged footer crashes the process, and wrong
    bounds would lose rows.

    Args:
        path: The file.
        check: Called with the schema before a page is read; raises what does not fit.
        check_values: Called with rows, and the number of those before; raises what does not fit.

    Raises:
        ManifestMismatchError: It is no Parquet file, a page is damaged, or the footer says another
            number of rows (definite).
        InvalidRowsError: It has days of the old calendar (definite).
        StorageError: The disk failed.
    """
    with _reading(path):
        with open_parquet(path, buffer_size=_READ_BYTES, page_checksum_verification=True) as file:
            metadata, schema = file.metadata, schema_of_file(file)
            check(schema)
            found = RowStatistics(schema)
            for batch in batches_of(file, path, batch_size=_BATCH_ROWS, use_threads=False):
                batch.validate(full=True)
                check_values(batch, found.rows)
                found.take(batch)
                goes_on(path)
        if found.rows != metadata.num_rows:
            raise ManifestMismatchError(
                f"{Path(path).name!r} holds {found.rows:,} rows, its footer says "
                f"{metadata.num_rows:,}",
                path=str(path),
                rows=found.rows,
            )
        return ParquetFacts(
            rows=found.rows,
            size_bytes=Path(path).stat().st_size,
            schema=schema,
            nulls=found.nulls,
            stats=found.to_json(),
        )


def count_rows(path: str | Path, opened: BinaryIO | None = None) -> int:
    """Return the number of rows in the footer; errors as `inspect_parquet`.

    Args:
        opened: The file, if it is open.
    """
    with _reading(path):
        return int(pq.read_metadata(path if opened is None else opened).num_rows)


@contextmanager
def _reading(path: str | Path) -> Iterator[None]:
    """Convert errors of reading an untrusted file: the file is wrong, or the disk fails."""
    try:
        yield
    except TxLogError:
        raise
    except Exception as error:
        # Damaged bytes cause any kind of error; only system errors have numbers.
        if isinstance(error, OSError) and error.errno is not None:
            raise storage_error(error, path) from error
        raise ManifestMismatchError(
            f"{Path(path).name!r} cannot be read as Parquet: {str(error)[:500]}",
            hint="Write the file again, and submit it under a new transaction id.",
            path=str(path),
        ) from error


def write_parquet(rows: pa.Table) -> pa.Buffer:
    """Return rows as one Parquet file."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        rows.schema,
        version="2.6",
        compression="zstd",
        compression_level=1,
        store_schema=False,
        **exact_columns(rows.schema, repeating_columns(rows)),
    ) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(TODAYS_CALENDAR)
    return sink.getvalue()
