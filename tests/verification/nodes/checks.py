"""Invariants that whole nodes must keep, seen from their disks, wires and clients.

I1, I2 one queue, sorted by position without gaps, linked by hashes, of which each disk holds a
prefix, before and after each start; I5 one decision an epoch; I7 what was told as ordered stays;
I8 in the end all are members of one epoch, with equal queues; I11 posted counters never fall.
What a client was told is in the final queue once: at `ordered` always, at `acquired` as no more
memories are lost than the quorum allows for, at `accepted` unless its node's disk was lost.
What was refused as definite is not there.  P27: conditions are judged as `conditions.Judge` does.
"""

from __future__ import annotations

import hashlib
from bisect import insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.verification.nodes.conditions import Judge

from sparktxlog.codec import wire
from sparktxlog.codec.containers.payload import read_manifest
from sparktxlog.errors import (
    DuplicateTransactionError,
    ExpiredError,
    InvariantViolation,
    SessionRolledBackError,
)
from sparktxlog.model.ids import transaction_id_from_text, transaction_id_to_text
from sparktxlog.model.transactions.operation import RunFacts, RunManifest
from sparktxlog.model.transactions.receipt import Level, Receipt
from sparktxlog.protocol.messages.posts import Post, QueueEntry, chain_hash
from sparktxlog.protocol.messages.view import Phase, Seat, View, same_decision
from sparktxlog.storage.interfaces import (
    AppendQueue,
    DropAnnouncement,
    ExpireLog,
    ForgetPayloads,
    MarkPublished,
    PutPlaced,
    PutView,
    ResetJournal,
    Write,
)

if TYPE_CHECKING:
    from tests.verification.nodes.node import SimulatedNode
    from tests.verification.nodes.world import World

