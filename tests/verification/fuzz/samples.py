"""A valid request of every route: what the fuzzer begins with."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from random import Random
from types import UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import msgspec
import pyarrow as pa
from tests.support.node_processes import run_payload

from sparktxlog.codec import wire
from sparktxlog.codec.delta_catalog.catalog_requests import CATALOG_API, DELTA_API
from sparktxlog.model.copying import Transfer
from sparktxlog.model.report import Recount, WorkerReport
from sparktxlog.protocol.messages.balloting import EpochMessage
from sparktxlog.protocol.messages.posts import Announcement, Post, RunHeader, Tail
from sparktxlog.service.routing.openapi import TRANSACTION_EXAMPLE
from sparktxlog.service.routing.routes import ROUTES

JSON, ARROW = "application/json", "application/vnd.apache.arrow.stream"
RUN, MSGPACK = "application/vnd.sparktxlog.run", "application/msgpack"
BINARY = "application/octet-stream"
TABLE: dict[str, Any] = {
    "kind": "create_table",
    "table": "t",
    "columns": [{"name": "id", "type": "bigint"}, {"name": "v", "type": "string"}],
}
#: Acts after which a node may rightly do nothing more: they come last.
LAST = frozenset(
    {
        "POST /v1/peers",
        "PATCH /v1/peers/{id}",
        "DELETE /v1/peers/{id}",
        "POST /v1/force",
        "POST /v1/quorum",
        "POST /v1/void",
        "POST /v1/peers/{id}/promote",
        "POST /v1/peers/{id}/demote",
        "POST /v1/peers/{id}/replace",
        "PATCH /v1/settings",
        "POST /peer/v1/epochs",
        "POST /peer/v1/tails",
    }
)


_ID = str(uuid.UUID(int=7))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A request."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    kind: str = ""
    body: bytes = b""


def _json(value: Any) -> tuple[str, bytes]:
    return JSON, json.dumps(value).encode()


def _of(kind: Any, given: Mapping[str, Any]) -> tuple[str, bytes]:
    return JSON, msgspec.json.encode(example_of(kind, given))


def arrow(rows: pa.Table) -> bytes:
    """Return rows as an Arrow stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def _rows(draw: Random) -> bytes:
    n = draw.choice((1, 3, 100))
    ids: Any = pa.array(range(n), draw.choice((pa.int64(), pa.int32(), pa.uint64(), pa.float64())))
    texts: Any = pa.array(["x"] * n, draw.choice((pa.string(), pa.large_string(), pa.binary())))
    if draw.random() < 0.2:
        texts = texts.dictionary_encode()
    columns = {"id": ids, "v": texts}
    if draw.random() < 0.2:
        columns["__txlog_tx"] = pa.array(range(n), pa.int32())
    if draw.random() < 0.1:
        columns["d"] = pa.array([{"a": [1]}] * n)
    return arrow(pa.table(columns))


_PREDICATE = "id < 3 AND v LIKE 'x%' OR id IN (1)"


def _operations(draw: Random) -> list[dict[str, Any]]:
    rows = [{"id": draw.randrange(100), "v": "x"}]
    staged = {
        "path": f"{uuid.UUID(int=1)}/a.parquet",
        "size_bytes": 9,
        "rows": 1,
        "digest": "0" * 64,
    }
    return draw.choice(
        (
            [{"kind": "append", "table": "t", "rows": rows}],
            [{"kind": "append", "table": "t", "files": [staged]}],
            [{"kind": "delete_where", "table": "t", "predicate": _PREDICATE}],
            [
                {
                    "kind": "alter_table",
                    "table": "t",
                    "add": [{"name": "n", "type": "int"}],
                    "rename": {"v": "w"},
                    "drop": ["x"],
                    "widen": {"id": "decimal(20,0)"},
                }
            ],
            [{"kind": "overwrite", "table": "t", "rows": rows}],
            [{"kind": "drop_table", "table": draw.choice(("t", "u", "nowhere"))}],
            TRANSACTION_EXAMPLE["operations"],
            [TABLE],
        )
    )


def _conditions(draw: Random) -> dict[str, Any]:
    stated = {"read_position": draw.randrange(3), "reads": ["t"], "versions": {"t": 0}}
    return {"conditions": stated} if draw.random() < 0.3 else {}


