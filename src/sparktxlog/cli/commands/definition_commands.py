"""Commands that create and change row tables, as `create_table` and `alter_table` of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparktxlog.cli.commands.table_commands import TableName, table_app
from sparktxlog.cli.common_options import DEFAULT_URL, AsJson, Url
from sparktxlog.cli.printing import print_json
from sparktxlog.errors import InvalidRequestError
from sparktxlog.http.tokens import client_token

if TYPE_CHECKING:
    from sparktxlog.model.transactions.receipt import Receipt

Timeout = Annotated[float, typer.Option(min=1, help="Seconds until the change is ordered.")]
Properties = Annotated[
    list[str] | None,
    typer.Option("--property", metavar="NAME=VALUE", help="A property; may be repeated."),
]
_Pairs = list[str] | None


@table_app.command(
    "create", epilog='Example: sparktxlog table create orders "id bigint not null, n int" --keys id'
)
def table_create(
    name: TableName,
    columns: Annotated[
        str, typer.Argument(metavar="COLUMNS", help="As in SQL: 'id bigint not null, name string'.")
    ],
    keys: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Key columns, comma separated.")
    ] = "",
    partition_by: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Partition columns, comma separated.")
    ] = "",
    cluster_by: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Clustering columns, comma separated.")
    ] = "",
    deletion_vectors: Annotated[
        bool | None,
        typer.Option(
            "--deletion-vectors/--no-deletion-vectors",
            help="Mark deleted rows instead of rewriting files; some readers cannot read that.",
        ),
    ] = None,
    is_sync: Annotated[
        bool, typer.Option("--synchronous", help="Each write is a synchronous transaction.")
    ] = False,
    comment: Annotated[str, typer.Option(help="For people.")] = "",
    properties: Properties = None,
    group: Annotated[
        str, typer.Option(metavar="GROUP", help="Only the sites of this group hold its rows.")
    ] = "",
    timeout: Timeout = 60.0,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Create a row table; creating an equal one again does nothing.

    If it is there with another definition, the error says what differs.
    """
    from sparktxlog.api.client import Client

    with Client(url, client_token(), timeout=timeout) as client:
        receipt = client.create_table(
            name,
            columns,
            keys=_names(keys),
            partition_by=_names(partition_by),
            cluster_by=_names(cluster_by),
            deletion_vectors=deletion_vectors,
            is_sync=is_sync,
            comment=comment,
            properties=None if properties is None else _pairs("--property", properties),
            group=group or None,
        )
    _print_done(receipt, f"row table {name} is there", as_json)


@table_app.command(
    "alter", epilog='Example: sparktxlog table alter orders --add "note string" --cluster-by day'
)
def table_alter(
    name: TableName,
    add: Annotated[
        str,
        typer.Option(metavar="COLUMNS", help="New columns, as in SQL: 'note string, rank int'."),
    ] = "",
    rename: Annotated[
        _Pairs, typer.Option(metavar="OLD=NEW", help="Rename a column; may be repeated.")
    ] = None,
    drop: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Columns to drop, comma separated.")
    ] = "",
    widen: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Columns with their wider types: 'n bigint'.")
    ] = "",
    keys: Annotated[
        str | None, typer.Option(metavar="COLUMNS", help="Other key columns; '': none.")
    ] = None,
    cluster_by: Annotated[
        str | None, typer.Option(metavar="COLUMNS", help="Other clustering columns; '': none.")
    ] = None,
    comment: Annotated[
        str | None, typer.Option(help="Another comment of the table; '': none.")
    ] = None,
    column_comment: Annotated[
        _Pairs, typer.Option(metavar="COLUMN=TEXT", help="Comment of a column; may be repeated.")
    ] = None,
    properties: Properties = None,
    unset: Annotated[
        _Pairs, typer.Option(metavar="NAME", help="A property to remove; may be repeated.")
    ] = None,
    is_sync: Annotated[
        bool | None,
        typer.Option(
            "--synchronous/--not-synchronous",
            help="Whether each write is a synchronous transaction.",
        ),
    ] = None,
    timeout: Timeout = 60.0,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change a row table, at one position of the log, at all sites.

    All that is given is one change: columns are named as they were before it, keys and clustering
    columns as they are after it.
    """
    from sparktxlog.api.client import Client

    changes: dict[str, Any] = {
        "add": _added(add),
        "rename": _pairs("--rename", rename),
        "drop": _names(drop),
        "widen": {column: kind for column, (kind, _) in _added(widen).items()},
        "keys": None if keys is None else _names(keys),
        "cluster_by": None if cluster_by is None else _names(cluster_by),
        "comment": comment,
        "comments": _pairs("--column-comment", column_comment),
        "properties": {**_pairs("--property", properties), **dict.fromkeys(unset or [])},
        "is_sync": is_sync,
    }
    with Client(url, client_token(), timeout=timeout) as client:
        receipt = client.alter_table(name, **changes)
    _print_done(receipt, f"row table {name} is changed", as_json)


def _print_done(receipt: Receipt, said: str, as_json: bool) -> None:
    if as_json:
        print_json({"transaction_id": receipt.transaction_id, "position": receipt.position})
    else:
        typer.echo(f"Transaction {receipt.transaction_id}, position {receipt.position}: {said}.")


def _names(given: str) -> list[str]:
    return [name.strip() for name in given.split(",") if name.strip()]


def _added(text: str) -> dict[str, tuple[str, str]]:
    """Return columns in DDL: name → type and comment."""
    from sparktxlog.api.given_data import columns_given

    if not text.strip():
        return {}
    columns = columns_given(text)
    for column in columns:
        if not column.nullable:
            raise InvalidRequestError(
                f"column {column.name!r} is NOT NULL, which only a new table's columns can be",
                hint="Leave NOT NULL out: rows that are there have NULL in an added column, and a "
                "wider type keeps what the column has.",
                column=column.name,
            )
    return {column.name: (column.type, column.comment) for column in columns}


def _pairs(flag: str, given: _Pairs) -> dict[str, str]:
    found = {}
    for pair in given or []:
        name, separator, value = pair.partition("=")
        if not separator:
            raise typer.BadParameter(f"{pair!r} has no '='", param_hint=flag)
        found[name.strip()] = value
    return found
