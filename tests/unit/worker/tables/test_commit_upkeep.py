"""A compaction of a commit table whose commit is refused, or whose end is not known."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from sparktxlog.errors import (
    CommitStateUnknownError,
    StagedCommitError,
    TransportError,
    TxLogError,
    UnreachableError,
    VersionConflictError,
)
from sparktxlog.worker.tables import commit_upkeep
from sparktxlog.worker.tables.commit_upkeep import CommitTableKeeper
from sparktxlog.worker.tables.table_upkeep import Upkeep


@pytest.mark.parametrize(
    "refusal",
    [
        VersionConflictError("lost"),
        StagedCommitError("not as said"),
        UnreachableError("nobody"),
        TransportError("the answer was lost"),
        CommitStateUnknownError("not in time"),
    ],
)
def test_what_was_staged_goes_if_it_is_certain_that_nothing_happened(
    monkeypatch: pytest.MonkeyPatch, refusal: TxLogError
) -> None:
    monkeypatch.setattr(commit_upkeep, "applier_session", Mock())
    monkeypatch.setattr(commit_upkeep, "update_of", Mock())
    link, twin = Mock(), Mock(path="twin")
    link.commit.side_effect = refusal
    shown, table = Mock(latest_table_version=1), Mock()
    shown.metadata.properties = {}
    table.checkpointed.return_value = 1
    table.data.return_value = [Mock(size=1)] * 2
    link.load.return_value = shown
    table.twin.return_value = twin
    twin.own_version.return_value = 2
    monkeypatch.setattr(commit_upkeep, "forget_log", Mock())
    places = Mock()
    places.table.return_value = table
    wanted = Upkeep(tables=["s.t"], vacuum=False, many_files=1)
    keeper = CommitTableKeeper(Mock(), link, places, wanted)
    known = Mock(schema_name="s")
    known.name = "t"
    (done,) = keeper.maintain([known])
    assert done.failed or "other commits were faster" in done.skipped
    assert table.withdraw.called == refusal.definite
    assert twin.remove.called
