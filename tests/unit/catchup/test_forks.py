"""The last common position of two queues, against a dumb walk over all run ends."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from sparktxlog.catchup.forks import QueueRun, last_common


class Queue:
    """Runs of the given lengths; two queues are equal as long as their marks are."""

    def __init__(self, runs: Sequence[tuple[int, int]]) -> None:
        self.runs: list[QueueRun] = []
        self.asked: list[int] = []
        last, chain = 0, b""
        for length, mark in runs:
            chain = hashlib.sha256(chain + bytes([length, mark])).digest()
            self.runs.append(QueueRun(first=last + 1, last=last + length, chain_hash=chain))
            last += length

    @property
    def end(self) -> int:
        return self.runs[-1].last if self.runs else 0

    def at(self, position: int) -> QueueRun:
        (found,) = [run for run in self.runs if run.first <= position <= run.last]
        return found

    def behind(self, position: int) -> QueueRun | None:
        self.asked.append(position)
        return next((run for run in self.runs if run.first > position), None)


RUNS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), max_size=60)


@given(common=RUNS, own=RUNS, other=RUNS, data=st.data())
def test_the_last_common_run_end_is_found_with_few_questions(
    common: list[tuple[int, int]],
    own: list[tuple[int, int]],
    other: list[tuple[int, int]],
    data: st.DataObject,
) -> None:
    mine, theirs = Queue([*common, *own]), Queue([*common, *other])
    ends = [0, *(run.last for run in mine.runs if run in theirs.runs)]
    low = data.draw(st.sampled_from(ends))
    high = min(mine.end, theirs.end)
    assert last_common(mine.at, theirs.behind, low, high) == max(ends)
    assert len(theirs.asked) <= math.log2(max(high - low, 1)) + 1
    assert all(position >= low for position in theirs.asked)


def test_equal_queues_have_their_end_in_common() -> None:
    queue = Queue([(3, 0), (1, 0), (8_192 % 250, 1)])
    assert last_common(queue.at, queue.behind, 0, queue.end) == queue.end
    assert last_common(queue.at, queue.behind, queue.end, queue.end) == queue.end
