"""The OpenAPI document of the client API, written by hand beside raw routes.

The routes decode for themselves, for speed, so their description stands here: schemas come from
the very types that decode requests and encode answers, and the examples are checked by a test.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sparktxlog import __version__
from sparktxlog.codec.requests import TransactionRequest
from sparktxlog.model.copying import CopyTicket, Decision, Transfer
from sparktxlog.model.epoch import EpochRecord
from sparktxlog.model.receipt import Receipt
from sparktxlog.model.report import Recount, WorkerReport
from sparktxlog.model.table import TableDefinition
from sparktxlog.service.access import Role, role_of
from sparktxlog.storage.interfaces import Segment

_ID = "7d444840-9dc0-11d1-b245-5ffdce74fad2"

#: A transaction over two tables, as in the documentation.
TRANSACTION_EXAMPLE: dict[str, Any] = {
    "transaction_id": _ID,
    "level": "ordered",
    "timeout": 30,
    "operations": [
        {
            "kind": "create_table",
            "table": "orders",
            "columns": [
                {"name": "id", "type": "bigint", "nullable": False},
                {"name": "amount", "type": "decimal(10,2)"},
                {"name": "placed_at", "type": "timestamp"},
            ],
            "keys": ["id"],
        },
        {
            "kind": "upsert",
            "table": "orders",
            "rows": [
                {"id": 1, "amount": "12.50", "placed_at": "2024-01-31T10:00:00.123456+01:00"},
                {"id": "9007199254740993", "amount": "0.01", "placed_at": None},
            ],
        },
        {"kind": "delete_where", "table": "orders", "predicate": "amount < 0"},
    ],
}

_RECEIPT_EXAMPLE: dict[str, Any] = {
    "transaction_id": _ID,
    "n": 1,
    "level": "ordered",
    "late": False,
    "run": {"origin": "site-a", "incarnation": 1, "seq": 42},
    "position": 117,
    "outcome": "committed",
    "rejections": [],
    "ordered_at": 1706695200123456,
    "rows": 2,
    "ids": [],
}

_LEVEL = {
    "name": "level",
    "in": "query",
    "description": "How far it must get before the answer: accepted (durable here), acquired "
    "(durable at the acquisition quorum), ordered (has its position), applied or applied(k) "
    "(stands in the tables of this site, of k sites).",
    "schema": {"type": "string", "default": "ordered"},
}
_TIMEOUT = {
    "name": "timeout",
    "in": "query",
    "description": "Seconds to wait for the level.  Then the answer is the receipt with "
    "late: true if the transaction is ordered, and 504 unknown-outcome if it is not.",
    "schema": {"type": "number", "default": 30, "minimum": 0, "maximum": 300},
}
_AFTER = {
    "name": "after",
    "in": "query",
    "description": "A position, such as that of a receipt of another node: this node waits until "
    "it has got there before it looks at the request, for as long as timeout says in the query; "
    "then the answer is 503 position-not-reached.",
    "schema": {"type": "integer", "default": 0, "minimum": 0},
}


def add_client_paths(document: dict[str, Any]) -> dict[str, Any]:
    """Add the client API to an OpenAPI document and return it."""
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(_schemas())
    components.setdefault("securitySchemes", {})["clientToken"] = {
        "type": "http",
        "scheme": "bearer",
        "description": "The node's client-token; not needed where none is configured.",
    }
    components["securitySchemes"]["adminToken"] = {
        "type": "http",
        "scheme": "bearer",
        "description": "The node's admin-token, which is good for all that clientToken is; where "
        "none is configured clientToken does.",
    }
    paths = document.setdefault("paths", {})
    for path, method, operation in _operations():
        scheme = "adminToken" if role_of(method.upper(), path) is Role.ADMIN else "clientToken"
        operation["security"] = [{scheme: []}, {}]
        operation["responses"]["default"] = {
            "description": "An error; definite tells whether certainly nothing happened.",
            "content": {"application/problem+json": {"schema": _ref("Problem")}},
        }
        paths.setdefault(path, {})[method] = operation
    return document


def client_document() -> dict[str, Any]:
    """Return the OpenAPI document of the client API."""
    return add_client_paths(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "sparktxlog",
                "version": __version__,
                "description": "Commit transactions to the log, and ask what became of them.",
            },
        }
    )


def document_routes() -> list[Route]:
    """Return `/openapi.json` and `/docs`, which need no token: they tell nothing of this node."""
    document = msgspec.json.encode(client_document())
    page = _page(client_document())

    async def openapi(_: Request) -> Response:
        return Response(document, media_type="application/json")

    async def docs(_: Request) -> Response:
        return Response(page, media_type="text/html; charset=utf-8")

    return [Route("/openapi.json", openapi), Route("/docs", docs)]


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code,pre{font-family:ui-monospace,monospace;font-size:13px}
pre{background:#f4f4f4;padding:.8rem;overflow:auto}
h2 span{color:#777;text-transform:uppercase;font-size:.8em}
td{padding:.1rem .8rem .1rem 0;vertical-align:top}"""
_INTRODUCTION = """<p>Machine-readable: <a href=openapi.json>openapi.json</a>.  Errors are RFC 9457
problem documents; <code>definite</code> says whether certainly nothing happened.</p>
<h2>Example</h2><pre>curl -s http://127.0.0.1:7070/v1/transactions --json @- &lt;&lt;'END'
"""


