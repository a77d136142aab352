"""Puts an existing Delta table under the log, as a row table whose rows the workers apply.

One transaction creates the table and appends its rows.  Its data files get a second name in the
payload store, and the site's worker gives them a third one in its replica, so nothing is copied
here; those of a bucket are copied once.  Other sites fetch them as all staged files.  A VACUUM of
the old table takes names only.

The transaction's id follows from the Delta table, its version and the name, so an adoption that
was killed and is repeated is done once.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F

from sparktxlog.api.adopting.source_table import SourceTable, SplitFiles
from sparktxlog.api.schema import HOW_OFTEN, conform, repeated_keys, rows_by_key
from sparktxlog.api.site_session import SiteSession
from sparktxlog.api.writing.transaction import SparkTransaction
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.codec.submits.validation import check_definition, required_columns
from sparktxlog.errors import (
    CommitRejectedError,
    CommitStateUnknownError,
    InvalidRowsError,
)
from sparktxlog.model.ids import table_name
from sparktxlog.model.signature import EMPTY_SIGNATURE, TableSignature
from sparktxlog.model.tables.table_kind import TableKind
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import Level, Receipt
from sparktxlog.worker.apply.observing import counted
from sparktxlog.worker.apply.signatures import (
    hashed,
    observed,
    row_hash,
    signature_from,
    signature_of,
    sums_of,
)
from sparktxlog.worker.tables.adopted_files import FileWay
from sparktxlog.worker.tables.table_adoption import AS_IT_WAS, Adoption, check_unchanged, name_taken

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sparktxlog.model.tables.table import TableDefinition

#: Name space of the ids of transactions that bring a version of a Delta table into the log.
_IDS = uuid.UUID("6f0d3f9e-6a39-4a0e-9a53-4d2f0b6b7c11")


def transaction_id_of(table_id: str, version: int, name: str, part: str) -> str:
    """Return the id of a transaction that brings a version of a Delta table into a table.

    Args:
        part: `adopt-<n>`, or which of a version's transactions it is.
    """
    return str(uuid.uuid5(_IDS, f"{table_id}/{version}/{name}/{part}"))


def adopt_rows(
    site: SiteSession,
    name: str,
    source: SourceTable,
    *,
    keys: Sequence[str] = (),
    dry_run: bool = False,
    may_move: bool = False,
    timeout_s: float,
    tell: Callable[[str], None] = lambda _: None,
) -> Adoption:
    """Make a row table of a Delta table at the version that was read.

    Args:
        name: Of the new table.
        source: With its files.
        keys: Its key columns: no two rows have the same values in them, and none is NULL.
        dry_run: Only check, and say what would be done.
        may_move: The old table may have newer versions; else that is refused.
        timeout_s: Seconds until it is ordered.
        tell: Takes a line for people at each step.

    Raises:
        InvalidRequestError: Something is in the way; the message names all of it (definite).
        InvalidRowsError: A key is there twice, or is NULL (definite).
        NameTakenError: There is a table of that name (definite).
        CopyConflictError: Somebody wrote to the table meanwhile (definite).
        CommitStateUnknownError, TransportError: Repeat it: it is done once.
    """
    name = table_name(name)
    source.check_possible()
    draft = SparkTransaction(site)
    create_like(draft, name, source, keys)
    files = source.files()
    definition = draft.definition(name)
    check_definition(definition)
    split = source.split(site.spark, files, definition)
    planned = _planned(site, source, definition, split)
    rows = source.rows(site.spark, files) if files else None
    transaction_id, receipt = _former(site, name, source, timeout_s)
    if receipt is not None:
        return _done(_counted(planned, _count(rows, definition)), receipt, repeated=True)
    if site.existing(name) is not None:
        raise name_taken(name)
    tell(
        f"version {source.version}: {planned.files:,} files of {planned.size_bytes:,} "
        f"bytes as they are, {planned.rewritten_files:,} to be written again"
    )
    if dry_run:
        return _counted(planned, _count(rows, definition))
    t = SparkTransaction(site, transaction_id=transaction_id, first_wins=True, timeout=timeout_s)
    try:
        create_like(t, name, source, keys)
        total = append_files(t, name, source, split, lambda: _count(rows, definition), site)
        tell(f"{total.rows:,} rows are counted; the files travel to the other sites")
        if not may_move:
            check_unchanged(source.url, source.version, source.newest())
    except BaseException:
        t.discard()
        raise
    commit_in(t, timeout_s)
    return _done(_counted(planned, total), t.receipt)


def create_like(t: SparkTransaction, name: str, source: SourceTable, keys: Sequence[str]) -> None:
    """Create a table with the columns, comments, properties and clustering of a Delta table."""
    t.create_table(
        name,
        source.struct,
        keys,
        source.partition_by,
        cluster_by=source.cluster_by,
        comment=source.comment,
        properties=source.properties,
    )


def commit_in(t: SparkTransaction, timeout_s: float) -> Receipt:
    """Commit a transaction; ask again while nobody knows its outcome and there is time.

    Raises:
        CommitRejectedError: Nothing happened (definite).
        CommitStateUnknownError: Not known in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return t.commit()
        except CommitStateUnknownError:
            if time.monotonic() > deadline:
                raise


