"""What the job `adopt` does, for `jobs/adopt.py` and the command `table adopt`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from sparktxlog.api.adopting.row_adoption import RowAdoption, adopt_rows
from sparktxlog.api.adopting.source_table import SourceTable
from sparktxlog.api.connect import connect
from sparktxlog.api.jobs.job import OK, JobContext
from sparktxlog.http.catalog_link import CatalogLink
from sparktxlog.http.tokens import client_token
from sparktxlog.worker.commit_tables.delta_reading import newest_version, read_plain_table
from sparktxlog.worker.commit_tables.table_adoption import Adoption
from sparktxlog.worker.commit_tables.table_adoption import adopt as adopt_commits


def adopt(context: JobContext) -> tuple[int, dict[str, Any]]:
    """Put a Delta table under the log, as a table of either kind, or say what would be done."""
    a = context.arguments
    if a.kind == "row-table":
        rows = _rows(context)
        document, lines = rows.to_document(), _lines_of_rows(rows, a.dry_run)
    else:
        commits = _commits(context)
        document, lines = commits.to_document(), _lines_of_commits(commits, a.dry_run)
    for line in lines:
        context.tell(line)
    return OK, document | {"dry_run": a.dry_run}


def _rows(context: JobContext) -> RowAdoption:
    a = context.arguments
    with connect(context.spark, a.url, token=client_token()) as log:
        return adopt_rows(
            log.site,
            a.name,
            SourceTable.read(context.spark, a.path),
            keys=[name.strip() for name in a.keys.split(",") if name.strip()],
            dry_run=a.dry_run,
            timeout_s=a.timeout,
            tell=context.tell,
        )


def _lines_of_rows(done: RowAdoption, dry_run: bool) -> Iterator[str]:
    said = "would begin with" if dry_run else "began with" if done.repeated else "begins with"
    keys = f"keys {', '.join(done.keys)}" if done.keys else "no keys"
    yield (
        f"row table {done.table} {said} version {done.source_version} of {done.source}: "
        f"{done.rows:,} rows, {keys}."
    )
    way = "get a second name" if done.is_link else "are copied to the payload store's file system"
    yield f"{done.linked_files:,} files of {done.linked_bytes:,} bytes {way}."
    if done.rewritten_files:
        why = ", ".join(f"{reason} ({count:,})" for reason, count in done.rewritten_because.items())
        yield (
            f"The rows of {done.rewritten_files:,} files of {done.rewritten_bytes:,} bytes are "
            f"written again: {why}."
        )
    if done.features:
        yield f"Its features: {', '.join(done.features)}."
    if done.left_behind:
        yield f"Not kept: {', '.join(done.left_behind)}."
    if done.position is not None:
        yield f"Transaction {done.transaction_id} at position {done.position:,}."
    if not dry_run:
        yield "The old table is as it was, and is no part of the log."


def _commits(context: JobContext) -> Adoption:
    a = context.arguments
    with closing(CatalogLink(a.url, token=client_token())) as link:
        plain = read_plain_table(context.spark, a.path)
        return adopt_commits(
            plain,
            lambda: newest_version(context.spark, plain),
            link,
            a.name,
            way=a.files,
            dry_run=a.dry_run,
            timeout_s=a.timeout,
            tell=context.tell,
        )


def _lines_of_commits(done: Adoption, dry_run: bool) -> Iterator[str]:
    said = "would become" if dry_run else "is"
    yield f"commit-table {done.table} {said} version {done.source_version} of {done.source}."
    ways = {"link": "get a second name", "copy": "are copied", "move": "are moved"}
    yield (
        f"{done.files:,} files of {done.size_bytes:,} bytes {ways[done.way]}, and travel to each "
        "other site."
    )
    if done.new_features:
        yield f"New features: {', '.join(done.new_features)}."
    for key, value in done.new_properties.items():
        yield f"Property {key} = {value}"
    if done.left_behind:
        yield f"Not kept: {', '.join(done.left_behind)}."
    if done.left:
        yield f"{done.left[0].upper()}{done.left[1:]}."
