"""Answers of a node to operators, clients and workers, field by field.

The node builds these as plain dictionaries, so that JSON keeps the order of their fields; the types
are what `/openapi.json` describes and what mypy checks at the builders.  Positions count
transactions from 1; names that end in `_s` are seconds, in `_us` microseconds.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

from sparktxlog.model.copying import Transfer
from sparktxlog.model.epoch import FollowedNode
from sparktxlog.model.report import BatchProgress
from sparktxlog.model.tables.table import Column

#: Longest that a node waits for one request, seconds; clients that wait longer ask again.
LONGEST_WAIT_S = 300.0


class InfoAnswer(TypedDict):
    """Names, limits and directories of a node."""

    node_id: str
    master_url: str
    cluster: str
    log_id: str
    epoch: int
    phase: str
    members: list[str]
    quorum: int
    duty: str | None
    restricted: ShownRestriction | None
    position: int
    published: int
    kept_after: int
    payload_root: str
    payload_url: str | None
    lake_root: str
    lake_url: str | None
    #: Name → lake of each other replica of the site.
    replica_lakes: dict[str, str]
    commit_table_root: str
    reader_table_root: str | None
    log_root: str
    commit_table_dir: str
    #: The prefix in a bucket that has the commit tables instead; None = none.
    commit_table_url: str | None
    backup_dir: str | None
    version: str
    inline_limit: int
    run_limit_bytes: int
    run_limit_transactions: int
    signature_interval: int
    worker_heartbeat: float
    verify_interval: float
    worker_token_file: str
    #: Whether scheduled upkeep may run now, by `maintenance-windows`.
    maintenance_open: bool


class OpenedTransaction(TypedDict):
    """A transaction that is open at a node."""

    transaction_id: str
    operations: int
    size_bytes: int
    #: Seconds without a request after which it ends.
    lease: float
    #: End of the node's queue.
    position: int
    #: Of the node that holds it; another one may not know that it was committed.
    incarnation: int


class ShownRestriction(TypedDict):
    """Why a node cannot order now: which nodes are missing, since when, and possible levels."""

    waits_for: list[str]
    since_us: int
    levels: list[str]


class OperatorWarning(TypedDict):
    """A warning for operators: what they should do."""

    code: str
    text: str


class StuckFiles(TypedDict):
    """A file or directory of the node that does not answer."""

    path: str
    #: For how long, seconds.
    seconds: float


class UndeliveredRun(TypedDict):
    """A run that cannot be delivered."""

    digest: str
    origin: str
    seq: int | None
    since_s: float
    times: int
    reason: str


class DamagedFile(TypedDict):
    """A file of the node's own payload store that is damaged."""

    path: str
    reason: str


class EndOfQueue(TypedDict):
    """A position of the queue and the chain hash there."""

    position: int
    chain_hash: str


class Ancestor(TypedDict):
    """A log that this one continues, up to an epoch."""

    log_id: str
    epoch: int


class ListedPlace(TypedDict):
    """A node with a place in the cluster."""

    id: str
    url: str
    weight: int
    witness: bool
    follower: bool
    incarnation: int
    member: bool


class EpochView(TypedDict):
    """The epoch in force: members, quorum and places."""

    phase: str
    phase_reason: str
    log_id: str
    ancestors: list[Ancestor]
    epoch: int
    members: list[str]
    quorum: int
    quorum_rule: str
    #: How many holders a synchronous transaction needs, and the expression that says so.
    synchro_quorum: int
    synchro_rule: str
    suspects: list[str]
    restricted: ShownRestriction | None
    duty: str | None
    #: This node's settings: whether members go on without a missing one, which sets of them may,
    #: and after how many seconds.
    eviction: str
    eviction_guard: list[list[str]]
    suspect_timeout: float
    roster: list[ListedPlace]
    begins_after: EndOfQueue


