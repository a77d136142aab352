"""Accepting transactions: checks, repeated ids, waiting for a level, and receipts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from sparktxlog.codec.containers.payload import read_manifest
from sparktxlog.codec.submits.known_contents import Content
from sparktxlog.codec.submits.transactions import PreparedTransaction, is_synchronous
from sparktxlog.errors import (
    BusyError,
    CommitStateUnknownError,
    ConflictError,
    DuplicateTransactionError,
    ExpiredTransactionError,
    InvalidRequestError,
    LocalProtocolError,
    NameTakenError,
    NotParticipantError,
    NotPreparedError,
    PausedError,
    PositionNotReachedError,
    TooManyPreparedError,
)
from sparktxlog.model.ids import full_table_name, transaction_id_to_text
from sparktxlog.model.tables.table import TableDefinition, Tables
from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.marks import MOST_UNDECIDED, MOST_UNDECIDED_BYTES
from sparktxlog.model.transactions.operation import Acceptance, Mark, RunManifest
from sparktxlog.model.transactions.receipt import (
    LEVEL_RANK,
    Appliers,
    Level,
    Receipt,
    ReceiptRejection,
)
from sparktxlog.protocol.messages.posts import Verdict
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.commit.cycle import CoreLoop
from sparktxlog.runtime.commit.receipts import (
    PREPARED,
    Submission,
    check_sites,
    decided_receipt,
    done_until,
    make_receipt,
)
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.groups.grouped_rows import (
    appliers_of,
    check_sites_of_groups,
    copies_of,
    copies_of_run,
    with_created,
)
from sparktxlog.runtime.log.disk_space import DiskSpace
from sparktxlog.runtime.log.publish_lag import PublishLag
from sparktxlog.runtime.membership.membership import Membership
from sparktxlog.runtime.replicas.judged_replicas import Replicas
from sparktxlog.runtime.replicas.standing_tables import where_tables_stand_still
from sparktxlog.storage.interfaces import OlderIdsFound, StoredEntry

#: Outcome of a transaction that was rejected, of one that was not, and of one where it is not kept.
_OUTCOMES = {True: "rejected", False: "committed", None: None}
#: Longest wait of any request, seconds.
MAX_WAIT_S = 300.0


class Submits:
    """Accepts transactions at this node; belongs to the event loop."""

    def __init__(
        self,
        base: Foundation,
        core: CoreLoop,
        membership: Membership,
        replicas: Replicas,
        lag: PublishLag,
        space: DiskSpace,
    ) -> None:
        self._base = base
        self._journal = base.journal
        self._master = base.master
        self._cycle = core.cycle
        self._receipts = core.receipts
        self._membership = membership
        self._replicas = replicas
        self._lag = lag
        self._space = space
        #: Levels for which disk and quorum were looked at in this turn of the event loop.
        self._taken: set[Level] = set()

    # -- transactions ------------------------------------------------------------------------------

    async def reach(self, after: int, timeout: float) -> None:
        """Wait until this node's queue and tables are at a position.

        Raises:
            PositionNotReachedError: Not in time; nothing happened (definite).
        """
        position = await self._base.ordered.reach(after, min(timeout, MAX_WAIT_S))
        if position < after:
            raise PositionNotReachedError(
                f"node {self._base.config.node_id!r} is at position {position:,}, the request must "
                f"come after {after:,}",
                after=after,
                position=position,
            )

    async def reach_for_submit(self, after: int, level: Level, sites: int, timeout: float) -> None:
        """Wait as `reach`, unless the node takes no transactions; errors as `reach`, `submit`."""
        if self._base.ordered.value < after:
            self._check_submit(level, sites)
            self._check_takes(level)
            await self.reach(after, timeout)

    async def submit(
        self,
        tx: PreparedTransaction,
        *,
        level: Level,
        sites: int = 1,
        timeout: float,
        first_wins: bool = False,
    ) -> Receipt:
        """Commit one transaction; those that come together become one run (group commit).

        A repeated transaction id gets the receipt of the first (idempotency).  What is ordered
        in time, and not yet at a higher level that was asked for, is answered as `late`.

        Args:
            first_wins: The first one counts whatever its content is.

        Raises:
            IdTakenError: Its id belongs to other content (definite).
            CommitStateUnknownError: It was not ordered in time (not definite).
            NoQuorumError: It cannot be ordered, because too few nodes answer (definite).
            BusyError, DiskFullError, CommitRejectedError: Nothing happened (definite).
        """
        work = self._submit(tx, level, sites, timeout, Content(tx, first_wins=first_wins))
        if (traces := self._base.traces) is not None:
            written = [one.table for one in tx.operations] + [
                one.name or one.uuid for one in tx.commits
            ]
            work = traces.commit(tx.transaction_id, written, level, work)
        return await work

    async def _submit(
        self, tx: PreparedTransaction, level: Level, sites: int, timeout: float, content: Content
    ) -> Receipt:
        self._check_submit(level, sites)
        appliers = self._appliers(tx, level, sites)
        timeout = min(timeout, MAX_WAIT_S)
        deadline = asyncio.get_running_loop().time() + timeout
        first, acceptance = await self._first(content, level, appliers, timeout)
        if first is not None:
            return first
        # One without operations may decide others (P35).
        if (tx.operations or tx.commits) and await self._lag.admit(timeout):
            timeout = max(0.0, deadline - asyncio.get_running_loop().time())
            first, acceptance = await self._first(content, level, appliers, timeout)
            if first is not None:
                return first
        self._check_valid(tx.valid_until)
        if tx.condition is not None:
            self._check_condition(tx.condition)
        for one in tx.operations:
            if one.definition is not None:
                self._check_may_create(one.definition)
            check_sites_of_groups(one, self._master.view)
        copies = copies_of(tx, self._master.tables)
        holders_needed = self._holders_needed(is_synchronous(tx, self._master.tables))
        if tx.participants:
            self._check_may_prepare()
        if tx.mark is not None:
            holders_needed = max(holders_needed, self._check_mark(tx.mark))
        self._check_takes(level)
        self._check_whole(tx.size_bytes)
        opened = self._cycle.submit_single(tx, acceptance, holders_needed, content, copies)
        if not await done_until(opened, deadline):
            text = transaction_id_to_text(tx.transaction_id)
            raise CommitStateUnknownError(
                f"transaction {text} has not reached {level.value!r} in time",
                hint="Ask for its id before you submit it again.",
                transaction_id=text,
                reached=None,
            )
        submission, index = opened.result()
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        receipt = await self._wait(content, submission, index, level, appliers, left)
        return self._of_the_first(content, receipt)

    async def submit_run(
        self,
        payload: bytes,
        manifest: RunManifest,
        *,
        level: Level,
        sites: int = 1,
        timeout: float,
        first_wins: bool = False,
    ) -> Receipt:
        """Commit a run of transactions; errors and idempotency as `submit`, by its first id.

        Of several transactions, those whose id belongs to other content are rejected in the
        receipt, as `id-taken`.
        """
        content = Content(manifest, first_wins=first_wins)
        work = self._submit_run(payload, manifest, level, sites, timeout, content)
        if (traces := self._base.traces) is not None:
            written = [block.table for block in manifest.blocks]
            work = traces.commit(manifest.transaction_id(0), written, level, work)
        return await work

    async def _submit_run(
        self,
        payload: bytes,
        manifest: RunManifest,
        level: Level,
        sites: int,
        timeout: float,
        content: Content,
    ) -> Receipt:
        self._check_submit(level, sites)
        appliers = self._appliers(manifest, level, sites)
        timeout = min(timeout, MAX_WAIT_S)
        first, acceptance = await self._first(content, level, appliers, timeout)
        if first is not None:
            return first
        if waited_s := await self._lag.admit(timeout):
            timeout = max(0.0, timeout - waited_s)
            first, acceptance = await self._first(content, level, appliers, timeout)
            if first is not None:
                return first
        self._check_valid(*(until for _, until in manifest.valid_until))
        for _, condition in manifest.conditions:
            self._check_condition(condition)
        tables = Tables.of(self._master.tables)
        touched = (tables.alike(block.table) for block in manifest.blocks)
        holders_needed = self._holders_needed(any(table and table.is_sync for table in touched))
        manifest = copies_of_run(manifest, self._master.tables)
        self._check_takes(level)
        staged = sum(file.size_bytes for file in manifest.staged_files)
        self._check_whole(len(payload) + staged)
        submission = self._cycle.accept_run(manifest, payload, acceptance, holders_needed)
        receipt = await self._wait(content, submission, None, level, appliers, timeout)
        return self._of_the_first(content, receipt)

    async def repeated(
        self, content: Content, *, level: Level, sites: int = 1, timeout: float
    ) -> Receipt | None:
        """Return the receipt of the first submit of an id or run, None if this node saw none.

        For a submit that does not fit the tables any more: it may be a repeat of one that did.
        Errors as `submit`.
        """
        run = content.run
        appliers = Appliers(sites) if run is None else self._appliers(run, level, sites)
        return (await self._first(content, level, appliers, min(timeout, MAX_WAIT_S)))[0]

    def _appliers(
        self, of: PreparedTransaction | RunManifest, level: Level, sites: int
    ) -> Appliers:
        """Return the sites that shall have applied what is submitted; errors as `appliers_of`."""
        if level is not Level.APPLIED:
            return Appliers(sites)
        tables, node_id = self._master.tables, self._base.config.node_id
        if isinstance(of, RunManifest):
            written = [block.table for block in of.blocks]
            return appliers_of(written, tables, sites, node_id)
        known = with_created(of, tables)
        return appliers_of([one.table for one in of.operations], known, sites, node_id)

    async def _first(
        self, content: Content, level: Level, sites: Appliers, timeout: float
    ) -> tuple[Receipt | None, Acceptance | None]:
        """Return the receipt if it is a repeat, once it has the level; else what is known of ids.

        Raises:
            IdTakenError: A single transaction whose id belongs to other content (definite).
        """
        older = await self._older_ids(content.ids)
        first = None
        if content.run is not None:
            first = _older_run(content.run, older)
        elif older.found:
            first = self._with_origins(self._older_receipt(content.ids, *older.found[0]))
        if first is not None:
            first = self.judged(content, first, older.found[0][0])
            return await self._at_level(first, level, sites, timeout), None
        acceptance, at = self._look_up(content.ids, older)
        known = await self._known(content, at, level, sites, timeout)
        return (None, acceptance) if known is None else (self._of_the_first(content, known), None)

    def judged(self, content: Content, first: Receipt, position: int) -> Receipt:
        """Return the receipt of what stands at a position, for a submit of its ids (`Content`)."""
        held = self._journal.content_digests(position, first.n)
        return content.judged(first, held, position)

    def _check_valid(self, *valid_until: int | None) -> None:
        """Refuse a `valid_until` that has passed, or is later than ids are known for.

        Raises:
            ExpiredTransactionError, InvalidRequestError: Nothing happened (definite).
        """
        now, most_s = wall_us(), self._base.config.id_window_time
        for until in valid_until:
            if until is not None and until < now:
                raise ExpiredTransactionError(
                    "the transaction was valid until a time that has passed",
                    hint="This request had no effect; ask for the id of an earlier one.",
                    valid_until=until,
                )
            if until is not None and until > now + most_s * 1_000_000:
                raise InvalidRequestError(
                    f"valid_until lies more than {most_s:,.0f} s (id-window-time) ahead",
                    hint="Ids are known only for that time: choose an earlier one.",
                    field="valid_until",
                    value=until,
                )

    def _check_condition(self, condition: Condition) -> None:
        """Refuse a condition that this node cannot judge, or that cannot hold any more.

        Raises:
            PositionNotReachedError, ConflictError: Nothing happened (definite).
        """
        read, position = condition.read_position, self._base.ordered.value
        if read is not None and read > position:
            raise PositionNotReachedError(
                f"conditions: 'read_position' is {read:,}, node {self._base.config.node_id!r} is "
                f"at position {position:,}",
                hint="The position is of another log, or of a node that is further: then submit "
                "there, or here with `after` set to that position.",
                after=read,
                position=position,
                field="conditions.read_position",
            )
        window = self._base.config.condition_window
        if read is not None and position + 1 - window > read:
            raise ConflictError(
                f"position {read:,} was read, which lies more than the condition-window of "
                f"{window:,} positions before the end of the queue at {position:,}",
                table=None,
                winner=None,
                origin=None,
                field="conditions.read_position",
            )

    def _check_may_create(self, table: TableDefinition) -> None:
        """Refuse a row table with the name of a commit table.

        What another site makes in the same moment is judged where it is ordered (P36).

        Raises:
            NameTakenError: Nothing happened (definite).
        """
        name = full_table_name(table.name)
        if table.name in self._master.tables:
            return  # nothing is created
        if self._master.commit_tables.named(name) is not None:
            raise NameTakenError(
                f"row table {table.name!r} cannot be created: {name!r} is a commit table",
                hint="Take another name or schema, or drop that one: DROP TABLE.",
                table=table.name,
                value=name,
            )

    def _check_may_prepare(self) -> None:
        """Refuse a prepared transaction for which there is no place (P35).

        Raises:
            TooManyPreparedError: Nothing happened (definite).
        """
        undecided = self._master.undecided
        size_bytes = sum(one.size_bytes for one in undecided)
        if len(undecided) >= MOST_UNDECIDED or size_bytes >= MOST_UNDECIDED_BYTES:
            raise TooManyPreparedError(
                f"{len(undecided):,} prepared transactions of {size_bytes:,} bytes are undecided, "
                f"{MOST_UNDECIDED:,} of {MOST_UNDECIDED_BYTES:,} bytes may be",
                undecided=len(undecided),
                size_bytes=size_bytes,
            )

    def _check_mark(self, mark: Mark) -> int:
        """Return how many holders a mark needs; refuse one that would not count (P35).

        Raises:
            NotPreparedError, NotParticipantError: Nothing happened (definite).
        """
        text = transaction_id_to_text(mark.transaction_id)
        found = [u for u in self._master.undecided if u.transaction_id == mark.transaction_id]
        if not found:
            verdict = self._journal.find_verdict(mark.transaction_id)
            outcome = None if verdict is None else _outcome_of(verdict[1])
            raise NotPreparedError(
                f"transaction {text} is not prepared and undecided at node "
                f"{self._base.config.node_id!r}" + (f": it was {outcome}" if outcome else ""),
                hint="If it was prepared elsewhere, mark it with `after` set to its position.",
                transaction_id=text,
                outcome=outcome,
            )
        if mark.participant not in found[0].participants:
            raise NotParticipantError(
                f"transaction {text} does not wait for {mark.participant!r}",
                hint=f"Participants: {', '.join(found[0].participants)}.",
                transaction_id=text,
                participant=mark.participant,
                participants=found[0].participants,
            )
        return found[0].holders

    def _holders_needed(self, synchronous: bool) -> int:
        """Return how many holders a run needs, 0 for an ordinary one (P34)."""
        return self._master.view.synchro_quorum if synchronous else 0

    async def _older_ids(self, ids: bytes) -> OlderIdsFound:
        """Look up ids among those of old positions, in a thread if there are any."""
        if self._journal.filed_ids == 0:
            return OlderIdsFound()
        found: OlderIdsFound = await self._base.run_blocking(self._journal.older_ids, ids)
        return found

    def _look_up(self, ids: bytes, older: OlderIdsFound) -> tuple[Acceptance, int | None]:
        """Return what is known of the ids for a manifest, and the position of the first one."""
        acceptance = self._cycle.acceptance(ids, older)
        return acceptance, dict(acceptance.repeats).get(0)

    def _older_receipt(
        self, transaction_id: bytes, position: int, rejected: bool | None
    ) -> Receipt:
        """Return the receipt of a transaction whose row was pruned: outcome without reason.

        Args:
            rejected: None = a summary brought its id, without its outcome.
        """
        stored = self._journal.read_entry_at(position)
        if stored is not None:
            return self._stored_receipt(stored, position - stored.entry.position)
        receipt = Receipt(
            transaction_id=transaction_id_to_text(transaction_id),
            n=1,
            level=Level.ORDERED,
            position=position,
            outcome=_OUTCOMES[rejected],
        )
        verdict = None if rejected is False else self._journal.find_verdict(transaction_id)
        if verdict is None:
            return receipt
        return decided_receipt(replace(receipt, prepared_at=position), *verdict)

    def _stored_receipt(self, stored: StoredEntry, index: int | None) -> Receipt:
        entry = stored.entry
        receipt = make_receipt(
            stored.ids, index, Level.ORDERED, entry.header, entry, stored.ordered_at
        )
        fewer = self._receipts.fewer_holders(entry.position)
        if fewer is not None:
            receipt = replace(receipt, late=True, holders=fewer)
        if receipt.outcome != PREPARED:
            return receipt
        at = 16 * (index or 0)
        verdict = self._journal.find_verdict(stored.ids[at : at + 16])
        return receipt if verdict is None else decided_receipt(receipt, *verdict)

    def _check_submit(self, level: Level, sites: int) -> None:
        check_sites(level, sites, len(self._master.view.members))
        if self._cycle.halted is not None:
            raise LocalProtocolError(
                f"this node has halted: {self._cycle.halted.text}",
                hint="Submit at another site; see `sparktxlog status`.",
                reason=self._cycle.halted.code,
            )
        self._membership.joining.check_knows_log()
        if self._base.ending.is_set():
            raise BusyError("the node is stopping", hint="Submit again after its restart.")

    def _check_whole(self, size_bytes: int) -> None:
        """Refuse a bulk load that a missing site would have to catch up with, if that is set."""
        limit = self._base.config.whole_cluster_above_bytes
        if limit and size_bytes > limit:
            self._membership.epochs.restriction.check_whole(size_bytes, limit)

    def _check_takes(self, level: Level) -> None:
        """Refuse a new transaction that this node does not take, or that cannot be ordered now."""
        if self._base.settings.in_force.paused:
            raise PausedError(
                f"node {self._base.config.node_id!r} is paused and takes no transactions",
                hint="Submit at another site, or end the pause with `sparktxlog peer continue`.",
            )
        if level in self._taken:
            return  # many single posts come in one turn, and a look costs as much as a post
        self._space.check()
        self._membership.epochs.restriction.check(level, self._base.config.suspect_timeout)
        if not self._taken:
            asyncio.get_running_loop().call_soon(self._taken.clear)
        self._taken.add(level)

    async def _known(
        self, content: Content, position: int | None, level: Level, sites: Appliers, timeout: float
    ) -> Receipt | None:
        """Return the receipt of a transaction that was submitted before, once at its level.

        Args:
            position: Its position, None = unknown.
        """
        under_way = self._under_way(content.ids[:16])
        if under_way is not None:
            submission, index = under_way
            if content.is_several and submission.ids != content.ids:
                return None  # the core will find the repeated id, as an ordered outcome
            which = None if content.is_several else index
            held = submission.held(which)
            content.judged(submission.receipt(which), held, None)  # it may be taken already
            receipt = await self._wait(content, submission, which, level, sites, timeout)
            return content.judged(receipt, held, receipt.position)
        ordered = self._ordered_receipt(content, position)
        if ordered is None or position is None:
            return None
        ordered = self.judged(content, ordered, position)
        return await self._at_level(ordered, level, sites, timeout)

    async def _wait(
        self,
        content: Content,
        submission: Submission,
        index: int | None,
        level: Level,
        sites: Appliers,
        timeout: float,
    ) -> Receipt:
        """Wait for a level; if the run was withdrawn because it was ordered before, that counts."""
        try:
            reached = await self._receipts.wait(submission, index, level, sites, timeout)
            return await self._held_up(reached, sites) if level is Level.APPLIED else reached
        except DuplicateTransactionError:
            position = self._master.locate(content.ids[:16])
            receipt = self._ordered_receipt(content, position)
            if receipt is None or position is None:
                raise
            receipt = self.judged(content, receipt, position)
            return await self._at_level(receipt, level, sites, timeout)

    def _under_way(self, transaction_id: bytes) -> tuple[Submission, int] | None:
        """Return the run of a transaction that is not ordered yet, and its index there."""
        pending = self._receipts.pending(transaction_id)
        found = None if pending is not None else self._journal.find_transaction(transaction_id)
        if found is None:
            return pending
        header, index = found
        payload = self._journal.read_payload(header.origin, header.incarnation, header.seq)
        if payload is None:
            return None
        manifest = read_manifest(payload)
        digests = manifest.content_digests
        return self._receipts.adopt(header, manifest.ids, manifest.holders, digests), index

    async def _at_level(
        self, receipt: Receipt, level: Level, sites: Appliers, timeout: float
    ) -> Receipt:
        """Return the receipt of an ordered transaction once it has the level, or says `late`."""
        if receipt.position is None or LEVEL_RANK[level] <= LEVEL_RANK[Level.ORDERED]:
            return receipt
        if receipt.outcome == PREPARED:
            return receipt
        end = receipt.position + receipt.n - 1
        reached = await self._receipts.wait_applied(end, sites, timeout)
        if reached:
            return replace(receipt, level=Level.APPLIED)
        return await self._held_up(replace(receipt, late=True), sites)

    async def _held_up(self, receipt: Receipt, sites: Appliers) -> Receipt:
        return await where_tables_stand_still(self._base, self._replicas, receipt, sites)

    def _ordered_receipt(self, content: Content, position: int | None) -> Receipt | None:
        if position is None or position > self._base.ordered.value:
            return None  # the core may know it already, but a receipt must be durable first
        stored = self._journal.read_entry_at(position)
        if stored is None:
            return self._position_only(content, position)
        if content.is_several and stored.ids != content.ids:
            return None
        index = None if content.is_several else position - stored.entry.position
        return self._stored_receipt(stored, index)

    def _position_only(self, content: Content, position: int) -> Receipt | None:
        """Return the receipt of an ordered transaction whose outcome is not kept here.

        A node that took over a summary knows only ids and positions of earlier transactions.

        Raises:
            CommitStateUnknownError: It is a run: without its outcomes its receipt would say that
                none was rejected (not definite; field `position`).
        """
        manifest = content.run
        if manifest is None or not content.is_several:
            text = transaction_id_to_text(content.ids)
            return Receipt(transaction_id=text, n=1, level=Level.ORDERED, position=position)
        ids = (manifest.transaction_id(index) for index in range(manifest.n))
        located = map(self._master.locate, ids)
        if any(found != position + index for index, found in enumerate(located)):
            return None
        raise _outcomes_gone(manifest, position)

    def _of_the_first(self, content: Content, receipt: Receipt) -> Receipt:
        """Return the receipt of the first transaction with this id if this one is a repeat.

        A client that lost its node submits the same id elsewhere.  Both may be ordered; only the
        first takes effect (P25c).  If that has other content, this one is lost.

        Raises:
            IdTakenError: So it is with a single transaction (definite).
        """
        if not any(item.code == DuplicateTransactionError.code for item in receipt.rejections):
            return self._with_origins(receipt)
        position = self._master.locate(content.ids[:16])
        first = self._ordered_receipt(content, position)
        if first is None or position is None or first.position == receipt.position:
            digests_at = self._journal.content_digests
            return content.with_taken_ids(receipt, self._master.locate, digests_at)
        first = self.judged(content, first, position)
        return self._with_origins(replace(first, level=receipt.level, late=receipt.late))

    def _with_origins(self, receipt: Receipt) -> Receipt:
        """Return the receipt with the nodes that conflicts were lost to, if they are kept."""
        winners = {item.winner for item in receipt.rejections if item.winner is not None}
        stored = {winner: self._journal.read_entry_at(winner) for winner in winners}
        origins = {at: entry.entry.header.origin for at, entry in stored.items() if entry}
        if not origins:
            return receipt
        named = tuple(
            replace(item, origin=origins.get(item.winner)) if item.winner in origins else item
            for item in receipt.rejections
        )
        return replace(receipt, rejections=named)

    async def find(self, transaction_id: bytes) -> Receipt | None:
        """Return the receipt of a transaction, None if this node never saw it."""
        pending = self._receipts.pending(transaction_id)
        if pending is not None and pending[0].reached is not None:
            return await self._raised(pending[0].receipt(pending[1]))
        found = self._journal.find_transaction(transaction_id)
        if found is not None:
            header, index = found
            payload = self._journal.read_payload(header.origin, header.incarnation, header.seq)
            if payload is not None:
                ids = read_manifest(payload).ids
                return make_receipt(ids, index, Level.ACCEPTED, header, None, None)
        older = (await self._older_ids(transaction_id)).found
        if older:
            return await self._raised(self._older_receipt(transaction_id, *older[0]))
        at = self._master.locate(transaction_id)
        receipt = self._ordered_receipt(Content(transaction_id), at)
        if receipt is not None:
            return await self._raised(receipt)
        withdrawn = self._journal.find_withdrawn(transaction_id)
        if withdrawn is None:
            return None
        code, text = withdrawn
        return Receipt(
            transaction_id=transaction_id_to_text(transaction_id),
            n=1,
            level=None,
            outcome="rejected",
            rejections=(ReceiptRejection(index=0, code=code, text=text),),
        )

    async def find_decided(self, transaction_id: bytes, timeout: float) -> Receipt | None:
        """Return as `find`; wait for the decision if the transaction is prepared (P35)."""
        deadline = asyncio.get_running_loop().time() + min(timeout, MAX_WAIT_S)
        while True:
            seen = self._base.ordered.value
            receipt = await self.find(transaction_id)
            left = deadline - asyncio.get_running_loop().time()
            if receipt is None or receipt.outcome != PREPARED or left <= 0:
                return receipt
            if self._base.ending.is_set():
                return receipt
            await self._base.ordered.reach(seen + 1, left)

    async def _raised(self, receipt: Receipt) -> Receipt:
        """Return the receipt at level applied if the own replica has reached its position."""
        receipt, position = self._with_origins(receipt), receipt.position
        if position is None or receipt.outcome == PREPARED:  # nothing of it can be read
            return receipt
        if position + receipt.n - 1 > self._replicas.applied(Appliers()):
            return await self._held_up(receipt, Appliers())
        return replace(receipt, level=Level.APPLIED)


def _outcome_of(verdict: Verdict) -> str:
    return "committed" if verdict.rejection is None else f"rejected ({verdict.rejection.code})"


def _older_run(manifest: RunManifest, older: OlderIdsFound) -> Receipt | None:
    """Return the receipt of a run whose rows were pruned, None if these ids are not such a run.

    Raises:
        CommitStateUnknownError: A summary brought them, without their outcomes (not definite).
    """
    position, _ = older.found.get(0, (0, False))
    if manifest.n == 1 or len(older.found) < manifest.n:
        return None
    if any(at != position + index for index, (at, _) in older.found.items()):
        return None
    if any(rejected is None for _, rejected in older.found.values()):
        raise _outcomes_gone(manifest, position)
    return Receipt(
        transaction_id=None,
        n=manifest.n,
        level=Level.ORDERED,
        position=position,
        rejections=tuple(
            ReceiptRejection(index=index, code="rejected", text="the reason is no longer kept")
            for index, (_, rejected) in sorted(older.found.items())
            if rejected
        ),
    )


def _outcomes_gone(manifest: RunManifest, position: int) -> CommitStateUnknownError:
    """Return that a run is ordered, and nobody knows here which transactions took effect."""
    text = transaction_id_to_text(manifest.transaction_id(0))
    return CommitStateUnknownError(
        f"the run of transaction {text} was ordered at position {position}; which of its "
        "transactions were rejected is not kept at this node",
        hint="Ask another site's node.",
        transaction_id=text,
        reached=Level.ORDERED.value,
        position=position,
    )
