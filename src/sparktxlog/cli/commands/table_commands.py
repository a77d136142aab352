"""Commands about one table that need no job: it is described, and given back."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated
from urllib.parse import quote

import typer

from sparktxlog.cli.common_options import DEFAULT_URL, AsJson, NodeApi, Url, app
from sparktxlog.cli.dry_runs import DryRun, print_plan, release_plan
from sparktxlog.cli.printing import Columns, print_json, print_table
from sparktxlog.http.tokens import client_token
from sparktxlog.model.buckets import bucket_url
from sparktxlog.model.ids import local_path

table_app = typer.Typer(
    help="Create, change, describe tables; bring a Delta table into the log, give one back."
)
app.add_typer(table_app, name="table", no_args_is_help=True)
#: Seconds for the drop of a row table, and for this site's worker.
_RELEASE_S = 60.0
TableName = Annotated[
    str, typer.Argument(metavar="NAME", help="Table of the log: orders, or bronze.orders.")
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


@table_app.command("release", epilog="Example: sparktxlog table release orders /data/orders")
def table_release(
    name: TableName,
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH",
            help="A directory that does not exist, or a prefix of the table's bucket; a commit "
            "table needs it.",
        ),
    ] = None,
    drop: Annotated[
        bool, typer.Option("--drop", help="Drop a commit table from the log, at all sites.")
    ] = False,
    keep_features: Annotated[
        bool,
        typer.Option(
            "--keep-features",
            help="Keep features of a commit table that nothing in it uses, such as in-commit "
            "timestamps: many readers refuse them.",
        ),
    ] = False,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Give a table back as a plain Delta table.

    A row table leaves the log, at all sites: each site's worker keeps its files in the attic of the
    lake.  Of a commit table PATH gets the same files and versions, and it leaves the log with
    --drop.  Run it at the site.  PATH appears when it is whole; on the same file system files get a
    second name, else they are copied.
    """
    from sparktxlog.api.client import Client
    from sparktxlog.model.tables.table_kind import TableKind
    from sparktxlog.worker.tables.release import check_target, release

    if path is not None and bucket_url(path, "PATH") is None:
        path = local_path(path)
    with Client(url, token=client_token(), timeout=_RELEASE_S) as client:
        found = client.describe(name)
        if path is None and found.kind is TableKind.COMMIT_TABLE:
            raise typer.BadParameter("PATH is missing: a commit table is given back into it")
        with closing(NodeApi(url)) as node:
            if dry_run:
                if path is not None:
                    check_target(found, node.get("/v1/info"), path)
                print_plan(as_json, *release_plan(found, path, drop=drop))
                return
            released = release(
                found,
                node,
                path,
                drop_rows=client.drop_table,
                applied=lambda seen: client.snapshot(at_least=seen, timeout=_RELEASE_S),
                drop=drop,
                keep_features=keep_features,
            )
    if as_json:
        print_json(released.to_document())
        return
    typer.echo(released.describe())
