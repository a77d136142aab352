"""When two masters are in the same state: everything that what they do next depends on.

`describe` turns a core into nested tuples.  Each class of the core has a plan here that names
*every* field and how it counts; a field without a plan is an error, so that nothing is forgotten
when the core grows.  What only shows or counts (round numbers, statistics) does not count, and
points in time count by what they still cause: how long ago, or whether due.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from enum import Enum
from typing import Any

from tests.verification.model.disk import CoreDisk

from sparktxlog.errors import InvariantViolation
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.effects.commits import CommitFold
from sparktxlog.protocol.effects.effects import Effects
from sparktxlog.protocol.effects.last_writes import LastWrites
from sparktxlog.protocol.effects.marking import Marking
from sparktxlog.protocol.epoch.changes import Changes
from sparktxlog.protocol.epoch.following import Following
from sparktxlog.protocol.epoch.joining import Admission
from sparktxlog.protocol.epoch.outcomes import CurrentEpoch
from sparktxlog.protocol.epoch.proposer import Proposer
from sparktxlog.protocol.epoch.succession import Succession
from sparktxlog.protocol.epoch.tails import TailRequests
from sparktxlog.protocol.epoch.voter import Voter
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.outbox import Outbox
from sparktxlog.protocol.messages.posts import Post
from sparktxlog.protocol.messages.recovery import MasterConfig
from sparktxlog.protocol.order.collecting import Collecting
from sparktxlog.protocol.order.counter import TimestampCounter, WallClock
from sparktxlog.protocol.order.fetching import Fetching
from sparktxlog.protocol.order.ordering import Ordering
from sparktxlog.protocol.order.origin_queues import Run, Stream
from sparktxlog.protocol.order.peers import Peer
from sparktxlog.protocol.order.posting import OwnHeaders, Rounds
from sparktxlog.protocol.order.synchronized import SynchronizedQueue
from sparktxlog.protocol.order.unstamped import Prefetching, Staging, Unstamped

#: How a field counts, given its value and the node's time.
Rule = Callable[[Any, int], Hashable]

#: Longest time that a comparison in the core looks back at; what is older counts as this old.
_LONG_AGO = 8


def describe(value: Any, now: int) -> Hashable:
    """Return the state of a value of the core as nested tuples.

    Raises:
        InvariantViolation: A class or field of the core has no plan.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value  # type: ignore[no-any-return]
    plan = _PLANS.get(kind)
    if plan is not None:
        return tuple([rule(getattr(value, name), now) for name, rule in plan])
    if kind in _SEQUENCES:
        return tuple([describe(item, now) for item in value])
    if kind in _MAPPINGS:
        return tuple(sorted([(key, describe(item, now)) for key, item in value.items()]))
    if kind in _SETS:
        return tuple(sorted(value))
    _plan_for(value)
    return describe(value, now)


def _plan_for(value: object) -> None:
    """Make the plan of a class that is met for the first time."""
    kind = type(value)
    if issubclass(kind, Enum):
        _ATOMS.add(kind)
        return
    if issubclass(kind, tuple):
        _SEQUENCES.add(kind)
        return
    if fields := unplanned(value):
        raise InvariantViolation(f"{kind.__name__} has other fields than its plan: {fields}")
    for base in kind.__mro__:
        if base in _RULES:
            rules = _RULES[base]
            _PLANS[kind] = tuple((name, rule) for name, rule in rules.items() if rule is not _no)
            return
    if not dataclasses.is_dataclass(kind):
        raise InvariantViolation(f"{kind.__name__} has no plan in {__name__}")
    _PLANS[kind] = tuple((field.name, describe) for field in dataclasses.fields(kind))


def unplanned(value: object) -> set[str]:
    """Return the fields of a core object that its plan does not name, and the other way round."""
    kind = type(value)
    rules = next((_RULES[base] for base in kind.__mro__ if base in _RULES), None)
    if rules is None:
        return set()
    fields = set(getattr(value, "__dict__", ()))
    for base in kind.__mro__:
        fields.update(getattr(base, "__slots__", ()))
    return fields ^ rules.keys()


def _no(value: Any, now: int) -> Hashable:
    """Say that the field causes nothing, or follows from others."""
    return None


def _since(value: int | None, now: int) -> Hashable:
    """Say how long ago it was."""
    return None if value is None else max(-_LONG_AGO, min(now - value, _LONG_AGO))


def _due(value: int, now: int) -> Hashable:
    """Say how long it will be until then; 0 = due."""
    return max(0, value - now)


def _distinct(value: list[tuple[int, int]], now: int) -> Hashable:
    """Say what stands in a list of promises, repeated ones once."""
    return tuple(sorted(set(value)))


def _parity(value: int, now: int) -> Hashable:
    return value % 2


def _due_fetches(value: list[tuple[int, int, Run]], now: int) -> Hashable:
    return tuple(
        (max(0, at - now), run.header) for at, _, run in sorted(value) if run.facts is None
    )


