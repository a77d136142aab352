"""Planning: where batches end, how stages are cut, which steps a crash can fall between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.segments import effect, segment

from sparktxlog.errors import DivergedError
from sparktxlog.model.restore_point import RESTORE_POINTS
from sparktxlog.model.signature import EMPTY_SIGNATURE
from sparktxlog.model.tables.alteration import DROPPED, TableChange
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.storage.interfaces import TableEffect
from sparktxlog.worker.apply.batches import (
    PREDICATES_PER_STAGE,
    STEPS,
    Clear,
    LogPlace,
    StepKind,
    TablePlan,
    Where,
    batch_segments,
    check_chain,
    plan_batch,
)
from sparktxlog.worker.apply.tables import OwnCommit


def never(found: TableEffect) -> tuple[LogPlace, LogPlace]:
    raise AssertionError(f"the rows of {found} were looked at")


def plan(*effects: TableEffect, extent: Any = never) -> TablePlan:
    last = max(e.last for e in effects)
    return plan_batch([segment(1, last, *effects)], extent).tables["t"]


@pytest.mark.parametrize(
    ("ends", "count"),
    [
        ((3, 7), 2),
        ((10,), 1),
        ((9, 12, 15), 2),
        ((9, 10, 11), 2),
        ((25, 26), 1),
        ((4, 8, 9), 3),
    ],
)
def test_batches_stop_at_the_first_run_end_at_or_after_a_boundary(
    ends: tuple[int, ...], count: int
) -> None:
    starts = [1, *(end + 1 for end in ends)]
    segments = [segment(first, last) for first, last in zip(starts, ends, strict=False)]
    assert len(batch_segments(segments, 10)) == count


def test_a_batch_after_a_boundary_goes_on_to_the_next() -> None:
    segments = [segment(13, 15), segment(16, 19), segment(20, 22), segment(23, 24)]
    assert [s.last for s in batch_segments(segments, 10)] == [15, 19, 22]


def test_a_batch_ends_at_a_restore_point() -> None:
    made = TableEffect(
        table=RESTORE_POINTS,
        kind="alter_table",
        first=6,
        last=6,
        change=TableChange(properties=(("point.p", "{}"),)),
    )
    segments = [segment(1, 3), segment(4, 6, made), segment(7, 9)]
    assert [s.last for s in batch_segments(segments, 100)] == [3, 6]


def test_a_batch_begun_ends_where_it_ended() -> None:
    segments = [segment(1, 3), segment(4, 6), segment(7, 9)]
    assert [s.last for s in batch_segments(segments, 100, end=6)] == [3, 6]
    with pytest.raises(DivergedError, match="no published segment ends there"):
        batch_segments(segments, 100, end=5)


def test_the_fence_wants_an_unbroken_chain() -> None:
    segments = [segment(4, 5), segment(6, 9)]
    check_chain(segments, 3, "h3")
    with pytest.raises(DivergedError, match="has hash h3"):
        check_chain(segments, 3, "h3'")
    with pytest.raises(DivergedError, match="does not follow"):
        check_chain(segments, 2, "h2")
    with pytest.raises(DivergedError, match="does not follow"):
        check_chain([segments[0], segment(7, 9)], 3, "h3")
    with pytest.raises(DivergedError, match="does not follow"):
        check_chain([segments[0], segment(5, 9)], 3, "h3")


def test_a_copied_replica_goes_on_inside_a_segment() -> None:
    """Segments end elsewhere at the site that the replica was copied from."""
    segments = [segment(1, 9), segment(10, 12)]
    with pytest.raises(DivergedError, match="does not follow"):
        check_chain(segments, 4, "h4")
    check_chain(segments, 4, "h4", copied=True)
    with pytest.raises(DivergedError, match="does not follow"):
        check_chain([segment(1, 4), segment(5, 9)], 4, "h4", copied=True)
    effects = (
        effect("create_table", 1),
        effect("append", 2),
        effect("delete_where", 3, predicate="old"),
        effect("append", 1, 9, inline=True),
        effect("upsert", 4),
        effect("append", 5),
        effect("delete_where", 6, predicate="new"),
    )
    batch = plan_batch(
        [segment(1, 9, *effects), segments[1]],
        lambda found: (LogPlace(1, 0), LogPlace(9, 0)),
        position=4,
        chain_hash="h4",
    )
    assert (batch.first, batch.last, batch.from_hash, batch.transactions) == (5, 12, "h4", 8)
    plan_of_t = batch.tables["t"]
    assert plan_of_t.create is None
    (stage,) = plan_of_t.stages
    assert (stage.lower, stage.clear) == (LogPlace(5, 0), Clear.MATCHING)
    # What came before is left out; of the inline rows only the later ones count.
    assert [(piece.effect.first, piece.whole) for piece in stage.appends] == [(1, False), (5, True)]
    assert not stage.keyed and stage.predicate == "(new)"


def test_to_create_a_table_again_does_nothing() -> None:
    """Protocol P25b; older nodes publish it as an effect all the same."""
    made = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))
    repeat = effect("create_table", 5, definition=made)
    again = segment(5, 8, repeat, effect("append", 6))
    batch = plan_batch([again], never, position=4, chain_hash="h4", known={"t"})
    assert batch.tables["t"].create is None
    assert [step.kind for step in batch.tables["t"].steps()] == [StepKind.PLACE]
    alone = plan_batch([segment(5, 5, repeat)], never, position=4, chain_hash="h4", known={"t"})
    assert alone.tables == {} and (alone.first, alone.last) == (5, 5)
    # Another table, and a replica that does not have it yet.
    other = plan_batch([segment(1, 5, repeat)], never, known={"u"})
    assert [step.kind for step in other.tables["t"].steps()] == [StepKind.CREATE]


MADE = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))
AGAIN = replace(MADE, schema_version=3, first_version=3)


def dropping(position: int, version: int = 1) -> TableEffect:
    return effect("drop_table", position, schema_version=version, change=DROPPED)


def creating(position: int, definition: TableDefinition = AGAIN) -> TableEffect:
    version = definition.schema_version
    return effect("create_table", position, definition=definition, schema_version=version)


def test_a_dropped_table_gets_its_rows_before_and_its_successor_those_after() -> None:
    """Schema versions tell whose an effect is, wherever the effects of inline rows end."""
    note = effect("alter_table", 2, change=TableChange(add=(Column(name="n", type="int"),)))
    effects = [
        effect("append", 1, 9, inline=True),
        note,
        effect("append", 3, schema_version=2),
        dropping(4, version=2),
        creating(5, replace(AGAIN, schema_version=4, first_version=4)),
        effect("append", 6, schema_version=4),
    ]
    batch = plan_batch([segment(1, 9, *effects)], never, known={"t"})
    found = batch.tables["t"]
    assert (found.dropped, found.create) == (4, None)
    assert [step.kind for step in found.steps()] == [
        StepKind.PLACE,
        StepKind.ALTER,
        StepKind.PLACE,
    ]
    assert found.successor is not None and found.successor.dropped is None
    assert [step.kind for step in found.successor.steps()] == [StepKind.CREATE, StepKind.PLACE]
    assert found.successor.create is not None and found.successor.create.first_version == 4


def test_a_table_that_lives_within_a_batch_only_is_never_made() -> None:
    made = creating(1, MADE)
    within = [made, effect("append", 2), dropping(3)]
    assert plan_batch([segment(1, 3, *within)], never).tables == {}
    twice = [*within, creating(4), effect("append", 5, schema_version=3), dropping(6, version=3)]
    assert plan_batch([segment(1, 6, *twice)], never).tables == {}
    last = creating(7, replace(AGAIN, schema_version=5, first_version=5))
    found = plan_batch([segment(1, 7, *twice, last)], never).tables["t"]
    assert (found.create, found.dropped, found.stages) == (last.definition, None, ())
    # A replica that has the first one drops that, and makes the last one only.
    found = plan_batch([segment(2, 7, *twice[1:], last)], never, known={"t"}).tables["t"]
    assert found.dropped == 3 and len(found.stages) == 1
    assert found.successor is not None and found.successor.create == last.definition


def test_a_drop_before_the_position_is_done() -> None:
    effects = [dropping(2), creating(3), effect("append", 6, schema_version=3)]
    found = plan_batch(
        [segment(1, 8, *effects)], never, position=4, chain_hash="h4", known={"t"}
    ).tables["t"]
    assert found.dropped is None and [step.kind for step in found.steps()] == [StepKind.PLACE]


def test_nothing_known_takes_any_start() -> None:
    check_chain([segment(1, 2)], 0, "")


def test_appends_alone_are_one_placing_and_no_row_is_looked_at() -> None:
    found = plan(effect("append", 1, 5, inline=True, claim="c"), effect("append", 3))
    assert [step.kind for step in found.steps()] == [StepKind.PLACE]
    assert found.steps()[0].last
    assert [piece.claimed for piece in found.stages[0].whole] == [True, False]


def test_predicates_and_keyed_rows_are_one_merge() -> None:
    found = plan(
        effect("append", 1, 9, inline=True, claim="c"),
        effect("upsert", 2),
        effect("delete_where", 3, op=1, predicate="a"),
        effect("delete_keys", 4),
        effect("delete_where", 5, predicate="b"),
        effect("append", 6),
        effect("delete_where", 7, predicate="a"),
        effect("append", 8),
    )
    (stage,) = found.stages
    # Of a predicate that stands twice the last place counts.
    assert stage.wheres == (Where(LogPlace(7, 0), "a"), Where(LogPlace(5, 0), "b"))
    assert stage.clear is Clear.NOTHING and stage.merges_wheres
    assert [step.kind for step in found.steps()] == [StepKind.MERGE, StepKind.PLACE]
    assert stage.whole[0].claimed
    assert [piece.effect.first for piece in stage.removable] == [1, 6]


def test_predicates_without_keyed_rows_are_one_delete_and_touch_earlier_appends_only() -> None:
    found = plan(
        effect("append", 1),
        effect("delete_where", 2, predicate="a"),
        effect("append", 2, op=1),
        effect("delete_where", 4, predicate="b"),
        effect("append", 5),
    )
    (stage,) = found.stages
    assert (stage.clear, stage.predicate) == (Clear.MATCHING, "(a) OR (b)")
    assert not stage.merges_wheres
    kinds = [step.kind for step in found.steps()]
    assert kinds == [StepKind.CLEAR, StepKind.MERGE, StepKind.PLACE]
    # To replace partitions reads no row.
    found = plan(effect("delete_where", 2, predicate="a"), effect("append", 2, op=1))
    assert [step.kind for step in found.steps()] == [StepKind.CLEAR, StepKind.PLACE]


def test_after_an_overwrite_predicates_concern_the_rows_of_the_batch_only() -> None:
    found = plan(
        effect("overwrite", 1), effect("upsert", 2), effect("delete_where", 3, predicate="a")
    )
    (stage,) = found.stages
    assert stage.clear is Clear.EVERYTHING and not stage.merges_wheres
    assert stage.predicate == "(a)" and stage.removable == stage.whole


@pytest.mark.parametrize("size", [1, 3_000])
def test_a_stage_has_so_many_predicates_only(size: int) -> None:
    wheres = [effect("delete_where", i, predicate=f"{i:0{size}}") for i in range(1, 41)]
    found = plan(effect("upsert", 1), *wheres, effect("upsert", 50))
    first, second = found.stages
    assert len(first.wheres) == (PREDICATES_PER_STAGE if size == 1 else 21)
    assert first.merges_wheres and second.merges_wheres
    assert first.upper == second.lower == second.wheres[0].place
    assert [step.kind for step in found.steps()] == [StepKind.MERGE, StepKind.MERGE]


def test_what_stands_before_the_last_overwrite_is_not_done() -> None:
    found = plan(
        effect("append", 1),
        effect("delete_where", 2, predicate="a"),
        effect("overwrite", 3),
        effect("upsert", 4),
        effect("overwrite", 5, op=1),
        effect("append", 5, op=2),
        effect("upsert", 5, op=0),
    )
    (stage,) = found.stages
    assert stage.clear is Clear.EVERYTHING and stage.lower == LogPlace(5, 1)
    assert [(p.effect.kind, p.effect.op) for p in stage.whole] == [("overwrite", 1), ("append", 2)]
    assert stage.keyed == ()


def test_of_inline_overwrites_only_the_last_counts() -> None:
    found = plan(
        effect("overwrite", 1, 4, inline=True), extent=lambda _: (LogPlace(1, 0), LogPlace(4, 0))
    )
    (stage,) = found.stages
    assert stage.lower == LogPlace(4, 0) and stage.partial and not stage.whole


def test_files_of_many_transactions_are_placed_unless_some_were_rejected() -> None:
    """P41: rows that do not count are in the file, so its others are written."""
    whole, part = effect("append", 1, 4, run=1), effect("append", 6, 8, run=5, left_out=(5, 7))
    (stage,) = plan(whole, part).stages
    assert [piece.effect for piece in stage.whole] == [whole]
    assert [piece.effect for piece in stage.partial] == [part]
    upsert = effect("upsert", 1, 4, run=1)
    assert not plan(upsert).stages[0].has_one_keyed_operation
    (stage,) = plan(
        effect("overwrite", 1, 4, run=1), extent=lambda _: (LogPlace(1, 0), LogPlace(4, 0))
    ).stages
    assert stage.lower == LogPlace(4, 0)


def test_steps_are_numbered_alike_and_rise() -> None:
    definition = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))
    effects = (
        effect("create_table", 1, definition=definition),
        effect("append", 2),
        effect("upsert", 3),
        effect("delete_where", 4, predicate="a"),
        effect("append", 5),
    )
    steps = plan(*effects).steps()
    assert [step.kind.value for step in steps] == ["create", "merge", "place"]
    numbers = [step.number for step in steps]
    assert numbers == sorted(set(numbers)) and numbers[-1] < STEPS
    assert [step.last for step in steps] == [False] * 2 + [True]
    batch = plan_batch([segment(1, 5, *effects)], never)
    following = plan_batch([segment(6, 6)], never)
    last = OwnCommit.of(batch, "l", "t", steps[-1], EMPTY_SIGNATURE)
    first = OwnCommit.of(following, "l", "t", replace(steps[0], number=0), EMPTY_SIGNATURE)
    assert last.txn_version < first.txn_version


def test_a_replica_with_a_set_applies_only_operations_of_its_tables() -> None:
    """Its position advances as always."""
    effects = [replace(effect("append", 1), table=name) for name in ("bronze.t", "gold.t", "t")]
    found = plan_batch([segment(1, 10, *effects)], never, only=("bronze.*", "default.t"))
    assert (sorted(found.tables), found.last, found.transactions) == (["bronze.t", "t"], 10, 10)
    idle = plan_batch([segment(1, 10, *effects)], never, only=("silver.*",))
    assert (idle.tables, idle.last, idle.to_hash) == ({}, 10, found.to_hash)
