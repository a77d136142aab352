"""The wire between simulated nodes: what arrives, what breaks, and what was taken all the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

import pytest
from tests.verification.nodes.network import Network, Weather
from tests.verification.nodes.virtual import Life, VirtualLoop

from sparktxlog.transport.kept_connections import Patience

_T = TypeVar("_T")
_PATIENCE = Patience()


class Wire:
    """A node, a server that answers with what it got, and who sees what travels."""

    def __init__(self) -> None:
        self.loop = VirtualLoop(lambda executor: (0.0, 0.0))
        self.network = Network(self.loop, Random(1), self)
        self.name = "b"
        self.network.servers["b"] = self
        self.client, self.life = Life("a", 1), Life("b", 2)
        self.app: Any = self.serve
        self.dark = False
        self.taken: list[dict[str, Any]] = []
        self.marks: list[str] = []
        self.answers: list[int] = []

    async def serve(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        self.taken.append(scope)
        headers = [(b"x-txlog-boot", b"7")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": message["body"]})

    async def ask(self, body: bytes = b"hello") -> tuple[int, str, bytes]:
        received = await self.network.connections().request(
            "POST",
            "http://b:7070",
            "/peer/v1/x?y=1",
            headers={"X-Txlog-Node": "a"},
            patience=_PATIENCE,
            body=body,
        )
        return received.status, received.headers["x-txlog-boot"], received.body

    def run(self, work: Callable[[], Awaitable[_T]]) -> _T:
        async def task() -> _T:
            return await work()

        return self.loop.run_until_complete(self.loop.own_task(self.client, task()))

    def later(self, delay: float, work: Callable[[], object]) -> None:
        self.loop.call_later(delay, work)

    def request(self, sender: str, receiver: str, method: str, target: str, body: bytes) -> None:
        assert (sender, receiver, method, target) == ("a", "b", "POST", "/peer/v1/x?y=1")

    def arrived(self, sender: str, receiver: str, target: str, body: bytes) -> None:
        assert (sender, receiver, target) == ("a", "b", "/peer/v1/x?y=1")

    def answered(self, receiver: str, target: str, status: int) -> None:
        self.answers.append(status)

    def failed(self, receiver: str, target: str, error: BaseException) -> None:
        raise AssertionError(error)

    def happened(self, mark: str) -> None:
        self.marks.append(mark)


def test_a_request_arrives_as_a_server_would_give_it() -> None:
    wire = Wire()
    assert wire.run(wire.ask) == (200, "7", b"hello")
    (scope,) = wire.taken
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == (
        "/peer/v1/x",
        b"/peer/v1/x",
        b"y=1",
    )
    assert (b"x-txlog-node", b"a") in scope["headers"]
    assert 0.03 < wire.loop.time() < 1


def test_a_cut_that_heals_only_delays() -> None:
    wire = Wire()
    wire.run(wire.ask)
    wire.network.cut.add(("a", "b"))
    wire.later(3.0, wire.network.cut.clear)
    assert wire.run(wire.ask)[0] == 200
    assert 3 < wire.loop.time() < 8


def test_a_request_over_a_cut_times_out_and_may_be_taken_later() -> None:
    wire = Wire()
    wire.run(wire.ask)
    wire.network.cut.add(("a", "b"))

    async def gives_up() -> None:
        with pytest.raises(TimeoutError):
            await wire.ask()

    wire.run(gives_up)
    assert 10 < wire.loop.time() < 11
    wire.network.cut.clear()
    wire.run(wire.ask)
    wire.later(20, wire.loop.stop)
    wire.loop.run_forever()
    assert len(wire.taken) == 3
    assert wire.marks == ["request taken though its sender gave up"]


def test_no_connection_is_made_over_a_cut_in_either_direction() -> None:
    for pair in (("a", "b"), ("b", "a")):
        wire = Wire()
        wire.network.cut.add(pair)

        async def gives_up(wire: Wire = wire) -> None:
            with pytest.raises(TimeoutError):
                await wire.ask()

        wire.run(gives_up)
        assert wire.taken == []
        assert 2 <= wire.loop.time() < 2.1


def test_a_reset_may_come_before_or_behind_the_taking() -> None:
    taken = set()
    for seed in range(20):
        wire = Wire()
        wire.network.random, wire.network.weather = Random(seed), Weather(reset=1.0)

        async def breaks(wire: Wire = wire) -> None:
            with pytest.raises(ConnectionResetError):
                await wire.ask()

        wire.run(breaks)
        taken.add((len(wire.taken), tuple(wire.marks)))
    assert taken == {(0, ()), (1, ("request lost after it was taken",))}


@pytest.mark.parametrize("silent", [False, True])
def test_a_killed_process_resets_and_a_dark_machine_is_silent(silent: bool) -> None:
    wire = Wire()

    async def never_answers(scope: Any, receive: Any, send: Any) -> None:
        await wire.loop.create_future()

    wire.app = never_answers

    def kill() -> None:
        ended, wire.life, wire.app = wire.life, None, None  # type: ignore[assignment]
        wire.dark = silent
        ended.kill()
        wire.network.ended(ended, silent=silent)

    wire.later(1.0, kill)

    async def breaks() -> None:
        with pytest.raises(TimeoutError if silent else ConnectionResetError):
            await wire.ask()
        with pytest.raises(TimeoutError if silent else ConnectionRefusedError):
            await wire.ask()

    wire.run(breaks)
    assert (wire.loop.time() > 10) == silent