def _names(value: dict[Any, Any], now: int) -> Hashable:
    return tuple(sorted(value))


def _requests(value: dict[str, tuple[int, Any]], now: int) -> Hashable:
    return tuple(sorted((node, describe(request, now)) for node, (_, request) in value.items()))


def _asking(value: dict[str, Any], now: int) -> Hashable:
    return tuple(
        sorted(
            (n, describe(a.request, now), a.near, a.pushed_from, a.lacks) for n, a in value.items()
        )
    )


def _bars(value: dict[str, tuple[int, int]], now: int) -> Hashable:
    return tuple(sorted((node, _due(until, now), n) for node, (until, n) in value.items()))


def _reported(value: dict[str, tuple[tuple[int, int], tuple[int, int]]], now: int) -> Hashable:
    return tuple(sorted((node, first[1], last[1]) for node, (first, last) in value.items()))


def _ages(value: dict[str, int], now: int) -> Hashable:
    return tuple(sorted((node, _since(at, now)) for node, at in value.items()))


def _holds(value: RunFacts | None, now: int) -> Hashable:
    return value is not None


_ATOMS: set[type] = {bool, int, str, bytes, type(None), float}
_SEQUENCES: set[type] = {tuple, list, deque}
_MAPPINGS = {dict, OrderedDict, Counter}
_SETS = {set, frozenset}
_PLANS: dict[type, tuple[tuple[str, Rule], ...]] = {}

