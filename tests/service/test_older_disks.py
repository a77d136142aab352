"""Disks that went back, were copied or came up empty: nobody healthy stops, nothing forks."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.service.local_nodes import SECRET, config_of, serving, until
from tests.service.test_staged_files import create

from sparktxlog.errors import NotMemberError
from sparktxlog.model.ids import NodeId, transaction_id_from_text
from sparktxlog.model.transactions.receipt import Level
from sparktxlog.protocol.messages.events import Greeted
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.view import Phase, Seat, View
from sparktxlog.runtime.membership.join_orders import JoinOrder, StartAgainError, keep_order
from sparktxlog.runtime.node import Node
from sparktxlog.storage.interfaces import PutView
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.transport.signing import Signer

QUICK = {"eviction": "auto", "suspect_timeout": 1.0, "start_timeout": 1.0}


class Sites:
    """Nodes that start anew by themselves, as `sparktxlog serve` does."""

    def __init__(self, directory: Path, names: str, **settings: object) -> None:
        self.listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in names}
        self.ports = {name: one.getsockname()[1] for name, one in self.listeners.items()}
        self.directory = directory
        self.configs = {name: config_of(directory, name, self.ports, **settings) for name in names}
        self.nodes: dict[str, Node] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Event] = {}

    async def start(self, *names: str) -> None:
        for name in names:
            # A port that nobody serves refuses, as that of a dead node does.
            if name not in self.listeners:
                self.listeners[name] = socket.create_server(("127.0.0.1", self.ports[name]))
            self._stops[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._run(name))
        await until(lambda: all(name in self.nodes for name in names))

    async def _run(self, name: str) -> None:
        stop, listener = self._stops[name], self.listeners[name]
        while not stop.is_set():
            async with serving(self.configs[name], listener.dup()) as running:
                self.nodes[name] = running
                told = asyncio.create_task(stop.wait())
                await asyncio.wait((running.failed, told), return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
                if not stop.is_set() and not isinstance(
                    error := running.failed.result(), StartAgainError
                ):
                    raise error

    async def stop(self, *names: str) -> None:
        """Stop nodes; one that starts anew just then is not cancelled in the middle of it."""
        for name in names:
            self._stops.pop(name).set()
            await asyncio.gather(self._tasks.pop(name), return_exceptions=True)
            self.nodes.pop(name, None)
            self.listeners.pop(name).close()

    def silence(self, name: str) -> None:
        """Nobody listens at a node's port."""
        self.listeners.pop(name).close()

    async def commit(self, name: str) -> int:
        """Commit once the node orders: while it waits for others it may refuse (definite)."""

        def orders() -> bool:
            membership = self.nodes[name].membership
            return membership.joining.proven and membership.epochs.restriction.shown() is None

        await until(orders)
        return await self.submit(name)

    async def submit(self, name: str) -> int:
        receipt = await self.nodes[name].submit(create(), level=Level.ORDERED, timeout=30)
        assert receipt.position is not None
        return receipt.position

    def ends(self) -> set[tuple[int, bytes]]:
        bases = [running.base.master.base for running in self.nodes.values()]
        return {(base.position, base.chain_hash) for base in bases}

    def in_step(self) -> bool:
        masters = [running.base.master for running in self.nodes.values()]
        return all(m.phase is Phase.NORMAL for m in masters) and len(self.ends()) == 1

    def phases(self, names: str) -> list[Phase]:
        return [self.nodes[name].base.master.phase for name in names]

    def halted(self) -> list[str]:
        return [n for n, one in self.nodes.items() if one.core.cycle.halted is not None]


@asynccontextmanager
async def sites(directory: Path, names: str, **settings: object) -> AsyncIterator[Sites]:
    made = Sites(directory, names, **settings)
    try:
        yield made
    finally:
        await made.stop(*list(made._tasks))
        for listener in made.listeners.values():
            listener.close()


