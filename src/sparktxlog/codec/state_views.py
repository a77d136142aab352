"""Views of the log's state: `log.masters()`, `format("txlog")`, SQL names, `/v1/views`.

A row in `VIEWS` or `KEPT` makes a view that each of these ways reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from sparktxlog.codec.arrow import arrow_type
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.restore_point import RESTORE_POINTS as POINTS_TABLE
from sparktxlog.model.restore_point import points_in
from sparktxlog.model.status_words import replica_of

#: One row for each node with a place, as the asked node sees it; `is_asked`: that node itself.
#: `reason`: why there is no link.  `position`: end of its synchronized queue, as far as known.
#: `age_s`: seconds since its last post came.  `awaited`: what the asked node waits for: `promise`,
#: `acquired`, `payload`, `copy`.  `acquired`: origin → sequence number up to which it confirmed to
#: hold that node's runs, durably.  `halted`: why it takes no more part; empty = it does.  Bytes,
#: posts and pushes since the asked node's start.  What says something of a link is NULL for it.
MASTERS = (
    "node_id: string, url: string, is_asked: boolean, linked: boolean, reason: string, "
    "silent: boolean, member: boolean, witness: boolean, follower: boolean, wire_version: bigint, "
    "epoch: bigint, position: bigint, published: bigint, counter: bigint, round: bigint, "
    "busy: boolean, incoming_runs: bigint, incoming_transactions: bigint, age_s: double, "
    "clock_offset_us: bigint, round_trip_s: double, awaited: array<string>, "
    "acquired: map<string, bigint>, halted: string, sent_bytes: bigint, received_bytes: bigint, "
    "fetched_bytes: bigint, posts: bigint, pushes_dropped: bigint"
)

#: One row for each replica's worker.  `name`: of the replica at its site.  `only`: patterns of the
#: row tables that it holds, empty = all.  `behind`: published transactions that it has not applied.
#: `verdict`: IN_SYNC, AHEAD, DIVERGED, FOREIGN or EMPTY (S3).
#: `silent`: it follows the log, did not end, and is not heard.  `error`: why it stands still, or
#: ended; empty = it does neither.
WORKERS = (
    "worker_id: string, node_id: string, name: string, only: array<string>, position: bigint, "
    "behind: bigint, chain_hash: string, verdict: string, reason: string, alive: boolean, "
    "silent: boolean, error: string, age_s: double, engine: string, tables: bigint"
)

#: One row for each table of each replica.  `position`: applied position of the signature.
#: `version`: Delta version of the table there.  `signature`: `rows:lane0:lane1`.  `difference`:
#: NULL = it differs from no other site's.  In it `equal_to`: last position at which it was equal
#: to another site's, 0 = not known; `position`: first one at which it differed; `signature`,
#: `others`: the signatures there.  `convicted`: most sites say that this one is wrong.
#: `transactions`: what wrote to the table after `equal_to` and up to `position`, the first 20.
SIGNATURES = (
    "node_id: string, worker_id: string, name: string, position: bigint, table: string, "
    "version: bigint, "
    "signature: string, schema: string, diverged: string, difference: struct<equal_to: bigint, "
    "position: bigint, signature: string, others: map<string, string>, convicted: boolean, "
    "sentence: string, transactions: array<struct<position: bigint, transaction_id: string, "
    "origin: string, kind: string>>>"
)

#: One row for each table.  `kind`: `row-table` or `commit-table`.  `columns`: DDL, as
#: `create_table` takes it.  `location`: its directory at the asked site, NULL = not there yet.
#: `version`: how many transactions wrote to a row table and took effect; of a commit table the
#: version that is placed there.  `last_write`: position of the last transaction that wrote to a row
#: table.
TABLES = (
    "table: string, kind: string, comment: string, columns: string, keys: array<string>, "
    "partition_by: array<string>, cluster_by: array<string>, properties: map<string, string>, "
    "deletion_vectors: boolean, is_sync: boolean, schema_version: bigint, version: bigint, "
    "last_write: bigint, location: string"
)

#: One row for each of the latest 200 catch-ups of the asked site's replica, finished or failed.
#: `kind`: `replay` or `copy`.  `donors`: nodes copied from, empty for a replay.  Times are the
#: worker's clock, microseconds since 1970 UTC.  `estimated_s` was expected, NULL = nothing was;
#: `actual_s` was measured; `reason` says why it was chosen, with the figures that were compared.
#: Bytes of the files needed, of them read over the network (compressed), and found here.
#: `outcome`: `done`, or why it failed.
TRANSFERS = (
    "transfer_id: string, worker_id: string, node_id: string, kind: string, donors: array<string>, "
    "from_position: bigint, to_position: bigint, started_at: bigint, finished_at: bigint, "
    "estimated_s: double, actual_s: double, fetch_s: double, size_bytes: bigint, "
    "wire_bytes: bigint, reused_bytes: bigint, transactions: bigint, outcome: string, "
    "reason: string"
)

#: One row for each of the latest epochs that the asked node has taken up, newest first; the whole
#: history stands in the table `log/epochs`, with the same columns.  `roster`: all places; it and
#: `members` are in precedence order.  `begins_after`: end of the queue of the epoch before.
#: `joined`, `left`: members, against the epoch that the node took up before, NULL = none is
#: remembered; `changed`: other nodes whose seat is new, gone or altered.  `phase`: of the asked
#: node when it took the epoch up, at its own clock.
EPOCHS = (
    "log_id: string, epoch: bigint, members: array<string>, quorum: bigint, quorum_rule: string, "
    "roster: array<struct<id: string, url: string, weight: bigint, witness: boolean, "
    "follower: boolean, incarnation: bigint>>, begins_after: struct<position: bigint, "
    "chain_hash: string>, joined: array<string>, left: array<string>, changed: array<string>, "
    "phase: string, taken_up_at: timestamp"
)

#: One row for each setting of the asked node that can be changed at run time; `value` as JSON.
SETTINGS = "key: string, value: string, origin: string"

#: One row for each commit table at the asked site, as `GET /v1/commit-tables` has it.
COMMIT_TABLES = (
    "table: string, uuid: string, version: bigint, ordered: bigint, lag: bigint, state: string, "
    "plan: string, peer: string, reason: string"
)

#: One row for each prepared transaction that is undecided (P35).  `missing`: participants that said
#: nothing yet; `valid_until`: microseconds since 1970 UTC.
PREPARED = (
    "transaction_id: string, position: bigint, origin: string, participants: array<string>, "
    "missing: array<string>, valid_until: bigint"
)

#: One row for each run in negotiation, in the agreed order: it has no position yet.  `n`: its
#: transactions.  `acquired`: its data is durable at the asked node.  `since_us`: since when that
#: node knows it, microseconds.  `waits`: which node is missing for it, and why, as `awaited` of
#: `masters`; empty for a run that waits only for those before it.
INCOMING = (
    "origin: string, incarnation: bigint, seq: bigint, n: bigint, ts: bigint, digest: string, "
    "size_bytes: bigint, staged_bytes: bigint, acquired: boolean, since_us: bigint, "
    "waits: array<struct<peer: string, why: string>>"
)

#: One row for each node with a place: what its loss would mean now.  `survives`: all that is
#: known, its rows and its commit tables are held elsewhere, and the others can go on.  `ordered`:
#: end of the queue; `ordered_only_there`, `accepted_only_there`: transactions that no other node
#: holds, as far as the asked node knows.  `held_by`: sites that hold all that is ordered, with its
#: rows.  `rows_held_by`: sites that answer and have all rows of the row tables;
#: `tables_only_there`: commit tables that no other site that answers has whole;
#: `grouped_only_there`: tables of groups of which no other site answers.  `voters`: nodes that
#: answer; `goes_on`: whether they have a majority of votes.  `applied_elsewhere`: furthest position
#: of another replica that is in sync, NULL = there is none.  A witness does not have this view.
SURVIVAL = (
    "site: string, survives: boolean, ordered: bigint, ordered_only_there: bigint, "
    "accepted_only_there: bigint, held_by: array<string>, rows_held_by: array<string>, "
    "tables_only_there: array<string>, grouped_only_there: array<string>, voters: array<string>, "
    "goes_on: boolean, applied_elsewhere: bigint, sentence: string"
)

#: One row for each act of an operator at the asked node, each change of members, secrets or tables
#: that the log brought, and equal acts and refusals of others, newest first.  `at`, `until`: first
#: and last of them, microseconds since 1970 UTC; `count`: their number.  `who`: a role, the name of
#: a grant, `vote` of the members, a site, or `nobody`; `address`: of the caller.  `outcome`:
#: `done`, or the error.
AUDIT = (
    "at: bigint, node: string, who: string, action: string, detail: string, outcome: string, "
    "address: string, count: bigint, until: bigint"
)

#: One row for each restore point, by position.  `made_at`: microseconds since 1970 UTC.
#: `position` is NULL if its maker ended too early; such a point is of no use.
RESTORE_POINTS = "name: string, position: bigint, chain_hash: string, made_at: bigint, note: string"

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


def signatures_rows(status: Json, differences: Sequence[Json]) -> list[dict[str, Any]]:
    """Return the rows of `SIGNATURES` from `/v1/status?tables=1` and where replicas differ."""
    differing = {(one["site"], one["table"]): one for one in differences}
    return [
        {
            **_known(replica, SIGNATURES),
            "table": name,
            **_known(table, SIGNATURES),
            "difference": differing.get((replica_of(replica), name)),
        }
        for replica in status.get("replicas", ())
        for name, table in (replica.get("tables") or {}).items()
    ]


def tables_rows(tables: Sequence[Json]) -> list[dict[str, Any]]:
    """Return the rows of `TABLES` from `/v1/descriptions`."""
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


def settings_rows(settings: Mapping[str, Json]) -> list[dict[str, Any]]:
    """Return the rows of `SETTINGS` from `/v1/settings`."""
    return [
        {"key": key, "value": json.dumps(found["value"]), "origin": found["origin"]}
        for key, found in settings.items()
    ]


def commit_tables_rows(found: Sequence[Json]) -> list[dict[str, Any]]:
    """Return the rows of `COMMIT_TABLES` from `/v1/commit-tables`."""
    return [_known({**line, "table": line["name"]}, COMMIT_TABLES) for line in found]


def incoming_rows(found: Sequence[Json]) -> list[dict[str, Any]]:
    """Return the rows of `INCOMING` from `/v1/incoming`."""
    return [
        {
            **_known(run, INCOMING),
            "waits": [{"peer": wait["peer"], "why": wait["why"]} for wait in run["waits"]],
        }
        for run in found
    ]


def restore_point_rows(tables: Sequence[Json]) -> list[dict[str, Any]]:
    """Return the rows of `RESTORE_POINTS` from `/v1/descriptions`."""
    found = (table["properties"] for table in tables if table["name"] == POINTS_TABLE)
    return [
        {**asdict(point), "position": point.position or None}
        for properties in found
        for point in points_in(properties)
    ]


@lru_cache
def _schema(ddl: str) -> pa.Schema:
    return pa.schema(arrow_type(f"struct<{ddl}>"))


def _known(found: Json, ddl: str) -> dict[str, Any]:
    return {name: found[name] for name in _schema(ddl).names if name in found}


@dataclass(frozen=True, slots=True)
class StateView:
    """One view of what a node knows now."""

    #: Its columns.
    ddl: str
    #: What the node is asked for it (see `ViewRows`), and what makes its rows of the answers.
    asks: tuple[str, ...]
    rows: Callable[..., list[dict[str, Any]]]
    #: The node keeps it as a Delta table in this directory of `log/`; empty = it does not.
    delta_table: str = ""

    @property
    def schema(self) -> pa.Schema:
        """Its columns, for Arrow."""
        return _schema(self.ddl)

    def table(self, answers: Mapping[str, Any]) -> pa.Table:
        """Return its rows, from the answers to what it asks, by name."""
        found = self.rows(*(answers[name] for name in self.asks))
        return pa.Table.from_pylist(found, schema=self.schema)


@dataclass(frozen=True, slots=True)
class KeptTable:
    """A view that is a Delta table of the node, of any length."""

    #: Its directory below `log/`.
    directory: str
    #: The column that orders its rows: a number, or a time.
    order: str


def _of_list(ddl: str) -> Callable[[Sequence[Json]], list[dict[str, Any]]]:
    return lambda found: [_known(item, ddl) for item in found]


#: Views of the present, by name.
VIEWS = {
    "masters": StateView(MASTERS, ("status", "info"), masters_rows),
    "workers": StateView(WORKERS, ("status",), workers_rows),
    "signatures": StateView(SIGNATURES, ("status_with_tables", "differences"), signatures_rows),
    "tables": StateView(TABLES, ("descriptions",), tables_rows),
    "commit_tables": StateView(COMMIT_TABLES, ("commit_tables",), commit_tables_rows),
    "incoming": StateView(INCOMING, ("incoming",), incoming_rows),
    "survival": StateView(SURVIVAL, ("survival",), _of_list(SURVIVAL)),
    "prepared": StateView(PREPARED, ("prepared",), _of_list(PREPARED)),
    "settings": StateView(SETTINGS, ("settings",), settings_rows),
    "audit": StateView(AUDIT, ("audit",), _of_list(AUDIT)),
    "restore_points": StateView(RESTORE_POINTS, ("descriptions",), restore_point_rows),
    "transfers": StateView(TRANSFERS, ("transfers",), _of_list(TRANSFERS)),
    "epochs": StateView(EPOCHS, ("epochs",), _of_list(EPOCHS), "epochs"),
}
#: Views that are read from the disk, by name.
KEPT = {
    "queue": KeptTable("synchronized_queue", "position"),
    "lag": KeptTable("lag", "sampled_at"),
}


#: Views of tables and transactions: a node that does not know the log yet does not answer them.
OF_THE_LOG = frozenset(
    {"commit_tables", "incoming", "prepared", "queue", "restore_points", "signatures", "tables"}
)


def check_view(name: str) -> None:
    """Refuse what is no view.

    Raises:
        InvalidRequestError: No such view (definite).
    """
    if name not in (*KEPT, *VIEWS):
        raise InvalidRequestError(
            f"there is no view {name[:80]!r}",
            hint=f"Views: {', '.join((*KEPT, *VIEWS))}.",
            view=name[:80],
        )
