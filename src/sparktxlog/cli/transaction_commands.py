"""Commands about single transactions: what became of one, and what is undecided."""

from __future__ import annotations

from typing import Annotated

import typer

from sparktxlog.cli.root import DEFAULT_URL, AsJson, Columns, NodeApi, Url, app, show, time_text
from sparktxlog.http.tokens import client_token

tx_app = typer.Typer(help="Show single transactions, and decide prepared ones.")
app.add_typer(tx_app, name="tx", no_args_is_help=True)
TransactionId = Annotated[str, typer.Argument(help="UUID of the transaction.")]
#: A prepared transaction that is undecided.
UNDECIDED: Columns = {
    "transaction_id": "transaction_id",
    "position": "position",
    "origin": "origin",
    "participants": "participants",
    "missing": "missing",
    "valid until (UTC)": lambda one: time_text(one["valid_until"]),
}
_EXAMPLE = "0f8fad5b-d9cb-469f-a165-70867728950e"


def _checked(transaction_id: str) -> str:
    from sparktxlog.model.ids import transaction_id_from_text, transaction_id_to_text

    return transaction_id_to_text(transaction_id_from_text(transaction_id))


@tx_app.command("show", epilog=f"Example: sparktxlog tx show {_EXAMPLE}")
def tx_show(transaction_id: TransactionId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show how far a transaction got: level, position, outcome."""
    receipt = NodeApi(url).get(f"/v1/transactions/{_checked(transaction_id)}")
    names = ("transaction_id", "level", "position", "outcome", "prepared_at", "rejections")
    columns: Columns = {name: name for name in names}
    columns |= {"ordered_at": lambda receipt: time_text(receipt.get("ordered_at"))}
    show(receipt, as_json, "transaction", columns, [receipt])


@tx_app.command("prepared", epilog="Example: sparktxlog tx prepared --json")
def tx_prepared(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show prepared transactions that are undecided, and which participants are missing."""
    show(NodeApi(url).get("/v1/prepared"), as_json, "undecided transactions", UNDECIDED)


@tx_app.command("mark", epilog=f"Example: sparktxlog tx mark {_EXAMPLE} billing --no")
def tx_mark(
    transaction_id: TransactionId,
    participant: Annotated[str, typer.Argument(help="One of its participants.")],
    yes: Annotated[bool, typer.Option("--yes/--no", help="What the participant says.")],
    url: Url = DEFAULT_URL,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait.")] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Say YES or NO to a prepared transaction, and show what becomes of it.

    Use it in place of a participant that is lost.  A NO rejects the transaction at once, the last
    YES lets it take effect.  Neither can be taken back.
    """
    from sparktxlog.api.client import Client

    checked = _checked(transaction_id)
    with Client(url, client_token(), timeout=timeout) as client:
        client.mark(checked, participant, yes=yes)
    tx_show(checked, url, as_json)
