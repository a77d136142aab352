"""Directed traces of commit tables: which commit becomes which version (protocol P36)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.verification.mutation.lone import LOG_ID, Lone, entry_of, queued, tail_of

from sparktxlog.model.tables.alteration import DROPPED
from sparktxlog.model.tables.commit_table import CommitKind, CommitOperation
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.conditions import Condition, TableWrites
from sparktxlog.model.transactions.operation import Touch
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import Action, Alarm
from sparktxlog.protocol.messages.posts import Rejection

_T1, _T2, _T3 = (f"00000000-0000-4000-8000-00000000000{n}" for n in (1, 2, 3))
#: In-commit timestamp of a version 0; each later one is one later.
_START_MS = 1_000


def _create(uuid: str = _T1, name: str = "s.t", version: int = 0) -> CommitOperation:
    return CommitOperation(
        kind=CommitKind.CREATE, uuid=uuid, name=name, version=version, timestamp=_START_MS
    )


def _commit(version: int, uuid: str = _T1, timestamp: int = 0) -> CommitOperation:
    timestamp = timestamp or _START_MS + version
    return CommitOperation(kind=CommitKind.COMMIT, uuid=uuid, version=version, timestamp=timestamp)


def _drop(uuid: str = _T1) -> CommitOperation:
    return CommitOperation(kind=CommitKind.DROP, uuid=uuid)


def _rename(name: str, uuid: str = _T1) -> CommitOperation:
    return CommitOperation(kind=CommitKind.RENAME, uuid=uuid, name=name)


def _run(node: Lone, *commits: CommitOperation, held: bool = True) -> list[str]:
    """Let a node commit a run; return index and code of what is rejected.

    Args:
        held: False: the first one has a condition that does not hold.
    """
    conditions = () if held else ((0, Condition(versions=(("nothing", 1),))),)
    actions = node.submit(len(commits), commits=tuple(enumerate(commits)), conditions=conditions)
    return [f"{one.index} {one.code}" for one in _rejections(actions)]


def _written(version: int) -> tuple[tuple[int, Condition], ...]:
    """Return the condition of a run's only transaction that its row table has a version."""
    return ((0, Condition(versions=(("t", version),))),)


def _rejections(actions: list[Action]) -> list[Rejection]:
    return [one for appended in queued(actions) for e in appended.entries for one in e.rejections]


def _versions(node: Lone) -> dict[str, int]:
    """Return UUID → newest version of the tables that exist."""
    tables = node.master.commit_tables
    found = {uuid: tables.get(uuid) for uuid in tables}
    return {uuid: -1 if table is None else table.version for uuid, table in found.items()}


def _alone(core: type[Master]) -> Lone:
    """Return a node that orders by itself, with a commit table from position 1 on."""
    node = Lone(core, votes={"a": 1})
    assert _run(node, _create()) == []
    return node


def each_version_follows_the_one_before(core: type[Master]) -> None:
    """P36: a version is one commit, and none is left out."""
    node = _alone(core)
    assert _run(node, _commit(1)) == []
    assert _run(node, _commit(1, timestamp=5_000)) == ["0 version-conflict"], "it is taken"
    assert _run(node, _commit(3, timestamp=5_000)) == ["0 version-conflict"], "2 is missing"
    assert _run(node, _commit(2)) == []
    assert _versions(node) == {_T1: 2}


def the_first_of_a_run_wins(core: type[Master]) -> None:
    """P36: each commit sees those before it in its run; a loser gets its winner."""
    node = _alone(core)
    commits = ((0, _commit(1)), (1, _commit(2)), (2, _commit(2)))
    (lost,) = _rejections(node.submit(3, commits=commits))
    winner = node.facts[(2).to_bytes(32, "big")].ids[16:32]
    named = (lost.table, lost.version, lost.winner, lost.winner_id)
    assert (lost.index, named) == (2, ("s.t", 2, 3, winner))


