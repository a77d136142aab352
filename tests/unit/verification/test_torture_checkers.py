"""The checkers of the bank, of the set and of sessions find what is planted, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.verification.torture.bank import BankRead, bank_violations
from tests.verification.torture.history import Act, QueueOnDisk
from tests.verification.torture.list_append import ListTransaction, Seen
from tests.verification.torture.preparing import Prepared, prepared_violations
from tests.verification.torture.sessions import session_violations
from tests.verification.torture.set_full import Adds, SetRead, set_violations

OPENING = {1: 100, 2: 100}
MOVED = BankRead("A", 5, {1: 70, 2: 130})


def test_a_bank_whose_total_stays_is_good() -> None:
    reads = [BankRead("A", 1, OPENING), MOVED, replace(MOVED, node="B")]
    assert list(bank_violations(reads, OPENING)) == []


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        (BankRead("B", 6, {1: 70, 2: 100}), "the total is 170, not 200"),
        (BankRead("B", 6, {1: -10, 2: 210}), "below zero"),
        (BankRead("B", 5, {1: 60, 2: 140}), "other balances than at A"),
        (BankRead("B", 6, {1: 200}), "accounts [2] differ"),
        (BankRead("B", 6, {1: 70, 2: 130, 3: 0}), "accounts [3] differ"),
    ],
)
def test_what_is_planted_in_the_bank_is_found(planted: BankRead, says: str) -> None:
    found = list(bank_violations([MOVED, planted], OPENING))
    assert any(says in line for line in found), found


ADDS = [
    Adds((1, 2, 3), "ordered", 10),
    Adds((4,), "accepted"),
    Adds((5,), "refused"),
    Adds((6,), "unknown"),
    Adds((7, 8), "ordered", 14, rejected=frozenset({8})),
]


def _read(*elements: int, position: int, node: str = "A", **more: object) -> SetRead:
    return SetRead(node, 0, position, Seen(elements, len(elements)), **more)  # type: ignore[arg-type]


GOOD = [
    _read(position=9),
    _read(1, 2, position=11),
    _read(1, 2, 3, 4, 7, position=15, node="B"),
    _read(1, 2, 3, 4, 7, position=15, node="C", is_final=True),
]


def test_a_set_that_keeps_everything_is_good() -> None:
    copy = [1, 2, 3, 4, 6, 7]
    one_copy = [
        SetRead("A", at, at, Seen(copy, length)) for at, length in ((9, 0), (11, 2), (15, 6))
    ]
    assert list(set_violations(ADDS, GOOD)) == []
    assert list(set_violations(ADDS, one_copy)) == []


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        (_read(1, 3, position=12), "A lacks 2 at or after its position 11"),
        (_read(1, 2, 3, 4, position=15), "A lacks 7 at or after"),
        (_read(1, 2, 3, 7, position=16, is_final=True), "lost 4, which was accepted"),
        # Nobody was told a position of 4; but B showed it at 15.
        (_read(1, 2, 3, 7, position=16), "A lacks 4 at or after its position 15"),
        (_read(1, 2, 3, position=11), "showed 3 at position 11, and 12 was told"),
        (_read(1, 1, position=11), "an element twice"),
        (_read(1, 2, 3, 5, position=12), "has 5, which was refused"),
        (_read(1, 2, 3, 8, position=12), "has 8, which was rejected"),
        (_read(1, 2, 3, 9, position=12), "has 9, which nobody added"),
        (replace(_read(position=9), at_least=10), "showed position 9, not 10 or later"),
    ],
)
def test_what_is_planted_in_the_set_is_found(planted: SetRead, says: str) -> None:
    found = list(set_violations(ADDS, [*GOOD, planted]))
    assert any(says in line for line in found), found


def test_an_element_that_vanishes_and_comes_back_is_found() -> None:
    """Nobody was told of 6: only what the reads showed says that one of them is wrong."""
    there = [_read(1, 2, 3, 4, 6, 7, position=at, node=node) for at, node in ((15, "A"), (17, "B"))]
    gone = _read(1, 2, 3, 4, 7, position=16, node="C")
    assert list(set_violations(ADDS, there)) == []
    assert list(set_violations(ADDS, [*there, gone])) == ["C lacks 6 at or after its position 15"]


COPY = (1, 2, 3, 4)
STEPS = [
    ListTransaction("r1", 1.0, 1.1, "read", "s", {"x": Seen(COPY, 1)}, {}, 10),
    ListTransaction("w1", 2.0, 2.1, "ordered", "s", {}, {"x": (3,)}, None, 12),
    ListTransaction("w2", 2.5, 2.6, "unknown", "s", {}, {"x": (9,)}),
    ListTransaction("r2", 3.0, 3.1, "read", "s", {"x": Seen(list(COPY), 3)}, {}, 12),
    # Two transactions of one run read one state, although one stands after the other.
    ListTransaction("w3", 3.5, 3.6, "ordered", "s", {"x": Seen(COPY, 3)}, {"y": (5,)}, 12, 13),
    ListTransaction("w4", 3.5, 3.6, "ordered", "s", {"x": Seen(COPY, 3)}, {"z": (6,)}, 12, 14),
    # Another session may be late.
    ListTransaction("r3", 4.0, 4.1, "read", "other", {"x": Seen(COPY, 0)}, {}, 9),
]

Change = Callable[[ListTransaction], ListTransaction]


def test_sessions_that_only_go_on_are_good() -> None:
    assert list(session_violations(STEPS)) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r2: replace(r2, reads={"x": Seen(COPY, 2)}), "s did not see 3 of x in r2: w1"),
        (lambda r2: replace(r2, reads={"x": Seen(COPY, 0)}), "read less of x in r2 than before"),
        (lambda r2: replace(r2, reads={"x": Seen((2, 1, 3), 3)}), "read less of x in r2"),
        (lambda r2: replace(r2, read_position=11), "read position 11 in r2, after 12"),
    ],
)
def test_what_is_planted_in_a_session_is_found(change: Change, says: str) -> None:
    found = list(session_violations([*STEPS[:3], change(STEPS[3]), *STEPS[4:]]))
    assert any(says in line for line in found), found


def _prepared() -> tuple[list[Prepared], QueueOnDisk]:
    """Return two prepared transfers: one that both agree to, and one that is rolled back."""
    both, none = (
        Prepared(Act(name, 0.0, 1.0, "prepared", at)) for name, at in (("x", 2), ("y", 3))
    )
    both.marks = {("from", True): Act("xf", 1.0), ("to", True): Act("xt", 1.0)}
    both.answers = {("committed", 5, "")}
    none.marks = {("from", True): Act("yf", 1.0), ("to", False): Act("yt", 1.0)}
    none.answers = {("rejected", 7, "rolled-back")}
    ids = ["table", "x", "y", "xf", "xt", "yf", "yt"]
    queue = QueueOnDisk(
        node="A",
        positions=range(1, 8),
        ids=ids,
        hashes=ids,
        rejected=frozenset({2, 3}),
        prepared={"x": 2, "y": 3},
        empty=frozenset({4, 5, 6, 7}),
    )
    return [both, none], queue


def test_prepared_transfers_are_judged() -> None:
    prepared, queue = _prepared()
    assert list(prepared_violations(prepared, queue, {5})) == []


@pytest.mark.parametrize(
    ("answers", "written", "says"),
    [
        ({("committed", 4, "")}, {4}, "participants said YES at [4, 5]"),
        ({("committed", 5, "")}, set(), "rows are not written there"),
        ({("rejected", 5, "conflict")}, {5}, "rows are written there"),
        ({("rejected", 5, "rolled-back")}, set(), "participants said NO at []"),
        ({("rejected", 6, "expired-transaction")}, set(), "participants said YES at [4, 5]"),
        ({("committed", 5, ""), ("rejected", 5, "conflict")}, {5}, "was told to be [("),
    ],
)
def test_a_decision_that_nobody_took_is_found(
    answers: set[tuple[str, int, str]], written: set[int], says: str
) -> None:
    prepared, queue = _prepared()
    prepared[0].answers = answers
    found = list(prepared_violations(prepared, queue, written))
    assert any(says in line for line in found), found


def test_a_prepared_transfer_that_is_elsewhere_is_found() -> None:
    prepared, queue = _prepared()
    prepared[1].act.position = 4
    assert list(prepared_violations(prepared, queue, {5})) == [
        "y was prepared at 4, and is so at 3"
    ]
