"""What the pages of the dashboard show, as plain values: each is a page's `.json` twin.

A view is made from what the node answers to programs anyway, in one call; it asks no other node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

import msgspec

from sparktxlog.errors import InvalidRequestError, NotFoundError, TxLogError, UnknownTableError
from sparktxlog.health.transaction_words import (
    receipt_sentences,
    sites_of,
    unseen_sentences,
)
from sparktxlog.health.verdicts import (
    alarms_of,
    banner_of,
    furthest_lines,
    is_diverged,
    judge,
    replica_lines,
)
from sparktxlog.model.answers import IncomingRunAnswer, ListedRun, StatusAnswer
from sparktxlog.model.ids import NodeId, full_table_name, transaction_id_from_text
from sparktxlog.model.run_search import last_runs, run_at
from sparktxlog.model.shown import time_text
from sparktxlog.model.status_words import (
    awaited_text,
    batch_text,
    last_transfer_text,
    replica_of,
    tables_text,
    verdict_text,
)
from sparktxlog.model.tables.table import Tables
from sparktxlog.model.tables.table_kind import TableDescription, TableKind
from sparktxlog.model.transactions.receipt import Level
from sparktxlog.model.values import split_urls
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.history.node_history import STEPS
from sparktxlog.runtime.history.wait_history import MOST
from sparktxlog.runtime.membership.sites_data import voters_without
from sparktxlog.runtime.node import Node
from sparktxlog.runtime.view_rows import row_dicts
from sparktxlog.service.dashboard.acts import node_acts, table_acts
from sparktxlog.service.dashboard.plots import plots_of

#: A page's values; what `json` in `msgspec` can encode.
View = dict[str, Any]

#: The name of what is only drawn, and no value of a twin.
DRAWN = "drawn"
#: How far a run got at one site, in rising order; `differs` instead of `equal` ends a way.
CELLS = ("waiting", "acquired", "ordered", "applied", "equal", "differs")
#: Most tables, and epochs or catch-ups, of a page.
TABLES = 200
LINES = 50
#: Most runs in negotiation among which that of a transaction is looked for.
MOST_INCOMING = 1_000
#: The picture of the sites: its width and height, and how far the sites are from its middle.
_PICTURE = (640, 300)
_RADIUS = (220, 100)
#: How long before a round the lag of replicas is looked for, microseconds.
_BEFORE_US = 60_000_000
#: A plot shows the time of so many samples at least; of a younger node the time since its start.
_LEAST_STEPS = 6
#: Width of a timeline.
_TIMELINE = 800


class DashboardViews:
    """Makes the views of one node; used on the event loop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        #: Span → the number of samples, and what was made of them; all pages have it in common.
        self._histories: dict[str, tuple[int, View]] = {}

    def frame(self, status: StatusAnswer) -> View:
        """Return what every page has: the node, the state of the cluster, its alarms, others."""
        verdict = judge(status)
        differing = [
            {"severity": "alarm", "text": one["sentence"], "way_out": "", "word": ""}
            for one in self._node.all_replicas.differences.found()
        ]
        first, *others = banner_of(status)
        return {
            "node": status["node_id"],
            "log_id": status["log_id"],
            "state": verdict.word,
            "verdict": verdict.to_document(),
            "banner": [first, *differing, *others],
            "alarms": [*differing, *alarms_of(status)],
            "at": status["wall"],
            "witness": self._node.config.is_witness,
            "others": [
                {"id": seat["id"], "url": split_urls(seat["url"])[0]}
                for seat in status["roster"]
                if not seat["witness"] and seat["id"] != status["node_id"]
            ],
        }

    def overview(self, status: StatusAnswer) -> View:
        """Return sites and links, positions, what the order waits for, replicas and their plans."""
        names = (
            "epoch phase duty members quorum position published applied kept_after log_bytes "
            "incoming_runs incoming_transactions incoming_bytes round undecided"
        )
        return {
            **{name: status.get(name) for name in names.split()},
            "waits": [awaited_text(wait) for wait in status["waiting_for"]],
            "survival": self._losses(),
            "sites": (sites := _sites(status)),
            "links": _links(status, sites),
            "replicas": [_replica_line(line) for line in replica_lines(status)],
            "commit_tables": status["commit_tables"],
            DRAWN: None if self._node.config.is_witness else self.history("hour")[DRAWN],
        }

    def history(self, span: str) -> View:
        """Return the samples of the last hour or day, and the plots of them.

        Raises:
            InvalidRequestError: There is no such span (definite).
        """
        if span not in STEPS:
            raise InvalidRequestError(
                f"span={span[:40]} is none", hint=f"It is {' or '.join(STEPS)}.", field="span"
            )
        history = self._node.history
        samples, view = self._histories.get(span, (-1, {}))
        if samples != history.samples(span):
            view = history.show(span)
            at, least_s = view["at"] or [0.0], _LEAST_STEPS * view["step_s"]
            whole_s = min(math.prod(STEPS[span]), max(at[-1] - at[0], least_s))
            drawn = {"from": at[-1] - whole_s, "until": at[-1], "plots": plots_of(view, whole_s)}
            view = view | {DRAWN: drawn}
            self._histories[span] = history.samples(span), view
        return view

    def _losses(self) -> Sequence[Mapping[str, Any]]:
        """Return what each node's loss would mean; who orders nothing knows only who would vote."""
        node, found = self._node, list[View]()
        if not node.config.is_witness and node.base.master.pulling is None:
            return node.survivals()
        for site, (voters, goes_on) in voters_without(node.base).items():
            said = "a majority of the votes" if goes_on else "NO majority of the votes"
            left = " and ".join(voters) or "nobody"
            sentence = f"Without {site}: {left} would have {said}."
            found.append({"site": site, "survives": goes_on, "sentence": sentence})
        return found

    def queue(self, status: StatusAnswer, after: int | None, limit: int = LINES) -> View:
        """Return runs of the queue with a cell for each site: those after a position, or the last.

        Args:
            after: Runs that begin after it; None = the last ones.
        """
        if after is None:
            runs = last_runs(self._node.queue, status["position"], status["kept_after"], limit)
        else:
            runs = self._node.queue(after, limit)
        incoming = self._node.incoming(limit) if after is None else []
        sites = [one["id"] for one in _sites(status) if not one["witness"]]
        first = runs[0]["position"] if runs else None
        return {
            "position": status["position"],
            "incoming_runs": status["incoming_runs"],
            "incoming_transactions": status["incoming_transactions"],
            "incoming": [_incoming_line(run) for run in incoming],
            "sites": sites,
            "runs": [{**run, "cells": _cells(status, run, sites)} for run in reversed(runs)],
            "older": None if first is None else max(0, first - 1 - limit),
            "newer": None if not runs else runs[-1]["position"] + runs[-1]["n"] - 1,
            "kept_after": status["kept_after"],
        }

    def names_part(self, text: str) -> bool:
        """Return whether a text is a part of the name of a table, and no whole name."""
        master, wanted = self._node.base.master, text.lower()
        full = full_table_name(wanted)
        row_tables, commit_tables = Tables.of(master.tables), master.commit_tables
        if row_tables.alike(wanted) or commit_tables.named(full):
            return False
        if full.startswith("default.") and row_tables.alike(full.removeprefix("default.")):
            return False
        names = (*row_tables, *(one.name for one in commit_tables.values()))
        return any(wanted in name.lower() for name in names)

    async def tables(self, status: StatusAnswer, after: str, find: str = "") -> View:
        """Return row tables with version and signature of each replica, and commit tables.

        Args:
            status: With the tables of each replica.
            after: Tables whose names come after this one.
            find: Only tables whose names have this; its case is ignored.
        """
        replicas = {replica_of(line): line for line in sorted(status["replicas"], key=replica_of)}
        after, wanted = full_table_name(after).lower() if after else "", find.lower()
        names = list[str]()
        found = self._node.descriptions.row_tables(after, None if find else TABLES + 1)
        async for tables in found:
            names += (table.name for table in tables if wanted in table.name.lower())
            if len(names) > TABLES:
                break
        shown, listed = names[:TABLES], status["commit_tables"]
        lines = [
            one
            for one in listed["tables"]
            if wanted in one["name"].lower() and one["name"].lower() > after
        ]
        # Where the lists end that go on: the next page leaves out none of either kind.
        ends = [full_table_name(shown[-1])] if len(names) > len(shown) else []
        ends += [lines[TABLES - 1]["name"]] if len(lines) > TABLES else []
        return {
            "sites": list(replicas),
            "tables": [self._table_line(name, replicas) for name in shown],
            "total": len(self._node.tables()),
            "differences": await self._node.all_replicas.differences.named(),
            "more_after": min(ends, key=str.lower, default=None),
            "find": find,
            "commit_tables": {**listed, "tables": lines[:TABLES]},
        }

    async def table(self, name: str) -> View:
        """Return a table: what it is, its rows here, how it is at each site, what wrote to it last.

        Raises:
            InvalidNameError: No table can have this name (definite).
            UnknownTableError: There is none (definite).
        """
        found = await self._known(name)
        is_row_table = found.kind is TableKind.ROW_TABLE
        until = min(found.last_write or 0, self._node.base.published.value) if is_row_table else 0
        differences = self._node.all_replicas.differences
        content, problem = None, ""
        try:
            content = await self._node.descriptions.sample(found.name)
        except TxLogError as error:
            problem = f"{error.message}  {error.hint}".strip()
        return {
            "table": found.to_document(),
            "content": None if content is None else asdict(content),
            "content_problem": problem,
            "at": self._at_sites(found) if is_row_table else [],
            "placed": [] if is_row_table else self._placed(found),
            "writers": await differences.last_writers(found.name, until) if until else [],
        }

    async def _known(self, name: str) -> TableDescription:
        """Return a table; of one that was dropped say when; errors as `table`."""
        try:
            return await self._node.descriptions.of(name)
        except UnknownTableError as error:
            status, at = self._node.status(), error.fields.get("dropped_at", 0)
            run = run_at(self._node.queue, at, status["position"], status["kept_after"])
            if run is None:
                raise
            since = f"{error.message}, at {time_text(run['ordered_at'])} UTC"
            raise UnknownTableError(since, hint=error.hint, **error.fields) from error

    def _at_sites(self, table: TableDescription) -> list[View]:
        """Return how a row table is in each replica, as the reports say it."""
        reports, replicas, last = self._node.all_replicas, self._node.replicas, table.last_write
        return [
            {
                "site": report.replica,
                "worker": report.worker_id,
                "position": report.position,
                "version": None if there is None else there.version,
                "rows": None if there is None else there.signature.rows,
                "diverged": "" if there is None else there.diverged,
                "has_all": report.position >= (last or 0),
                "lag_s": reports.lag.seconds.get(report.node_id),
                "recounted_at": replicas.counted_at(report.replica, table.name),
            }
            for report in (state.report for state in replicas.states())
            for there in (report.tables.get(table.name),)
        ]

    def _placed(self, table: TableDescription) -> list[View]:
        """Return how a commit table is at each site, as far as this node knows it."""
        known = self._node.base.master.commit_tables.named(full_table_name(table.name))
        if known is None:
            return []
        urls = {seat.node_id: seat.url for seat in self._node.base.master.view.roster}
        held: dict[str, bool | None] = {
            self._node.config.node_id: table.version == known.version,
            **self._node.sites_data.has_commit_table(known.uuid),
        }
        return [
            {
                "site": site,
                "url": "" if number == 0 else split_urls(urls[NodeId(site)])[0],
                "whole": whole,
                "version": table.version if number == 0 else None,
                "ordered": known.version,
            }
            for number, (site, whole) in enumerate(held.items())
        ]

    def _table_line(self, name: str, replicas: Mapping[str, Mapping[str, Any]]) -> View:
        definition, writes = self._node.tables()[name], self._node.writes(name)
        at = {
            site: (line.get("tables") or {}).get(name)
            and {**line["tables"][name], "position": line["position"]}
            for site, line in replicas.items()
        }
        return {
            "name": name,
            "columns": len(definition.columns),
            "keys": list(definition.keys),
            "version": writes.version,
            "last_write": writes.position,
            "at": at,
            "same": _same(at),
        }

    def transfers(self, status: StatusAnswer) -> View:
        """Return batches and catch-ups that run, and catch-ups that ended, each with its reason."""
        running = [
            {"worker": line["worker_id"], "site": line["node_id"], **one}
            for line in status["replicas"]
            for one in line["running_transfers"]
        ]
        return {
            "batches": [
                {"worker": line["worker_id"], "site": line["node_id"], **msgspec.to_builtins(batch)}
                | {"text": batch_text(line)}
                for line in status["replicas"]
                if (batch := line.get("batch"))
            ],
            "running": running,
            "ended": list(reversed(self._node.transfers(LINES))),
        }

    def rounds(self, status: StatusAnswer) -> View:
        """Return the rounds that were held up: a bar for each wait, on the line of its node."""
        rounds, end = self._node.waits.rounds(LINES), status["wall"]
        found = [wait for one in rounds for wait in one["waits"]]
        start = min((one["began_at"] for one in found), default=end)
        whole = max(end - start, 1)
        return {
            "from": start,
            "until": end,
            "nodes": sorted({one["peer"] for one in found}),
            "rounds": rounds,
            "waits": [
                {
                    **wait,
                    "round": one["round"],
                    "text": awaited_text({**wait, "since_us": until - wait["began_at"]}),
                    "x": _share(wait["began_at"] - start, whole),
                    "width": max(2, _share(until - wait["began_at"], whole)),
                }
                for one in rounds
                for wait in one["waits"]
                for until in (wait["ended_at"] or end,)
            ],
        }

    async def round(self, number: int) -> View:
        """Return a round that was held up, those before and after it, and how far sites were then.

        Raises:
            NotFoundError: No such round is kept (definite).
        """
        rounds = self._node.waits.rounds(MOST)
        place = next((i for i, one in enumerate(rounds) if one["round"] == number), None)
        if place is None:
            since = f", of rounds since {time_text(rounds[-1]['began_at'])} UTC" if rounds else ""
            raise NotFoundError(
                f"no round {number} is kept here{since}",
                hint="Each node keeps its own; /dashboard/rounds lists the latest.",
                round=number,
            )
        found = rounds[place]
        lag: dict[tuple[str, str, str | None], View] = {}
        if not self._node.config.is_witness:
            # The last measurement of each replica in the round, or a minute before.
            until = found["ended_at"] or wall_us()
            after = found["began_at"] - _BEFORE_US
            for row in row_dicts(await self._node.views.table("lag", after=after)):
                if row["sampled_at"].timestamp() * 1e6 <= until:
                    lag[row["node_id"], row["worker_id"], row["table"]] = row
        return {
            "round": found,
            "older": rounds[place + 1]["round"] if place + 1 < len(rounds) else None,
            "newer": rounds[place - 1]["round"] if place else None,
            "lag": list(lag.values()),
        }

    async def acts(self, status: StatusAnswer, table: str) -> View:
        """Return acts of an operator: with their command, and the request by which the page acts.

        Args:
            table: The acts on this table come first; empty = the acts of the node only.

        Raises:
            InvalidNameError: No table can have this name (definite).
            UnknownTableError: There is none (definite).
        """
        found = await self._known(table) if table else None
        where = f"--url {split_urls(self._node.config.master_url)[0]}"
        of_table = [] if found is None else table_acts(found, where)
        return {
            "table": None if found is None else found.name,
            "acts": [*of_table, *node_acts(where, is_paused=status["paused"])],
        }

    async def epochs(self) -> View:
        """Return the epochs that this node took part in, newest first."""
        history = self._node.epochs.history
        await history.settle()
        return {"epochs": history.latest(LINES)}

    async def transaction(self, status: StatusAnswer, id_: str) -> View:
        """Return a transaction's way, step by step; `receipt` is None if this node never saw it.

        Raises:
            InvalidNameError: The id is no UUID (definite).
        """
        receipt = await self._node.find_decided(transaction_id_from_text(id_), 0.0)
        if receipt is None:
            sentences = unseen_sentences(id_, status)
            return {"id": id_, "receipt": None, "sentences": sentences, "steps": [], "at": []}
        incoming = self._node.incoming(MOST_INCOMING) if receipt.position is None else []
        shown = msgspec.to_builtins(receipt)
        levels = list(Level)
        reached = -1 if receipt.level is None else levels.index(receipt.level)
        return {
            "id": id_,
            "receipt": receipt,
            "sentences": receipt_sentences(shown, status, incoming),
            "steps": [
                {"level": one.value, "reached": levels.index(one) <= reached} for one in levels
            ],
            "at": sites_of(receipt.position, status),
        }