def test_a_member_with_an_older_disk_comes_back_as_another(tmp_path: Path) -> None:
    """It gave numbers and promises that it does not know of: the others halted for that."""

    async def main() -> None:
        async with sites(tmp_path, "ABC", **QUICK) as made:
            await made.start("A", "B", "C")
            await made.commit("C")
            await made.stop("C")
            shutil.copytree(tmp_path / "C", tmp_path / "image")
            await made.start("C")
            for name in "CABC":
                last = await made.commit(name)
            await made.stop("A", "B", "C")
            shutil.rmtree(tmp_path / "C")
            shutil.copytree(tmp_path / "image", tmp_path / "C")
            await made.start("C")
            # Nobody can tell it yet.  What it takes now is neither lost nor given numbers twice.
            taken = await made.nodes["C"].submit(create(), level=Level.ACCEPTED, timeout=30)
            await made.start("A", "B")
            await until(lambda: made.in_step() and made.nodes["C"].base.master.incarnation == 2)
            last += 1
            await until(lambda: {position for position, _ in made.ends()} == {last})
            assert made.halted() == []
            assert taken.transaction_id is not None
            taken_id = transaction_id_from_text(taken.transaction_id)
            assert made.nodes["A"].base.master.locate(taken_id) == last
            assert await made.commit("C") == last + 1
            seats = {one.base.master.view.seat("C") for one in made.nodes.values()}
            assert [seat and seat.incarnation for seat in seats] == [2]

    asyncio.run(main())


def test_two_empty_disks_of_three_found_no_second_log(tmp_path: Path) -> None:
    """They took each other as they were, and evicted the third one from a log of its name."""

    async def main() -> None:
        async with sites(tmp_path, "ABC", **QUICK) as made:
            await made.start("A", "B", "C")
            last = await made.commit("A")
            await until(made.in_step)
            await made.stop("A", "B", "C")
            for name in "AB":
                shutil.rmtree(tmp_path / name)
            await made.start("A", "B")
            links = [made.nodes[own].base.links[other] for own, other in ("AB", "BA")]
            await until(lambda: all(link.up for link in links))
            with pytest.raises(NotMemberError, match="C has not accepted it"):
                await made.submit("A")
            await asyncio.sleep(4 * QUICK["suspect_timeout"])  # type: ignore[operator]
            assert [one.base.master.view.epoch for one in made.nodes.values()] == [1, 1]
            await made.start("C")
            # Without their votes only an operator can let the log go on; it is still the first one.
            await until(lambda: made.phases("AB") == [Phase.JOINING, Phase.JOINING])
            await until(lambda: {made.nodes[n].base.master.incarnation for n in "AB"} == {2})
            assert made.nodes["C"].base.master.base.position == last
            assert made.halted() == []

    asyncio.run(main())


def decided(ports: dict[str, int], member: str) -> View:
    roster = tuple(
        Seat(node_id=NodeId(name), url=f"http://127.0.0.1:{port}") for name, port in ports.items()
    )
    return View(log_id="", epoch=2, roster=roster, members=(NodeId(member),), end=MergeBase())


@pytest.mark.parametrize("later", [0, 1])
def test_two_decisions_for_one_epoch_stop_both(tmp_path: Path, later: int) -> None:
    """A witness with an older disk had voted for both; both sides went on when the link healed."""

    async def main() -> None:
        async with sites(tmp_path, "AB", **QUICK) as made:
            for number, name in enumerate("AB"):
                config = made.configs[name]
                config.data_dir.mkdir(parents=True)
                journal = Journal(config.data_dir)
                view = replace(decided(made.ports, name), log_id=config.log_id)
                journal.write([PutView(view=view, node_id=NodeId(name), incarnation=1)])
                journal.close()
                if number == 0 and later:  # one of them went on since: it remembers
                    await made.start(name)
                    await until(lambda: made.nodes["A"].membership.epochs.history.latest(1))
                    await made.stop(name)
                    journal = Journal(config.data_dir)
                    view = replace(view, epoch=3)
                    journal.write([PutView(view=view, node_id=NodeId(name), incarnation=1)])
                    journal.close()
            await made.start("A", "B")
            stopped = ["A"] if later else ["A", "B"]
            await until(lambda: set(made.halted()) >= set(stopped))
            for name in stopped:
                halted = made.nodes[name].core.cycle.halted
                assert halted is not None
                assert "two decisions for epoch 2" in halted.text

    asyncio.run(main())


