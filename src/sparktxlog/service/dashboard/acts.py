"""The acts that a page offers operators: what each does, its command, and its request.

A request goes to the route that the command line uses, with a token that is typed for it.  What
needs Spark is done by the worker of the site: either it takes the request with its next report, or
only the command is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparktxlog.model.tables.table_kind import TableDescription, TableKind

_OPERATOR = "the token of operators (`admin-token`; the clients' where none is configured)"
_WORKER_REPAIRS = (
    "A worker that follows does it by itself where a healthy donor is.  Else it takes a session of "
    "Spark at this site, so there is only the command."
)


def node_acts(where: str, *, is_paused: bool) -> list[dict[str, Any]]:
    """Return the acts on a node.

    Args:
        where: The option of commands that names it.
    """
    begins = "This node takes no transactions, also after a restart; all else goes on."
    return [
        _act(
            "End the pause" if is_paused else "Pause this node",
            "Clients commit at this node again." if is_paused else begins,
            f"sparktxlog peer {'continue' if is_paused else 'pause'} {where}",
            _request("PATCH", "/v1/settings", {"paused": not is_paused}),
        ),
        _act(
            "Plan of a replica",
            "Says what the worker of this site would do, replay or copy, and why.  It changes "
            "nothing, so the audit trail does not have it.",
            f"sparktxlog plan {where}",
            _request("GET", "/v1/worker/plan", says="Plan: {plan}. {reason}", needs="a token"),
        ),
        _act(
            "Restore point",
            "Names the end of the log, to which a backup can be brought back.",
            f"sparktxlog restore-point create NAME {where}",
            _request(
                "POST",
                "/v1/restore-points",
                fields={"name": "Name", "note": "Note"},
                says="Restore point {name} is position {position}.",
            ),
        ),
        _act(
            "Catch up",
            f"The worker does what the plan says, a replay or a copy.  {_WORKER_REPAIRS}",
            f"sparktxlog catch-up {where}",
        ),
    ]


def table_acts(table: TableDescription, where: str) -> list[dict[str, Any]]:
    """Return the acts on a table."""
    name = table.name
    verify = f"sparktxlog verify --table {name} {where}"
    repair = f"sparktxlog repair {name} {where}"
    if table.kind is TableKind.ROW_TABLE:
        return [
            _act(
                f"Verify {name}",
                "The worker of this site reads every row after its next report, and compares "
                "signatures.  The page of the table says when it has.",
                verify,
                _request(
                    "POST",
                    "/v1/recounts",
                    {"tables": [name]},
                    says="Worker {worker_id} counts {tables} after its next report, in "
                    "{heartbeat_s} s or when its batch ends.",
                ),
            ),
            _act(f"Repair {name}", f"Brings its rows back.  {_WORKER_REPAIRS}", repair),
        ]
    path, says = "/v1/worker/commit-tables/check", "{files} files of version {placed}: {found}"
    return [
        _act(
            f"Verify {name}",
            "This node reads each file of the table, and compares it with its record and with the "
            "records of other sites.",
            verify,
            _request("POST", path, {"table": name}, says=says),
        ),
        _act(
            f"Repair {name}",
            "The same; what differs is set aside, and the right files come from other sites.",
            repair,
            _request("POST", path, {"table": name, "repair": True}, says=says),
        ),
    ]


def _act(
    title: str, text: str, command: str, request: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {"title": title, "text": text, "command": command, "request": request}


def _request(
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    fields: Mapping[str, str] | None = None,
    says: str = "",
    needs: str = _OPERATOR,
) -> dict[str, Any]:
    """Return a request of a page.

    Args:
        fields: Name in the body → what the page calls it.
        says: What the page says then, with values of the answer; empty = it shows itself again.
    """
    return {
        "method": method,
        "path": path,
        "body": body or {},
        "fields": fields or {},
        "says": says,
        "needs": needs,
    }