def _page(document: dict[str, Any]) -> str:
    """Return the document for people: one page without scripts, readable without a network."""
    example = escape(json.dumps(TRANSACTION_EXAMPLE, indent=2))
    title = f"sparktxlog {__version__}"
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>",
        f"<style>{_STYLE}</style><h1>{title}</h1>{_INTRODUCTION}{example}\nEND</pre>",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(
                f"<h2><span>{method}</span> <code>{escape(path)}</code></h2>"
                f"<p>{escape(operation['summary'])}. {escape(operation.get('description', ''))}</p>"
            )
            rows = "".join(
                f"<tr><td><code>{escape(item['name'])}</code><td>{escape(item['in'])}"
                f"<td>{escape(item['description'])}"
                for item in operation.get("parameters", ())
            )
            parts.append(f"<table>{rows}</table>")
    schemas = escape(json.dumps(document["components"]["schemas"], indent=1))
    parts.append(f"<h2>Schemas</h2><details><summary>All types</summary><pre>{schemas}</pre>")
    return "".join(parts)


def _schemas() -> dict[str, Any]:
    _, components = msgspec.json.schema_components(
        [
            TransactionRequest,
            Receipt,
            TableDefinition,
            WorkerReport,
            Recount,
            Segment,
            Decision,
            Transfer,
            CopyTicket,
            EpochRecord,
        ],
        ref_template="#/components/schemas/{name}",
    )
    components["TransactionRequest"]["examples"] = [TRANSACTION_EXAMPLE]
    components["Receipt"]["examples"] = [_RECEIPT_EXAMPLE]
    components["Problem"] = {
        "type": "object",
        "description": "RFC 9457 problem document.",
        "required": ["type", "title", "status", "detail", "definite", "retryable", "fields"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string", "description": "Stable code, such as unknown-table."},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "hint": {"type": "string"},
            "definite": {"type": "boolean", "description": "True: certainly nothing happened."},
            "retryable": {"type": "boolean"},
            "fields": {"type": "object"},
        },
    }
    return dict(components)


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(schema: dict[str, Any], text: str = "Done.") -> dict[str, Any]:
    return {"200": {"description": text, "content": {"application/json": {"schema": schema}}}}


def _body(content_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {content_type: {"schema": schema}}}


def _query(name: str, kind: str, text: str, default: Any = None) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": kind}
    if default is not None:
        schema["default"] = default
    return {"name": name, "in": "query", "description": text, "schema": schema}


def _in_path(name: str, text: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": text,
        "schema": {"type": "string"},
    }


_OBJECT: dict[str, Any] = {"type": "object"}
_LIST: dict[str, Any] = {"type": "array", "items": {"type": "object"}}
_BINARY: dict[str, Any] = {"type": "string", "format": "binary"}


_COPY_REQUEST: dict[str, Any] = {
    "type": "object",
    "required": ["worker_id"],
    "properties": {
        "worker_id": {"type": "string"},
        "forced": {"type": "boolean", "default": False},
        "donor": {
            "type": "string",
            "default": "",
            "description": "Copy from this site only, also where replicas differ.",
        },
    },
}


def _operations() -> list[tuple[str, str, dict[str, Any]]]:
    """Return (path, method, operation) of the whole client API."""
    return [*_submits(), *_questions(), *_worker(), *_catch_up(), *_epochs()]


