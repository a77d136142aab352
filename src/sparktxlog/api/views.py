"""The log's state as rows of fixed schemas: what `log.masters()` and the data source show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from sparktxlog.errors import InvalidRequestError

#: One row for each member, as the asked node sees it.
MASTERS = pa.schema(
    [
        ("node_id", pa.string()),
        ("url", pa.string()),
        #: True for the node that was asked.
        ("is_asked", pa.bool_()),
        ("linked", pa.bool_()),
        ("epoch", pa.int64()),
        #: End of its synchronized queue, as far as known.
        ("position", pa.int64()),
        ("published", pa.int64()),
        ("counter", pa.int64()),
        ("round", pa.int64()),
        ("busy", pa.bool_()),
        ("incoming_runs", pa.int64()),
        ("incoming_transactions", pa.int64()),
        #: Seconds since its last post came.
        ("age_s", pa.float64()),
        ("clock_offset_us", pa.int64()),
        #: What the asked node awaits of it: `promise`, `acquired`, `payload`; empty = nothing.
        ("awaited", pa.list_(pa.field("element", pa.string()))),
        #: Origin → sequence number up to which it confirmed to hold that node's runs, durably; NULL
        #: for the node that was asked.
        ("acquired", pa.map_(pa.string(), pa.int64())),
        #: Why it takes no more part; empty = it does.
        ("halted", pa.string()),
    ]
)

#: One row for each replica's worker.
WORKERS = pa.schema(
    [
        ("worker_id", pa.string()),
        ("node_id", pa.string()),
        ("position", pa.int64()),
        ("chain_hash", pa.string()),
        #: KNOWN, AHEAD, DIVERGED, FOREIGN or EMPTY (protocol S3).
        ("verdict", pa.string()),
        ("reason", pa.string()),
        ("alive", pa.bool_()),
        #: It follows the log, did not end, and is not heard.
        ("silent", pa.bool_()),
        #: Why it stands still, or ended; empty = it does neither.
        ("error", pa.string()),
        ("age_s", pa.float64()),
        ("engine", pa.string()),
        ("tables", pa.int64()),
    ]
)

#: One row for each table of each replica.
SIGNATURES = pa.schema(
    [
        ("node_id", pa.string()),
        ("worker_id", pa.string()),
        #: Applied position at which the signature holds.
        ("position", pa.int64()),
        ("table", pa.string()),
        #: Delta version of the table at the position.
        ("version", pa.int64()),
        #: `rows:lane0:lane1`.
        ("signature", pa.string()),
        ("schema", pa.string()),
        ("diverged", pa.string()),
    ]
)

#: One row for each table of the catalog.
TABLES = pa.schema(
    [
        ("table", pa.string()),
        #: DDL, as `create_table` takes it.
        ("columns", pa.string()),
        ("keys", pa.list_(pa.field("element", pa.string()))),
        ("partition_by", pa.list_(pa.field("element", pa.string()))),
        ("deletion_vectors", pa.bool_()),
        ("schema_version", pa.int64()),
    ]
)

#: One row for each of the latest catch-ups of the asked site's replica; the whole history stands
#: in the table `log/transfers`.
TRANSFERS = pa.schema(
    [
        ("transfer_id", pa.string()),
        ("worker_id", pa.string()),
        ("node_id", pa.string()),
        #: `replay` or `copy`.
        ("kind", pa.string()),
        #: Nodes copied from, empty for a replay.
        ("donors", pa.list_(pa.field("element", pa.string()))),
        ("from_position", pa.int64()),
        ("to_position", pa.int64()),
        #: Clock of the worker, microseconds since 1970 UTC.
        ("started_at", pa.int64()),
        ("finished_at", pa.int64()),
        #: What was expected, and what was measured.
        ("estimated_s", pa.float64()),
        ("actual_s", pa.float64()),
        ("fetch_s", pa.float64()),
        #: Bytes of files needed, of them read over the network (compressed), and found here.
        ("size_bytes", pa.int64()),
        ("wire_bytes", pa.int64()),
        ("reused_bytes", pa.int64()),
        ("transactions", pa.int64()),
        #: `done`, or why it failed.
        ("outcome", pa.string()),
        ("reason", pa.string()),
    ]
)

_SEAT = pa.struct(
    [
        ("id", pa.string()),
        ("url", pa.string()),
        ("weight", pa.int64()),
        ("witness", pa.bool_()),
        ("incarnation", pa.int64()),
    ]
)
_NAMES = pa.list_(pa.field("element", pa.string()))

#: One row for each of the latest epochs that the asked node has taken up, newest first; the whole
#: history stands in the table `log/epochs`, with the same columns.
EPOCHS = pa.schema(
    [
        ("lineage", pa.string()),
        ("epoch", pa.int64()),
        #: In precedence order.
        ("members", pa.list_(pa.field("element", pa.string()))),
        ("quorum", pa.int64()),
        ("quorum_rule", pa.string()),
        #: All places, in precedence order.
        ("roster", pa.list_(pa.field("element", _SEAT))),
        #: End of the queue of the epoch before.
        ("begins_after", pa.struct([("position", pa.int64()), ("chain_hash", pa.string())])),
        #: Members, against the epoch that the node took up before; NULL = none is remembered.
        ("joined", pa.list_(pa.field("element", pa.string()))),
        ("left", pa.list_(pa.field("element", pa.string()))),
        #: Other nodes whose seat is new, gone or altered.
        ("changed", pa.list_(pa.field("element", pa.string()))),
        #: Phase of the asked node when it took the epoch up.
        ("phase", pa.string()),
        #: Clock of the asked node.
        ("taken_up_at", pa.timestamp("us", tz="UTC")),
    ]
)

Json = Mapping[str, Any]


def masters_rows(status: Json, info: Json) -> list[dict[str, Any]]:
    """Return the rows of `MASTERS` from `/v1/status` and `/v1/info`."""
    awaited: dict[str, list[str]] = {}
    for item in status.get("waiting_for", ()):
        awaited.setdefault(str(item["peer"]), []).append(str(item["why"]))
    own = {
        **_known(status, MASTERS),
        "url": info.get("master_url"),
        "is_asked": True,
        "linked": True,
        "age_s": 0.0,
        "clock_offset_us": 0,
        "awaited": awaited.get(str(status["node_id"]), []),
        "halted": str(status.get("halted") or ""),
    }
    peers = [
        {
            **_known(peer, MASTERS),
            "node_id": _peer_id(peer),
            "is_asked": False,
            "awaited": awaited.get(_peer_id(peer), []),
            "halted": "",
        }
        for peer in status.get("peers", ())
    ]
    return [own, *peers]


def _peer_id(peer: Json) -> str:
    return str(peer.get("id") or peer.get("peer") or peer.get("node_id"))


def workers_rows(status: Json) -> list[dict[str, Any]]:
    """Return the rows of `WORKERS` from `/v1/status`."""
    return [
        {
            **_known(replica, WORKERS),
            "tables": replica.get("table_count", len(replica.get("tables") or {})),
        }
        for replica in status.get("replicas", ())
    ]


def signatures_rows(status: Json) -> list[dict[str, Any]]:
    """Return the rows of `SIGNATURES` from `/v1/status?tables=1`."""
    return [
        {**_known(replica, SIGNATURES), "table": name, **_known(table, SIGNATURES)}
        for replica in status.get("replicas", ())
        for name, table in (replica.get("tables") or {}).items()
    ]


def tables_rows(tables: Sequence[Json]) -> list[dict[str, Any]]:
    """Return the rows of `TABLES` from `/v1/tables`."""
    return [
        {
            **_known(table, TABLES),
            "table": table["name"],
            "columns": ", ".join(
                f"{column['name']} {column['type']}"
                + ("" if column.get("nullable", True) else " not null")
                for column in table["columns"]
            ),
        }
        for table in tables
    ]


def _known(found: Json, schema: pa.Schema) -> dict[str, Any]:
    return {name: found[name] for name in schema.names if name in found}


def _all(found: Sequence[Json], schema: pa.Schema) -> list[dict[str, Any]]:
    return [_known(item, schema) for item in found]


Get = Callable[..., Any]

#: View → (schema, function from a GET of the client API to the view's rows).
VIEWS: dict[str, tuple[pa.Schema, Callable[[Get], list[dict[str, Any]]]]] = {
    "masters": (MASTERS, lambda get: masters_rows(get("/v1/status"), get("/v1/info"))),
    "workers": (WORKERS, lambda get: workers_rows(get("/v1/status"))),
    "signatures": (SIGNATURES, lambda get: signatures_rows(get("/v1/status", tables=1))),
    "tables": (TABLES, lambda get: tables_rows(get("/v1/tables"))),
    "transfers": (TRANSFERS, lambda get: _all(get("/v1/transfers", limit=1_000), TRANSFERS)),
    "epochs": (EPOCHS, lambda get: _all(get("/v1/epochs/history", limit=1_000), EPOCHS)),
}


def view(name: str, get: Get) -> pa.Table:
    """Return a view's rows.

    Args:
        name: One of `VIEWS`.
        get: Returns the JSON answer of `GET path`.

    Raises:
        InvalidRequestError: No such view (definite).
    """
    if name not in VIEWS:
        raise InvalidRequestError(
            f"there is no view {name!r}", hint=f"Views: queue, {', '.join(VIEWS)}.", view=name
        )
    schema, rows = VIEWS[name]
    return pa.Table.from_pylist(rows(get), schema=schema)