def example_of(kind: Any, given: Mapping[str, Any]) -> Any:
    """Return a value of a type: what must be there, and of named fields what is given."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = get_type_hints(kind)
        return kind(
            **{
                field.name: given.get(field.name, example_of(hints[field.name], given))
                for field in fields(kind)
                if field.name in given or field.default is field.default_factory is MISSING
            }
        )
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    if isinstance(kind, NewType):
        return example_of(kind.__supertype__, given)
    if origin in (Union, UnionType):
        return example_of(arguments[0], given)
    if origin is tuple:
        return () if arguments[-1] is ... else tuple(example_of(a, given) for a in arguments)
    if origin in (list, dict):
        return origin()
    return {str: "x", int: 1, bytes: b"x" * 32, bool: False, float: 0.5}[kind]


def samples(draw: Random, log_id: str) -> dict[str, Sample]:
    """Return one valid request for each route, by method and pattern of the path."""
    peer = {"id": "C", "url": "http://127.0.0.1:1"}
    wait = ("timeout", "0.01")
    lease = "/replica/v1/leases/x"
    own = {"log_id": log_id, "epoch": 1, "sender": "B", "origin": "B", "node_id": "A"}

    def packed(kind: Any) -> tuple[str, bytes]:
        return MSGPACK, wire.encode(example_of(kind, own))

    epoch = example_of(draw.choice(get_args(EpochMessage)), own)
    header = example_of(RunHeader, own)
    envelope = wire.Envelope(post=example_of(Post, own), hears=("A",))
    bodies: dict[str, tuple[str, bytes]] = {
        "POST /v1/transactions": _json(
            {"operations": _operations(draw), "level": "accepted", **_conditions(draw)}
        ),
        "POST /v1/runs": (RUN, run_payload(draw.choice((1, 20)), draw.randrange(1 << 30))),
        "POST /v1/tables/{table}/rows": (ARROW, _rows(draw)),
        "PUT /v1/staged/{path:path}": (BINARY, b"PAR1"),
        "POST /v1/transactions/{id}/marks": _json({"participant": "p", "yes": True}),
        "POST /v1/open-transactions": _json({"transaction_id": _ID, **_conditions(draw)}),
        "POST /v1/open-transactions/{id}/operations": _json({"operations": _operations(draw)}),
        "POST /v1/worker/reports": _of(WorkerReport, own),
        "POST /v1/worker/recounts": _of(Recount, own),
        "POST /v1/worker/copies": _json({"worker_id": "w", "forced": False}),
        "POST /v1/worker/commit-tables/check": _json({"table": "default.t", "repair": True}),
        "POST /v1/worker/files": _json({"first": 1, "last": 1}),
        "POST /v1/worker/transfers": _of(Transfer, own),
        "POST /v1/peers": _json(peer),
        "PATCH /v1/peers/{id}": _json({"weight": 1}),
        "POST /v1/peers/{id}/replace": _json(peer),
        "POST /v1/quorum": _json({"rule": "majority"}),
        "POST /v1/void": _json({"run": "0" * 16, "without": ["B"]}),
        "POST /v1/force": _json({"confirm": "A 1"}),
        "PATCH /v1/settings": _json({"NetSpeedBitsPerSec": 1_000_000}),
        "POST /v1/maintenance": _json({}),
        "POST /v1/recounts": _json({"tables": ["t"]}),
        "POST /v1/restore-points": _json({"name": "before", "note": "a"}),
        "PUT /v1/groups/{name}": _json({"sites": ["A"], "copies": 1, "schemas": ["s"]}),
        "PATCH /v1/groups/{name}": _json({"copies": 1, "schemas": []}),
        "POST /peer/v1/posts": (MSGPACK, wire.encode(envelope)),
        "POST /peer/v1/pushes": (MSGPACK, wire.encode_pushes([(header, b"payload")])),
        "POST /peer/v1/announcements": packed(Announcement),
        "POST /peer/v1/tails": packed(Tail),
        "POST /peer/v1/epochs": (MSGPACK, wire.encode_epoch(epoch)),
        "POST /peer/v1/runs": (MSGPACK, wire.encode(wire.RunsRequest(runs=(("A", 1, 1),)))),
        "POST /peer/v1/leases": (MSGPACK, wire.encode(wire.LeaseRequest(worker_id="w"))),
        **_catalog_bodies(),
        f"POST {lease.replace('/x', '/{lease}')}/digests": _json({"files": [["t", "a"]]}),
    }
    queries = _queries(wait)
    found = {}
    for route in (declared.key for declared in ROUTES):
        method, path = route.split(" ")
        for name, text in _PARTS.items():
            path = path.replace(name, text)
        waits = route in LAST and route.startswith(("POST /v1", "PATCH", "DELETE"))
        query = (wait,) if waits else queries.get(route, ())
        kind, body = bodies.get(route, ("", b""))
        found[route] = Sample(method=method, path=path, query=query, kind=kind, body=body)
    return found


def _catalog_bodies() -> dict[str, tuple[str, bytes]]:
    """Return the body of each POST route of the catalog."""
    schema = f"POST {DELTA_API}/v1/catalogs/{{catalog}}/schemas/{{schema}}"
    commit = {
        "version": 1,
        "timestamp": 1,
        "file-name": f"{1:020}.{_ID}.json",
        "file-size": 1,
        "file-modification-timestamp": 1,
    }
    update = {
        "requirements": [{"type": "assert-table-uuid", "uuid": _ID}],
        "updates": [
            {"action": "add-commit", "commit": commit},
            {"action": "set-properties", "updates": {"a": "b"}},
        ],
    }
    table = {
        "name": "t",
        "location": f"file:/{_ID}",
        "table-type": "MANAGED",
        "columns": {"type": "struct", "fields": []},
        "protocol": {"min-reader-version": 3, "min-writer-version": 7},
        "properties": {},
        "last-commit-timestamp-ms": 1,
    }
    return {
        f"POST {CATALOG_API}/schemas": _json({"name": "s", "catalog_name": "tx"}),
        f"POST {CATALOG_API}/temporary-table-credentials": _json(
            {"table_id": _ID, "operation": "READ"}
        ),
        f"{schema}/staging-tables": _json({"name": "t"}),
        f"{schema}/tables": _json(table),
        f"{schema}/tables/{{table}}": _json(update),
        f"{schema}/tables/{{table}}/rename": _json({"new-name": "t"}),
        f"{schema}/tables/{{table}}/metrics": _json({"table-id": _ID}),
    }


def _queries(wait: tuple[str, str]) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the query of each route that takes one, and is no act of an operator."""
    return {
        "POST /v1/transactions": (("level", "accepted"), wait),
        "POST /v1/transactions/{id}/marks": (("level", "accepted"), wait),
        "GET /v1/transactions/{id}": (("after", "0"), wait),
        "POST /v1/runs": (("level", "accepted"), wait),
        "POST /v1/tables/{table}/rows": (("kind", "append"), ("level", "accepted"), wait),
        "PUT /v1/staged/{path:path}": tuple(
            {"table": "t", "size": "9", "rows": "1", "digest": "0" * 64, "offset": "0"}.items()
        ),
        "POST /v1/open-transactions/{id}/commit": (("level", "accepted"), wait),
        "GET /v1/queue": (("after", "0"), ("limit", "10")),
        "GET /v1/published": (("at_least", "0"), wait),
        "GET /v1/snapshot": (("position", "0"), ("at_least", "0"), wait),
        "GET /v1/worker/segments": (("after", "0"), ("wait", "0.01"), ("limit", "10")),
        "GET /v1/worker/commits": (("after", "0"), ("upto", "9"), ("limit", "10")),
        "GET /v1/worker/files/{where}/{path:path}": tuple(
            {"digest": "0" * 64, "size": "9", "rows": "1"}.items()
        ),
        "GET /v1/worker/plan": (("worker", "w"),),
        "GET /v1/transfers": (("limit", "10"),),
        "GET /v1/signatures": (("after", "0"), ("limit", "10")),
        "GET /v1/epochs/history": (("limit", "10"),),
        "GET /readyz": (("verbose", ""),),
        f"GET {CATALOG_API}/schemas": (("catalog_name", "tx"),),
        f"GET {CATALOG_API}/tables": (("catalog_name", "tx"), ("schema_name", "default")),
        f"GET {DELTA_API}/v1/config": (("catalog", "tx"), ("protocol-versions", "1.0")),
        "GET /replica/v1/leases/{lease}/chunks": tuple(
            {"table": "t", "path": "a", "offset": "0", "length": "10"}.items()
        ),
    }


_PARTS = {
    "{catalog}": "tx",
    "{schema}": "default",
    "{full_name}": "tx.s",
    "{table_id}": _ID,
    "{table}": "t",
    "{id}": _ID,
    "{name}": "probe",
    "{lease}": "x",
    "{position:number}": "0",
    "{origin}": "A",
    "{incarnation:number}": "1",
    "{seq:number}": "1",
    "{digest}": "00" * 32,
    "{where}": "payloads",
    "{path:path}": f"{_ID}/x/a.parquet",
}