def _submits() -> list[tuple[str, str, dict[str, Any]]]:
    receipt = _answer(_ref("Receipt"), "The level was reached; or, with late: true, ordered.")
    return [
        ("/v1/transactions", "post", {
            "operationId": "submit_transaction",
            "summary": "Commit one transaction",
            "description": "One or more operations over one or more tables, all or nothing.  "
            "Repeating a transaction id gives the receipt of the first.  Appends, upserts and "
            "deletes of no rows change nothing; a transaction of nothing else is recorded only if "
            "it has an id, else its receipt has n 0.  An overwrite with no rows empties the table.",
            "tags": ["submit"],
            "parameters": [_LEVEL, _TIMEOUT, _AFTER],
            "requestBody": _body("application/json", _ref("TransactionRequest")),
            "responses": dict(receipt),
        }),
        ("/v1/runs", "post", {
            "operationId": "submit_run",
            "summary": "Commit a batch of transactions",
            "description": "The body is a payload container (docs/formats.md): manifest with ids "
            "and Arrow IPC sections of inline rows.",
            "tags": ["submit"],
            "parameters": [_LEVEL, _TIMEOUT, _AFTER],
            "requestBody": _body("application/vnd.sparktxlog.run", _BINARY),
            "responses": dict(receipt),
        }),
        ("/v1/tables/{table}/rows", "post", {
            "operationId": "submit_rows",
            "summary": "Commit Arrow rows to one table",
            "description": "An int32 column `__txlog_tx` that rises from 0 makes each of its "
            "numbers a transaction of its own.",
            "tags": ["submit"],
            "parameters": [
                _in_path("table", "Name of the table."),
                _query("kind", "string", "append, upsert, delete_keys or overwrite.", "append"),
                _query("transaction_id", "string", "Id of a single transaction."),
                _LEVEL,
                _TIMEOUT,
                _AFTER,
            ],
            "requestBody": _body("application/vnd.apache.arrow.stream", _BINARY),
            "responses": dict(receipt),
        }),
        ("/v1/transactions/{id}", "get", {
            "operationId": "find_transaction",
            "summary": "What became of a transaction",
            "tags": ["submit"],
            "parameters": [_in_path("id", "Transaction id, a UUID.")],
            "responses": _answer(_ref("Receipt"), "Its state, or why it was rejected; 404 if never "
                                 "seen here."),
        }),
    ]  # fmt: skip


def _questions() -> list[tuple[str, str, dict[str, Any]]]:
    table = _ref("TableDefinition")
    after = [_AFTER, _query("timeout", "number", "Seconds to wait for it.", 30)]
    found: list[tuple[str, str, str, list[dict[str, Any]], dict[str, Any]]] = [
        ("/v1/info", "info", "Names, limits and directories of the node", [], _OBJECT),
        ("/v1/status", "status", "Queues, peers, who is awaited and why",
         [_query("tables", "integer", "1: each replica with its tables, not their number.", 0)],
         _OBJECT),
        ("/v1/tables", "tables", "All tables", after, {"type": "array", "items": table}),
        ("/v1/tables/{table}", "table", "One table",
         [_in_path("table", "Its name."), *after], table),
        ("/v1/queue", "queue", "Runs of the synchronized queue",
         [_query("after", "integer", "Behind this position.", 0),
          _query("limit", "integer", "Runs at most, to 1000.", 100)], _LIST),
        ("/v1/published", "published", "Position up to which the queue table reaches",
         [_query("at_least", "integer", "Wait for it.", 0),
          _query("timeout", "number", "Seconds to wait.", 0)], _OBJECT),
        ("/v1/snapshot", "snapshot", "Table versions at one position of this site's replica",
         [_query("position", "integer", "This very position; default: the latest."),
          _query("at_least", "integer", "Wait until it is applied.", 0),
          _query("timeout", "number", "Seconds to wait.", 0)], _OBJECT),
        ("/v1/probe/{name}", "probe", "Size and digest of a file in the store's probe directory",
         [_in_path("name", "Name of the file.")], _OBJECT),
    ]  # fmt: skip
    return [
        (path, "get", {
            "operationId": name,
            "summary": summary,
            "tags": ["ask"],
            "parameters": parameters,
            "responses": _answer(schema),
        })
        for path, name, summary, parameters, schema in found
    ]  # fmt: skip


