"""The OpenAPI document of the client API and its page, made from the table of routes.

Schemas come from the types that decode requests and that answers have.  A test checks the examples,
and that every answer fits its schema.
"""

from __future__ import annotations

import json
import re
from functools import cache
from html import escape
from typing import Any

import msgspec

from sparktxlog import __version__
from sparktxlog.codec.problems import ProblemDocument
from sparktxlog.service.routing.declared_route import Role, Route
from sparktxlog.service.routing.routes import ROUTES

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

#: Role → name and description of its token.
_SCHEMES = {
    Role.CLIENT: (
        "clientToken",
        "The node's client-token; not needed if none is configured.",
    ),
    Role.WORKER: (
        "workerToken",
        "The content of the node's worker_token_file, or adminToken.",
    ),
    Role.ADMIN: (
        "adminToken",
        "The node's admin-token; clientToken if none is configured.",
    ),
}


@cache
def client_document() -> dict[str, Any]:
    """Return the OpenAPI document of the client API."""
    public = [route for route in ROUTES if route.is_public]
    types = [kind for route in public for kind in (route.body, route.answer) if _is_json(kind)]
    found, components = msgspec.json.schema_components(
        [*types, ProblemDocument], ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(map(repr, types), found, strict=False))
    components["TransactionRequest"]["examples"] = [TRANSACTION_EXAMPLE]
    components["Receipt"]["examples"] = [_RECEIPT_EXAMPLE]
    paths: dict[str, Any] = {}
    for route in public:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sparktxlog",
            "description": "Commit transactions to the log, and ask for their state.",
            "version": __version__,
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                name: {"type": "http", "scheme": "bearer", "description": text}
                for name, text in _SCHEMES.values()
            },
        },
    }


def _is_json(kind: Any) -> bool:
    return kind is not None and kind is not bytes


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the document's entry of a route."""

    def content(kind: Any, media_type: str) -> dict[str, Any]:
        schema = schemas[repr(kind)] if _is_json(kind) else {"type": "string", "format": "binary"}
        return {media_type.partition(";")[0]: {"schema": schema}}

    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)", route.path)
    ]
    in_query = [
        {"name": query.name, "in": "query", "description": query.text, "schema": query.schema}
        for query in route.query
    ]
    answer: dict[str, Any] = {"description": "Done."}
    if route.answer is not None:
        answer["content"] = content(route.answer, route.answer_type)
        for other in route.other_types:
            answer["content"] |= content(bytes, other)
    problem = {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}
    body = {"required": True, "content": content(route.body, route.body_type)}
    return {
        "tags": [_tag(route)],
        "summary": route.summary,
        **({"description": route.description} if route.description else {}),
        "operationId": route.name,
        "responses": {
            "204" if route.answer is None else "200": answer,
            "default": {
                "description": "An error; definite: true means that certainly nothing happened.",
                "content": {"application/problem+json": problem},
            },
        },
        "parameters": [*in_path, *in_query],
        "security": [{_SCHEMES[route.role][0]: []}, {}],
        **({} if route.body is None else {"requestBody": body}),
    }


def _tag(route: Route) -> str:
    if route.hot:
        return "submit"
    if route.path.startswith("/v1/worker/"):
        return "worker"
    return "members" if route.at_witness and route.role is Role.ADMIN else "ask"


@cache
def document_bytes() -> bytes:
    """Return the answer of `/openapi.json`, which is the same at every node."""
    return msgspec.json.encode(client_document())


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
overflow-wrap:anywhere}
:focus-visible{outline:3px solid #0059a8;outline-offset:2px}
code,pre{font-family:ui-monospace,monospace;font-size:13px}
pre{background:#f4f4f4;padding:.8rem;overflow:auto}
h2 span{color:#666;text-transform:uppercase;font-size:.8em}
td{padding:.1rem .8rem .1rem 0;vertical-align:top}"""
_INTRODUCTION = """<p>Machine-readable: <a href=openapi.json>openapi.json</a>.  Errors are RFC 9457
problem documents; <code>definite: true</code> means that certainly nothing happened.</p>
<h2>Example</h2><pre>curl -s {url}/v1/transactions --json @- &lt;&lt;'END'
"""


@cache
def document_page(url: str) -> bytes:
    """Return the document for people: one page without scripts, readable without a network.

    Args:
        url: Of the node.
    """
    document = client_document()
    example = escape(json.dumps(TRANSACTION_EXAMPLE, indent=2))
    title = f"sparktxlog {__version__}"
    introduction = _INTRODUCTION.format(url=escape(url))
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<meta name=viewport content='width=device-width'><title>{title}</title>",
        f"<style>{_STYLE}</style><h1>{title}</h1>{introduction}{example}\nEND</pre>",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(
                f"<h2><span>{method}</span> <code>{escape(path)}</code></h2>"
                f"<p>{escape(operation['summary'])}. {escape(operation.get('description', ''))}</p>"
            )
            rows = "".join(
                f"<tr><td><code>{escape(item['name'])}</code><td>{escape(item['in'])}"
                f"<td>{escape(item.get('description', ''))}"
                for item in operation.get("parameters", ())
            )
            parts.append(f"<table>{rows}</table>")
    schemas = escape(json.dumps(document["components"]["schemas"], indent=1))
    parts.append(f"<h2>Schemas</h2><details><summary>All types</summary><pre>{schemas}</pre>")
    return "".join(parts).encode()
