"""Every metric of a node moves: one story at two nodes, and what each of its steps must move."""

from __future__ import annotations

import asyncio
import socket
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from examples.demo.relay import RelayNetwork
from tests.service.local_nodes import config_of, serving, until
from tests.service.test_addresses import second_way
from tests.service.test_catalog_api import Caller
from tests.service.test_peer_routes import Stranger
from tests.service.test_replica_routes import DECISION, _as_a_target_does, create, give_replica
from tests.service.test_staged_files import DEFINITION, stage
from tests.support.delta_writer import BEGIN

from sparktxlog.codec.submits.commit_requests import committing
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import StuckFilesError
from sparktxlog.model.transactions.operation import OperationKind, StagedFile
from sparktxlog.model.transactions.receipt import Level
from sparktxlog.protocol.messages.actions import Alarm
from sparktxlog.protocol.messages.view import Phase
from sparktxlog.runtime import loop_threads
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.node import Node
from sparktxlog.storage.journal.write_pace import WritePace

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def samples(node: Node) -> Samples:
    """Return metric → labels → value; a metric without a value yet has no labels."""
    found: Samples = {}
    for family in node.base.metrics.registry.collect():
        values = found.setdefault(family.name.removeprefix("sparktxlog_"), {})
        for sample in family.samples:
            # Both are times of creation or bounds, which say nothing of what happened.
            if not sample.name.endswith(("_created", "_bucket")):
                key = (("", sample.name), *sorted(sample.labels.items()))
                values[key] = sample.value
    return found


