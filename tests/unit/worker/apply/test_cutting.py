"""Cutting the log at a run end: what is left of a segment, and which positions are refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.segments import effect, segment

from sparktxlog.errors import ExpiredError, InvalidRequestError, TxLogError
from sparktxlog.storage.interfaces import TableEffect
from sparktxlog.worker.apply.batches import Clear, LogPlace, plan_batch
from sparktxlog.worker.apply.cutting import Cut, cut_segments, find_cut
from sparktxlog.worker.replica.source import LogTail

CUT = Cut(position=5, chain_hash="c5", epoch=1)


def places(effect: TableEffect) -> tuple[LogPlace, LogPlace]:
    return LogPlace(effect.first, 0), LogPlace(min(effect.last, CUT.position), 0)


def test_segments_behind_a_cut_go_and_the_one_across_it_ends_there() -> None:
    segments = [segment(1, 3), segment(4, 9, effect("append", 4), effect("append", 6))]
    first, second = cut_segments([*segments, segment(10, 12)], CUT)
    assert first is segments[0]
    assert (second.first, second.last, second.to_hash, second.epoch) == (4, 5, "c5", 1)
    assert second.transactions == 2 and [e.first for e in second.effects] == [4]
    assert cut_segments([segment(1, 5), segment(6, 9)], CUT) == (segment(1, 5),)
    assert cut_segments([segment(6, 9)], CUT) == ()
    tail = LogTail(position=12, log_id="l", epoch=2, segments=tuple(segments)).cut_at(CUT)
    assert (tail.position, tail.cut, tail.segments[-1].last) == (5, CUT, 5)


def test_of_an_effect_across_the_cut_only_the_rows_before_it_count() -> None:
    effects = (
        effect("append", 1, 9, inline=True),
        effect("append", 2),
        effect("delete_where", 4, predicate="old"),
        effect("upsert", 3, 8, inline=True),
        effect("delete_where", 7, predicate="new"),
    )
    (cut,) = cut_segments([segment(1, 9, *effects)], CUT)
    (stage,) = plan_batch([cut], places).tables["t"].stages
    assert (stage.predicate, stage.upper) == ("(old)", LogPlace(6, 0))
    # What is not whole is filtered by the stage's bounds, and its claim is not believed.
    assert [(p.effect.first, p.whole) for p in stage.appends] == [(1, False), (2, True)]
    assert [(p.effect.first, p.whole) for p in stage.keyed] == [(3, False)]


def test_an_overwrite_across_the_cut_ends_at_its_last_row_before_it() -> None:
    effects = (effect("append", 1), effect("overwrite", 3, 8, inline=True), effect("append", 7))
    (cut,) = cut_segments([segment(1, 9, *effects)], CUT)
    (stage,) = plan_batch([cut], places).tables["t"].stages
    assert (stage.clear, stage.lower, stage.upper) == (
        Clear.EVERYTHING,
        LogPlace(5, 0),
        LogPlace(6, 0),
    )
    assert [(p.effect.kind, p.whole) for p in stage.appends] == [("overwrite", False)]


class Queue:
    """A node's answers about runs of ten transactions each, up to position 95."""

    def __init__(self, kept_after: int = 0) -> None:
        self.kept_after = kept_after

    def __call__(self, path: str, **query: int) -> Any:
        if path == "/v1/info":
            return {"node_id": "A", "position": 95, "kept_after": self.kept_after}
        assert path == "/v1/queue" and query["after"] >= self.kept_after
        runs: list[dict[str, Any]] = [
            {"position": first, "n": min(10, 96 - first), "chain_hash": f"h{first}", "epoch": 3}
            for first in range(1, 96, 10)
        ]
        return [run for run in runs if run["position"] > query["after"]][:3]


def test_a_run_end_is_found_with_its_hash() -> None:
    assert find_cut(Queue(), 70) == Cut(position=70, chain_hash="h61", epoch=3)
    assert find_cut(Queue(), 95).chain_hash == "h91"
    assert find_cut(Queue(kept_after=60), 70).chain_hash == "h61"


@pytest.mark.parametrize(
    ("kept_after", "position", "kind", "said"),
    [
        (0, 96, InvalidRequestError, "not ordered yet: the queue of A ends at 95"),
        (0, 45, InvalidRequestError, "Stop before it, at 40, or after it, at 50."),
        (60, 60, ExpiredError, "begins after position 60"),
        (60, 30, ExpiredError, "no longer holds 30"),
    ],
)
def test_other_positions_are_refused(
    kept_after: int, position: int, kind: type[TxLogError], said: str
) -> None:
    with pytest.raises(kind) as caught:
        find_cut(Queue(kept_after), position)
    assert said in f"{caught.value} {caught.value.hint}"
