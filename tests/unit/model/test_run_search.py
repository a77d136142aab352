"""Runs are found whatever their lengths, with few questions."""

from __future__ import annotations

from random import Random

import pytest

from sparktxlog.model.run_search import PAGE, last_runs, run_at


class Queue:
    """A queue of runs of some lengths, which counts questions."""

    def __init__(self, lengths: list[int]) -> None:
        self.runs, end = list[dict[str, int]](), 0
        for n in lengths:
            self.runs.append({"position": end + 1, "n": n})
            end += n
        self.end, self.asked = end, 0

    def read(self, after: int, limit: int) -> list[dict[str, int]]:
        self.asked += 1
        assert limit <= PAGE
        return [run for run in self.runs if run["position"] > after][:limit]


@pytest.mark.parametrize(
    "lengths",
    [
        [],
        [1],
        [1] * 50,
        [8_192] * 6,
        [1] * 3_000 + [400],  # a piece with more runs than a page before a long run
        [Random(7).choice((1, 3, 500, 8_192)) for _ in range(60)],
    ],
)
def test_the_last_runs_and_the_run_at_a_position(lengths: list[int]) -> None:
    queue = Queue(lengths)
    for limit in (1, 5, 20):
        found = last_runs(queue.read, queue.end, 0, limit)
        if len(found) < limit:  # long ones: it looks back as far as one run may be long
            assert sum(run["n"] for run in queue.runs[len(queue.runs) - len(found) :]) >= min(
                8_192, queue.end
            )
        assert found == queue.runs[len(queue.runs) - len(found) :]
        assert found or not queue.runs
    for run in queue.runs[-10:]:
        for position in (run["position"], run["position"] + run["n"] - 1):
            assert run_at(queue.read, position, queue.end, 0) == run
    assert run_at(queue.read, queue.end + 1, queue.end, 0) is None


def test_what_the_log_no_longer_keeps_is_not_found() -> None:
    queue = Queue([1] * 30)
    queue.runs = queue.runs[20:]
    assert [run["position"] for run in last_runs(queue.read, 30, 20, 50)] == list(range(21, 31))
    assert run_at(queue.read, 20, 30, 20) is None
    queue.asked = 0
    assert run_at(queue.read, 30, 30, 20) == queue.runs[-1]
    assert queue.asked == 1