def test_a_copied_data_directory_is_refused_and_the_original_goes_on(tmp_path: Path) -> None:
    """The copy greeted as the node's next start, and the original's requests were refused."""

    async def main() -> None:
        async with sites(tmp_path, "AB") as made:
            await made.start("A", "B")
            await made.commit("A")
            await made.stop("A")
            shutil.copytree(tmp_path / "A", tmp_path / "copy")
            await made.start("A")
            await until(made.in_step)
            before = await made.commit("A")
            elsewhere = socket.create_server(("127.0.0.1", 0))
            config = replace(made.configs["A"], data_dir=tmp_path / "copy")
            async with serving(config, elsewhere) as copy:
                link = copy.base.links["B"]
                await until(lambda: "two processes are node" in link.reason)
                for number in range(1, 4):
                    assert await made.commit("A") == before + number
                assert copy.base.ordered.value < before
            assert made.halted() == []

    asyncio.run(main())


def take_copy(made: Sites, peer: str, signer: Signer) -> None:
    """Let a peer take a copy of A for A: a process that began once more than A did."""
    node, standing = made.nodes[peer], made.nodes["A"].base.master.standing
    verifier = node.membership.verifier
    assert verifier is not None and standing is not None
    headers = signer.headers("POST", "/peer/v1/hello", b"", verifier.challenge("A"))
    verifier.admit(headers)
    shown = replace(standing, start=standing.start + 1, boot=signer.boot)
    node.core.cycle.tell_always(Greeted(peer=NodeId("A"), standing=shown))


def test_an_original_joins_again_once_most_peers_took_its_copy_for_it(tmp_path: Path) -> None:
    """A copy came into its place while it was paused, and is gone: nobody starts it again."""

    async def main() -> None:
        async with sites(tmp_path, "ABC", **QUICK | {"suspect_timeout": 5.0}) as made:
            await made.start("A", "B", "C")
            last = await made.commit("A")
            await until(made.in_step)
            original, copy = made.nodes["A"], Signer(SECRET, "A", "copy")
            take_copy(made, "B", copy)
            await until(lambda: original.base.links["B"].replaced)
            # One peer may be wrong.
            assert not original.base.failed.done()
            taken = await original.submit(create(), level=Level.ACCEPTED, timeout=30)
            take_copy(made, "C", copy)
            await until(lambda: made.nodes["A"] is not original)
            await until(lambda: made.in_step() and made.nodes["A"].base.master.incarnation == 2)
            await until(lambda: {position for position, _ in made.ends()} == {last + 1})
            assert taken.transaction_id is not None
            taken_id = transaction_id_from_text(taken.transaction_id)
            assert made.nodes["B"].base.master.locate(taken_id) == last + 1
            assert await made.commit("A") == last + 2
            assert made.halted() == []

    asyncio.run(main())


@pytest.mark.parametrize("when", ["it was told nothing", "it was told to join", "it asks to join"])
def test_of_two_equal_masters_one_with_an_older_disk_is_admitted_after_force(
    tmp_path: Path, when: str
) -> None:
    """The other one has half of the votes and waits: an operator lets it go on, no more."""

    async def main() -> None:
        async with sites(tmp_path, "AB", **QUICK) as made:
            await made.start("A", "B")
            await made.commit("B")
            await made.stop("B")
            shutil.copytree(tmp_path / "B", tmp_path / "image")
            await made.start("B")
            last = await made.commit("B")
            await until(made.in_step)
            await made.stop("B")
            shutil.rmtree(tmp_path / "B")
            shutil.copytree(tmp_path / "image", tmp_path / "B")
            epochs = made.nodes["A"].membership.epochs
            if when == "it was told to join":
                order = JoinOrder(log_id=made.configs["A"].log_id, incarnation=2)
                journal = Journal(made.configs["B"].data_dir)
                journal.write([keep_order(order)])
                journal.close()
            elif when == "it asks to join":
                await made.start("B")
                await until(lambda: made.nodes["B"].base.master.incarnation == 2)
                await until(lambda: made.phases("B") == [Phase.JOINING] and in_touch(made))
                await until(lambda: (epochs.restriction.shown() or {}).get("waits_for") == ["B"])
            assert epochs.linked_voters() == []
            await epochs.force(epochs.force_text(), 30)
            if when != "it asks to join":
                await made.start("B")
            await until(lambda: made.in_step() and made.nodes["B"].base.master.incarnation == 2)
            assert made.halted() == []
            assert await made.commit("B") == last + 1

    asyncio.run(main())


def in_touch(made: Sites) -> bool:
    return all(link.up for node in made.nodes.values() for link in node.base.links.values())