class Reachability(TypedDict):
    """Which nodes are linked, as far as this node knows, and where observers disagree."""

    linked: dict[str, dict[str, bool]]
    differing: list[str]
    addresses: dict[str, dict[str, dict[str, bool]]]
    differing_addresses: dict[str, list[str]]


class UnseenTransactions(TypedDict):
    """What a member reported last, and how much of it would be lost by `force`."""

    node_id: str
    last_shown: int | None
    held_here: int
    missing: int | None
    unheard_s: float | None


class ForceTerms(TypedDict):
    """What an operator must confirm for `force`, and what may be lost."""

    confirm: str
    may_be_lost: list[UnseenTransactions]
    linked_voters: list[str]


class ForceAnswer(EpochView):
    """The view that `force` made, and what may be lost."""

    may_be_lost: list[UnseenTransactions]


class RunWithoutEffect(TypedDict):
    """A run that takes no effect."""

    digest: str
    origin: str
    seq: int | None
    transactions: int


class LostFile(TypedDict):
    """A file of the payload store that is damaged here, and that no other node could supply."""

    path: str
    table: str
    position: int
    #: Origin, incarnation and sequence number, empty = no longer known.
    run: str
    reason: str
    #: Node → why it could not supply the file; empty = no other node has it.
    asked: dict[str, str]


class RepairedFiles(TypedDict):
    """The result of a repair of the files of a range of positions."""

    #: Paths that were damaged and are repaired.
    fetched: list[str]
    lost: list[LostFile]


class VoidAnswer(EpochView):
    """The view in which the run has no effect."""

    voided: RunWithoutEffect


class EpochsAnswer(EpochView):
    """The epoch in force, which nodes are linked, and the terms of `force`."""

    reachability: Reachability
    force: ForceTerms


class OlderVersion(TypedDict):
    """The newest wire version that a node spoke."""

    newest: int
    linked: bool


class FetchedSummary(TypedDict):
    """A summary of a peer's queue that is being fetched."""

    peer: str
    bytes: int
    of_bytes: int


class UncomparedHistory(TypedDict):
    """A history that could not be compared when a summary replaced it."""

    position: int
    summary_position: int
    peer: str
    at: int
    quarantine_id: str
    kept: int


class RunKey(TypedDict):
    """The place of a run in the order."""

    epoch: int
    ts: int
    origin: str
    seq: int


class Wait(TypedDict):
    """Which node is missing for the next position, and why."""

    peer: str
    why: str
    since_us: int
    behind: RunKey | None


class IncomingRunAnswer(TypedDict):
    """A run in negotiation: it has no position yet."""

    origin: str
    incarnation: int
    seq: int
    n: int
    ts: int
    digest: str
    size_bytes: int
    staged_bytes: int
    #: Its data is durable at this node.
    acquired: bool
    #: Since when this node knows it, microseconds.
    since_us: int
    #: Which node is missing for it, and why; empty for a run that waits only for those before it.
    waits: list[Wait]


class KeptWait(TypedDict):
    """A second or more in which the order waited for a node."""

    peer: str
    why: str
    #: Wall clock, microseconds since 1970 UTC; `ended_at` is None while it lasts.
    began_at: int
    ended_at: int | None
    #: The position that waited.
    position: int


class KeptRound(TypedDict):
    """A round that was held up: the order stood for a second or more."""

    #: Its id: when it began, or one more than the round before.
    round: int
    began_at: int
    ended_at: int | None
    #: The position that waited, and the most transactions that waited at a time.
    position: int
    transactions: int
    held_up_by: list[str]
    waits: list[KeptWait]
    sentence: str


class Survival(TypedDict):
    """What the loss of a site would mean now, as far as the asked node knows."""

    site: str
    #: All that is known, its rows and its commit tables are held elsewhere, and the others can go
    #: on.
    survives: bool
    #: End of the queue; how many of these transactions only the site has, and how many accepted
    #: ones, as it last said.
    ordered: int
    ordered_only_there: int
    accepted_only_there: int
    #: Nodes that hold all that is ordered, with its rows.
    held_by: list[str]
    #: Nodes that answer and have all rows of the row tables; commit tables that no other node that
    #: answers has whole.
    rows_held_by: list[str]
    tables_only_there: list[str]
    #: Row tables of groups of which no other site answers.
    grouped_only_there: list[str]
    #: Nodes that answer, and whether they have a majority of the votes.
    voters: list[str]
    goes_on: bool
    #: Furthest position of a replica elsewhere that is in sync; None = there is none.
    applied_elsewhere: int | None
    sentence: str


