"""Which commits a table gets in a batch, in which order, and which of them bring appended rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.errors import AnalysisException
from tests.support.worker_log import LogBuilder, table

from sparktxlog.attic.attic import Attic
from sparktxlog.errors import ApplyError
from sparktxlog.model.signature import EMPTY_SIGNATURE, TableSignature
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.worker.apply import steps
from sparktxlog.worker.apply.batches import Batch, Step, StepKind, TablePlan, TableStage, plan_batch
from sparktxlog.worker.apply.merging import StageRows
from sparktxlog.worker.apply.steps import TableProgress, TableSteps
from sparktxlog.worker.apply.tables import OwnCommit, create_table
from sparktxlog.worker.lakes.disk_lake import DiskLake
from sparktxlog.worker.lakes.payload_files import StagedOnDisk

TABLE = table("t", "id bigint", keys=["id"])
CLAIM = TableSignature(rows=2, lane0=7, lane1=9)


class Recorder(TableSteps):
    """Notes each step, with the rows that it brings as a whole, instead of a Delta commit."""

    def __init__(self, log: LogBuilder, lake: Path) -> None:
        super().__init__(Mock(), DiskLake(lake), StagedOnDisk(log.payloads), "test")
        self.made: list[tuple[StepKind, int, bool]] = []

    def run_step(
        self,
        batch: Batch,
        step: Step,
        progress: TableProgress,
        rows: Any,
        appended: TableSignature,
    ) -> None:
        assert appended in (CLAIM, EMPTY_SIGNATURE)
        self.made.append((step.kind, appended.rows, step.last))
        progress.done = step.number


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    """A table, then one transaction that appends staged rows and upserts others."""
    log = LogBuilder(tmp_path)
    log.transaction().create(TABLE)
    log.transaction().staged("append", "t", [(1,), (2,)], claim=CLAIM.to_text())
    log.transaction().staged("upsert", "t", [(5,)])
    log.publish()
    return log


def planned(log: LogBuilder) -> tuple[Batch, TablePlan]:
    no_rows = lambda _: pytest.fail("no inline rows are here")
    batch = plan_batch(log.segments, no_rows)
    return batch, batch.tables["t"]


def left_to_place(monkeypatch: pytest.MonkeyPatch, files: list[StagedFile]) -> None:
    monkeypatch.setattr(StageRows, "untouched_files", lambda _: files)


def test_files_that_no_upsert_concerns_are_placed_after_the_merge(
    log: LogBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, plan = planned(log)
    left_to_place(monkeypatch, list(plan.stages[0].whole[0].effect.files))
    made = Recorder(log, tmp_path / "lake")
    made.apply(batch, plan, TableProgress(definition=TABLE), {})
    assert made.made == [
        (StepKind.CREATE, 0, False),
        (StepKind.MERGE, 0, False),
        (StepKind.PLACE, 2, True),
    ]


def test_a_merge_of_all_appended_rows_stands_for_the_placing(
    log: LogBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, plan = planned(log)
    left_to_place(monkeypatch, [])
    made, progress = Recorder(log, tmp_path / "lake"), TableProgress(definition=TABLE)
    made.apply(batch, plan, progress, {})
    assert made.made == [(StepKind.CREATE, 0, False), (StepKind.MERGE, 2, True)]
    # Done again after a crash nothing is left.
    made.apply(batch, plan, progress, {})
    assert len(made.made) == 2


def test_a_merge_without_rows_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogBuilder(tmp_path)
    log.transaction().create(TABLE)
    log.transaction().staged("append", "t", [(1,), (2,)], claim=CLAIM.to_text())
    log.transaction().delete_where("t", "id = 5", lambda row: row == (5,))
    log.publish()
    batch, plan = planned(log)
    monkeypatch.setattr(StageRows, "_touched_pieces", lambda _: ())
    made = Recorder(log, tmp_path / "lake")
    made.apply(batch, plan, TableProgress(definition=TABLE), {})
    assert made.made[1:] == [(StepKind.CLEAR, 0, False), (StepKind.PLACE, 2, True)]


@pytest.mark.parametrize("done", [0, 1, 2])
def test_steps_that_are_done_are_not_done_again(
    log: LogBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    batch, plan = planned(log)
    left_to_place(monkeypatch, list(plan.stages[0].whole[0].effect.files))
    number = plan.steps()[done].number
    made = Recorder(log, tmp_path / "lake")
    made.apply(batch, plan, TableProgress(definition=TABLE, done=number), {})
    kinds = [StepKind.CREATE, StepKind.MERGE, StepKind.PLACE]
    assert [kind for kind, _, _ in made.made] == kinds[done + 1 :]


def test_rows_are_counted_only_for_stages_that_are_left(
    log: LogBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.transaction().alter("t", TableChange(keys=()))
    log.transaction().staged("append", "t", [(8,)])
    log.publish()
    batch, plan = planned(log)
    monkeypatch.setattr(steps, "rows_of", lambda *_: "rows")
    monkeypatch.setattr(steps, "signatures_of", lambda frames: {tag: CLAIM for tag, _, _ in frames})
    made, progress = Recorder(log, tmp_path / "lake"), TableProgress(definition=TABLE)
    # The first stage's rows have a claim.
    counted = made.count_unclaimed(batch, {"t": progress})
    assert counted == {"t/2": CLAIM}
    left_to_place(monkeypatch, list(plan.stages[0].whole[0].effect.files))
    made.apply(batch, plan, progress, counted)
    assert made.made[-2:] == [(StepKind.ALTER, 0, False), (StepKind.PLACE, 2, True)]
    assert made.count_unclaimed(batch, {"t": progress}) == {}


def test_a_stage_whose_merge_is_done_still_needs_the_count_of_its_appended_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = LogBuilder(tmp_path)
    log.transaction().create(TABLE)
    log.transaction().staged("append", "t", [(1,), (2,)])
    log.transaction().staged("upsert", "t", [(5,)])
    log.publish()
    batch, plan = planned(log)
    monkeypatch.setattr(steps, "rows_of", lambda *_: "rows")
    monkeypatch.setattr(steps, "signatures_of", lambda frames: {tag: CLAIM for tag, _, _ in frames})
    left_to_place(monkeypatch, list(plan.stages[0].whole[0].effect.files))
    # A damaged file that only the MERGE read does not stop the placing.
    (upserted,) = (piece.effect.files[0] for piece in plan.stages[0].keyed)
    (log.payloads / upserted.path).unlink()
    made = Recorder(log, tmp_path / "lake")
    progress = TableProgress(definition=TABLE, done=plan.steps()[1].number)
    made.apply(batch, plan, progress, made.count_unclaimed(batch, {"t": progress}))
    assert made.made == [(StepKind.PLACE, 2, True)]


def test_a_missing_file_without_a_claim_is_an_error_of_its_table(
    log: LogBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.transaction().staged("append", "t", [(8,)])
    log.publish()
    batch, _ = planned(log)
    # Spark looks for a file as soon as it is named, not only when the rows are counted.
    monkeypatch.setattr(steps, "rows_of", Mock(side_effect=AnalysisException("PATH_NOT_FOUND")))
    made = Recorder(log, tmp_path / "lake")
    with pytest.raises(ApplyError, match="table t: AnalysisException: PATH_NOT_FOUND"):
        made.count_unclaimed(batch, {"t": TableProgress(definition=TABLE)})


def test_a_damaged_file_of_a_merge_stops_the_table_before_its_stage(
    log: LogBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, plan = planned(log)
    left_to_place(monkeypatch, [])
    (upserted,) = (piece.effect.files[0] for piece in plan.stages[0].keyed)
    (log.payloads / upserted.path).unlink()
    made = Recorder(log, tmp_path / "lake")
    with pytest.raises(ApplyError, match="is missing"):
        made.apply(batch, plan, TableProgress(definition=TABLE), {})
    assert made.made == [(StepKind.CREATE, 0, False)]


def made_by(batch: Batch, lake: Path) -> Path:
    """Return the directory of a table that a batch has created, and not filled yet."""
    step = Step(number=0, kind=StepKind.CREATE, stage=TableStage(index=-1), last=False)
    own = OwnCommit.of(batch, "test", "t", step, EMPTY_SIGNATURE)
    create_table(lake / "t", TABLE, own.to_text(), {"appId": own.app_id, "version": 0})
    return lake / "t"


@pytest.mark.parametrize("resumed", [False, True])
def test_a_dropped_table_is_moved_once_and_its_successor_never(
    log: LogBuilder, tmp_path: Path, *, resumed: bool
) -> None:
    """A worker that was killed may find either of them, or a directory without a commit."""
    lake, (earlier, plan) = tmp_path / "lake", planned(log)
    batch = replace(earlier, last=9)
    plan = replace(plan, create=None, stages=(), dropped=5)

    def drop() -> bool:
        """Return whether the directory is moved."""
        progress = TableProgress(definition=TABLE, recorded=0, version=0)
        Recorder(log, lake).drop(batch, plan, progress, resumed=resumed, sound=False)
        return not (lake / "t").exists()

    former, attic = made_by(earlier, lake), Attic.of_lake(lake)
    assert drop() and [one.id for one in attic.entries()] == ["dropped-t-5"]
    # Nothing is there, or the table that the same batch has created.
    assert drop() and len(attic.entries()) == 1
    if resumed:
        (former / "_delta_log").mkdir(parents=True)
        assert not drop()
        made_by(batch, lake)
        assert not drop() and len(attic.entries()) == 1
        # Delta has removed the first commits of a long log.
        (former / "_delta_log" / f"{0:020}.json").rename(former / "_delta_log" / f"{7:020}.json")
        assert drop()