_GENESIS = bytes(32)
#: Of all simulated nodes: what was read longer ago is a conflict.
CONDITION_WINDOW = 1_000
#: Posts of a sender to a receiver whose counters are compared.
_POSTS_KEPT = 32
#: Code of a rejection that only says that an earlier one counts.
_DUPLICATE = DuplicateTransactionError.code


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a client was told of a transaction."""

    level: Level
    node: str
    #: Of its disk then.
    generation: int
    receipt: Receipt


class Checks:
    """Watches one world; `fail` raises with the seed's story, at the end of the run at the latest.

    The first violation counts.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.marks: Counter[str] = Counter()
        self.violation = ""
        #: First position → run, of the one queue.
        self.log: dict[int, QueueEntry] = {}
        self._hashes = {0: _GENESIS}
        #: Position and hash of the one queue's end.
        self.end = (0, _GENESIS)
        #: Transaction id → its positions, each with the code of its rejection, empty = none.
        self._places: dict[bytes, list[tuple[int, str]]] = {}
        #: Prepared transaction → where it is decided, and why it takes no effect.
        self._decided: dict[bytes, tuple[int, str]] = {}
        #: Node → end of the queue on its disk.
        self._durable: dict[str, tuple[int, bytes]] = {}
        self.views: dict[int, View] = {}
        #: Sender, its disk, epoch and receiver → order and counter of the latest posts.
        self._posted: dict[tuple[str, int, int, str], list[tuple[int, int, int]]] = {}
        #: Sender and receiver → order of the newest post that arrived.
        self._arrived: dict[tuple[str, str], tuple[int, int]] = {}
        self.told: dict[bytes, list[Told]] = {}
        #: Transactions that were refused each time, for certain.
        self.refused: set[bytes] = set()
        self._trace = hashlib.blake2b(digest_size=16)
        self.events = 0
        self._judge = Judge(CONDITION_WINDOW, self.happened)

    @property
    def trace(self) -> str:
        """Digest of everything that happened, in order."""
        return self._trace.hexdigest()

    @property
    def transactions(self) -> int:
        """Number of transactions of the one queue."""
        return self.end[0]

    def note(self, *story: object) -> None:
        """Add something to the trace."""
        self.events += 1
        text = f"{self._world.loop.time():.9f} " + " ".join(map(str, story))
        text = text.replace(f"{self._world.disks.root}/", "")  # another one in each run
        self._trace.update(text.encode() + b"\n")
        if self._world.log is not None:
            self._world.log(text)

    def happened(self, mark: str) -> None:
        """Count a rare branch."""
        self.marks[mark] += 1
        self.note("mark", mark)

    def fail(self, story: str) -> None:
        """Keep a violation and end the history."""
        if not self.violation:
            self.violation = f"at {self._world.loop.time():.6f} s: {story}"
            self.note("violation", story)
        self._world.end()

    # -- disks -------------------------------------------------------------------------------------

    def started(self, node: SimulatedNode, position: int, chain: bytes) -> None:
        """I1: a node starts with exactly what its disk was seen to hold."""
        self.note("start", node.name, position, chain.hex()[:8])
        known = self._durable.get(node.name, (0, _GENESIS))
        doubtful, node.disk.doubtful = node.disk.doubtful, ()
        if doubtful and (position, chain) != known:
            self.happened("doubtful commit found at a start")
            self.wrote(node, doubtful)
            known = self._durable[node.name]
        self._world.tables.started(node)
        if (position, chain) != known:
            self.fail(f"I1: {node.name} starts at {position}, its disk held {known[0]}")
        self._check_writes(node)

    def cloned(self, node: SimulatedNode, clone: SimulatedNode) -> None:
        """See a copy of a disk made."""
        self._world.tables.cloned(node, clone)
        self._durable[clone.name] = self._durable.get(node.name, (0, _GENESIS))

    def disk_lost(self, node: SimulatedNode) -> None:
        """See a node lose everything."""
        self._world.tables.forget(node)
        self._durable[node.name] = (0, _GENESIS)

    def wrote(self, node: SimulatedNode, writes: Sequence[Write]) -> None:
        """See a write become durable."""
        self.note("wrote", node.name, *(type(write).__name__ for write in writes))
        for write in writes:
            match write:
                case AppendQueue():
                    for entry in write.entries:
                        self._appended(node, entry)
                case PutView():
                    self._viewed(write.view)
                case ResetJournal():
                    self._reset(node, write)
                case ForgetPayloads():
                    self.marks["payloads forgotten"] += 1
                case ExpireLog():
                    self.marks["log expired"] += 1
                case DropAnnouncement():
                    self.happened("run withdrawn")
                case PutPlaced():
                    self._world.tables.placed(node, write.uuid, write.version)
                case MarkPublished():
                    self.marks["published"] += 1
                case _:
                    pass

    def _appended(self, node: SimulatedNode, entry: QueueEntry) -> None:
        position, chain = self._durable.get(node.name, (0, _GENESIS))
        header = entry.header
        if entry.position != position + 1 or entry.previous_hash != chain:
            self.fail(f"I2: {node.name} appends {header} at {entry.position} behind {position}")
        if entry.chain_hash != chain_hash(entry.previous_hash, header):
            self.fail(f"I2: {node.name} has a broken hash link at {entry.position}")
        known = self.log.get(entry.position)
        if known is None:
            if (position, chain) != self.end:
                self.fail(f"I1: {node.name} has {header} at {entry.position}, where others have "
                          f"no run")  # fmt: skip
            self._new(node, entry)
        elif known != entry:
            self.fail(f"I1: {node.name} has {entry} where others have {known}")
        self._durable[node.name] = (entry.end, entry.chain_hash)
        if header.staged_bytes:
            self._check_files(node, entry)

    def _check_files(self, node: SimulatedNode, entry: QueueEntry) -> None:
        """I3: who orders a run holds its staged files."""
        assert node.running is not None
        for file in self._manifest(node, entry).staged_files:
            if not self._world.clients.staged.is_here(file, node.running.base.payloads):
                self.fail(f"I3: {node.name} orders {entry.header} without {file.path}")

    @staticmethod
    def _manifest(node: SimulatedNode, entry: QueueEntry) -> RunManifest:
        """Return what a run says that a node has just ordered."""
        assert node.running is not None
        header = entry.header
        payload = node.running.base.journal.read_payload(
            header.origin, header.incarnation, header.seq
        )
        assert payload is not None
        return read_manifest(payload)

    def _new(self, node: SimulatedNode, entry: QueueEntry) -> None:
        self.log[entry.position] = entry
        self.end = (entry.end, entry.chain_hash)
        self._hashes[entry.end] = entry.chain_hash
        assert node.running is not None
        stored = node.running.base.journal.read_entry_at(entry.position)
        if stored is None or len(stored.ids) != 16 * entry.header.n:
            self.fail(f"I3: {node.name} has no ids of {entry.header}")
            return
        codes = {rejection.index: rejection.code for rejection in entry.rejections}
        for index in range(entry.header.n):
            place = (entry.position + index, codes.get(index, ""))
            self._places.setdefault(stored.ids[16 * index : 16 * index + 16], []).append(place)
            if place[1] == _DUPLICATE:
                self.happened("duplicate rejected")
        for one in entry.verdicts:
            code = one.rejection.code if one.rejection else ""
            self._decided[one.transaction_id] = (entry.position + one.index, code)
        manifest = self._manifest(node, entry)
        if wrong := self._judge.ordered(entry, RunFacts.of(manifest)):
            self.fail(wrong)
        self._world.tables.ordered(node, entry, manifest)

    def _check_writes(self, node: SimulatedNode) -> None:
        """P27: what a node knows of writes follows from the one queue up to its position."""
        assert node.running is not None
        if not node.witness and (wrong := self._judge.known(node.name, node.running.base.master)):
            self.fail(wrong)

    def _reset(self, node: SimulatedNode, write: ResetJournal) -> None:
        summary = write.summary
        chain = _GENESIS if summary.last is None else summary.last.entry.chain_hash
        self.happened("summary of a queue taken")
        if self._hashes.get(summary.position) != chain:
            self.fail(f"I1: {node.name} takes a summary at {summary.position} of another queue")
        self._durable[node.name] = (summary.position, chain)

    def _viewed(self, view: View) -> None:
        known = self.views.get(view.epoch)
        if known is None:
            before = self.views.get(view.epoch - 1)
            self.views[view.epoch] = view
            members = set(before.members) if before else set(self._world.layout.masters)
            if members - set(view.members):
                self.happened("member evicted")
            if set(view.members) - members:
                self.happened("member admitted")
            was = {seat.node_id: seat.incarnation for seat in before.roster} if before else {}
            if any(seat.incarnation > was.get(seat.node_id, 1) for seat in view.roster):
                self.happened("returned after a loss")
        elif not same_decision(known, view):
            self.fail(f"I5: two decisions on epoch {view.epoch}: {known} and {view}")

    def quorum_changed(self, node: SimulatedNode, epoch: int, rule: str) -> None:
        """See an operator told that another quorum was decided: it was, by that epoch."""
        if not any(view.quorum_rule == rule for at, view in self.views.items() if at <= epoch):
            self.fail(f"{node.name} told of a quorum that no epoch has: {rule}")

    def places_changed(self, node: SimulatedNode, epoch: int, roster: tuple[Seat, ...]) -> None:
        """See an operator told that a change was decided: it was, by that epoch."""
        known = [view.roster for number, view in self.views.items() if number <= epoch]
        if not any(_places(found) == _places(roster) for found in known):
            self.fail(f"{node.name} told of a change of places that no epoch has: {roster}")

    # -- wires -------------------------------------------------------------------------------------

    def request(self, sender: str, receiver: str, method: str, target: str, body: bytes) -> None:
        """See a request leave; I11: posted counters of one epoch never fall.

        Several posts may be under way, and one that needs a new connection leaves later.
        """
        self.note("sent", sender, receiver, method, target.partition("?")[0], len(body))
        if target.startswith(("/peer/v1/runs", "/peer/v1/announced")):
            self.marks["run fetched"] += 1
        elif target == "/peer/v1/tails":
            self.marks["tail sent"] += 1
        post = _post_in(target, body)
        if post is None:
            return
        generation = self._world.find(sender).disk.generation
        posted = self._posted.setdefault((sender, generation, post.epoch, receiver), [])
        insort(posted, (post.start, post.round, post.counter))
        del posted[:-_POSTS_KEPT]
        counters = [counter for _, _, counter in posted]
        if counters != sorted(counters):
            self.fail(f"I11: {sender} posted in this order: {counters}")

    def arrived(self, sender: str, receiver: str, target: str, body: bytes) -> None:
        """See a request arrive: posts overtake each other."""
        post = _post_in(target, body)
        if post is None:
            return
        line, order = (sender, receiver), (post.start, post.round)
        if order < self._arrived.get(line, order):
            self.happened("post overtaken by a newer one")
        self._arrived[line] = max(order, self._arrived.get(line, order))

    def answered(self, receiver: str, target: str, status: int) -> None:
        """See an application answer."""
        self.note("answered", receiver, target.partition("?")[0], status)
        if status == 401:
            self.marks["refused as replayed"] += 1
        elif status == 409:
            self.marks["refused as stale"] += 1
        elif status in (500, 507) and target.startswith("/peer/v1/files/"):
            disk = self._world.find(receiver).disk
            if not disk.sync_error and not disk.full:
                self.fail(f"{receiver} answers {status} to {target}, its disk works")
        elif status >= 500 and status != 503:
            self.fail(f"{receiver} answers {status} to {target}")

    def failed(self, receiver: str, target: str, error: BaseException) -> None:
        """See an application fail: what is no error of this project is a mistake."""
        self.fail(f"{receiver} fails at {target}: {error!r}")

    # -- clients -----------------------------------------------------------------------------------

    def acknowledged(self, node: SimulatedNode, transaction: bytes, receipt: Receipt) -> None:
        """I7: what is told as ordered is on a disk, at that position, with that outcome."""
        assert receipt.level is not None
        self.happened(f"acknowledged at {receipt.level.value}")
        told = Told(level=receipt.level, node=node.name, generation=node.disk.generation,
                    receipt=receipt)  # fmt: skip
        self.told.setdefault(transaction, []).append(told)
        if receipt.level in (Level.ORDERED, Level.APPLIED):
            self._check_ordered(transaction, told)
            if wrong := self._judge.answered(receipt):
                self.fail(wrong)

    def _check_ordered(self, transaction: bytes, told: Told) -> None:
        receipt, places = told.receipt, dict(self._places.get(transaction, ()))
        text = transaction_id_to_text(transaction)
        if receipt.prepared_at is not None:
            self._check_prepared(transaction, told)
            return
        if receipt.position not in places:
            self.fail(f"I7: {told.node} told {text} at {receipt.position}, it is at {places}")
            return
        code = places[receipt.position]
        outcome = "rejected" if code else "committed"
        if code == _DUPLICATE or receipt.outcome not in (None, outcome):
            self.fail(f"I7: {told.node} told {text} as {receipt.outcome}, it is {code or outcome}")

    def _check_prepared(self, transaction: bytes, told: Told) -> None:
        """P35: what is told of a prepared transaction stands in the queue, decided or not."""
        receipt, places = told.receipt, dict(self._places.get(transaction, ()))
        assert receipt.prepared_at is not None
        position, code = self._decided.get(transaction, (0, ""))
        wanted = (receipt.prepared_at, "prepared")
        if position and receipt.outcome != "prepared":
            wanted = (position, "rejected" if code else "committed")
        prepared = places.get(receipt.prepared_at) == "prepared"
        if not prepared or (receipt.position, receipt.outcome) != wanted:
            self.fail(f"P35: {told.node} told {receipt}, it is at {places}, decided at {position}")

    # -- the end -----------------------------------------------------------------------------------

    def unhealed(self) -> str:
        """Return why the cluster is not whole yet, empty if it is (I8)."""
        epochs = set()
        followers = self.followers()
        masters = [one for one in self._world.layout.masters + self._world.layout.followers
                   if one not in followers]  # fmt: skip
        for name in masters:
            node = self._world.nodes[name]
            if node.running is None or node.app is None:
                return f"{name} does not run"
            status = node.running.base.master.status()
            epochs.add(status.epoch)
            if status.phase is not Phase.NORMAL or name not in status.members:
                waits = [(str(item.peer), item.why.value) for item in status.waiting_for]
                return (f"{name} is {status.phase.value} {status.halted} in epoch {status.epoch} "
                        f"of {status.members}, waits for {waits}")  # fmt: skip
            if status.busy or status.incoming_runs or status.unstamped_runs:
                return f"{name} still works: {status.incoming_runs} runs wait"
            if (status.position, status.chain_hash) != self.end or (
                self._durable.get(name, (0, _GENESIS)) != self.end
            ):
                return f"{name} is at {status.position} of {self.end[0]}"
            if set(status.members) != set(masters):
                return f"members of epoch {status.epoch} are {status.members}"
            failure, published = node.running.log.publisher.failure, node.running.base.published
            if failure is not None or published.value != self.end[0]:
                return f"{name} published {published.value}: {failure}"
        for name in followers:
            node = self._world.nodes[name]
            if node.running is None or node.app is None:
                return f"{name} does not run"
            status = node.running.base.master.status()
            epochs.add(status.epoch)
            if status.phase is not Phase.FOLLOWING or name in status.members:
                return f"{name} is {status.phase.value} {status.halted} in epoch {status.epoch}"
            if (status.position, status.chain_hash) != self.end:
                return f"{name} is at {status.position} of {self.end[0]}"
        if len(epochs) > 1:
            return f"epochs differ: {sorted(epochs)}"
        return self._world.tables.missing()

    def followers(self) -> tuple[str, ...]:
        """Return the followers that are none of the members now: an operator promotes some."""
        last = self.views.get(max(self.views, default=0))
        return tuple(
            one for one in self._world.layout.followers if last is None or last.follows(one)
        )

    def check_end(self) -> None:
        """See that all disks hold the one queue, and all that was told is in it once."""
        for name in (*self._world.layout.masters, *self._world.layout.followers):
            self._check_journal(self._world.nodes[name])
        self._check_tables()
        self._world.tables.check_end()
        for transaction, several in self.told.items():
            self._check_told(transaction, several)
        for transaction in self.refused - set(self.told):
            if self._world.layout.cloned and self._world.clients.staged.was_harmed(transaction, ()):
                continue  # P30: a copy of the disk does not know that it was withdrawn
            if transaction in self._places:
                text = transaction_id_to_text(transaction)
                self.fail(f"{text} was refused for certain, and stands at "
                          f"{self._places[transaction]}")  # fmt: skip

    def _check_journal(self, node: SimulatedNode) -> None:
        assert node.running is not None
        journal = node.running.base.journal
        after = journal.read_extent().kept_after
        try:
            found = journal.read_queue(after, 1_000_000, payloads=False)
        except ExpiredError as error:  # more of it is pruned than expired
            after = int(error.fields["kept_after"])
            found = journal.read_queue(after, 1_000_000, payloads=False)
        stored = [item.entry for item in found]
        wanted = [entry for position, entry in sorted(self.log.items())]
        if stored != wanted[len(wanted) - len(stored) :] or (
            not stored and after != self.end[0]
        ):  # fmt: skip
            self.fail(f"I1: the journal of {node.name} holds another queue than it wrote")

    def _check_tables(self) -> None:
        """P25b, P27: all know the same of tables, by whatever way they came by the queue."""
        found = {}
        for name in self._world.layout.masters:
            self._check_writes(self._world.nodes[name])
            running = self._world.nodes[name].running
            assert running is not None
            found[name] = dict(running.base.master.tables)
        self.marks["table created"] += len(found[name])
        if any(tables != found[name] for tables in found.values()):
            told = {node: sorted(tables) for node, tables in found.items()}
            self.fail(f"P25b: the tables are {told}")

    def _is_withdrawn(self, transaction: bytes, told: Told) -> bool:
        """P1a, P34: what was accepted, and lost a file before its stamp, is rejected, and told so.

        So is what its session submitted after that: it names the one that was lost.
        """
        node = self._world.nodes[told.node]
        if told.level is not Level.ACCEPTED or node.running is None:
            return False
        reason = node.running.base.journal.find_withdrawn(transaction)
        if reason is not None and reason[0] == SessionRolledBackError.code:
            transaction = transaction_id_from_text(reason[1].split()[1])
            self.marks["run withdrawn with its session"] += 1
        harmed = self._world.clients.staged.was_harmed(transaction, node.disk.distrusted)
        return harmed and reason is not None

    def _check_told(self, transaction: bytes, several: Sequence[Told]) -> None:
        text, places = transaction_id_to_text(transaction), self._places.get(transaction, [])
        counting = [place for place in places if place[1] != _DUPLICATE]
        if len(counting) > 1:
            self.fail(f"{text} took effect more than once: {places}")
        for told in several:
            kept = told.level is not Level.ACCEPTED or (
                self._world.nodes[told.node].disk.generation == told.generation
            )
            if kept and not counting and self._is_withdrawn(transaction, told):
                continue
            if kept and not counting:
                self.fail(f"{text}, told as {told.level.value} by {told.node}, is not in the queue")
            if told.level is Level.ORDERED:
                self._check_ordered(transaction, told)


def _post_in(target: str, body: bytes) -> Post | None:
    """Return the post in a request, None = there is none."""
    return wire.decode(wire.Envelope, body).post if target == "/peer/v1/posts" else None


def _places(roster: tuple[Seat, ...]) -> list[tuple[str, int]]:
    return [(seat.node_id, seat.weight) for seat in roster]


def violated(error: BaseException) -> str:
    """Return the story of an error that ended a history."""
    kind = "" if isinstance(error, InvariantViolation) else f"{type(error).__name__}: "
    return f"{kind}{error}"