class DifferingTransaction(TypedDict):
    """A transaction that wrote to a table where sites began to differ."""

    position: int
    transaction_id: str
    origin: str
    kind: str


class Difference(TypedDict):
    """A table in which a replica differs from others."""

    #: The replica, as `model.replicas` names it: a site's main one has the name of the site.
    site: str
    table: str
    #: Last position at which it was equal to another site, 0 = not known; and the first one at
    #: which it differed.
    equal_to: int
    position: int
    #: At `position`, as far as known: its signature, and those of the others.
    signature: str
    others: dict[str, str]
    #: Whether most sites agree that this one is wrong; else nobody can say which is.
    convicted: bool
    sentence: str
    transactions: list[DifferingTransaction]


class PeerState(TypedDict):
    """Another node with a place, as this node knows it."""

    id: str
    url: str
    linked: bool
    wire_version: int | None
    addresses: dict[str, bool]
    round_trip_s: float | None
    reason: str
    #: Seconds of a write of its journal, the median of the last ones; None = too few of late.
    write_s: float | None
    #: Its disk is slow: it asks the others not to wait for it (P37).
    aside: bool
    silent: bool
    last_post_at: int | None
    age_s: float | None
    counter: int
    last_seq: int
    position: int
    round: int
    busy: bool
    acquired: dict[str, int]
    #: How this node's vector stands to that one, as it was heard last: `equal`, `ahead`, `behind`,
    #: or `apart`, of which neither is the later one; None = not heard yet.
    stands: str | None
    clock_offset_us: int | None
    sent_bytes: int
    received_bytes: int
    fetched_bytes: int
    posts: int
    post_bytes_max: int
    pushes_dropped: int
    member: bool
    witness: bool
    follower: bool


class ListedTable(TypedDict):
    """A table of a replica at its position."""

    version: int
    signature: str
    schema: str
    uri: NotRequired[str]
    diverged: str


class RunningTransfer(TypedDict):
    """A catch-up that is under way."""

    transfer_id: str
    kind: str
    donors: list[str]
    started_at: int
    running_s: float
    estimated_s: float | None


class ReplicaLine(TypedDict):
    """A replica as its worker reported it, and what is planned for it."""

    worker_id: str
    node_id: str
    #: Name of the replica at its site, and patterns of the row tables that it holds; none = all.
    name: str
    only: list[str]
    #: Root of its tables; of the asked node's own replicas with a name.
    lake: NotRequired[str]
    position: int
    chain_hash: str
    verdict: str
    reason: str
    contested: NotRequired[bool]
    age_s: float | None
    alive: bool
    silent: bool
    error: str
    engine: str
    table_count: int
    tables: NotRequired[dict[str, ListedTable]]
    #: The batch that the worker was applying when it reported.
    batch: NotRequired[BatchProgress | None]
    #: Published transactions after its position, 0 if none of them concerns a row table.
    behind: int
    needs_copy: bool
    plan: str | None
    plan_reason: str
    last_transfer: Transfer | None
    running_transfers: list[RunningTransfer]


class FailingTask(TypedDict):
    """A task of the node that fails and is retried."""

    task: str
    text: str
    times: int


