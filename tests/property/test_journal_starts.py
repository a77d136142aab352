"""A journal that is started again and again stays equal to one that is not, in any history."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.storage_samples import TemporaryJournal, entries_of, ids_in, ids_of, run_of

from sparktxlog.errors import InvariantViolation, TxLogError
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.conditions import TableWrites
from sparktxlog.protocol.messages.balloting import BallotState
from sparktxlog.protocol.messages.posts import QueueEntry
from sparktxlog.protocol.messages.recovery import NoOlderIds
from sparktxlog.protocol.messages.view import Ballot, Seat, View
from sparktxlog.storage.interfaces import (
    AppendQueue,
    ForgetPayloads,
    MarkPublished,
    PutBallot,
    PutRestamp,
    PutRun,
    PutView,
    QueueSummary,
    ResetJournal,
    Segment,
    Write,
)
from sparktxlog.storage.journal.journal import Journal

OWN = NodeId("a")


class History:
    """Makes up writes that a core could ask for, and a few that it must not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.epoch = 1
        self.incarnation = 1
        self.ts = 0
        #: Origin → sequence number of the next run.
        self.next = dict.fromkeys("abc", 1)
        self.waiting: list[PutRun] = []
        self.entries: list[QueueEntry] = []
        self.published = 0
        self.ids = 0
        #: All runs ever made.
        self.runs: list[PutRun] = []

    def step(self, summary: QueueSummary) -> list[Write]:
        """Return the next write."""
        kinds = ["run"] * 6 + ["order"] * 5 + ["publish"] * 3 + ["forget"] * 3
        kind = self.random.choice([*kinds, "view", "view", "ballot", "reset", "wrong"])
        made: list[Write] = getattr(self, f"_{kind}")(summary)
        return made

    def _run(self, summary: QueueSummary) -> list[Write]:
        origin, n = self.random.choice("aabc"), self.random.choice([1, 2, 70])
        self.ts += 1
        run = run_of(
            origin=origin,
            seq=self.next[origin],
            n=n,
            ts=self.ts,
            epoch=self.epoch,
            ids=ids_of(self.ids, n),
            padding=self.random.choice([0, 900]),
            incarnation=self.incarnation if origin == "a" else 1,
        )
        self.ids += n
        self.next[origin] += n
        self.waiting.append(run)
        self.runs.append(run)
        return [run, run] if self.random.random() < 0.2 else [run]

    def _order(self, summary: QueueSummary) -> list[Write]:
        count = self.random.randint(0, len(self.waiting))
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        if not taken:
            return []
        last = self.entries[-1] if self.entries else None
        entries = entries_of(
            taken,
            after=last.end if last else 0,
            previous=last.chain_hash if last else bytes(32),
        )
        self.entries.extend(entries)
        writes = tuple(
            (self.random.choice("tuv"), TableWrites(version=entry.end, position=entry.end))
            for entry in entries
        )
        return [AppendQueue(entries=entries, ordered_at=self.ts, writes=writes)]

    def _publish(self, summary: QueueSummary) -> list[Write]:
        behind = [entry for entry in self.entries if entry.end > self.published]
        if not behind:
            return []
        entry = self.random.choice(behind)
        segment = Segment(
            first=self.published + 1,
            last=entry.end,
            from_hash="",
            epoch=1,
            rejected=0,
            to_hash=entry.chain_hash.hex(),
            transactions=entry.end - self.published,
        )
        self.published = entry.end
        return [MarkPublished(position=entry.end, version=1, segment=segment)]

    def _forget(self, summary: QueueSummary) -> list[Write]:
        end = self.published + 5
        spare = self.random.choice([None, self.random.randint(0, end)])
        return [
            ForgetPayloads(
                position=self.random.randint(0, end),
                spare_after=spare,
                spare_bytes=self.random.choice([0, 20_000, 1 << 30]),
            )
        ]

    def _view(self, summary: QueueSummary) -> list[Write]:
        self.epoch += 1
        own, writes = [], []
        for run in self.waiting:
            if run.header.origin == OWN and run.header.incarnation == self.incarnation:
                self.ts += 1
                header = replace(run.header, epoch=self.epoch, ts=self.ts)
                own.append(PutRun(header=header, payload=run.payload))
                writes.append(PutRestamp(header=header))
            else:
                origin = str(run.header.origin)
                self.next[origin] = min(self.next[origin], run.header.seq)
        self.waiting = own
        view = View(log_id="l", epoch=self.epoch, roster=(Seat(node_id=OWN),), members=(OWN,))
        return [PutView(view=view, node_id=OWN, incarnation=self.incarnation), *writes]

    def _ballot(self, summary: QueueSummary) -> list[Write]:
        ballot = Ballot(number=self.random.randint(1, 9), node="b")
        return [PutBallot(state=BallotState(epoch=self.epoch, promised=ballot))]

    def _reset(self, summary: QueueSummary) -> list[Write]:
        """Go back to what was published, as a node does that a copy of itself is given to."""
        if summary.position < (self.entries[-1].end if self.entries else 0):
            self.incarnation += 1
            self.waiting = []
        self.entries = [entry for entry in self.entries if entry.end <= summary.position]
        marks = summary.watermarks
        kept = [run for run in self.waiting if run.header.origin == OWN]
        self.waiting = [run for run in kept if run.header.seq > marks.get("a", 0)]
        self.next = {origin: marks.get(origin, 0) + 1 for origin in "abc"}
        if self.waiting:
            self.next["a"] = self.waiting[-1].header.last + 1
        return [ResetJournal(summary=summary, node_id=OWN, incarnation=self.incarnation)]

    def _wrong(self, summary: QueueSummary) -> list[Write]:
        header = run_of(seq=9_999_999).header
        return [PutBallot(state=BallotState(epoch=77)), PutRestamp(header=header)]