def all_commits_of_a_transaction_or_none(core: type[Master]) -> None:
    """P36: a loser takes the others with it, whichever stands first, and names its winner."""
    node = _alone(core)
    assert _run(node, _create(_T2, "s.u"), _commit(1, _T2)) == []
    for both in ((_commit(1), _commit(1, _T2)), (_commit(1, _T2), _commit(1))):
        lost = _rejections(node.submit(commits=tuple((0, one) for one in both)))
        named = [(one.code, one.table, one.version, one.winner) for one in lost]
        assert named == [("version-conflict", "s.u", 1, 3)]
        assert _versions(node) == {_T1: 0, _T2: 1}, "nothing of it took effect"
    three = (_commit(1), _commit(2, _T2), _create(_T3, "s.v"))
    assert not _rejections(node.submit(commits=tuple((0, one) for one in three)))
    assert _versions(node) == {_T1: 1, _T2: 2, _T3: 0}
    assert len({table.position for table in node.master.commit_tables.values()}) == 1


def a_transaction_is_judged_by_what_was_before(core: type[Master]) -> None:
    """P36: to drop a table and to create one of its name take two transactions."""
    node = _alone(core)
    both = ((0, _drop()), (0, _create(_T2)))
    assert [one.code for one in _rejections(node.submit(commits=both))] == ["name-taken"]
    assert _versions(node) == {_T1: 0}


def rows_and_commits_are_one_transaction(core: type[Master]) -> None:
    """P27, P36: rows are written if the commits take effect, and commits if the rows are."""
    node = Lone(core, votes={"a": 1})
    node.submit(creates=((0, TableDefinition(name="t", columns=(Column(name="id", type="int"),))),))
    assert _run(node, _create()) == []
    more: dict[str, Any] = {"touches": (Touch(table="t", schema_version=1),)}
    lost = _rejections(node.submit(commits=((0, _commit(2)),), conditions=_written(0), **more))
    assert [one.code for one in lost] == ["version-conflict"]
    lost = _rejections(node.submit(commits=((0, _commit(1)),), conditions=_written(1), **more))
    assert [one.code for one in lost] == ["conflict"], "the rows of what lost were not written"
    assert _versions(node) == {_T1: 0}
    assert not _rejections(node.submit(commits=((0, _commit(1)),), conditions=_written(0), **more))
    assert (_versions(node), node.master.writes("t")) == (
        {_T1: 1},
        TableWrites(version=1, position=5),
    )


def in_commit_timestamps_grow(core: type[Master]) -> None:
    """P36: the next version with a timestamp that is not later takes no effect."""
    node = _alone(core)
    assert _run(node, _commit(1, timestamp=_START_MS - 1)) == ["0 stale-timestamp"]
    assert _run(node, _commit(1, timestamp=_START_MS)) == ["0 stale-timestamp"]
    assert _run(node, _commit(1, timestamp=_START_MS + 1)) == []
    assert _run(node, _commit(2, timestamp=_START_MS + 1)) == ["0 stale-timestamp"], "once more"


def a_name_belongs_to_one_table(core: type[Master]) -> None:
    """P36: two tables never have one name, and its case is ignored."""
    node = _alone(core)
    assert _run(node, _create(_T2)) == ["0 name-taken"]
    assert _run(node, _create(_T2, "S.T")) == ["0 name-taken"]
    assert _versions(node) == {_T1: 0}


def a_name_is_of_one_kind_of_table(core: type[Master]) -> None:
    """P36: the first in the order has the name, whichever kind it is of; case is ignored."""
    node = _alone(core)
    rows = TableDefinition(name="S.T", columns=(Column(name="id", type="int"),))
    other = replace(rows, name="orders")

    def lost(*creates: TableDefinition, commits: tuple[CommitOperation, ...] = ()) -> list[str]:
        found = node.submit(
            creates=tuple((0, one) for one in creates), commits=tuple((0, one) for one in commits)
        )
        return [one.code for one in _rejections(found)]

    assert lost(rows) == ["name-taken"], "a row table with the name of a commit table"
    assert lost(other) == []
    assert _run(node, _create(_T2, "default.Orders")) == ["0 name-taken"], "and the other way round"
    assert _run(node, _rename("default.orders")) == ["0 name-taken"], "nor by a new name"
    assert lost(replace(other, name="new"), commits=(_create(_T2, "default.new"),)) == [
        "name-taken"
    ]
    assert set(node.master.tables) == {"orders"} and _versions(node) == {_T1: 0}
    change = (Touch(table="orders", schema_version=1),), ((0, "orders", DROPPED),)
    node.submit(touches=change[0], changes=change[1])
    assert _run(node, _create(_T2, "default.orders")) == [], "a drop frees the name"
    assert lost(replace(other, name="ORDERS")) == ["name-taken"], "of a dropped one, too"
    assert _run(node, _drop()) == []
    assert lost(rows) == []


