"""Commit tables in the fold: which commit becomes which version, and why others do not (P36)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sparktxlog.model.tables.commit_table import CommitKind, CommitOperation, CommitTable
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.operation import RunFacts, Touch
from sparktxlog.protocol.effects.commits import CommitFold
from sparktxlog.protocol.effects.effects import Effects
from sparktxlog.protocol.effects.idwindow import IdWindow
from sparktxlog.protocol.effects.last_writes import LastWrites

T1, T2 = (f"00000000-0000-4000-8000-00000000000{n}" for n in (1, 2))
TABLE = TableDefinition(name="t", columns=(Column(name="c", type="bigint"),))


def create(
    uuid: str = T1, name: str = "s.t", timestamp: int = 10, version: int = 0
) -> CommitOperation:
    return CommitOperation(
        kind=CommitKind.CREATE, uuid=uuid, name=name, timestamp=timestamp, version=version
    )


def commit(version: int, timestamp: int = 0, uuid: str = T1) -> CommitOperation:
    return CommitOperation(
        kind=CommitKind.COMMIT, uuid=uuid, version=version, timestamp=timestamp or 10 + version
    )


def drop(uuid: str = T1) -> CommitOperation:
    return CommitOperation(kind=CommitKind.DROP, uuid=uuid)


def one(position: int) -> bytes:
    """Return the id of the transaction at a position."""
    return position.to_bytes(16, "big")


class Log:
    """A queue whose runs begin with commits."""

    def __init__(self) -> None:
        self.commits = CommitFold()
        writes = LastWrites({}, 100)
        window = IdWindow(100, max_run=50)
        self.effects = Effects([TABLE], window, writes=writes, commits=self.commits)
        self.end = 0

    def run(
        self,
        *given: CommitOperation | Sequence[CommitOperation],
        ids: bytes = b"",
        n: int = 0,
        **facts: Any,
    ) -> list[str]:
        """Fold a run of transactions with one commit or several; return what it rejects."""
        n = max(n, len(given))
        ids = ids or b"".join(one(self.end + at + 1) for at in range(n))
        several = [[own] if isinstance(own, CommitOperation) else own for own in given]
        commits = tuple((at, commit) for at, own in enumerate(several) for commit in own)
        run = RunFacts(n=n, ids=ids, commits=commits, **facts)
        self.rejections, _ = self.effects.apply(self.end + 1, run)
        self.end += n
        return [f"{lost.index} {lost.code}" for lost in self.rejections]


@pytest.fixture
def log() -> Log:
    log = Log()
    assert log.run(create()) == []
    return log


def test_versions_follow_each_other(log: Log) -> None:
    assert log.run(commit(1)) == []
    assert log.run(commit(2), commit(3)) == []
    assert log.commits.tables[T1] == CommitTable(
        uuid=T1, name="s.t", version=3, timestamp=13, transaction_id=one(4), position=4
    )


def test_only_the_first_of_two_commits_of_a_version_takes_effect(log: Log) -> None:
    assert log.run(commit(1)) == []
    assert log.run(commit(1, timestamp=99)) == ["0 version-conflict"]
    lost = log.rejections[0]
    assert (lost.table, lost.version, lost.winner, lost.winner_id) == ("s.t", 1, 2, one(2))
    assert "has version 1 since position 2, so version 1 is not its next one" in lost.text
    assert log.commits.tables[T1].position == 2


def test_two_commits_of_one_run_compete_too(log: Log) -> None:
    assert log.run(commit(1), commit(1), commit(2)) == ["1 version-conflict"]
    assert log.commits.tables[T1].version == 2


@pytest.mark.parametrize("version", [2, 3, 1 << 40])
def test_a_version_is_not_left_out(log: Log, version: int) -> None:
    assert log.run(commit(version, timestamp=99)) == ["0 version-conflict"]
    assert log.commits.tables[T1].version == 0


@pytest.mark.parametrize("timestamp", [9, 10])
def test_the_timestamp_grows(log: Log, timestamp: int) -> None:
    assert log.run(commit(1, timestamp=timestamp)) == ["0 stale-timestamp"]
    assert log.run(commit(1, timestamp=11)) == []


def test_a_table_begins_with_the_version_that_it_was_created_with() -> None:
    log = Log()
    assert log.run(create(version=7)) == []
    assert log.run(commit(1, timestamp=99)) == ["0 version-conflict"]
    assert log.run(commit(8)) == []


def test_a_table_that_is_not_there_takes_no_commit() -> None:
    log = Log()
    assert log.run(commit(1), drop()) == ["0 unknown-table", "1 unknown-table"]
    assert log.run(create(), commit(1)) == []


@pytest.mark.parametrize("name", ["s.t", "S.T"])
def test_a_name_is_taken_until_its_table_is_dropped(log: Log, name: str) -> None:
    assert log.run(create(T2, name)) == ["0 name-taken"]
    assert log.run(drop(), create(T2, name)) == []
    assert log.run(commit(1), commit(1, uuid=T2)) == ["0 unknown-table"]
    assert "was dropped at position 3" in log.rejections[0].text
    assert (list(log.commits.tables), log.commits.tables.named("s.t")) == (
        [T2],
        log.commits.tables[T2],
    )


@pytest.mark.parametrize("dropped", [False, True])
def test_a_uuid_is_used_once(log: Log, dropped: bool) -> None:
    if dropped:
        assert log.run(drop()) == []
    assert log.run(create(T1, "s.other")) == ["0 name-taken"]
    assert log.commits.tables.named("s.other") is None


def test_a_table_is_dropped_once(log: Log) -> None:
    assert log.run(commit(1), drop(), drop()) == ["2 unknown-table"]
    assert log.commits.take_changes()[-1] == CommitTable(
        uuid=T1,
        name="s.t",
        version=1,
        timestamp=11,
        transaction_id=one(3),
        position=3,
        is_dropped=True,
    )


def test_a_repeat_takes_no_effect_twice(log: Log) -> None:
    ids = b"r" * 16
    assert log.run(commit(1), ids=ids) == []
    assert log.run(commit(1), ids=ids) == ["0 duplicate-transaction"]
    assert log.run(commit(2), ids=ids) == ["0 duplicate-transaction"]
    assert log.commits.tables[T1].version == 1


def test_what_is_rejected_for_other_reasons_commits_nothing(log: Log) -> None:
    unheld = Condition(versions=(("t", 9),))
    assert log.run(commit(1), conditions=((0, unheld),)) == ["0 conflict"]
    assert log.run(commit(1), valid_until=((0, -1),)) == ["0 expired-transaction"]
    assert log.run(commit(1), voided=True) == ["0 voided"]
    assert log.commits.tables[T1].version == 0


def test_other_transactions_of_the_run_write_to_their_tables(log: Log) -> None:
    touch = Touch(table="t", schema_version=1, txs=(1,))
    assert log.run(commit(1), n=2, touches=(touch,)) == []
    held = Condition(versions=(("t", 1),))
    assert log.run(commit(2), conditions=((0, held),)) == []


def test_several_commits_of_a_transaction_take_effect_together(log: Log) -> None:
    assert log.run([commit(1), create(T2, "s.u")], [commit(1, uuid=T2), commit(2)]) == []
    found = {uuid: (table.version, table.position) for uuid, table in log.commits.tables.items()}
    assert found == {T1: (2, 3), T2: (1, 3)}


@pytest.mark.parametrize("turn", [1, -1])
def test_one_that_loses_takes_the_others_with_it(log: Log, turn: int) -> None:
    assert log.run(create(T2, "s.u"), commit(1, uuid=T2)) == []
    for lost, code in (
        (commit(1, uuid=T2), "version-conflict"),
        (commit(2, timestamp=11, uuid=T2), "stale-timestamp"),
        (create(T2, "s.v"), "name-taken"),
    ):
        before = dict(log.commits.tables)
        assert log.run([commit(1), lost][::turn]) == [f"0 {code}"]
        assert dict(log.commits.tables) == before
    assert log.run([commit(1), commit(1, uuid=T2)][::turn], [commit(1)]) == ["0 version-conflict"]
    assert log.run([drop(), commit(5, uuid=T2)][::turn]) == ["0 version-conflict"]
    told = log.rejections[0]
    assert (told.table, told.version, told.winner) == ("s.u", 1, 3)


def test_rows_and_commits_are_one_transaction(log: Log) -> None:
    touch, unwritten = Touch(table="t", schema_version=1), Condition(versions=(("t", 0),))
    assert log.run(commit(2), touches=(touch,)) == ["0 version-conflict"]
    assert log.run(commit(1), touches=(touch,), conditions=((0, unwritten),)) == []
    assert log.run(commit(2), touches=(touch,), conditions=((0, unwritten),)) == ["0 conflict"]
    assert log.commits.tables[T1].version == 1


def test_changes_are_told_once_as_each_run_left_them(log: Log) -> None:
    log.run(commit(1), commit(2), create(T2, "s.u"))
    log.run(commit(3))
    log.run(commit(3))
    told = [(table.uuid, table.version, table.position) for table in log.commits.take_changes()]
    assert told == [(T1, 0, 1), (T1, 2, 3), (T2, 0, 4), (T1, 3, 5)]
    assert log.commits.take_changes() == ()


def test_what_changed_after_a_position_is_found_newest_first(log: Log) -> None:
    def changed(after: int) -> list[str]:
        return [table.uuid for table in log.commits.tables.changed_after(after)]

    log.run(create(T2, "s.u"))
    assert (changed(0), changed(1), changed(2)) == ([T2, T1], [T2], [])
    log.run(commit(1))
    again = CommitFold(sorted(log.commits.tables.values(), key=lambda table: table.uuid))
    assert (changed(0), changed(2), changed(3)) == ([T1, T2], [T1], [])
    assert [table.uuid for table in again.tables.changed_after(0)] == [T1, T2]
    log.run(drop(T1))
    assert (changed(0), changed(3)) == ([T2], [])


def test_a_restart_knows_the_same_tables(log: Log) -> None:
    log.run(commit(1), create(T2, "s.u"), drop(T2))
    kept = {table.uuid: table for table in log.commits.take_changes()}
    again = CommitFold(kept.values())
    assert dict(again.tables) == dict(log.commits.tables)
    assert again.take([create(T2, "s.v")], 9, one(9), 0) is not None, "its UUID was used"
    assert again.take([create(T1[:-1] + "3", "s.u")], 9, one(9), 0) is None, "its name is free"
