"""The checks of the torture find what is planted, and nothing in a good history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.verification.torture.history import Act, QueueOnDisk, violations

GOOD = QueueOnDisk(
    node="A",
    positions=[1, 2, 3, 4],
    ids=["table", "x", "y", "x"],
    hashes=["1", "2", "3", "4"],
    rejected=frozenset({4}),
)


def _acts() -> list[Act]:
    return [
        Act("x", 0.0, 1.0, "ordered", 2),
        Act("y", 2.0, 3.0, "acquired", None),
        Act("z", 2.0, 3.0, "refused", None),
        Act("w", 2.0, 3.0, "unknown", None),
    ]


def test_a_good_history_has_no_violation() -> None:
    assert list(violations(_acts(), [GOOD, replace(GOOD, node="B")])) == []


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        (lambda a, q: (a, [q, replace(q, ids=["table", "y", "x", "x"])]), "different ids"),
        (lambda a, q: (a, [q, replace(q, hashes=["1", "2", "3", "5"])]), "different hashes"),
        (lambda a, q: (a, [replace(q, positions=[1, 2, 4, 5])]), "gaps"),
        (lambda a, q: (a, [replace(q, rejected=frozenset())]), "took effect at 2 and again at 4"),
        (lambda a, q: ([Act("v", 0, 1, "accepted"), *a], [q]), "v was accepted, and is in no"),
        (lambda a, q: ([Act("v", 0, 1, "ordered", 2), *a], [q]), "v was ordered, and is in no"),
        (lambda a, q: ([replace(a[0], position=3), *a[1:]], [q]), "was told position 3"),
        (lambda a, q: ([a[0], replace(a[1], told="refused")], [q]), "refused for certain"),
        (lambda a, q: (a[:1], [replace(q, ids=["table", "x", "y", "u"])]), "nobody submitted"),
        (
            lambda a, q: (
                [
                    replace(a[0], began=5.0, ended=6.0),
                    replace(a[1], told="ordered", position=3),
                    *a[2:],
                ],
                [q],
            ),
            "x stands at 2, before 3",
        ),
    ],
)
def test_what_is_planted_is_found(
    planted: Callable[[list[Act], QueueOnDisk], tuple[list[Act], list[QueueOnDisk]]], says: str
) -> None:
    found = list(violations(*planted(_acts(), GOOD)))
    assert any(says in line for line in found), found