class SynchronousWaits(TypedDict):
    """The node's own synchronous transactions that wait; `synchro_quorum` is for new ones."""

    #: Without a timestamp: runs, transactions in them, bytes of the runs, age of the oldest.
    waiting_runs: int
    waiting: int
    size_bytes: int
    oldest_us: int | None
    #: The most holders that one of them needs.  If there are fewer members, `missing` names the
    #: places without a member.
    needs: int | None
    missing: list[str]
    #: With a timestamp, and too few members are known to hold them: runs, transactions in them, age
    #: of the oldest, and the members that have not confirmed all of them.
    unconfirmed_runs: int
    unconfirmed: int
    lag_us: int | None
    unconfirmed_by: list[str]


class CommitTableLine(TypedDict):
    """A commit table at this site (P36)."""

    name: str
    uuid: str
    #: The newest version that is placed here and shown, None = none is.
    version: int | None
    #: The newest version that the log has, and how many of them are not placed here.
    ordered: int
    lag: int
    #: in-sync, placing, fetching (from a peer), not-placed, diverged.
    state: str
    #: up-to-date, replay (the files of what is missing are here) or copy (they come from a peer).
    plan: str
    #: The peer that it is fetched from.
    peer: str | None
    #: Why it is not in sync.
    reason: str | None


class CommitTablesState(TypedDict):
    """The commit tables at this site, by their states."""

    total: int
    states: dict[str, int]
    #: Versions that the log has and that are not placed here, of all tables.
    behind: int
    #: At most 100 that are not in sync; all tables if the request says `tables=1`.
    tables: list[CommitTableLine]


class AskedOfAStore(TypedDict):
    """What a store was asked for, of one kind."""

    requests: int
    #: That travelled, in either direction.
    bytes: int


class StoreUse(TypedDict):
    """What a node asked a bucket for: what a provider bills."""

    url: str
    #: Since when it is counted, microseconds since 1970 UTC: the node's start.
    since: int
    #: `get`, `put`, `list`, `head`, `delete`, `copy` → what was asked for.
    asked: dict[str, AskedOfAStore]


class StatusAnswer(EpochView):
    """Queues, peers, which node is missing and why, and all replicas."""

    node_id: str
    paused: bool
    #: Time (UTC) until which the node is declared to be in maintenance; empty = it is not.
    maintenance_until: str
    warnings: list[OperatorWarning]
    #: What this site lacks of the data that the others count on it to have, a clause for each.
    lacks: list[str]
    #: Site of a peer that answers → the same of it; only of those that lack something.
    others_lack: dict[str, list[str]]
    undelivered: list[UndeliveredRun]
    damaged_files: list[DamagedFile]
    stuck_files: list[StuckFiles]
    #: Whether it takes part in its epoch: it orders, or the members count its vote.
    takes_part: bool
    #: Its journal is lost: it waits for a peer whose log it can join.
    only_joins: bool
    stopping: bool
    wire_version: int
    wire_versions: list[int]
    wire_version_waits_for: dict[str, OlderVersion]
    reachability: Reachability
    position: int
    chain_hash: str
    chain_position: int
    published: int
    kept_after: int
    #: Last position at which a row table was written to, changed or dropped: a worker has nothing
    #: to apply after it; 0 = there never was a row table.
    rows_until: int
    applied: int
    incoming_runs: int
    incoming_transactions: int
    incoming_bytes: int
    unstamped_runs: int
    counter: int
    #: The vector of this node: origin → all of its runs up to this number are durable here.
    acquired: dict[str, int]
    busy: bool
    round: int
    empty_rounds: int
    halted: str | None
    following: FollowedNode | None
    fetching_summary: FetchedSummary | None
    uncompared: UncomparedHistory | None
    disk_full: bool
    #: What holds the space of a full disk, in words; empty = it is not full.
    disk_held_by: list[str]
    #: Seconds of a write of this node's journal, and whether it stands aside; as for a peer.
    write_s: float | None
    aside: bool
    synchronous: SynchronousWaits
    waiting_for: list[Wait]
    peers: list[PeerState]
    replicas: list[ReplicaLine]
    log_bytes: int
    clock_distance_us: int | None
    fetching: int
    #: How long the oldest ordered transaction has waited to be published, microseconds; and how
    #: many submits wait because that is above `publish-lag-limit`.
    publish_lag_us: int
    publish_waiting: int
    publish_failure: str | None
    failing: list[FailingTask]
    task_failures: int
    wall: int
    #: Prepared transactions that nobody decided yet (P35).
    undecided: int
    #: The oldest 20 of them; `GET /v1/prepared` lists all.
    prepared: list[UndecidedAnswer]
    commit_tables: CommitTablesState
    #: Of the buckets that it uses; empty: all lies in directories.
    stores: list[StoreUse]


