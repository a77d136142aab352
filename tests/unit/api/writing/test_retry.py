"""Functions that are repeated when they lose: how often, after which pauses, until when."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any

import pytest

from sparktxlog.api.writing.retry import Retry, longest_pause_s
from sparktxlog.errors import (
    ConflictError,
    InvalidRequestError,
    NotAppliedError,
    UnknownTableError,
)


class Room:
    """A clock that stands still but for pauses, and what was asked of it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.bounds: list[float] = []
        self.pauses: list[float] = []
        self.caught_up: list[tuple[int, float]] = []
        self.failure: Exception | None = None

    def draw(self, low: float, high: float) -> float:
        assert low == 0.0
        self.bounds.append(high)
        return high

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def catch_up(self, lost: ConflictError, timeout_s: float) -> None:
        self.caught_up.append((lost.fields["winner"], timeout_s))
        if self.failure is not None:
            raise self.failure

    def retry(self, attempts: int = 100, timeout: float = 60.0) -> Retry:
        return Retry(
            attempts=attempts,
            timeout_s=timeout,
            catch_up=self.catch_up,
            clock=lambda: self.now,
            pause=self.pause,
            draw=self.draw,
        )


def losing(
    times: int, room: Room | None = None, took: float = 0.0
) -> tuple[Callable[[int], int], list[int]]:
    """Return a function that loses so often, and the arguments that it was called with."""
    calls: list[int] = []

    def function(number: int) -> int:
        calls.append(number)
        if room is not None:
            room.now += took
        if len(calls) <= times:
            raise ConflictError(
                "lost", transaction_id=f"id{len(calls)}", table="t", winner=len(calls), origin="B"
            )
        return 2 * number

    return function, calls


def test_it_is_called_again_with_the_same_arguments_until_it_wins() -> None:
    room = Room()
    function, calls = losing(3)
    repeated = room.retry()(function)
    assert repeated(21) == 42
    assert calls == [21] * 4
    assert repeated.__name__ == "function"


def test_pauses_are_drawn_up_to_a_bound_that_follows_the_lost_attempt() -> None:
    for took, bound in ((0.0, 0.0), (0.01, 0.04), (0.1, 0.4), (7.0, 0.5)):
        room = Room()
        function, _ = losing(9, room, took)
        assert room.retry(timeout=600)(function)(1) == 2
        assert room.bounds == room.pauses == pytest.approx([bound] * 9)


def _hot_row(seed: int, latency_s: float, clients: int = 12, commits: int = 600) -> list[int]:
    """Let clients count one row up, with the pauses of `retry`; return the commits of each."""
    random, version, won = Random(seed), 0, [0] * clients
    # (time, client, when its attempt began, version that it read; None = it is about to read)
    events: list[tuple[float, int, float, int | None]]
    events = [(random.random() * latency_s, client, 0.0, None) for client in range(clients)]
    heapify(events)
    while sum(won) < commits:
        now, client, began, read = heappop(events)
        if read is None:
            ordered = now + latency_s * random.uniform(0.3, 0.7)
            heappush(events, (ordered, client, now, version))
            continue
        told = now + latency_s * random.uniform(0.25, 0.75)
        if read == version:
            version += 1
            won[client] += 1
        else:
            told += random.uniform(0.0, longest_pause_s(told - began))
        heappush(events, (told, client, 0.0, None))
    return won


@pytest.mark.parametrize("latency_s", [0.002, 0.005, 0.02, 0.1, 0.4])
def test_nobody_starves_at_one_hot_row(latency_s: float) -> None:
    """With pauses that double after each attempt the slowest had less than 1 % at 5 ms."""
    for seed in range(5):
        won = _hot_row(seed, latency_s)
        assert min(won) >= 0.03 * sum(won), won


def test_each_attempt_waits_for_what_the_last_one_lost_to() -> None:
    room = Room()
    function, _ = losing(2, room, 0.01)
    room.retry(timeout=10)(function)(1)
    assert [winner for winner, _ in room.caught_up] == [1, 2]
    left = [timeout_s for _, timeout_s in room.caught_up]
    assert left == pytest.approx([9.95, 9.9])


def test_after_the_last_attempt_the_conflict_says_how_many_there_were() -> None:
    room = Room()
    function, calls = losing(9)
    with pytest.raises(ConflictError, match=r"lost \(given up after 3 attempts\)") as caught:
        room.retry(attempts=3)(function)(1)
    assert len(calls) == 3 and len(room.pauses) == 2
    assert caught.value.fields == {
        "transaction_id": "id3",
        "table": "t",
        "winner": 3,
        "origin": "B",
        "attempts": 3,
    }
    assert caught.value.definite and caught.value.retryable
    assert isinstance(caught.value.__cause__, ConflictError)


def test_no_attempt_begins_after_the_time() -> None:
    room = Room()
    function, calls = losing(99, room, 0.04)
    with pytest.raises(ConflictError, match="5 attempts within 1 s") as caught:
        room.retry(timeout=1.0)(function)(1)
    assert len(calls) == caught.value.fields["attempts"] == 5
    assert room.now == pytest.approx(101.0)


def test_what_cannot_be_waited_for_ends_it() -> None:
    room = Room()
    room.failure = NotAppliedError("position 1 is not applied here")
    function, calls = losing(9)
    with pytest.raises(ConflictError, match="1 attempt: position 1 is not applied") as caught:
        room.retry()(function)(1)
    assert len(calls) == 1 and caught.value.__cause__ is room.failure


def test_other_errors_are_not_repeated() -> None:
    room = Room()

    def function() -> None:
        raise UnknownTableError("no such table")

    with pytest.raises(UnknownTableError):
        room.retry()(function)()
    assert room.pauses == []


def test_the_same_id_again_would_lose_for_ever() -> None:
    room = Room()
    calls = []

    def function() -> None:
        calls.append(1)
        raise ConflictError("lost", transaction_id="x", winner=1)

    with pytest.raises(ConflictError, match="the same transaction id"):
        room.retry()(function)()
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempts", 0),
        ("attempts", 1.5),
        ("attempts", True),
        ("timeout", 0),
        ("timeout", math.nan),
    ],
)
def test_options_out_of_range(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Room().retry(**{field: value})
    assert (caught.value.fields["field"], caught.value.definite) == (field, True)


def test_what_only_begins_when_it_is_called_is_refused() -> None:
    async def later() -> None:
        pass

    def piecewise() -> Any:
        yield 1

    for function in (later, piecewise):
        with pytest.raises(InvalidRequestError, match="cannot be repeated"):
            Room().retry()(function)