def joined(pieces: Sequence[tuple[int, bytes]], window: int, end: int) -> tuple[int, bytes]:
    ids = b"".join(piece for _, piece in pieces)[-16 * window :]
    return end, ids


def seen(journal: Journal, runs: Sequence[PutRun], window: int) -> dict[str, Any]:
    """Return everything that a node can learn from a journal."""
    state = journal.load(window)
    core = state.core
    keys = [(r.header.origin, r.header.incarnation, r.header.seq) for r in runs]
    summary: Any
    try:
        summary = journal.read_summary()
        last = 0 if summary.last is None else summary.last.entry.header.n
        summary = replace(
            summary, recent_ids=(joined(summary.recent_ids, window - last, summary.position),)
        )
    except TxLogError as error:
        summary = error.code
    return {
        "state": replace(state, core=None),  # type: ignore[arg-type]
        "core": replace(
            core,
            incoming=sorted(core.incoming, key=lambda r: (r.header.origin, r.header.seq)),
            recent_ids=joined(core.recent_ids, window, core.base.position),
            repeats=tuple(core.repeats),
            older_ids=NoOlderIds,
        ),
        "payloads": [journal.read_payload(*key) for key in keys],
        "found": [journal.find_transaction(ids_in(run)[-16:]) for run in runs],
        "summary": summary,
        "resets": journal.read_extent().resets,
        "segments": journal.read_segments(state.kept_after, 1_000),
        "queue": journal.read_queue(core.base.position, 10, payloads=True),
    }


@pytest.mark.parametrize("seed", range(6))
def test_a_start_changes_nothing_through_any_history(tmp_path: Path, seed: int) -> None:
    window = 200
    history = History(seed)
    started: Journal = Journal(tmp_path, id_window=window)
    steady: Journal = TemporaryJournal(id_window=window)
    for number in range(120):
        writes = history.step(steady.read_summary())
        wrong = any(isinstance(w, PutBallot) and w.state.epoch == 77 for w in writes)
        for journal in (started, steady):
            with pytest.raises(InvariantViolation) if wrong else nullcontext():
                journal.write(writes)
        if number % 7 == 0:
            started.close()
            started = Journal(tmp_path, id_window=window)
        if number % 5 == 0:
            assert seen(started, history.runs, window) == seen(steady, history.runs, window)
    assert history.epoch > 3
    started.close()
    steady.close()
