"""Writes and conditions in the fold: equal to a reference that looks at each transaction (P27)."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.verification.reference import ReferenceEffects

from sparktxlog.model.restore_point import RESTORE_POINTS
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.conditions import Condition, TableWrites
from sparktxlog.model.transactions.operation import RunFacts, Touch
from sparktxlog.protocol.effects.effects import Effects
from sparktxlog.protocol.effects.idwindow import IdWindow
from sparktxlog.protocol.effects.last_writes import LastWrites

_WINDOW = 60
_NAMES = ("t", "u", "v")


def _table(name: str, kind: str = "bigint") -> TableDefinition:
    return TableDefinition(name=name, columns=(Column(name="c", type=kind),))


def _folding(*tables: str) -> tuple[Effects, LastWrites]:
    writes = LastWrites({}, _WINDOW)
    window = IdWindow(1_000, max_run=50)
    return Effects(map(_table, tables), window, writes=writes), writes


def _some(random: Random, n: int) -> tuple[int, ...]:
    return tuple(index for index in range(n) if random.random() < 0.5) or (n - 1,)


def _run(random: Random, number: int, position: int, effects: Effects) -> RunFacts:
    n = random.choice((1, 1, 2, 7))
    touches = tuple(
        Touch(
            table=random.choice(_NAMES),
            schema_version=1 + (random.random() < 0.05),
            txs=None if random.random() < 0.3 else _some(random, n),
        )
        for _ in range(random.randrange(4))
    )
    creates = tuple(
        (index, _table(random.choice(_NAMES), random.choice(("bigint", "bigint", "int"))))
        for index in range(n)
        if random.random() < 0.05
    )
    conditions = []
    for index in range(n if random.random() < 0.4 else 0):
        if random.random() < 0.4:
            continue
        reads = tuple(random.sample(_NAMES, random.randrange(3)))
        expected = tuple(random.sample(_NAMES, random.randrange(2)))
        back = random.choice((0, 1, 3, _WINDOW - 2, _WINDOW + 2))
        conditions.append(
            (
                index,
                Condition(
                    read_position=max(0, position - 1 - back) if reads else None,
                    reads=reads,
                    versions=tuple((name, random.randrange(position + 1)) for name in expected),
                ),
            )
        )
    ids = b"".join((number * 100 + index).to_bytes(16, "big") for index in range(n))
    return RunFacts(n=n, ids=ids, touches=touches, creates=creates, conditions=tuple(conditions))


@pytest.mark.parametrize("seed", range(8))
def test_a_fold_by_runs_is_one_by_transactions(seed: int) -> None:
    random = Random(seed)
    (effects, writes), reference = _folding(), ReferenceEffects(_WINDOW)
    position, conflicts = 1, 0
    for number in range(400):
        facts = _run(random, number, position, effects)
        rejections, created = effects.apply(position, facts)
        expected = reference.apply(position, facts, ())
        assert {one.index: one.code for one in rejections} == expected, facts
        for one in rejections:
            if one.code == "conflict":
                conflicts += 1
                assert (one.table, one.winner) == reference.lost[position + one.index]
        assert list(created) == [one for one in reference.created if one[0] >= position]
        told = [one for one in reference.written if one[1].position >= position]
        assert sorted(writes.take(), key=str) == sorted(told, key=str)
        position += facts.n
    assert conflicts > 20
    assert {name: writes.of(name) for name in effects.tables} == reference.writes_at(position)


def test_a_table_that_nobody_wrote_to_has_version_0() -> None:
    writes = LastWrites({}, _WINDOW)
    assert (
        writes.conflict(Condition(read_position=0, reads=("t",), versions=(("t", 0),)), 6, 0)
        is None
    )
    lost = writes.conflict(Condition(versions=(("t", 3),)), 6, 0)
    assert lost is not None and (lost.table, lost.winner) == ("t", None)
    assert "has version 0: it was never written to" in lost.text


def test_it_is_known_up_to_where_workers_have_something_to_apply() -> None:
    effects, _ = _folding()
    assert effects.rows_until() == 0

    def fold(position: int, **facts: Any) -> None:
        ids = position.to_bytes(16, "big")
        effects.apply(position, RunFacts(n=1, ids=ids, **facts))

    fold(1)  # of a commit table, or without effect
    assert effects.rows_until() == 0
    fold(2, creates=((0, _table("t")),))
    fold(3, touches=(Touch(table="t", schema_version=1, txs=None),))
    fold(4)
    assert effects.rows_until() == 3
    points = replace(_table("t"), name=RESTORE_POINTS)
    fold(5, creates=((0, points),))
    assert effects.rows_until() == 3, "restore points have no rows"
    fold(6, touches=(Touch(table="t", schema_version=9, txs=None),))
    assert effects.rows_until() == 3, "it was rejected"
    assert LastWrites({"t": TableWrites(version=1, position=8)}, _WINDOW).last == 8