@dataclass
class Story:
    """Two nodes, the one that is looked at, and what a step leaves to a later one."""

    a: Node
    b: Node
    network: RelayNetwork
    patch: pytest.MonkeyPatch
    #: Lets the transfer go on that a step holds up.
    released: threading.Event
    #: Ends the other node.
    of_b: AsyncExitStack
    under_way: asyncio.Task[Any] | None = None
    #: Lets the publisher's disk write again.
    disk: threading.Event = field(default_factory=threading.Event)
    #: Lets the mount answer again.
    answers: threading.Event = field(default_factory=threading.Event)
    #: The metric before one came.
    unknown: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)
    synchronous: PreparedTransaction = field(init=False)
    #: Damaged files as they were.
    lost: dict[Path, bytes] = field(default_factory=dict)

    async def commit(self) -> None:
        """Order a transaction, and publish it."""
        await create(self.a)
        await until(lambda: self.a.base.published.value == self.a.base.ordered.value)
        await until(lambda: self.a.status()["peers"][0]["position"] == 1)

    def _deleting(self, **options: Any) -> PreparedTransaction:
        operation = PreparedOperation(
            table="t", kind=OperationKind.DELETE_WHERE, predicate="id > 3"
        )
        return PreparedTransaction(
            transaction_id=uuid.uuid4().bytes, operations=(operation,), **options
        )

    async def publish_late(self) -> None:
        """Let a publish wait for its disk, and a submit for that."""
        publisher = self.a.log.publisher
        opened = publisher._opened
        self.patch.setattr(publisher, "_opened", lambda: self.disk.wait(60) and opened())
        await self.a.change_settings({"publish-lag-limit": 0.1})
        await self.a.submit(self._deleting(), level=Level.ORDERED, timeout=30)
        await until(lambda: self.a.status()["publish_lag_us"] > 100_000)
        late = self.a.submit(self._deleting(), level=Level.ORDERED, timeout=30)
        self.under_way = asyncio.create_task(late)
        await until(lambda: self.a.status()["publish_waiting"])

    async def catch_up(self) -> None:
        """Let the disk write again."""
        self.disk.set()
        assert self.under_way is not None
        await self.under_way
        await self.a.change_settings({"publish-lag-limit": None})
        await until(lambda: self.a.base.published.value == self.a.base.ordered.value)

    async def prepare(self) -> None:
        """Prepare a transaction that nobody decides."""
        until_us = wall_us() + 600_000_000
        prepared = self._deleting(participants=("p",), valid_until=until_us)
        await self.a.submit(prepared, level=Level.ORDERED, timeout=30)

    async def lack(self) -> None:
        """Create a commit table, and order a version of it whose files nobody has."""
        async with aiohttp.ClientSession() as session:
            table = await Caller(self.a, session).create("lacking")
        lacking = committing(uuid.uuid4().bytes, table.table_id, 1, BEGIN + 1)
        await self.a.submit(lacking, level=Level.ORDERED, timeout=30)
        await until(lambda: self.a.status()["commit_tables"]["tables"])

    async def clock(self) -> None:
        """Let the other node's clock go wrong, as its posts show."""
        posts, ahead = self.b.base.links["A"].posts, 5_000_000
        post = posts.post
        self.patch.setattr(posts, "post", lambda p: post(replace(p, wall=p.wall + ahead)))
        await until(lambda: abs(self.a.status()["clock_distance_us"]) > 1_000_000)

    async def slow(self) -> None:
        """Let both disks be slow, and their nodes stand aside as far as others are left."""
        self.patch.setattr(WritePace, "seconds", 0.5)
        for node in (self.a, self.b):
            await node.change_settings({"slow-write-limit": 0.1})
        await until(lambda: self.a.status()["aside"] and self.a.status()["peers"][0]["aside"])

    async def cut(self) -> None:
        """Lose the second address of the other node."""
        self.network.refuse({("A", "B")})
        await until(lambda: not all(self.a.base.links["B"].addresses().values()))

    async def stranger(self) -> None:
        """Refuse who is no peer."""
        async with Stranger(self.a, "X") as stranger:
            assert (await stranger.send("/peer/v1/hello"))[0] == 403

    async def greedy(self) -> None:
        """Keep a transaction open, and be refused another one."""
        budget, path = self.a.base.budgets.open_transactions, "/v1/open-transactions"
        async with aiohttp.ClientSession(self.a.config.master_url) as session:
            for most, status in ((1, 200), (1, 429)):
                self.patch.setattr(budget, "most", most)
                async with session.post(path, json={}) as answer:
                    assert answer.status == status

    async def later(self) -> None:
        """Hear a kind of message that only a later release knows: it breaks nothing."""
        link, ups = self.b.base.links["A"], self.b.base.links["A"].ups
        link._message("/peer/v1/later", b"")
        link._message("/peer/v1/epochs", msgspec.msgpack.encode(("Later", {"sender": "B"})))
        await until(lambda: samples(self.a)["unknown_messages"] != self.unknown)
        await until(lambda: link._outbox.is_done)
        assert (link.up, link.ups) == (True, ups)

    async def fail(self) -> None:
        """Let a task of a link fail of what nobody foresaw: it is shown, and goes on later."""
        link, url = self.a.base.links["B"], self.a.config.master_url
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(link.posts, "number", lambda: 1 / 0)
            link.posts.report([])
            await until(self.a.base.supervisor.failing)
        (failing,) = self.a.status()["failing"]
        assert failing["task"] == "posting B" and "ZeroDivisionError" in failing["text"]
        async with aiohttp.ClientSession() as session, session.get(f"{url}/readyz") as answer:
            assert answer.status == 503 and "ZeroDivisionError" in await answer.text()
        posts = link.traffic.posts
        await until(lambda: link.traffic.posts > posts)

    async def hang(self) -> None:
        """Let work on a shared directory hang."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop_threads, "STUCK_S", 0.1)
            with pytest.raises(StuckFilesError):
                await self.a.base.run_on_files("/mount", self.answers.wait, 60)
        (text,) = (w["text"] for w in self.a.status()["warnings"] if w["code"] == "files-stuck")
        assert "/mount" in text

    async def answer(self) -> None:
        """Let it answer again."""
        self.answers.set()
        await until(lambda: not self.a.status()["stuck_files"])

    async def fetch(self) -> None:
        """Begin to fetch a staged file from the other node."""
        link, going = self.a.base.links["B"], threading.Event()
        stream = link.stream

        def held(file: StagedFile, offset: int, source: str = "") -> Iterator[bytes]:
            going.set()
            self.released.wait(30)
            yield from stream(file, offset, source)

        self.patch.setattr(link, "stream", held)
        definition = replace(DEFINITION, name="s")
        made = PreparedOperation(table="s", kind=OperationKind.CREATE_TABLE, definition=definition)
        await self.b.submit(
            PreparedTransaction(transaction_id=uuid.uuid4().bytes, operations=(made,)),
            level=Level.ORDERED,
            timeout=30,
        )
        staged = self._staged(self.b)
        self.under_way = asyncio.create_task(self.b.submit(staged, level=Level.ORDERED, timeout=60))
        await until(going.is_set)

    async def fetched(self) -> None:
        """Let the fetching end."""
        self.released.set()
        assert self.under_way is not None
        await self.under_way

    async def lose(self) -> None:
        """Accept staged files at both nodes that are damaged since."""
        for node in (self.b, self.a):
            staged = self._staged(node, rows=1_000)  # stamped at once
            path = Path(node.payloads.path(staged.operations[0].files[0].path))
            self.lost[path] = path.read_bytes()
            path.unlink()
            await node.submit(staged, level=Level.ACCEPTED, timeout=30)
        await until(self.a.damage.files)
        await until(self.a.damage.runs, 60)

    async def mend(self) -> None:
        """Put good copies in their place."""
        position = self.a.base.ordered.value
        for path, content in self.lost.items():
            path.write_bytes(content)
        await until(lambda: self.a.base.ordered.value == position + 2, 60)
        assert self.a.damage.warnings() == []

    async def report(self) -> None:
        """Report a replica."""
        await give_replica(self.a, rows=10)

    async def silence(self) -> None:
        """Let a worker that follows fall silent, with an error."""
        last = self.a.replicas.own()
        assert last is not None
        self.a.accept_report(replace(last.newest, follows=True, error="no such file"))
        self.patch.setattr(self.a.replicas, "_dead_after_us", 1)
        await until(lambda: self.a.status()["replicas"][0]["silent"])
        self.a.all_replicas.note_silent_workers()

    async def copy(self) -> None:
        """Copy the replica."""
        ticket = await self.b.all_replicas.copy_orders.ticket(DECISION, ["A"])
        await asyncio.to_thread(_as_a_target_does, ticket.lease)

    async def lease(self) -> None:
        """Give a lease."""
        await self.b.all_replicas.copy_orders.ticket(DECISION, ["A"])

    async def diverge(self) -> None:
        """Report a table that somebody wrote to."""
        last = self.a.replicas.own()
        assert last is not None
        tables = {
            name: replace(one, diverged="version 7 was written by user ada")
            for name, one in last.newest.tables.items()
        }
        self.a.accept_report(replace(last.newest, tables=tables))

    async def alone(self) -> None:
        """Lose the other node while transactions wait, some of them for their files."""
        await self.of_b.aclose()
        await until(lambda: not self.a.base.links["B"].up)
        operation = PreparedOperation(
            table="t", kind=OperationKind.DELETE_WHERE, predicate="id > 3"
        )
        plain = PreparedTransaction(transaction_id=uuid.uuid4().bytes, operations=(operation,))
        self.synchronous = replace(plain, transaction_id=uuid.uuid4().bytes, is_sync=True)
        for waiting in (plain, self.synchronous, self._staged(self.a)):
            await self.a.submit(waiting, level=Level.ACCEPTED, timeout=30)
        await until(lambda: self.a.status()["empty_rounds"])

    async def force(self) -> None:
        """Let the node go on alone."""
        await self.a.membership.epochs.force(self.a.membership.epochs.force_text(), 30)
        await until(lambda: not self.a.status()["incoming_runs"])

    async def wait(self) -> None:
        """Want two copies where there is one member."""
        waiting = replace(self.synchronous, transaction_id=uuid.uuid4().bytes)
        await self.a.submit(waiting, level=Level.ACCEPTED, timeout=30)

    async def declare(self) -> None:
        """Declare that the node is maintained, until a far time."""
        await self.a.change_settings({"maintenance-until": "9999-01-01T00:00Z"})

    async def halt(self) -> None:
        """Find a contradiction."""
        self.a.core.cycle.raise_alarm(Alarm(code="invariant", text="a contradiction", fatal=True))
        await until(lambda: self.a.status()["phase"] == Phase.FAULT)

    @staticmethod
    def _staged(node: Node, rows: int = 400_000) -> PreparedTransaction:
        transaction, _ = stage(node, files=1, rows=rows)
        operations = tuple(replace(one, table="s") for one in transaction.operations)
        return replace(transaction, operations=operations)


Step = Callable[[Story], Awaitable[None]]
#: Step → metrics that it moves.  A metric that stands nowhere here fails the test.
STORY: dict[Step, tuple[str, ...]] = {
    Story.commit: (
        "position",
        "published",
        "ordered_transactions",
        "rounds",
        "commit_seconds",
        "journal_write_seconds",
        "publish_seconds",
        "log_bytes",
        "peer_position",
        "peer_posts",
        "peer_sent_bytes",
        "state",
        "site_verdict",
        "finding",
    ),
    Story.publish_late: ("publish_lag_us", "publish_waiting"),
    Story.catch_up: ("publish_lag_us", "publish_waiting"),
    Story.prepare: ("undecided",),
    Story.lack: ("commit_tables", "commit_versions_behind"),
    Story.clock: ("clock_distance_us", "peer_clock_offset_us"),
    Story.slow: ("write_s", "aside", "peer_write_s", "peer_aside"),
    Story.cut: ("peer_address_answers",),
    Story.stranger: ("refused_peer_requests",),
    Story.greedy: ("budget_used", "budget_refusals"),
    Story.later: ("unknown_messages",),
    Story.fail: ("failing", "task_failures"),
    Story.hang: ("stuck_files",),
    Story.answer: ("stuck_files",),
    Story.fetch: ("fetching",),
    Story.fetched: ("peer_fetched_bytes", "peer_received_bytes"),
    Story.lose: ("undelivered_runs", "damaged_files"),
    Story.mend: ("undelivered_runs", "damaged_files", "position"),
    Story.report: (
        "applied",
        "replica_position",
        "replica_behind",
        "replica_alive",
        "replica_in_sync",
    ),
    Story.silence: ("replica_silent", "replica_error", "worker_silences"),
    Story.copy: ("donor_chunks", "donor_file_bytes", "donor_sent_bytes"),
    Story.lease: ("donor_leases",),
    Story.diverge: ("replica_diverged",),
    Story.alone: (
        "peer_linked",
        "incoming_runs",
        "incoming_transactions",
        "incoming_bytes",
        "unstamped_runs",
        "empty_rounds",
        "synchronous_unconfirmed",
        "synchronous_lag_us",
    ),
    Story.force: ("epoch", "peer_lag"),
    Story.wait: ("synchronous_waiting", "synchronous_bytes", "synchronous_oldest_us"),
    Story.declare: ("maintenance_ends_at",),
    Story.halt: ("halted", "phase"),
}


def test_every_metric_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "AB"}
        ports = {name: listener.getsockname()[1] for name, listener in listeners.items()}
        async with AsyncExitStack() as stack, AsyncExitStack() as of_b:
            nodes = {}
            for name, held in (("A", stack), ("B", of_b)):
                config = config_of(tmp_path, name, ports, suspect_timeout=1)
                nodes[name] = await held.enter_async_context(serving(config, listeners[name]))
            await until(
                lambda: all(n.base.links[o].up for n, o in zip(nodes.values(), "BA", strict=True))
            )
            network = await stack.enter_async_context(second_way(nodes, "B"))
            released = threading.Event()
            story = Story(nodes["A"], nodes["B"], network, monkeypatch, released, of_b)
            before = samples(story.a)
            story.unknown = before["unknown_messages"]
            assert set(before) == {name for names in STORY.values() for name in names}
            for step, moved in STORY.items():
                await step(story)
                after = samples(story.a)
                still = [name for name in moved if after[name] == before[name]]
                assert still == [], step.__name__
                before = after
            (ordered,) = before["ordered_transactions"].values()
            assert ordered == story.a.status()["position"]

    asyncio.run(main())
