"""A node with another history yields: it keeps what only it has, then it joins again (P28).

After `force` (P23) a stopped node may hold transactions that the kept log does not have.  It cannot
follow with them, and they must not be cut off silently.  The steps are, each durable before the
next one, and each repeatable after a kill:

1. the last common position is found by chain hashes (`catchup.forks`), over the client API of a
   node of the kept log, with O(log n) small requests;
2. everything after it goes to the Delta table `log/quarantine`, with its rows, and with what was
   accepted and never ordered (`storage.log_tables.quarantine_table`);
3. the queue's Delta table, and earlier ones in the attic, move to the act's entry there; commit
   tables move to the attic in their directory, as Spark would read the abandoned side;
4. an empty journal replaces the old one; it only holds the order to join under the next
   incarnation.  So the node starts like one that lost its disk, and founds no log meanwhile.

A node that does not differ, but promised timestamps so far ahead that no member can use them (C3),
may do the same on request: its next incarnation has no such promise.

Nothing is deleted.  The old journal is kept with every payload.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparktxlog.attic.attic import Attic, Entry, Kind
from sparktxlog.config import NodeConfig
from sparktxlog.errors import (
    LocalProtocolError,
    NotFoundError,
)
from sparktxlog.files.durability import free_name, move_durably, storage_error, sync_parents
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.protocol.messages.recovery import first_view
from sparktxlog.runtime.commit_tables.site_places import owner_in_buckets, payloads_of, places_of
from sparktxlog.runtime.leaving_fork.branch_hook import note_branches
from sparktxlog.runtime.leaving_fork.fork_search import (
    ClientApi,
    Followed,
    Fork,
    find_fork,
    surviving_runs,
)
from sparktxlog.runtime.leaving_fork.giving_up import (
    Export,
    act_id,
    given_up,
    log_id_of,
    ordered_runs,
    waiting_runs,
)
from sparktxlog.runtime.membership.founding import core_config, with_log_id
from sparktxlog.runtime.membership.join_orders import JoinOrder, join_order, keep_order
from sparktxlog.storage.interfaces import JournalState, StoredEntry
from sparktxlog.storage.journal.journal import JOURNAL_NAME, Journal
from sparktxlog.storage.journal.waiting_ids import run_key
from sparktxlog.storage.log_tables.quarantine_table import QUARANTINE_NAME, GivenUp
from sparktxlog.storage.log_tables.queue_table import QUEUE_NAME

_GOES_ON = ("NORMAL", "SUSPECT", "WEDGED")
_NEXT = "next"
#: Most transactions that the note for `fork-hook` names; the quarantine table has all.
_NOTED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GaveWay:
    """Result of a quarantine."""

    quarantine_id: str
    node_id: str
    #: The followed node, and the log id and incarnation with which this node joins.
    followed: str
    log_id: str
    incarnation: int
    #: The queues are equal up to here.
    common: int
    #: False: they may be equal further, but nobody keeps enough to know.
    exact: bool
    #: Transactions that were kept: ordered here, accepted here, acquired from others.
    ordered: int
    accepted: int
    acquired: int
    #: Of these, transactions that the followed queue also has, and incomplete ones.
    surviving: int
    incomplete: int
    #: Positions after `common` that this journal had pruned; they are not kept.
    pruned: int
    #: Delta table of the kept transactions; directory of journal, queue table and files.
    table: Path
    directory: Path
    #: Whether the followed log has a place for this node.
    has_place: bool


def quarantine_node(
    config: NodeConfig,
    api: ClientApi,
    tell: Callable[[str], None] = lambda text: None,
    *,
    rejoin: bool = False,
    dry_run: bool = False,
) -> GaveWay:
    """Keep what only this stopped node has, and let it join the asked node's log again.

    Args:
        rejoin: Also if the queue here is the beginning of the other's: the node's promise is too
            far ahead to be used (C3), and only a new incarnation does not have it.
        dry_run: Only return what would be kept; `incomplete` is not known then.

    Raises:
        LockedError: The node runs (definite).
        NotFoundError: It has no journal (definite).
        CorruptLogError: The journal cannot be read (definite).
        TransportError: The other node cannot be reached, or refuses the token (definite).
        LocalProtocolError: The queues do not differ, or the node cannot be followed (definite).
        StorageError: Try again: finished steps stay done, and nothing is kept twice.
    """
    if config.is_witness:
        raise LocalProtocolError(
            f"{config.node_id} is a witness: it has no queue that could differ",
            hint="To admit a witness again, move its data-dir away and start it.",
        )
    if not (config.data_dir / JOURNAL_NAME).is_file():
        raise NotFoundError(
            f"{config.data_dir} holds no {JOURNAL_NAME}: no node ran there",
            hint="Check data-dir in the configuration.",
            directory=str(config.data_dir),
        )
    journal = Journal(config.data_dir, id_window=config.id_window)
    try:
        return _Act(config, journal, api, tell, rejoin=rejoin).run(dry=dry_run)
    finally:
        journal.close()


class _Act:
    """One act of quarantine, under the lock of the data directory."""

    def __init__(
        self,
        config: NodeConfig,
        journal: Journal,
        api: ClientApi,
        tell: Callable[[str], None],
        *,
        rejoin: bool,
    ) -> None:
        self._rejoin = rejoin
        self._journal = journal
        self._api = api
        self._tell = tell
        self._state: JournalState = journal.load(config.id_window)
        order = join_order(self._state.values)
        self._config = with_log_id(config, self._state.core.view, order, self._state.values)
        self._view = self._state.core.view or first_view(
            core_config(self._config, order=order, incarnation=self._state.incarnation)
        )
        self._end = self._state.core.base.position
        self._attic = Attic.of_node(config.data_dir)

    def run(self, *, dry: bool) -> GaveWay:
        """Do all steps, or with `dry` only those that change nothing."""
        state, config = self._state, self._config
        keeps = self._end or state.core.incoming or state.core.announcements
        if not (keeps or (self._rejoin and state.core.reserved)):
            raise LocalProtocolError(
                f"node {config.node_id} has nothing of the log, so there is nothing to quarantine",
                hint="Start it: then it joins.",
            )
        followed = self._followed()
        self._tell(f"comparing chain hashes with {followed.node_id}")
        fork = find_fork(self._journal, self._end, followed)
        ordered = list(ordered_runs(self._journal, max(fork.common, fork.floor), self._end))
        self._check_differs(followed, fork, ordered)
        waiting = list(
            waiting_runs(state.core, config.node_id, state.incarnation, self._view.epoch)
        )
        left = [*ordered, *waiting]
        surviving = surviving_runs(followed, left)
        runs = given_up(
            left,
            self._end,
            config.node_id,
            self._view,
            lambda stored: run_key(stored.entry.header) in surviving,
        )
        quarantine_id = act_id(state, waiting)
        order = self._order(followed)
        counts: Counter[str] = Counter()
        for run in runs:
            counts[run.why] += run.stored.entry.header.n
        done = GaveWay(
            quarantine_id=quarantine_id,
            node_id=config.node_id,
            followed=followed.node_id,
            log_id=order.log_id,
            incarnation=order.incarnation,
            common=fork.common,
            exact=fork.exact,
            ordered=counts["ordered"],
            accepted=counts["accepted"],
            acquired=counts["acquired"],
            surviving=sum(run.stored.entry.header.n for run in runs if run.survives),
            incomplete=0,
            pruned=max(0, fork.floor - fork.common),
            table=config.data_dir / "log" / QUARANTINE_NAME,
            directory=self._attic.place(Kind.FORK, "", quarantine_id),
            has_place=config.node_id in followed.seats,
        )
        if dry:
            return done
        note = self._branches(done, followed, runs) if config.fork_hook is not None else None
        return replace(done, incomplete=self._give_way(quarantine_id, runs, order, note))

    # -- the followed node -------------------------------------------------------------------------

    def _followed(self) -> Followed:
        found, config = Followed(self._api), self._config
        refusal = ""
        if found.node_id == config.node_id:
            refusal = "that is this node itself"
        elif config.log_id not in found.logs:
            refusal = f"node {found.node_id} is of another log, {min(found.logs)!r}"
        elif found.halted or found.phase not in _GOES_ON:
            refusal = f"node {found.node_id} is {found.phase}: it does not take part itself"
        if refusal:
            raise LocalProtocolError(
                f"{self._api.url} cannot be followed: {refusal}",
                hint="Name the client API of a member of the side whose log is kept.",
                url=self._api.url,
            )
        return found

    def _check_differs(
        self, followed: Followed, fork: Fork, ordered: Sequence[StoredEntry]
    ) -> None:
        """Refuse if the node only has to be started, or if the other node lags."""
        view = self._view
        if not (ordered or self._rejoin) and followed.can_be_followed(view):
            raise LocalProtocolError(
                f"nothing to quarantine: the queue here ends at {self._end:,} and is the beginning "
                f"of {followed.node_id}'s",
                hint="Start the node: it follows, and its accepted transactions are ordered later. "
                "If the others do not admit it because its clock was far ahead, add --rejoin.",
                common=fork.common,
            )
        if ordered and not fork.proven and followed.end <= self._end:
            # What may still follow its end there is of its epoch or a later one of its log id.
            epoch = ordered[0 if fork.exact else -1].entry.header.epoch
            if log_id_of(self._view, epoch) == followed.log_id and epoch >= followed.epoch:
                raise LocalProtocolError(
                    f"nothing to quarantine: {followed.node_id} is behind, its queue ends at "
                    f"{followed.end:,}, the one here at {self._end:,}",
                    hint="Start the node: then the other one follows.",
                    common=fork.common,
                )

    # -- yielding ----------------------------------------------------------------------------------

    def _order(self, followed: Followed) -> JoinOrder:
        seat = followed.seats.get(self._config.node_id, 0)
        incarnation = max(seat, self._state.incarnation) + 1
        return JoinOrder(log_id=followed.log_id, incarnation=incarnation, log=self._config.log_id)

    def _branches(
        self, done: GaveWay, followed: Followed, runs: Sequence[GivenUp]
    ) -> dict[str, Any]:
        """Return what `fork-hook` gets of both branches (docs/losing-sites.md)."""
        config, view = self._config, self._view
        shown = [
            {
                "id": transaction_id_to_text(run.stored.ids[at : at + 16]),
                "position": run.stored.entry.position + at // 16 if run.why == "ordered" else None,
                "why": run.why,
                "survives": run.survives,
            }
            for run in runs
            for at in range(0, len(run.stored.ids), 16)
        ]
        return {
            "quarantine_id": done.quarantine_id,
            "node": config.node_id,
            "url": config.master_url,
            "common": {"position": done.common, "exact": done.exact},
            "left": {
                "log_id": view.log_id,
                "epoch": view.epoch,
                "end": self._end,
                "pruned": done.pruned,
                "ordered": done.ordered,
                "accepted": done.accepted,
                "acquired": done.acquired,
                "surviving": done.surviving,
                "table": str(done.table),
                "directory": str(done.directory),
                "transactions": shown[:_NOTED],
                "all_transactions": len(shown) <= _NOTED,
            },
            "kept": {
                "node": followed.node_id,
                "url": self._api.url,
                "log_id": followed.log_id,
                "epoch": followed.epoch,
                "end": followed.end,
            },
        }

    def _give_way(
        self,
        quarantine_id: str,
        runs: Sequence[GivenUp],
        order: JoinOrder,
        note: dict[str, Any] | None,
    ) -> int:
        """Keep the runs, and set journal and queue aside; return how many are incomplete."""
        export = Export(
            self._journal,
            payloads_of(self._config),
            self._config.data_dir,
            self._state.core.tables,
            self._tell,
        )
        incomplete = export.write(quarantine_id, runs).incomplete()
        if note is not None:
            note_branches(self._config.data_dir, quarantine_id, note)
        self._tell("setting the journal aside")
        self._set_aside(export.entry, order)
        return incomplete

    def _set_aside(self, entry: Entry, order: JoinOrder) -> None:
        data_dir, directory = self._config.data_dir, entry.path
        prepared = directory / _NEXT
        tables = places_of(self._config)
        # A prefix with a slip of the pen would be that of another site.
        tables.take(owner_in_buckets(self._config))
        try:
            sync_parents([prepared], data_dir)
            # Under the names of a later life they would pass for what that one set aside.
            queues = [Path(entry.directory) for entry in self._attic.entries(Kind.QUEUE)]
            for old in (data_dir / "log" / QUEUE_NAME, *queues):
                if old.exists():
                    move_durably(old, free_name(directory / old.name))
            tables.set_all_aside(entry.mark)
            if prepared.exists():
                shutil.rmtree(prepared)
            self._attic.finish(entry)
        except OSError as error:
            raise storage_error(error, directory) from error
        fresh = Journal(prepared, id_window=self._config.id_window)
        try:
            fresh.write([keep_order(order)])
        finally:
            fresh.close()
        self._journal.replace_by(prepared / JOURNAL_NAME, directory / JOURNAL_NAME)
        shutil.rmtree(prepared, ignore_errors=True)
