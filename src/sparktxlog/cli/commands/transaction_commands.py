"""Commands about single transactions: what became of one and why, and what is undecided."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from sparktxlog.cli.common_options import DEFAULT_URL, AsJson, ExitCode, NodeApi, Url, app, end
from sparktxlog.cli.printing import Columns, print_json, say, show
from sparktxlog.errors import InvalidRequestError, NotFoundError
from sparktxlog.health.transaction_words import (
    entry_sentences,
    missing_sentences,
    receipt_sentences,
    sites_of,
    unseen_sentences,
)
from sparktxlog.http.tokens import client_token
from sparktxlog.model.run_search import PAGE, run_at
from sparktxlog.model.shown import time_text

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
#: A transaction over several requests.
OPEN: Columns = {
    "transaction_id": "transaction_id",
    "operations": "operations",
    "bytes": "size_bytes",
    "lease (s)": "lease",
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


@tx_app.command("open", epilog="Example: sparktxlog tx open --json")
def tx_open(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show transactions that clients hold open at this node; an operator sees those of all."""
    show(NodeApi(url).get("/v1/open-transactions"), as_json, "open transactions", OPEN)


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


# -- why ------------------------------------------------------------------------------------------


def queue_of(api: NodeApi) -> Callable[[int, int], list[Any]]:
    """Return what reads a node's queue: runs after a position, at most so many."""
    return lambda after, limit: list(api.get("/v1/queue", after=after, limit=limit))


@app.command(epilog="Example: sparktxlog why 1204")
def why(
    what: Annotated[
        str, typer.Argument(metavar="TXID|POSITION", help="UUID of a transaction, or a position.")
    ],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Say in sentences what became of a transaction, what it waits for, and where it is applied.

    Exit code 0: it is rejected, or all sites have applied it; 3: not yet; 1: the node knows nothing
    of it.
    """
    api = NodeApi(url)
    position = _position_of(what)
    found = _of_id(api, _checked(what)) if position is None else _of_position(api, position)
    if as_json:
        print_json(found)
    else:
        for sentence in found["sentences"]:
            say(sentence)
    if found["receipt"] is None and found["run"] is None:
        end(ExitCode.ERROR)
    is_final = found["outcome"] == "rejected" or all(one["applied"] for one in found["sites"])
    end(ExitCode.IN_SYNC if is_final else ExitCode.LAGGING)


def _position_of(text: str) -> int | None:
    """Return a position, which people may write with commas; None = it is an id."""
    digits = text.replace(",", "")
    if not digits.isdecimal() or len(digits) > 18:
        return None
    if int(digits) == 0:
        raise InvalidRequestError("0 is no position", hint="The first transaction has position 1.")
    return int(digits)


def _of_id(api: NodeApi, transaction_id: str) -> dict[str, Any]:
    receipt = None
    with contextlib.suppress(NotFoundError):
        receipt = api.get(f"/v1/transactions/{transaction_id}")
    status = api.get("/v1/status")  # after it, so that it knows the receipt's position
    if receipt is None:
        return _told(transaction_id, status, None, None, unseen_sentences(transaction_id, status))
    incoming: list[Any] = []
    if receipt["position"] is None:
        incoming = api.get("/v1/incoming", limit=PAGE)
    sentences = receipt_sentences(receipt, status, incoming)
    return _told(transaction_id, status, receipt, None, sentences)


def _of_position(api: NodeApi, position: int) -> dict[str, Any]:
    status = api.get("/v1/status")
    kept_after = int(status.get("kept_after") or 0)
    run = run_at(queue_of(api), position, status["position"], kept_after)
    if run is None:
        return _told(None, status, None, None, missing_sentences(position, status)) | {
            "position": position
        }
    if run["position"] == position:
        return _of_id(api, run["first_id"]) | {"run": run}
    found = _told(None, status, None, run, entry_sentences(position, run, status))
    rejected = any(run["position"] + one["index"] == position for one in run["rejected"])
    return found | {
        "position": position,
        "outcome": "rejected" if rejected else None,
        "sites": sites_of(position, status),
    }


def _told(
    transaction_id: str | None,
    status: Mapping[str, Any],
    receipt: Mapping[str, Any] | None,
    run: Mapping[str, Any] | None,
    sentences: list[str],
) -> dict[str, Any]:
    known = receipt or {}
    return {
        "transaction_id": transaction_id,
        "position": known.get("position"),
        "outcome": known.get("outcome"),
        "sentences": sentences,
        "sites": sites_of(known.get("position"), status),
        "receipt": receipt,
        "run": run,
    }
