"""Command `checkpoint copy`: a streaming query of Spark goes on at another site."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from sparktxlog.cli.common_options import DEFAULT_URL, AsJson, Url, app
from sparktxlog.cli.printing import print_json
from sparktxlog.http.tokens import client_token
from sparktxlog.model.ids import local_path

checkpoint_app = typer.Typer(help="Take a streaming query of Spark to another site.")
app.add_typer(checkpoint_app, name="checkpoint", no_args_is_help=True)


@checkpoint_app.command(
    "copy", epilog="Example: sparktxlog checkpoint copy /site-a/checkpoints/q /site-b/checkpoints/q"
)
def checkpoint_copy(
    source: Annotated[
        str,
        typer.Argument(metavar="FROM", help="checkpointLocation of a query that was stopped."),
    ],
    target: Annotated[
        str, typer.Argument(metavar="TO", help="New directory, on storage of the other site.")
    ],
    sink: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Commit table that the query writes to, schema.table: refuse a checkpoint that is "
            "older than its last batch there.",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Copy the checkpoint of a streaming query that was stopped; start the query with the copy.

    TO appears when the copy is whole. The command fails if the checkpoint changes meanwhile. Give
    --sink, with a node of the site where you run the command.
    """
    from sparktxlog.http.catalog_link import CatalogLink
    from sparktxlog.storage.commit_tables.directory_tables import directory_of
    from sparktxlog.storage.stream_checkpoints import copy_checkpoint, last_batch_in

    def last_written(query_id: str) -> int | None:
        if sink is None:
            return None
        with closing(CatalogLink(url, token=client_token())) as link:
            shown = link.load(sink)
        table = directory_of(shown.metadata.location)
        return last_batch_in(table, shown.latest_table_version, query_id)

    here, there = Path(local_path(source, "FROM")), Path(local_path(target, "TO"))
    found = copy_checkpoint(here, there, last_written)
    if as_json:
        print_json(found.to_document())
        return
    done = "before its first batch" if found.done is None else f"after batch {found.done}"
    again = "" if found.begun is None else f"; batch {found.begun} was begun, and is run again"
    typer.echo(
        f"Query {found.query_id} goes on {done}{again}.  Copied {found.files:,} files of "
        f"{found.size_bytes:,} bytes to {target}."
    )
