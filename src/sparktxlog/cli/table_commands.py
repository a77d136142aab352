"""Commands about one table: it is described, comes into the log, and goes again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import typer

from sparktxlog.cli.dry_runs import DryRun, print_plan, release_plan
from sparktxlog.cli.printing import Columns, print_json, print_table
from sparktxlog.cli.root import DEFAULT_URL, AsJson, NodeApi, Url, app, local_spark
from sparktxlog.http.tokens import client_token

if TYPE_CHECKING:
    from sparktxlog.api.adopting.row_adoption import RowAdoption
    from sparktxlog.worker.commit_tables.table_adoption import Adoption, FileWay

table_app = typer.Typer(
    help="Create, change, describe tables; bring a Delta table into the log, give one back."
)
app.add_typer(table_app, name="table", no_args_is_help=True)
TableName = Annotated[
    str, typer.Argument(metavar="NAME", help="Table of the log; schema.table of a commit table.")
]


@table_app.command("describe", epilog="Example: sparktxlog table describe bronze.orders --json")
def table_describe(name: TableName, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show what a table is: columns, keys, comments, properties, and where it is at this site."""
    found = NodeApi(url).get(f"/v1/descriptions/{quote(name, safe='')}")
    if as_json:
        print_json(found)
        return
    columns: Columns = {
        "column": "name",
        "type": "type",
        "takes NULL": "nullable",
        "comment": "comment",
    }
    print_table(f"{found['kind']} {found['name']}", columns, found["columns"])
    for what, value in {
        "comment": found["comment"],
        "keys": ", ".join(found["keys"]),
        "partitioned by": ", ".join(found["partition_by"]),
        "clustered by": ", ".join(found["cluster_by"]),
        "deletion vectors": "yes" if found["deletion_vectors"] else "",
        "synchronous": "yes" if found["is_sync"] else "",
        "definition version": found["schema_version"],
        "version": found["version"],
        "last write": found["last_write"],
        "location": found["location"] or "nothing of it is at this site yet",
        **{f"property {key}": text for key, text in found["properties"].items()},
    }.items():
        if value not in ("", None):
            typer.echo(f"{what}: {value}")


@table_app.command(
    "adopt", epilog="Example: sparktxlog table adopt orders /data/orders --as row-table --keys id"
)
def table_adopt(
    name: TableName,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Directory of the Delta table.")],
    kind: Annotated[
        Literal["row-table", "commit-table"], typer.Option("--as", help="What it becomes.")
    ],
    keys: Annotated[
        str,
        typer.Option(metavar="COLUMNS", help="Key columns of a row table, comma separated."),
    ] = "",
    files: Annotated[
        Literal["link", "copy", "move"],
        typer.Option(
            help="Of a commit table. link: a second name on the same file system; move: the old "
            "table goes."
        ),
    ] = "link",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check, and say what would be done.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds until the sites have the files.")
    ] = 3600.0,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Put an existing Delta table under the log, as a new table; the old one stays as it is.

    A row table begins with the rows of its newest version.  Of a commit table, that version becomes
    version 0.  Run it at the site, where the table and the node's directories are.
    """
    tell: Any = (lambda _: None) if as_json else typer.echo
    if kind == "row-table":
        if files != "link":
            raise typer.BadParameter("--files is of commit tables: a row table's are linked")
        rows = _adopt_rows(name, path, keys, dry_run, timeout, url, tell)
        document, lines = rows.to_document(), _lines_of_rows(rows, dry_run)
    else:
        if keys:
            raise typer.BadParameter("--keys is of row tables: commit tables have none")
        done = _adopt_commits(name, path, files, dry_run, timeout, url, tell)
        document, lines = done.to_document(), _lines_of_commits(done, dry_run)
    if as_json:
        print_json(document | {"dry_run": dry_run})
        return
    for line in lines:
        typer.echo(line)


def _adopt_rows(
    name: str, path: str, keys: str, dry_run: bool, timeout_s: float, url: str, tell: Any
) -> RowAdoption:
    with local_spark("table-adopt") as spark:
        from sparktxlog.api.adopting.row_adoption import adopt_rows
        from sparktxlog.api.adopting.source_table import SourceTable
        from sparktxlog.api.connect import connect

        with connect(spark, url, token=client_token()) as log:
            return adopt_rows(
                log,
                name,
                SourceTable.read(spark, path),
                keys=column_names(keys),
                dry_run=dry_run,
                timeout_s=timeout_s,
                tell=tell,
            )


def column_names(given: str) -> list[str]:
    """Return names that are separated by commas."""
    return [name.strip() for name in given.split(",") if name.strip()]


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


def _adopt_commits(
    name: str, path: str, files: FileWay, dry_run: bool, timeout_s: float, url: str, tell: Any
) -> Adoption:
    from sparktxlog.http.catalog_link import CatalogLink

    with (
        local_spark("table-adopt") as spark,
        closing(CatalogLink(url, token=client_token())) as link,
    ):
        from sparktxlog.worker.commit_tables.plain_reading import newest_version, read_plain_table
        from sparktxlog.worker.commit_tables.table_adoption import adopt

        plain = read_plain_table(spark, path)
        return adopt(
            plain,
            lambda: newest_version(spark, plain),
            link,
            name,
            way=files,
            dry_run=dry_run,
            timeout_s=timeout_s,
            tell=tell,
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
    if done.left:
        yield f"{done.left[0].upper()}{done.left[1:]}."


@table_app.command("release", epilog="Example: sparktxlog table release orders /data/orders")
def table_release(
    name: TableName,
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH", help="A directory that does not exist; a commit table needs it."
        ),
    ] = None,
    drop: Annotated[
        bool, typer.Option("--drop", help="Drop a commit table from the log, at all sites.")
    ] = False,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Give a table back as a plain Delta table.

    A row table leaves the log, at all sites: each site's worker keeps its files in the lake, in
    _sparktxlog/dropped/NAME-POSITION.  Of a commit table PATH gets the same files and versions, and
    it leaves the log with --drop.  Run it at the site.  PATH appears when it is whole; on the same
    file system files get a second name, else they are copied.
    """
    from sparktxlog.api.nodes import Nodes
    from sparktxlog.model.table_kind import TableKind

    with closing(Nodes(url, token=client_token())) as nodes:
        found = nodes.describe(name)
    is_rows = found.kind is TableKind.ROW_TABLE
    if path is None and not is_rows:
        raise typer.BadParameter("PATH is missing: a commit table is given back into it")
    if dry_run:
        print_plan(as_json, *release_plan(found, path, drop=drop))
        return
    if is_rows:
        with local_spark("table-release") as spark:
            from sparktxlog.api.connect import connect

            with connect(spark, url, token=client_token()) as log:
                released = log.release_table(name, path)
        document = released.to_document()
        said = f"{released.path} is a plain Delta table, and the log has {name} no more."
    else:
        from sparktxlog.http.catalog_link import CatalogLink
        from sparktxlog.worker.commit_tables.table_release import release

        with closing(CatalogLink(url, token=client_token())) as link:
            done = release(link, name, str(path), drop=drop)
        dropped = ", and the log has it no more" if done.dropped else ""
        document = done.to_document()
        said = f"{done.path} is a plain Delta table at version {done.version}{dropped}."
    if as_json:
        print_json(document)
        return
    typer.echo(said)
