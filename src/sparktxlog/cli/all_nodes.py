"""`--all`: a command asks every node of the cluster, and says what each of them answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from sparktxlog.cli.common_options import ExitCode, NodeApi, exit_code_of
from sparktxlog.cli.printing import Columns, print_json, print_table
from sparktxlog.errors import TransportError, TxLogError

All = Annotated[
    bool,
    typer.Option("--all", help="Ask all nodes of the cluster: those that the node at --url names."),
]
#: Nodes that are asked at the same time.
_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """What one node answered."""

    node: str
    url: str
    #: None if it failed.
    answer: Any = None
    error: TxLogError | None = None

    def document(self) -> dict[str, Any]:
        """Return it for programs."""
        found: dict[str, Any] = {"node": self.node, "url": self.url, "ok": self.error is None}
        if self.error is None:
            return found | {"answer": self.answer}
        return found | {"error": self.error.to_problem()}


def ask_all(
    url: str, ask: Callable[[NodeApi], Any], connect: Callable[[str], NodeApi] = NodeApi
) -> list[NodeAnswer]:
    """Ask every node with a place, in precedence order; one that fails stops no other.

    Args:
        url: A node that knows the others.
        ask: Returns the answer of one node.
        connect: Makes the link to a node's URL.

    Raises:
        TransportError: The node at `url` does not answer.
    """
    seats = connect(url).get("/v1/epochs")["roster"]

    def of(seat: Mapping[str, Any]) -> NodeAnswer:
        failed: TxLogError | None = None
        # A node with several addresses may answer at the first one, or at another.
        for address in str(seat["url"]).split(","):
            try:
                return NodeAnswer(node=seat["id"], url=address, answer=ask(connect(address)))
            except TransportError as error:
                failed = failed or error
            except TxLogError as error:
                return NodeAnswer(node=seat["id"], url=address, error=error)
        return NodeAnswer(node=seat["id"], url=seat["url"], error=failed)

    with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(seats)))) as threads:
        return list(threads.map(of, seats))


def print_all(
    answers: Sequence[NodeAnswer],
    as_json: bool,
    title: str,
    columns: Columns,
    rows: Callable[[Any], Sequence[Any]] = lambda answer: [answer],
) -> ExitCode:
    """Print the answers; return the code of the first node that failed, else 0.

    Args:
        rows: Makes the rows of a node's answer.
    """
    failed = [one for one in answers if one.error is not None]
    if as_json:
        print_json([one.document() for one in answers])
    else:
        listed = [
            {**dict(row), "node": one.node, "failed": ""}
            for one in answers
            if one.error is None
            for row in rows(one.answer)
        ]
        listed += [{"node": one.node, "failed": str(one.error)} for one in failed]
        # Columns of a node that failed are empty.
        shown: Columns = {name: _optional(cell) for name, cell in columns.items()}
        last: Columns = {"failed": "failed"} if failed else {}
        print_table(title, {"node": "node"} | shown | last, listed)
    return exit_code_of(failed[0].error) if failed and failed[0].error else ExitCode.IN_SYNC


def _optional(cell: str | Callable[[Any], Any]) -> str | Callable[[Any], Any]:
    return cell if isinstance(cell, str) else lambda row: None if row["failed"] else cell(row)