def _worker() -> list[tuple[str, str, dict[str, Any]]]:
    segments = {
        "type": "object",
        "properties": {
            "position": {"type": "integer"},
            "lineage": {"type": "string"},
            "epoch": {"type": "integer"},
            "segments": {"type": "array", "items": _ref("Segment")},
        },
    }
    return [
        ("/v1/worker/segments", "get", {
            "operationId": "segments",
            "summary": "Published segments behind a position; long poll",
            "tags": ["worker"],
            "parameters": [
                _query("after", "integer", "Applied position.", 0),
                _query("wait", "number", "Seconds to wait for one.", 0),
                _query("limit", "integer", "Segments at most, to 1000.", 500),
            ],
            "responses": _answer(segments),
        }),
        ("/v1/worker/tables", "get", {
            "operationId": "worker_tables",
            "summary": "All tables",
            "tags": ["worker"],
            "responses": _answer({"type": "array", "items": _ref("TableDefinition")}),
        }),
        ("/v1/worker/reports", "post", {
            "operationId": "report",
            "summary": "State of the site's replica",
            "tags": ["worker"],
            "requestBody": _body("application/json", _ref("WorkerReport")),
            "responses": _answer(_OBJECT, "Verdict and plan."),
        }),
    ]  # fmt: skip


def _catch_up() -> list[tuple[str, str, dict[str, Any]]]:
    """Plan, transfers, signatures and settings; docs/catch-up.md explains them."""
    limit = _query("limit", "integer", "Entries at most, to 1000.", 100)
    return [
        ("/v1/worker/plan", "get", {
            "operationId": "plan",
            "summary": "How a replica of this site would catch up, with both estimates",
            "tags": ["worker"],
            "parameters": [_query("worker", "string", "Worker; default: the site's own.")],
            "responses": _answer(_ref("Decision")),
        }),
        ("/v1/worker/copies", "post", {
            "operationId": "order_copy",
            "summary": "Find donors and get their leases; 409 says why there is no copy",
            "tags": ["worker"],
            "requestBody": _body("application/json", _COPY_REQUEST),
            "responses": _answer(_ref("CopyTicket"), "Grants, best donor first."),
        }),
        ("/v1/worker/recounts", "post", {
            "operationId": "take_recount",
            "summary": "Tell what a full scan of the site's replica found",
            "tags": ["worker"],
            "requestBody": _body("application/json", _ref("Recount")),
            "responses": _answer(_OBJECT, "Verdict and plan, as after a report."),
        }),
        ("/v1/worker/transfers", "post", {
            "operationId": "take_transfer",
            "summary": "Tell of a finished or failed catch-up",
            "tags": ["worker"],
            "requestBody": _body("application/json", _ref("Transfer")),
            "responses": {"204": {"description": "Noted."}},
        }),
        ("/v1/transfers", "get", {
            "operationId": "transfers",
            "summary": "Latest catch-ups of this site's replica, oldest first",
            "tags": ["ask"],
            "parameters": [limit],
            "responses": _answer({"type": "array", "items": _ref("Transfer")}),
        }),
        ("/v1/signatures", "get", {
            "operationId": "signatures",
            "summary": "Signatures of this site's replica at the ends of its batches",
            "tags": ["ask"],
            "parameters": [_query("after", "integer", "Behind this position.", 0), limit],
            "responses": _answer(_OBJECT),
        }),
        ("/v1/settings", "get", {
            "operationId": "settings",
            "summary": "Settings that can be changed at run time: value and origin",
            "tags": ["ask"],
            "responses": _answer(_OBJECT),
        }),
        ("/v1/settings", "patch", {
            "operationId": "change_settings",
            "summary": "Change settings at run time, all or none; null takes a value back",
            "tags": ["ask"],
            "requestBody": _body("application/json", _OBJECT),
            "responses": _answer(_OBJECT),
        }),
        ("/v1/maintenance", "post", {
            "operationId": "maintain",
            "summary": "Shorten the log to its limits now; what was removed, and who holds it back",
            "tags": ["ask"],
            "responses": _answer(_OBJECT),
        }),
    ]  # fmt: skip