def append_files(
    t: SparkTransaction,
    name: str,
    source: SourceTable,
    split: SplitFiles,
    count: Callable[[], TableSignature],
    site: SiteSession,
    kind: OperationKind = OperationKind.APPEND,
) -> TableSignature:
    """Add the rows of files to a transaction; return their signature.

    Args:
        count: Returns it; files are linked meanwhile.
        kind: APPEND, or OVERWRITE: then they are all that the table has.
    """
    with ThreadPoolExecutor(1, "linking") as thread:
        files = [(file.place_at, file.partition) for file in split.linked]
        linking = thread.submit(t.link, name, files)
        total = count()
        linked = linking.result()
    if not split.rewritten:
        if linked:
            t.add_files(kind, name, linked, total)
        elif kind is OperationKind.OVERWRITE:
            t.delete_where(name, "true")
        return total
    again = source.rows(site.spark, split.rewritten)
    if not linked:
        t.add(kind, name, again)
        return total
    claim = total - signature_of_rows(again, t.definition(name))
    t.add_files(kind, name, linked, claim)
    t.append(name, again)
    return total


def signature_of_rows(rows: DataFrame, definition: TableDefinition) -> TableSignature:
    """Count the signature of rows that fit a table, by one scan."""
    conformed = conform(rows, definition, OperationKind.APPEND)
    return signature_of(conformed, definition)


def _count(rows: DataFrame | None, definition: TableDefinition) -> TableSignature:
    """Count rows and signature in one scan; check that keys are distinct and not NULL.

    Raises:
        InvalidRowsError: They are not, or a NOT NULL column has NULL (definite).
    """
    if rows is None:
        return EMPTY_SIGNATURE
    required = required_columns(definition, OperationKind.APPEND)
    null_counts = [
        F.count_if(F.col(quoted_name(name)).isNull()).alias(f"__txlog_null{index}")
        for index, name in enumerate(required)
    ]
    rows = conform(rows, definition, OperationKind.APPEND)
    keys = [quoted_name(name) for name in definition.keys]
    most, values = 1, None
    if keys:
        observation = Observation()
        often = rows_by_key(
            observed(rows, observation, row_hash(definition.columns), *null_counts), keys
        )
        longest, there = often.agg(F.max(HOW_OFTEN), F.sum(HOW_OFTEN)).collect()[0]
        most, values = longest or 0, counted(observation, there or 0)
    if values is None:
        signed = hashed(rows, row_hash(definition.columns))
        values = signed.agg(*sums_of(), *null_counts).collect()[0].asDict()
    for index, name in enumerate(required):
        if nulls := values[f"__txlog_null{index}"]:
            raise InvalidRowsError(
                f"table {definition.name!r}: {nulls:,} rows have NULL in {name!r}, which takes "
                "none",
                hint="Name other keys, or mend these rows.",
                table=definition.name,
                column=name,
                rows=nulls,
            )
    if most > 1:
        twice = repeated_keys(rows, keys).drop(HOW_OFTEN).limit(1).collect()
        shown = ", ".join(f"{key}={value!r}" for key, value in twice[0].asDict().items())
        raise InvalidRowsError(
            f"table {definition.name!r}: up to {most:,} rows have one key, such as {shown[:300]}",
            hint="Name other keys, remove the duplicates, or leave keys out: then the table takes "
            "appends, overwrites and deletes by predicate.",
            table=definition.name,
            keys=list(definition.keys),
        )
    return signature_from(values)


def _former(
    site: SiteSession, name: str, source: SourceTable, timeout_s: float
) -> tuple[str, Receipt | None]:
    """Return the id of this adoption, and the receipt of the call that has done it, if any.

    A table that was adopted, dropped and is adopted again is adopted under another id.
    """
    for number in itertools.count():
        found = transaction_id_of(source.table_id, source.version, name, f"adopt-{number}")
        try:
            receipt = site.known(uuid.UUID(found).bytes, Level.ORDERED.value, timeout_s)
        except CommitRejectedError:
            continue  # it lost to another table of the name, which may be gone by now
        if receipt is None:
            return found, None
        if site.existing(name) is not None:
            return found, receipt
    raise AssertionError("numbers do not end")


def _planned(
    site: SiteSession, source: SourceTable, definition: TableDefinition, split: SplitFiles
) -> Adoption:
    return Adoption(
        kind=TableKind.ROW_TABLE,
        table=definition.name,
        source=source.url,
        source_version=source.version,
        keys=list(definition.keys),
        partition_by=list(definition.partition_by),
        way=_way(site, source),
        files=len(split.linked),
        size_bytes=sum(file.size_bytes for file in split.linked),
        rewritten_files=len(split.rewritten),
        rewritten_bytes=sum(file.size_bytes for file in split.rewritten),
        rewritten_because=split.reasons,
        features=sorted(source.log.features),
        left_behind=source.left_behind,
    )


def _way(site: SiteSession, source: SourceTable) -> FileWay:
    """Return how files get their names in the payload store."""
    if not isinstance(source.place, Path):
        return "copy"
    return "link" if source.place.stat().st_dev == site.store.root.stat().st_dev else "copy"


def _counted(planned: Adoption, total: TableSignature) -> Adoption:
    return replace(planned, rows=total.rows, signature=total.to_text())


def _done(planned: Adoption, receipt: Receipt, *, repeated: bool = False) -> Adoption:
    return replace(
        planned,
        left=AS_IT_WAS,
        transaction_id=receipt.transaction_id or "",
        position=receipt.position,
        repeated=repeated,
    )