_RULES: dict[type, dict[str, Rule]] = {
    Master: {
        "_config": _no, "_now": _no, "_current": describe, "_halted": describe,
        "_outbox": describe, "_queue": describe, "_counter": describe, "_start": describe,
        "_prefetching": describe, "_staging": describe, "_phase_at": _no,
        "_succession": describe, "_following": describe, "_flush": describe,
        "_decided": describe, "_progress": describe,
        # Everybody was heard, and nobody greets here (P30, P29), or wishes runs to be void (P32).
        "_standings": _no, "_standing": _no, "_doubted": _names, "_differing": describe,
        "_inspection": _no,
        # Nobody follows here (P38).
        "_pulling": _no,
    },
    CurrentEpoch: {
        "_config": _no, "view": describe, "is_member": describe, "phase": describe,
        "ordering": describe,
        # No disk is slow here.
        "aside": _no,
    },
    # Configured, and equal in all states of a node.
    MasterConfig: {field.name: _no for field in dataclasses.fields(MasterConfig)},
    Outbox: {"_firsts": describe, "_persists": describe, "_others": describe},
    Ordering: {
        # With the view's members; queue, counter and the like are the master's.
        "_config": _no, "_outbox": _no, "_queue": _no, "_counter": _no, "_staging": _no,
        "_prefetching": _no, "_start": _no, "_fetching": describe, "_collecting": describe,
        "_peers": _no, "_own": _no, "_own_headers": describe, "_rounds": describe,
        "_stamp_check": describe, "_told_acquired": describe, "_added_at": _no,
        "_round_position": _no, "_empty_rounds": _no, "_clock_warned": _no, "frozen": describe,
        "joiners": describe, "sources": _no,
    },
    Collecting: {
        "_config": _no, "_incarnations": describe, "_counter": _no, "_fetching": _no,
        "_own": _no, "_watermarks": _no, "news": describe, "peer_list": _no, "peers": describe,
        "posted_counter": describe, "stream_list": _no, "streams": describe, "warnings": describe,
    },
    Peer: {
        # Clock offsets are microseconds here, and matter from a second on.
        "_offsets": _no, "acquired": describe, "ahead": describe, "base": describe,
        "base_since": _since, "busy": _no, "clock_at": _no, "clock_offset_us": _no,
        "counter": describe, "held": describe,
        "known_of_me": describe, "last_post_at": _no, "last_seq": describe, "linked": describe,
        "more": describe, "newest": describe, "node_id": describe, "owed": describe,
        "pending": _distinct, "refused": describe, "tail_at": _since, "tail_position": describe,
    },
    Stream: {
        "_by_seq": _no, "_last_ts": describe, "acquired": describe, "early": describe,
        "known": describe, "origin": describe, "payload_bytes": _no, "runs": describe,
        "watermark": describe,
    },
    Run: {"facts": _holds, "header": describe, "key": _no, "last": _no, "replaced": describe,
          "seen_at": _no, "settled": describe, "unsure": describe, "wanted": describe},
    Fetching: {
        "_limit": _no, "_retry_us": _no, "_due": _due_fetches, "_with_files": _due_fetches,
        "_count": _no,
        "_failures": describe, "in_flight": _names,
    },
    OwnHeaders: {"floor": describe, "_headers": describe, "_keep": _no},
    Rounds: {
        "number": _no, "heartbeat_at": _due, "_idle_min_us": _no, "_idle_max_us": _no,
        "_retry_us": _no, "_pause_us": describe,
    },
    TimestampCounter: {
        "clock": describe, "_raised": describe, "_raised_at": _no, "_reserve_us": _no,
        "reserved": describe, "value": describe,
    },
    WallClock: {
        "_known": describe, "lead_us": _no, "now": _no, "wall": _no,
    },
    # The hashes follow from the queue, but not from where on they are known.  Tables, writes and
    # what is undecided do, too, unless the core is wrong: a mutant must not be merged with itself.
    SynchronizedQueue: {
        "_created": describe, "_fresh": describe, "_recent": _names,
        "base": describe, "effects": describe, "hash": _no, "key": describe,
        "commits": describe, "marking": describe, "position": _no, "tail": describe,
        "watermarks": describe, "writes": describe,
    },
    Effects: {
        # No id comes twice here, so nothing depends on the window.
        "_commits": _no, "_marking": _no, "_older_ids": _no, "_tables": describe,
        "_window": _no, "_window_us": _no, "_writes": _no, "tables": _no,
    },
    # The last write is only shown.
    LastWrites: {
        "_by_table": describe, "_fresh": describe, "_window": _no, "last": _no,
    },
    Marking: {
        "_by_id": describe, "_changed": describe, "_earliest": describe, "_fresh": describe,
        "_size_bytes": describe, "_verdicts": describe,
    },
    CommitFold: {
        "_by_name": describe, "_by_uuid": describe, "_changed": describe, "_fresh": describe,
        "_newest": _no, "tables": _no,
    },
    # No run is synchronous or has staged files here, so none is checked or withdrawn.
    Staging: {
        "_lines": describe, "_overdue_at": _no, "_synchro_timeout_us": _no,
        "_synchronous_in": describe, "_timeout_us": _no, "held_up_bytes": describe,
        "held_up_runs": describe, "payload_bytes": _no, "runs": describe,
    },
    Unstamped: {
        "check_at": _no, "checked": describe, "copies": describe, "holders": describe,
        "held_up": describe, "may_end": describe, "next_at": _no, "patience_us": _no,
        "pause_us": _no, "ready": describe, "submit": describe, "submitted_at": _no,
    },
    Prefetching: {"_coming": describe, "_keep_us": _no, "_limit": _no, "_retry_us": _no},
    Following: {
        "_asked": describe, "_config": _no, "_current": _no, "_known": describe, "_outbox": _no,
        "_patience_us": _no, "_pause_us": describe, "_queue": _no, "_turn": _parity,
        "holder": describe,
        "request_at": _due, "source": describe, "_joined_at": _no, "_joined_base": describe,
    },
    # Ballots are started on demand here, so nothing depends on suspicion and patience; all nodes
    # speak one version, so none is raised.
    Succession: {
        "_current": _no, "_config": _no, "_outbox": _no, "_queue": _no, "_counter": _no,
        "_standings": _no, "patience_us": _no, "suspicion": _no,
        "voter": describe, "proposer": describe, "admission": describe,
        "changes": describe, "_seen": describe, "_excluded": describe,
        "_attempts": _no,
        "_vetoed": describe,
        "_retry_at": _no, "_need_at": _no, "_answered_at": _no, "tails": describe, "wish": describe,
        "_begin_at": _no, "rest": _no, "_refused": _no, "raising": _no,
    },
    TailRequests: {"_outbox": _no, "_requests": _requests, "_wait_us": _no},
    Voter: {"accepted": describe, "epoch": describe, "promised": describe},
    Admission: {
        "_asking": _asking, "_barred": _bars, "_soon": describe, "_tried": describe,
        "_patience_us": _no,
    },
    Changes: {"_outbox": _no, "_request": describe, "_voids": describe},
    Proposer: {
        "accepted": describe, "_heard": _ages, "_late": describe, "_latest": _no,
        "_lacking": _reported, "_patience_us": _no, "_promises": describe, "_since": _since,
        "ballot": describe,
        "candidate": describe, "flushed": describe, "holder": describe, "intent": describe,
        "repeat_at": _due, "stage": describe, "view": describe,
        "voids": describe, "objections": describe, "outvoted": describe,
    },
    CoreDisk: {
        "owner": _no, "incarnation": describe, "reserved": describe, "incoming": describe,
        "queue": describe, "ordered": _no, "tables": describe, "writes": describe,
        "undecided": describe, "commit_tables": describe, "announcements": describe,
        "view": describe, "ballot": describe, "standings": _no, "_watermarks": _no, "_facts": _no,
        # Only the simulation greets, and counts starts.
        "instance": _no, "instances": _no, "starts": _no, "log_id": _no,
    },
    Post: {
        field.name: _no if field.name == "wall" else describe
        for field in dataclasses.fields(Post)
    },
}  # fmt: skip
