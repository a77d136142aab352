"""Scenario files: a small command language over a simulated cluster (after etcd-io/raft).

A file is a list of blocks: commands, a line `----`, the expected output, an empty line.  Commands:

    masters a b c [quorum=2] [now=0] [<setting>=<number>]   new cluster, started, posts exchanged
    commit a A [ts=5] [n=3] [staged=9000] [session=s] [id=X] [create=t:bigint] [touch=t:1]
               [holders=3] [alone=1]           3: a synchronous run (P34); 1: it stands alone
    deliver [post|push|fetch|tail|announcement|prefetch|all] [a->b]     what is on its way now
            [first=2]                                                   no more than two of it
    drop    [kind] [a->b] [first=2]  duplicate [kind] [a->b] [first=2]
    hold kind [a->b]                 keep such letters back in `rounds` until `release`
    freeze-counter b 4               b neither promises nor uses a counter above 4, until `thaw b`
    rounds 2 [every=100]             let time pass, tick all, deliver everything not held
    advance 500    tick a    skew a 5000    crash a    start a    link a b up|down
    forge-header a b seq=1 ts=5      forge-post a b counter=9 last=0 [known-b=7]
    show [a …] [counter|round|waiting|tables|peers|held|halted]
                                     held: of each node's runs it holds so many; of its own runs
                                     each node confirmed so many, in precedence order
    letters                          what is on its way
    trace                            print the actions of this block
    locate a X                       position of a transaction id
    outcomes a                       rejections in the queue

Times are microseconds.  A run is named by its label; its first transaction has the label as id
unless `id=` says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.verification.cluster import Cluster, Letter
from tests.verification.cluster_checks import ClusterChecks

from sparktxlog.model.ids import NodeId
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import RunFacts, Touch
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import Action, PersistStanding
from sparktxlog.protocol.messages.events import Event, PayloadArrived, PostReceived
from sparktxlog.protocol.messages.posts import Post, RunHeader
from sparktxlog.protocol.messages.recovery import RecoveredRun
from sparktxlog.protocol.order.ordering import Ordering
from sparktxlog.protocol.order.peers import Peer
from sparktxlog.protocol.order.posting import RoundPosts

_KINDS = ("post", "push", "fetch", "tail", "announcement", "prefetch", "all")
_VIEWS = ("counter", "round", "waiting", "tables", "peers", "held", "halted")


def run_file(text: str) -> str:
    """Run a scenario and return the file as it should be, with the outputs of this run."""
    scenario, blocks = Scenario(), []
    for block in text.strip("\n").split("\n\n"):
        if "\n----" not in block:
            blocks.append(block)
            continue
        commands = block.split("\n----")[0]
        output = scenario.run(commands.splitlines())
        blocks.append("\n".join([commands, "----", *output]))
    return "\n\n".join(blocks) + "\n"


def _id(label: str) -> bytes:
    return label.encode().ljust(16, b".")[:16]


class HeldOrdering(Ordering):
    """Normal operation with a counter that can be held."""

    #: Largest counter it promises and uses, None = free.
    held: int | None = None

    def _add(self, now: int) -> None:
        peers = self._peers
        if self.held is not None:
            # One more promise, of nobody: the least of all counts.
            holder = Peer(NodeId(""))
            holder.counter = self.held
            self._peers = (*peers, holder)
        super()._add(now)
        self._peers = peers

    def _snapshot(self, now: int) -> RoundPosts:
        snapshot = super()._snapshot(now)
        if self.held is not None:
            snapshot.counter = min(snapshot.counter, self.held)
        return snapshot


class HeldMaster(Master):
    """A core whose counter can be held, to build the situations of the seed's example."""

    def _new_ordering(self, incoming: list[RecoveredRun], now: int) -> Ordering:
        ordering = super()._new_ordering(incoming, now)
        ordering.__class__ = HeldOrdering
        return ordering

    def hold(self, counter: int | None) -> None:
        """Promise and use no counter above this one; None = free again."""
        assert isinstance(self._ordering, HeldOrdering)
        self._ordering.held = counter