#: Body of `/v1/quorum`.
_QUORUM: dict[str, Any] = {
    "type": "object",
    "required": ["rule"],
    "properties": {
        "rule": {
            "oneOf": [
                {"enum": ["default", "all", "majority"]},
                {"type": "integer", "minimum": 1},
            ],
            "description": "How many members hold what is acquired.",
        }
    },
}
#: Body of `/v1/void`.
_VOID: dict[str, Any] = {
    "type": "object",
    "required": ["run"],
    "properties": {
        "run": {
            "type": "string",
            "minLength": 8,
            "maxLength": 64,
            "description": "Digest of the run, hexadecimal, or the beginning of it; `status` names "
            "the runs that cannot be delivered.",
        },
        "without": {
            "type": "array",
            "items": {"type": "string"},
            "default": [],
            "description": "Members that do not answer and are given up, with what they may hold.",
        },
    },
}
#: Body of `/v1/force`.
_CONFIRM: dict[str, Any] = {
    "type": "object",
    "required": ["confirm"],
    "properties": {
        "confirm": {"type": "string", "description": "Node id and epoch."},
        "though_linked": {
            "type": "boolean",
            "default": False,
            "description": "Also while other voters are linked, which are left behind.",
        },
    },
}


def _epochs() -> list[tuple[str, str, dict[str, Any]]]:
    """Who belongs to the cluster; docs/protocol.md explains epochs."""
    node = _in_path("id", "Node id.")
    add = {
        "type": "object",
        "required": ["id", "url"],
        "properties": {
            "id": {"type": "string"},
            "url": {"type": "string", "description": "One address, or several with commas."},
            "weight": {"type": "integer", "default": 1},
            "witness": {"type": "boolean", "default": False},
        },
    }
    change = {
        "type": "object",
        "properties": {"url": {"type": "string"}, "weight": {"type": "integer"}},
    }
    replace = {
        "type": "object",
        "required": ["id", "url"],
        "properties": {
            "id": {"type": "string", "description": "The new node."},
            "url": {"type": "string", "description": "One address, or several with commas."},
            "weight": {"type": "integer", "description": "Default: votes of the old one."},
            "witness": {"type": "boolean", "description": "Default: as the old one."},
        },
    }
    found: list[tuple[str, str, str, str, list[dict[str, Any]], dict[str, Any] | None]] = [
        ("/v1/peers", "post", "add_peer", "Give a node a place; 409 says why not", [], add),
        ("/v1/peers/{id}", "delete", "remove_peer", "Take a node's place away", [node], None),
        ("/v1/peers/{id}", "patch", "change_peer", "Change address or votes", [node], change),
        ("/v1/peers/{id}/promote", "post", "promote_peer", "Move up in precedence", [node], None),
        ("/v1/peers/{id}/demote", "post", "demote_peer", "Move down in precedence", [node], None),
        ("/v1/peers/{id}/replace", "post", "replace_peer",
         "Give its place to another node, by one decision", [node], replace),
        ("/v1/quorum", "post", "set_quorum", "Change the acquisition quorum", [], _QUORUM),
        ("/v1/void", "post", "void",
         "Let a run that nobody can deliver take no effect, by a decision", [], _VOID),
        ("/v1/force", "post", "force", "Go on alone: all others are dead for certain", [],
         _CONFIRM),
    ]  # fmt: skip
    timeout = _query("timeout", "number", "Seconds to wait for the decision.", 60)
    show: dict[str, Any] = {
        "operationId": "epochs",
        "summary": "Current view: phase, epoch, places, members, who is linked to whom",
        "tags": ["members"],
        "responses": _answer(_OBJECT),
    }
    history: dict[str, Any] = {
        "operationId": "epoch_history",
        "summary": "Epochs that this node has taken up, newest first",
        "tags": ["members"],
        "parameters": [_query("limit", "integer", "Epochs at most, to 1000.", 100)],
        "responses": _answer({"type": "array", "items": _ref("EpochRecord")}),
    }
    changes = [
        (path, method, {
            "operationId": name,
            "summary": summary,
            "tags": ["members"],
            "parameters": [*parameters, timeout],
            **({} if body is None else {"requestBody": _body("application/json", body)}),
            "responses": _answer(_OBJECT, "The view that has it."),
        })
        for path, method, name, summary, parameters, body in found
    ]  # fmt: skip
    return [("/v1/epochs", "get", show), ("/v1/epochs/history", "get", history), *changes]