class TableAt(TypedDict):
    """A table's definition as it is at a position."""

    name: str
    columns: list[Column]
    keys: list[str]
    partition_by: list[str]
    deletion_vectors: bool
    is_sync: bool
    schema_version: int
    #: Schema version with which it came into being, above 1 if a table of its name was dropped
    #: before.
    first_version: int
    cluster_by: list[str]
    comment: str
    properties: dict[str, str]
    position: int
    #: How many transactions wrote to it and took effect.
    version: int
    #: Position of the last of them; of a table without, where it came into being.
    last_write: int


class RejectedTransaction(TypedDict):
    """A transaction of a run that takes no effect."""

    index: int
    code: str
    text: str


class DecidedTransaction(TypedDict):
    """A prepared transaction that a run decides (P35)."""

    #: Index of the mark that decides it; 0 for one that expired.
    index: int
    transaction_id: str
    #: Where it was ordered.
    prepared_at: int
    #: Why it takes no effect; None = it takes effect in the place of the mark.
    code: str | None


class ListedRun(TypedDict):
    """A run of the synchronized queue."""

    position: int
    n: int
    origin: str
    incarnation: int
    seq: int
    ts: int
    epoch: int
    digest: str
    chain_hash: str
    size_bytes: int
    staged_bytes: int
    rejected: list[RejectedTransaction]
    decided: list[DecidedTransaction]
    first_id: str
    ordered_at: int


class UndecidedAnswer(TypedDict):
    """A prepared transaction that is undecided (P35)."""

    transaction_id: str
    #: Where it is ordered.
    position: int
    #: Node that accepted it.
    origin: str
    participants: list[str]
    #: Those of them that said nothing yet.
    missing: list[str]
    #: Microseconds since 1970 UTC; what is undecided then is rejected.
    valid_until: int


class StateFilesAnswer(TypedDict):
    """Where views of the node's state are written for readers by SQL."""

    directory: str
    #: Seconds after which they are written again.
    period_s: float


class PositionAnswer(TypedDict):
    """A position of the queue."""

    position: int


class SnapshotAnswer(TypedDict):
    """Table versions of a replica of the site at one position."""

    #: Its name, and those of others that could be shown instead, the most current one first.
    replica: str
    others: list[str]
    position: int
    chain_hash: str
    tables: dict[str, ListedTable]


class ProbedFile(TypedDict):
    """Size and SHA-256 of a probe file."""

    size_bytes: int
    digest: str


class ReceivedBytes(TypedDict):
    """How many bytes of an uploaded file the node has."""

    received: int


class ComparedReplica(TypedDict):
    """A replica of this site, and how it compares with the others."""

    worker_id: str
    name: str
    position: int
    verdict: str
    #: Patterns of the tables that it holds; empty = all.
    only: list[str]


class BatchSignatures(TypedDict):
    """Signatures of all tables at the end of a batch."""

    position: int
    chain_hash: str
    tables: dict[str, str]


class SiteSignatures(TypedDict):
    """Signatures of this site's replica at the ends of its batches, positions ascending."""

    node_id: str
    replicas: list[ComparedReplica]
    signatures: list[BatchSignatures]


class ReportAnswer(TypedDict):
    """The node's answer to a report: verdict and plan."""

    verdict: str
    plan: str
    reason: str
    contested: NotRequired[bool]
    #: All that is wrong is the tables of which the worker says that they stand still.
    of_tables: NotRequired[bool]
    recount: NotRequired[list[str]]
    kept: NotRequired[str]