def _sites(status: StatusAnswer) -> list[View]:
    """Return all nodes with their places in the picture; this one first."""
    own = status["node_id"]
    peers = {peer["id"]: peer for peer in status["peers"]}
    seats = {seat["id"]: seat for seat in status["roster"]}
    names = [own, *sorted((set(peers) | set(seats)) - {own})]
    turn = 2 * math.pi / len(names)
    sites = []
    for number, name in enumerate(names):
        seat, peer = seats.get(name), peers.get(name)
        x, y = (half // 2 for half in _PICTURE)
        if len(names) > 1:
            x += round(-_RADIUS[0] * math.cos(turn * number))
            y += round(-_RADIUS[1] * math.sin(turn * number))
        silent = peer is not None and (not peer["linked"] or name in status["suspects"])
        witness = any(one["witness"] for one in (seat, peer) if one is not None)
        follower = seat is not None and seat["follower"]
        role = "witness" if witness else "follower" if follower else "no member"
        standing = "member" if name in status["members"] else role
        sites.append(
            {
                "id": name,
                "state": "away" if silent else standing,
                "own": name == own,
                "witness": witness,
                "position": status["position"] if peer is None else peer["position"],
                "x": x,
                "y": y,
            }
        )
    return sites


def _links(status: StatusAnswer, sites: Sequence[View]) -> list[View]:
    """Return the link of each two nodes: whether both, one or none of them says that it is up."""
    linked = status["reachability"]["linked"]
    trips = {peer["id"]: peer["round_trip_s"] for peer in status["peers"]}
    links = []
    for one, other in combinations(sites, 2):
        a, b = one["id"], other["id"]
        said = [x for x in (linked.get(a, {}).get(b), linked.get(b, {}).get(a)) if x is not None]
        state = "unknown" if not said else "up" if all(said) else "half" if any(said) else "down"
        trip = trips.get(b) if one["own"] else None
        links.append({"nodes": [a, b], "state": state, "round_trip_s": trip})
    return links


def _replica_line(line: Mapping[str, Any]) -> View:
    names = (
        "worker_id node_id name position behind age_s alive silent error plan plan_reason "
        "needs_copy table_count running_transfers state code text way_out"
    )
    return {
        **{name: line.get(name) for name in names.split()},
        "replica": replica_of(line),
        "holds": tables_text(line),
        "batch": batch_text(line),
        "verdict": verdict_text(line),
        "reason": line.get("reason"),
        "transfer": last_transfer_text(line),
    }


def _cells(status: StatusAnswer, run: ListedRun, sites: Sequence[str]) -> dict[str, str]:
    """Return site → how far a run got there, one of `CELLS`."""
    end, replicas = run["position"] + run["n"] - 1, furthest_lines(status)
    peers = {peer["id"]: peer for peer in status["peers"]}
    cells = {}
    for site in sites:
        peer, replica = peers.get(site), replicas.get(site)
        if replica and replica["position"] >= end:
            is_equal = replica["verdict"] == "IN_SYNC"
            cells[site] = "differs" if is_diverged(replica) else "equal" if is_equal else "applied"
        elif peer is None or peer["position"] >= end:
            cells[site] = "ordered"
        else:
            held = peer["acquired"].get(run["origin"], 0) >= run["seq"] + run["n"] - 1
            cells[site] = "acquired" if held else "waiting"
    return cells


def _share(part: int, whole: int) -> int:
    return round(part * _TIMELINE / whole)


def _incoming_line(run: IncomingRunAnswer) -> View:
    """Return a run in negotiation; what it waits for is what it waits for since it is known."""
    waits = [{**one, "text": awaited_text({**one, "since_us": 0})} for one in run["waits"]]
    return {**run, "waits": waits}


def _same(at: Mapping[str, Any]) -> bool | None:
    """Return whether sites at the same position have one signature; None = none can be compared."""
    by_position: dict[int, set[str]] = {}
    places = [one for one in at.values() if one]
    for one in places:
        by_position.setdefault(one["position"], set()).add(one["signature"])
    if any(len(found) > 1 for found in by_position.values()):
        return False
    return True if len(by_position) < len(places) else None
