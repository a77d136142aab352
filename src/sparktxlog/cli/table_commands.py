"""Commands `table adopt` and `table release`: a Delta table comes into the log, and goes again."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any, Literal

import typer

from sparktxlog.cli.root import DEFAULT_URL, AsJson, Url, app, local_spark, print_json
from sparktxlog.http.tokens import client_token

table_app = typer.Typer(help="Bring a Delta table into the log, and give one back.")
app.add_typer(table_app, name="table", no_args_is_help=True)
TableName = Annotated[str, typer.Argument(metavar="NAME", help="schema.table")]


@table_app.command(
    "adopt", epilog="Example: sparktxlog table adopt shop.orders /data/orders --as commit-table"
)
def table_adopt(
    name: TableName,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Directory of the Delta table.")],
    kind: Annotated[Literal["commit-table"], typer.Option("--as", help="What it becomes.")],
    files: Annotated[
        Literal["link", "copy", "move"],
        typer.Option(help="link: a second name on the same file system; move: the old table goes."),
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
    """Make a commit table of an existing Delta table: its newest version becomes version 0.

    Run it at the site, where the table and the node's commit-table-dir are. The old table stays as
    it is until the log has the new one.
    """
    from sparktxlog.http.catalog_link import CatalogLink

    tell: Any = (lambda _: None) if as_json else typer.echo
    with (
        local_spark("table-adopt") as spark,
        closing(CatalogLink(url, token=client_token())) as link,
    ):
        from sparktxlog.worker.commit_tables.plain_reading import newest_version, read_plain_table
        from sparktxlog.worker.commit_tables.table_adoption import adopt

        plain = read_plain_table(spark, path)
        done = adopt(
            plain,
            lambda: newest_version(spark, plain),
            link,
            name,
            way=files,
            dry_run=dry_run,
            timeout_s=timeout,
            tell=tell,
        )
    if as_json:
        print_json(done.to_document() | {"dry_run": dry_run})
        return
    said = "would become" if dry_run else "is"
    typer.echo(f"{kind} {name} {said} version {done.source_version} of {done.source}.")
    ways = {"link": "get a second name", "copy": "are copied", "move": "are moved"}
    typer.echo(
        f"{done.files:,} files of {done.size_bytes:,} bytes {ways[done.way]}, and travel to each "
        "other site."
    )
    if done.new_features:
        typer.echo(f"New features: {', '.join(done.new_features)}.")
    for key, value in done.new_properties.items():
        typer.echo(f"Property {key} = {value}")
    if done.left:
        typer.echo(f"{done.left[0].upper()}{done.left[1:]}.")


@table_app.command(
    "release", epilog="Example: sparktxlog table release shop.orders /data/orders --drop"
)
def table_release(
    name: TableName,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A directory that does not exist.")],
    drop: Annotated[
        bool, typer.Option("--drop", help="Drop the table from the log, at all sites.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Give a commit table back as a plain Delta table: same files, same versions, no catalog.

    Run it at the site. PATH appears when it is whole. On the same file system files get a second
    name, else they are copied.
    """
    from sparktxlog.http.catalog_link import CatalogLink
    from sparktxlog.worker.commit_tables.table_release import release

    with closing(CatalogLink(url, token=client_token())) as link:
        done = release(link, name, path, drop=drop)
    if as_json:
        print_json(done.to_document())
        return
    dropped = ", and the log has it no more" if done.dropped else ""
    typer.echo(f"{done.path} is a plain Delta table at version {done.version}{dropped}.")