def a_dropped_table_is_gone_for_ever(core: type[Master]) -> None:
    """P36: its name is free, its UUID is not, and nobody commits to it any more."""
    node = _alone(core)
    assert _run(node, _drop()) == []
    assert _run(node, _commit(1), _drop()) == ["0 unknown-table", "1 unknown-table"]
    assert _run(node, _create(_T1, "s.other")) == ["0 name-taken"]
    assert _run(node, _create(_T2)) == []
    assert _versions(node) == {_T2: 0}


def a_renamed_table_is_the_same(core: type[Master]) -> None:
    """P36: its UUID and versions stay, its old name is free, and its new one must be."""
    node = _alone(core)
    assert _run(node, _create(_T2, "s.u"), _commit(1)) == []
    committed = node.master.commit_tables[_T1]
    assert _run(node, _rename("S.U"), _rename("s.v", _T3)) == ["0 name-taken", "1 unknown-table"]
    assert _run(node, _rename("S.T")) == [], "only its case"
    assert _run(node, _create(_T3)) == ["0 name-taken"]
    assert _run(node, _rename("s.v"), _create(_T3)) == []
    assert _run(node, _create(f"{_T3[:-1]}4", "s.v")) == ["0 name-taken"]
    both = ((0, _rename("s.w")), (0, _rename("s.t", _T2)))
    assert [one.code for one in _rejections(node.submit(commits=both))] == ["name-taken"]
    for _ in range(2):
        named = {table.name for table in node.master.commit_tables.values()}
        assert named == {"s.v", "s.u", "s.t"}
        found = node.master.commit_tables[_T1]
        who = (found.version, found.position, found.transaction_id)
        assert who == (1, committed.position, committed.transaction_id)
        node.start()
    (lost,) = _rejections(node.submit(commits=((0, _commit(1)),)))
    assert (lost.table, lost.winner) == ("s.v", committed.position)
    assert _run(node, _commit(2)) == []
    node.start()
    assert "s.v" in {table.name for table in node.master.commit_tables.values()}
    assert _run(node, _drop(), _rename("s.x")) == ["1 unknown-table"]


def a_table_begins_with_the_version_it_has(core: type[Master]) -> None:
    """P36: a table that had commits before it came to the log goes on from there."""
    node = _alone(core)
    assert _run(node, _create(_T2, "s.u", version=7)) == []
    assert _run(node, _commit(8, _T2)) == []


def what_is_rejected_commits_nothing(core: type[Master]) -> None:
    """P27, P36: a commit under a condition that does not hold takes no version."""
    node = _alone(core)
    assert _run(node, _commit(1), held=False) == ["0 unknown-table"]
    assert _run(node, _commit(1)) == []


def commit_tables_survive_a_restart(core: type[Master]) -> None:
    """P36: a node that starts knows each table's newest version, and which are dropped."""
    node = _alone(core)
    assert _run(node, _create(_T2, "s.u"), _commit(1), _commit(2)) == []
    node.start()
    assert _versions(node) == {_T1: 2, _T2: 0}
    assert _run(node, _drop(_T2)) == []
    node.start()
    assert _versions(node) == {_T1: 2}
    assert _run(node, _create(_T3, "s.u"), _create(_T2, "s.v")) == ["1 name-taken"]


def a_tail_with_another_version_stops_the_node(core: type[Master]) -> None:
    """I7, P36: a commit that wins here, and lost where the queue is longer."""
    node = Lone(core, votes={"a": 1, "b": 1})
    run = node.run_of("b", 1, node.now, commits=((0, _create()),))
    lost = Rejection(index=0, code="version-conflict", text="", version=1)
    entry = entry_of(run, 1, node.master.base.chain_hash)
    node.feed(tail_of(LOG_ID, replace(entry, rejections=(lost,))))
    actions = node.push(run)
    assert any(isinstance(a, Alarm) and a.fatal for a in actions)
