"""The state that the core recovers at start, and its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sparktxlog.model.ids import NodeId
from sparktxlog.model.tables.commit_table import CommitTable
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.conditions import TableWrites
from sparktxlog.model.transactions.marks import Undecided
from sparktxlog.model.transactions.operation import LONGEST_RUN, RunFacts
from sparktxlog.protocol.messages.balloting import BallotState, Standing
from sparktxlog.protocol.messages.posts import MergeBase, RunHeader
from sparktxlog.protocol.messages.versions import NEWEST
from sparktxlog.protocol.messages.view import Seat, View


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterConfig:
    """Settings of the core; equal on all members where marked (*), checked at the handshake."""

    node_id: NodeId
    #: (*) All members in precedence order, this node included.
    members: tuple[NodeId, ...]
    #: (*) Acquisition quorum q: 1 … len(members).
    quorum: int
    #: (*)
    log_id: str
    #: (*) A transaction id is known for so many positions, and for so much log time, whichever
    #: is longer (P25c); the last positions are in memory.
    id_window: int = 1_000_000
    id_window_us: int = 24 * 3_600 * 1_000_000
    #: (*) What was read longer ago than so many positions is a conflict (P27).
    condition_window: int = 1_000_000
    epoch: int = 1
    incarnation: int = 1
    #: Push payloads up to this size with the header (P3a).
    push_limit_bytes: int = 4 << 20
    #: Staged files above this are stamped late (P1a).
    inline_limit_bytes: int = 64 << 10
    stage_timeout_us: int = 60_000_000
    #: A synchronous run that has no stamp so long after it was accepted is withdrawn (P34).
    synchro_timeout_us: int = 5_000_000
    #: (*) Copies of synchronous runs in the first epoch, see `View.synchro_rule`.
    synchro_rule: str = ""
    #: How far ahead of the counter H is reserved (P2).
    reserve_us: int = 1_000_000
    idle_round_min_us: int = 1_000_000
    idle_round_max_us: int = 60_000_000
    #: Unanswered work (posts, fetches, announcements) is repeated after this.
    retry_us: int = 500_000
    #: A silent peer is shown as missing after this (display only).
    silent_after_us: int = 10_000_000
    #: Bounds (P3b).
    max_run: int = LONGEST_RUN
    max_incoming_runs: int = 65_536
    max_incoming_bytes: int = 512 << 20
    max_post_headers: int = 512
    max_fetches: int = 512
    #: C3.
    max_counter_lead_us: int = 24 * 3_600 * 1_000_000
    #: A member whose answer is due so long is missing (P13); 0 = no member is ever suspected.
    suspect_timeout_us: int = 0
    #: The same for members that were not heard since this node started.
    start_timeout_us: int = 30_000_000
    #: True: a member that is missing is evicted without an operator, if that is safe.
    auto_evict: bool = True
    #: True: it is not evicted for its silence here while a member that answers hears it (P39).
    keeps_heard: bool = False
    #: Sets of places: a member is left out only where all of one of them go on (P40); empty = it
    #: may be anywhere.
    guard: tuple[frozenset[NodeId], ...] = ()
    #: (*) Acquisition quorum of later epochs, see `View.quorum_rule`; empty = `quorum`.
    quorum_rule: str = ""
    #: (*) Places of the first epoch; empty = one vote for each of `members`.
    roster: tuple[Seat, ...] = ()
    #: Nodes that a follower gets the queue from, the preferred one first (P38); those without a
    #: place do not count, and if none has one, it gets it from the members.
    follow: tuple[NodeId, ...] = ()
    #: How often the node was started with this data directory, and the name of this process.
    start: int = 0
    boot: str = ""
    #: Newest wire version that the node speaks (P31).
    newest: int = NEWEST
    #: Wire version in force in the first epoch.
    version: int = NEWEST


def first_view(config: MasterConfig) -> View:
    """Return the view of the first epoch, which is configured, not decided."""
    return View(
        log_id=config.log_id,
        epoch=config.epoch,
        roster=config.roster or tuple(Seat(node_id=member) for member in config.members),
        members=config.members,
        quorum_rule=config.quorum_rule or str(config.quorum),
        version=config.version,
        synchro_rule=config.synchro_rule,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredRun:
    """A durable run after the synchronized queue's end."""

    header: RunHeader
    facts: RunFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredAnnouncement:
    """An own run that was accepted and not yet stamped, oldest first."""

    ticket: int
    digest: bytes
    size_bytes: int
    staged_bytes: int
    facts: RunFacts
    session: str | None
    #: See `RunSubmitted`.
    submitted_at: int | None = 0
    stands_alone: bool = False


class OlderIds(Protocol):
    """Ids of the queue before the last `id_window` positions; most of them are on disk."""

    def appended(self, position: int, ids: bytes) -> None:
        """Note a run that was appended to the queue and is not on disk yet."""
        ...

    def find(self, ids: bytes, after: int) -> Sequence[tuple[int, int]]:
        """Return (index, first position after `after`) of the 16-byte ids found there.

        Ascending by index.  It is only asked for runs that were ordered very late; it may block.
        """
        ...


class NoOlderIds:
    """A log without ids before the window."""

    def appended(self, position: int, ids: bytes) -> None:
        """Keep nothing."""

    def find(self, ids: bytes, after: int) -> Sequence[tuple[int, int]]:
        """Return nothing."""
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredState:
    """State at start; reading it costs O(tables + incoming + id window), never O(log)."""

    base: MergeBase = field(default_factory=MergeBase)
    #: Order key of the base's run.
    base_key: tuple[int, int, str, int] = (0, 0, "", 0)
    #: Reserved counter H.
    reserved: int = 0
    #: Per origin: last seq in the synchronized queue.
    watermarks: dict[str, int] = field(default_factory=dict)
    #: Runs after the watermarks, own and foreign, in any order.
    incoming: Sequence[RecoveredRun] = ()
    announcements: Sequence[RecoveredAnnouncement] = ()
    tables: Sequence[TableDefinition] = ()
    #: Newest view this node knows; None = the first epoch, as configured.
    view: View | None = None
    #: This voter's promise and accepted value.
    ballot: BallotState | None = None
    #: Pieces of the ids of the last `id_window` positions, oldest first: (first position, ids).
    recent_ids: Sequence[tuple[int, bytes]] = ()
    #: Repeats among them: (position, first position of its id), ascending.
    repeats: Sequence[tuple[int, int]] = ()
    older_ids: OlderIds = field(default_factory=NoOlderIds)
    #: By table: what was written to it, up to the base (P27).
    writes: Mapping[str, TableWrites] = field(default_factory=dict)
    #: Prepared transactions that are undecided at the base (P35).
    undecided: Sequence[Undecided] = ()
    #: Commit tables at the base, dropped ones too (P36).
    commit_tables: Sequence[CommitTable] = ()
    #: The greatest standing of each other node; a missing node was never heard (P30, P29).
    standings: Mapping[str, Standing] = field(default_factory=dict)