class Scenario:
    """Interpreter of one scenario file."""

    def __init__(self) -> None:
        self.cluster: Cluster
        self._checks: ClusterChecks
        self._labels: dict[bytes, str] = {}
        self._held: set[tuple[str, str]] = set()
        self._trace: list[str] | None = None

    def run(self, lines: Sequence[str]) -> list[str]:
        """Run the commands of one block and return what they print."""
        output: list[str] = []
        self._trace = output if "trace" in (line.strip() for line in lines) else None
        for line in lines:
            words = line.split("#")[0].split()
            if not words or words == ["trace"]:
                continue
            arguments = [word for word in words[1:] if "=" not in word]
            options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
            command = getattr(self, "do_" + words[0].replace("-", "_"), None)
            if command is None:
                raise AssertionError(f"unknown command: {line}")
            output.extend(command(arguments, options) or ())
            self._checks.check()
        return output or ["ok"]

    # ------------------------------------------------------------------ cluster

    def do_masters(self, names: list[str], options: dict[str, str]) -> None:
        """Start a cluster and let everybody hear of everybody."""
        quorum = int(options.pop("quorum", len(names)))
        now = int(options.pop("now", 0))
        settings: dict[str, Any] = {k.replace("-", "_"): int(v) for k, v in options.items()}
        self.cluster = Cluster(names, quorum, HeldMaster, **settings)
        self.cluster.now = now
        self._checks = ClusterChecks(self.cluster, by_hand=True)
        self.cluster.watchers.append(self._watch)
        self.cluster.start_all()
        self.cluster.deliver_all()

    def do_expect_faults(self, names: list[str], options: dict[str, str]) -> None:
        """Check no more that nobody raises an alarm, and that what was told is kept."""
        self._checks.is_honest = False

    def do_commit(self, arguments: list[str], options: dict[str, str]) -> list[str]:
        """Submit a run of `n` transactions."""
        name, label = arguments
        node = self.cluster.nodes[name]
        if "ts" in options:
            self.cluster.now = max(self.cluster.now, int(options["ts"]) - node.skew)
        n = int(options.get("n", "1"))
        ids = _id(options.get("id", label)) + b"".join(_id(f"{label}+{i}") for i in range(1, n))
        touches: tuple[Touch, ...] = ()
        creates: tuple[tuple[int, TableDefinition], ...] = ()
        if "touch" in options:
            table, version = options["touch"].split(":")
            touches = (Touch(table=table, schema_version=int(version)),)
        if "create" in options:
            table, kind = options["create"].split(":")
            columns = (Column(name="c", type=kind),)
            creates = ((0, TableDefinition(name=table, columns=columns)),)
        holders = int(options.get("holders", "0"))
        facts = RunFacts(n=n, ids=ids, touches=touches, creates=creates, holders=holders)
        digest = label.encode().ljust(32, b".")
        self._labels[digest] = label if n == 1 else f"{label}*{n}"
        ticket = self.cluster.submit(
            name,
            (),
            facts=facts,
            digest=digest,
            staged_bytes=int(options.get("staged", "0")),
            size_bytes=int(options.get("size", "100")),
            session=options.get("session"),
            stands_alone="alone" in options,
        )
        stamped = [
            header.ts
            for header in (*node.disk.incoming.values(), *node.disk.ordered.values())
            if header.digest == digest and header.origin == name
        ]
        if "ts" in options and stamped != [int(options["ts"])]:
            return [f"{label} (ticket {ticket}) was stamped {stamped}, not {options['ts']}"]
        return []

    def do_crash(self, names: list[str], options: dict[str, str]) -> None:
        """Lose everything that is not durable."""
        for name in names:
            self.cluster.crash(name)

    def do_start(self, names: list[str], options: dict[str, str]) -> None:
        """Start nodes from their disks."""
        for name in names:
            self.cluster.start(name)

    def do_tick(self, names: list[str], options: dict[str, str]) -> None:
        """Let nodes look at the time."""
        for name in names:
            self.cluster.tick(name)

    def do_advance(self, arguments: list[str], options: dict[str, str]) -> None:
        """Let time pass; nobody notices before a tick or a letter."""
        self.cluster.now += int(arguments[0])

    def do_skew(self, arguments: list[str], options: dict[str, str]) -> None:
        """Set a node's clock apart from the others."""
        self.cluster.nodes[NodeId(arguments[0])].skew = int(arguments[1])

    def do_link(self, arguments: list[str], options: dict[str, str]) -> None:
        """Tell two nodes of their connection."""
        self.cluster.link(arguments[0], arguments[1], up=arguments[2] == "up")

    # ------------------------------------------------------------------ letters

    def _select(self, arguments: list[str], options: dict[str, str]) -> list[Letter]:
        kinds = [word for word in arguments if word in _KINDS and word != "all"]
        ways = [tuple(word.split("->")) for word in arguments if "->" in word]
        found = [
            letter
            for letter in self.cluster.letters
            if (not kinds or letter.kind in kinds)
            and (not ways or (letter.sender, letter.receiver) in ways)
        ]
        return found[: int(options.get("first", len(found)))]

    def do_deliver(self, arguments: list[str], options: dict[str, str]) -> None:
        """Deliver the selected letters that are on their way now; `all`: until none is left."""
        if "all" in arguments:
            self._deliver_free()
            return
        for letter in self._select(arguments, options):
            self.cluster.deliver(letter)

    def do_drop(self, arguments: list[str], options: dict[str, str]) -> None:
        """Lose the selected letters."""
        for letter in self._select(arguments, options):
            self.cluster.drop(letter)

    def do_duplicate(self, arguments: list[str], options: dict[str, str]) -> None:
        """Deliver holders of the selected letters; the letters stay on their way."""
        for letter in self._select(arguments, options):
            self.cluster.deliver(letter, keep=True)

    def do_hold(self, arguments: list[str], options: dict[str, str]) -> None:
        """Keep letters of a kind (and way) back."""
        ways = [word for word in arguments if "->" in word] or ["*"]
        self._held.update((arguments[0], way) for way in ways)

    def do_release(self, arguments: list[str], options: dict[str, str]) -> None:
        """Let held letters go."""
        self._held.clear()

    def do_freeze_counter(self, arguments: list[str], options: dict[str, str]) -> None:
        """Hold a node's counter at a value."""
        self._held_master(arguments[0]).hold(int(arguments[1]))

    def do_thaw(self, names: list[str], options: dict[str, str]) -> None:
        """End `freeze-counter`."""
        for name in names:
            self._held_master(name).hold(None)

    def _held_master(self, name: str) -> HeldMaster:
        master = self.cluster.nodes[name].master
        assert isinstance(master, HeldMaster)
        return master

    def _is_free(self, letter: Letter) -> bool:
        way = f"{letter.sender}->{letter.receiver}"
        return not self._held & {(k, w) for k in (letter.kind, "all") for w in (way, "*")}

    def _deliver_free(self) -> None:
        for _ in range(10_000):
            letter = next((one for one in self.cluster.letters if self._is_free(one)), None)
            if letter is None:
                return
            self.cluster.deliver(letter)
        raise AssertionError("the nodes never stop talking")

    def do_rounds(self, arguments: list[str], options: dict[str, str]) -> None:
        """Let time pass, everybody tick, and all letters arrive that are not held."""
        pause = int(options.get("every", "1000000"))
        for _ in range(int(arguments[0])):
            self.cluster.now += pause
            for name in self.cluster.alive():
                self.cluster.tick(name)
            self._deliver_free()

    def do_forge_header(self, arguments: list[str], options: dict[str, str]) -> None:
        """Push a run to a node that its origin never made."""
        origin, receiver = arguments
        config = self.cluster.nodes[NodeId(origin)].config
        header = RunHeader(
            epoch=config.epoch,
            ts=int(options["ts"]),
            origin=config.node_id,
            incarnation=1,
            seq=int(options["seq"]),
            n=1,
            digest=b"forged".ljust(32, b"."),
            size_bytes=1,
        )
        facts = RunFacts(n=1, ids=_id("forged"))
        self.cluster.facts[header.digest] = facts
        self.cluster.step(receiver, [PayloadArrived(header=header, facts=facts)])

    def do_forge_post(self, arguments: list[str], options: dict[str, str]) -> None:
        """Post what the sender never posted."""
        sender, receiver = arguments
        config = self.cluster.nodes[NodeId(sender)].config
        base = self.cluster.nodes[NodeId(receiver)].master
        assert base is not None
        post = Post(
            log_id=options.get("log_id", config.log_id),
            epoch=config.epoch,
            sender=NodeId(options.get("as", sender)),
            round=1_000_000,
            base=replace(base.base, chain_hash=b"x" * 32) if "fork" in options else base.base,
            counter=int(options["counter"]),
            last_seq=int(options.get("last", "0")),
            known={key[6:]: int(value) for key, value in options.items() if key[:6] == "known-"},
            start=1_000_000,
        )
        self.cluster.step(receiver, [PostReceived(post=post)])

    # ------------------------------------------------------------------ views

    def _label(self, header: RunHeader) -> str:
        return self._labels.get(header.digest, header.digest[:6].decode(errors="replace"))

    def do_letters(self, arguments: list[str], options: dict[str, str]) -> list[str]:
        """Print what is on its way."""
        return [f"{x.sender}->{x.receiver} {x.kind}" for x in self._select(arguments, options)]

    def do_show(self, arguments: list[str], options: dict[str, str]) -> list[str]:
        """Print queues, and further views asked for, of the named nodes or of all."""
        views = [word for word in arguments if word in _VIEWS]
        names = [word for word in arguments if word not in _VIEWS] or list(self.cluster.members)
        return [line for name in names for line in self._show(name, views)]

    def _show(self, name: str, views: list[str]) -> list[str]:
        node = self.cluster.nodes[name]
        synchronized = " ".join(self._label(entry.header) for entry in node.disk.queue)
        if node.master is None:
            return [f"{name}: down synchronized=[{synchronized}]"]
        status = node.master.status()
        incoming = " ".join(
            self._label(run.header) if run.acquired else f"({self._label(run.header)})"
            for run in node.master.incoming()
        )
        line = f"{name}: incoming=[{incoming}] synchronized=[{synchronized}]"
        if status.unstamped_runs:
            line += f" unstamped={status.unstamped_runs}"
        if "counter" in views:
            line += f" counter={status.counter} reserved={status.reserved}"
        if "round" in views:
            line += f" round={status.round} empty={status.empty_rounds} busy={status.busy}"
        if "tables" in views:
            line += f" tables={sorted(node.master.tables)}"
        lines = [line]
        if "waiting" in views:
            lines += [f"  waits for {one.peer}: {one.why.value}" for one in status.waiting_for]
        if "peers" in views:
            lines += [
                f"  {p.peer}: counter={p.counter} position={p.position} silent={p.silent}"
                for p in status.peers
            ]
        if "held" in views:
            confirmed = {p.peer: p.acquired.get(name, 0) for p in status.peers}
            confirmed[node.name] = self._held_of(name, name)
            of_own = " ".join(str(confirmed[NodeId(other)]) for other in self.cluster.members)
            of_all = " ".join(str(self._held_of(name, o)) for o in self.cluster.members)
            lines.append(f"  holds [{of_all}] confirmed [{of_own}]")
        if "halted" in views and status.halted:
            lines.append(f"  halted: {status.halted}")
        return lines

    def _held_of(self, name: str, origin: str) -> int:
        """Return the number of the last transaction of an origin that is on a node's disk."""
        disk = self.cluster.nodes[name].disk
        headers = (*disk.incoming.values(), *disk.ordered.values())
        return max((h.last for h in headers if h.origin == origin), default=0)

    def do_locate(self, arguments: list[str], options: dict[str, str]) -> list[str]:
        """Print where a transaction id stands."""
        master = self.cluster.nodes[NodeId(arguments[0])].master
        assert master is not None
        return [f"{arguments[1]}: {master.locate(_id(arguments[1]))}"]

    def do_outcomes(self, names: list[str], options: dict[str, str]) -> list[str]:
        """Print the rejections of a node's queue."""
        return [
            f"{name}: {entry.position + r.index} {self._label(entry.header)}[{r.index}] {r.code}"
            for name in names
            for entry in self.cluster.nodes[name].disk.queue
            for r in entry.rejections
        ]

    def _watch(
        self, name: str, events: Sequence[Event], actions: Sequence[Action], whole: bool
    ) -> None:
        if self._trace is not None:
            self._trace.extend(
                f"{name}> {self._describe(action)}"
                for action in actions
                if not isinstance(action, PersistStanding)
            )

    def _describe(self, action: Action) -> str:
        words = [type(action).__name__]
        for field in ("peer", "phase", "position", "counter", "code", "text"):
            if hasattr(action, field):
                words.append(f"{field}={getattr(action, field)}")
        header = getattr(action, "header", None)
        if header is not None:
            words.append(f"{self._label(header)}@{header.ts}")
        if hasattr(action, "entries"):
            words.append(f"[{' '.join(self._label(e.header) for e in action.entries)}]")
        post = getattr(action, "post", None)
        if post is not None:
            headers = " ".join(self._label(h) for h in post.headers)
            words.append(f"c={post.counter} n={post.last_seq} headers=[{headers}]")
        return " ".join(words)
