"""The id window against a list that is searched from the beginning."""

from __future__ import annotations

import random

import pytest

from sparktxlog.protocol.effects.idwindow import IdWindow


def _id(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.mark.parametrize("seed", range(40))
def test_same_answers_as_a_plain_list(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.choice([1, 3, 10, 60])
    window = IdWindow(size, max_run=80)
    queue: list[bytes] = []
    pool = [chance.randbytes(16) for _ in range(chance.choice([5, 40, 300]))]
    for _ in range(60):
        ids = [chance.choice(pool) for _ in range(chance.choice([1, 2, 24, 25, 40, 80]))]
        expected = []
        for index, one in enumerate(ids):
            if one in queue[max(0, len(queue) - size) :]:
                expected.append(index)
            queue.append(one)
        assert window.add(b"".join(ids)) == expected
        one = chance.choice(pool)
        oldest = max(0, len(queue) - size)
        place = next((i + 1 for i in range(oldest, len(queue)) if queue[i] == one), None)
        assert window.locate(one) == place


@pytest.mark.parametrize("count", [2, 30])
def test_repeats_within_one_run(count: int) -> None:
    ids = [_id(i) for i in range(count)]
    assert IdWindow(100).add(b"".join([*ids, ids[1], ids[0]])) == [count, count + 1]


def test_the_window_ends_after_exactly_size_positions() -> None:
    window = IdWindow(3, max_run=8)
    window.add(_id(1) + _id(2) + _id(3))
    assert window.add(_id(1)) == [0]
    # A rejected repeat stands at a position too, and renews the memory of its id.
    assert window.add(_id(2) + _id(9) + _id(1)) == [0, 2]
    assert window.add(_id(3)) == []


def test_recovery_answers_as_if_never_stopped() -> None:
    chance = random.Random(7)
    live, pieces = IdWindow(500, max_run=100), []
    for _ in range(60):
        ids = b"".join(_id(chance.randrange(800)) for _ in range(chance.choice([1, 30, 100])))
        pieces.append((live.end + 1, ids))
        live.add(ids)
    while pieces[1][0] <= live.end - 499:
        pieces.pop(0)
    again = IdWindow(500, max_run=100)
    again.recover(pieces)
    assert again.end == live.end
    for number in range(800):
        assert again.locate(_id(number)) == live.locate(_id(number))
    for _ in range(20):
        ids = b"".join(_id(chance.randrange(800)) for _ in range(60))
        assert again.add(ids) == live.add(ids)


def test_recovery_refuses_a_gap() -> None:
    with pytest.raises(ValueError, match="position 5"):
        IdWindow(10).recover([(1, _id(1)), (5, _id(2))])


def test_positions_beyond_32_bits() -> None:
    window = IdWindow(50, max_run=40)
    window.recover([((1 << 32) - 20, b"".join(_id(i) for i in range(30)))])
    assert window.locate(_id(0)) == (1 << 32) - 20
    assert window.add(_id(29) + _id(100)) == [0]
    assert window.add(b"".join(_id(i) for i in range(30))) == list(range(30))
    assert window.locate(_id(100)) == (1 << 32) + 11


def test_structured_ids_spread_over_the_buckets() -> None:
    """Counters and UUIDs of one moment must not end up in one chain."""
    for shift in (0, 8, 64, 100):
        window = IdWindow(20_000)
        window.add(b"".join(_id(i << shift if shift else i) for i in range(8_000)))
        used = int((window._head != 0).sum())
        assert used > 4_000, (shift, used)


def test_at_most_24_bytes_per_id() -> None:
    assert IdWindow(1_000_000).size_bytes <= 24.5 * 1_000_000


@pytest.mark.parametrize("count", [3, 40])
def test_all_ids_of_a_run_are_located_at_once(count: int) -> None:
    window = IdWindow(100, max_run=50)
    window.add(b"".join(_id(n) for n in range(60)))
    asked = [_id(n) for n in range(58, 58 + count)]
    assert window.locate_all(b"".join(asked)) == [(0, 59), (1, 60)]
