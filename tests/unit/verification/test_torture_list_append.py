"""The checker of lists finds each anomaly that is planted, and none in a good history."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from tests.verification.torture.graph import RW, WR, WW, components, worst_cycles
from tests.verification.torture.list_append import ListTransaction, Seen, _Lists, anomalies


def _one(
    name: str,
    reads: Mapping[str, Sequence[int]] | None = None,
    appends: Mapping[str, tuple[int, ...]] | None = None,
    *,
    at: float = 0.0,
    told: str = "",
    session: str = "",
) -> ListTransaction:
    """Return a transaction; at time 0 it lasts for ever, later it takes half a second."""
    return ListTransaction(
        name=name,
        began=at,
        ended=at + 0.5 if at else float("inf"),
        told=told or ("ordered" if appends else "read"),
        session=session,
        reads={of: Seen(tuple(seen), len(seen)) for of, seen in (reads or {}).items()},
        appends=appends or {},
    )


WRITERS = [_one("a", appends={"x": (1,), "y": (2,)}), _one("b", appends={"x": (3,), "y": (4,)})]
LAST = _one("last", {"x": [1, 3], "y": [2, 4]})

PLANTED = {
    "G0": [*WRITERS, _one("last", {"x": [1, 3], "y": [4, 2]})],
    "G1a": [_one("a", appends={"x": (1,)}, told="rejected"), _one("b", {"x": [1]})],
    "G1b": [_one("a", appends={"x": (1, 2)}), _one("b", {"x": [1]}), _one("c", {"x": [1, 2]})],
    "G1c": [_one("a", {"y": [2]}, {"x": (1,)}), _one("b", {"x": [1]}, {"y": (2,)})],
    # A lost update: both read x as it was before either wrote.
    "G-single": [
        _one("a", {"x": []}, {"x": (1,)}),
        _one("b", {"x": []}, {"x": (2,)}),
        _one("c", {"x": [1, 2]}),
    ],
    # Write skew: each read what the other wrote, before it did.
    "G2": [
        _one("a", {"x": [], "y": []}, {"x": (1,)}),
        _one("b", {"x": [], "y": []}, {"y": (2,)}),
        _one("c", {"x": [1], "y": [2]}),
    ],
    "garbage": [_one("a", appends={"x": (1,)}), _one("b", {"x": [1, 9]})],
    "duplicate": [_one("a", appends={"x": (1,)}), _one("b", {"x": [1, 1]})],
    "incompatible-order": [*WRITERS, _one("c", {"x": [1, 3]}), _one("d", {"x": [3]})],
    # It was ordered before the other began, and stands after it.
    "G0-realtime": [
        _one("a", appends={"x": (1,)}, at=1.0),
        _one("b", appends={"x": (2,)}, at=2.0),
        _one("c", {"x": [2, 1]}),
    ],
    "G-single-process": [
        _one("a", appends={"x": (1,)}, at=1.0, session="s"),
        _one("b", {"x": []}, at=2.0, session="s"),
        _one("c", {"x": [1]}),
    ],
}


@pytest.mark.parametrize("kind", PLANTED)
def test_what_is_planted_is_found(kind: str) -> None:
    assert kind in {found.kind for found in anomalies(PLANTED[kind])}


def test_one_state_read_in_two_is_found() -> None:
    """Of b the reader saw what it wrote to x, and not what it wrote to y."""
    torn = _one("torn", {"x": [1, 3], "y": [2]})
    assert [found.kind for found in anomalies([*WRITERS, LAST, torn])] == ["G-single"]


def test_the_order_of_the_log_tells_what_no_read_shows() -> None:
    writers = [*WRITERS, _one("c", appends={"x": (5,)}, told="refused")]
    good = {"x": [1, 3], "y": [2, 4]}
    assert anomalies([*writers, LAST], good) == []
    kinds = {
        "G0": {"x": [1, 3], "y": [4, 2]},
        "aborted-write": {"x": [1, 3, 5], "y": [2, 4]},
        "lost": {"x": [1, 3], "y": [2]},
        "garbage": {"x": [1, 3, 9], "y": [2, 4]},
    }
    for kind, order in kinds.items():
        assert kind in {found.kind for found in anomalies(writers, order)}
    aborted = _one("d", {"x": [1, 3, 5]})
    assert {found.kind for found in anomalies([*writers, aborted], good)} == {"G1a"}
    unknown = [replace(one, told="unknown") for one in writers]
    assert anomalies(unknown, {"x": [], "y": []}) == []


def test_a_stale_read_of_another_session_is_no_anomaly() -> None:
    """A site's replica may be late; only a session's own order, and that of writes, is promised."""
    writer = _one("a", appends={"x": (1,)}, at=1.0, session="s")
    stale = _one("b", {"x": []}, at=2.0, session="other")
    assert anomalies([writer, stale, _one("c", {"x": [1]})]) == []


def _serial(count: int, seed: int) -> list[ListTransaction]:
    """Return a serial history, with reads and without, of one state after the other."""
    chance = random.Random(seed)
    state: dict[str, list[int]] = {name: [] for name in "xyz"}
    found = []
    for number in range(1, count + 1):
        read = {name: tuple(state[name]) for name in chance.sample("xyz", chance.randint(0, 3))}
        written = chance.sample("xyz", chance.randint(0 if read else 1, 2))
        first = 10 * number
        appends = {
            name: (first + 2 * place, first + 2 * place + 1) for place, name in enumerate(written)
        }
        for name, elements in appends.items():
            state[name] += elements
        found.append(_one(f"T{number}", read, appends, at=float(number), session=f"{number % 4}"))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_a_serial_history_has_no_anomaly(seed: int) -> None:
    assert anomalies(_serial(80, seed)) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_lost_update_in_a_long_history_is_found(seed: int) -> None:
    """One transaction did not see the last write to a list that it read and wrote."""
    history = [replace(one, session="") for one in _serial(80, seed)]
    places = [
        (at, name)
        for at, one in enumerate(history)
        for name, seen in one.reads.items()
        if seen.length and name in one.appends
    ]
    at, name = random.Random(seed).choice(places)
    elements, length = history[at].reads[name]
    reads = {**history[at].reads, name: Seen(elements, length - 2)}
    history[at] = replace(history[at], reads=reads)
    assert "G-single" in {found.kind for found in anomalies(history)}


def test_components_of_a_long_way_are_found_without_recursion() -> None:
    far = 50_000
    line = [[(at + 1, WW)] for at in range(far)] + [[]]
    assert components(line) == []
    line[-1] = [(0, WW)]
    assert len(components(line)[0]) == far + 1


def test_a_cycle_is_named_by_its_worst_class() -> None:
    edges = [[(1, WW), (2, WR)], [(0, RW)], [(0, WR)], [(4, RW)], [(3, RW)]]
    assert sorted(worst_cycles(edges)) == [
        ("G1c", [(0, WR), (2, WR)]),
        ("G2", [(3, RW), (4, RW)]),
    ]


def test_runs_of_a_session_need_no_edge_for_each_pair() -> None:
    """Two runs of 3,000 transactions, one after the other: 6,000 edges, not nine million."""
    runs = [
        _one(f"{run}-{number}", appends={"x": (run * 3_000 + number,)}, at=at, session="s")
        for run, at in enumerate((1.0, 5.0))
        for number in range(3_000)
    ]
    known = _Lists(runs, {"x": list(range(6_000))})
    assert sum(len(targets) for targets in known.edges()) < 30_000
    # The order of the session is still known: the second run's elements may not be the first ones.
    swapped = [*range(3_000, 6_000), *range(3_000)]
    assert {anomaly.kind for anomaly in anomalies(runs, {"x": swapped})} == {"G0-process"}
