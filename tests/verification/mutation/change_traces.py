"""Directed traces of tables that change (protocol P33)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.verification.mutation.lone import SECOND_US, Lone, queued

from sparktxlog.model.tables.alteration import DROPPED, TableChange
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.conditions import Condition, TableWrites
from sparktxlog.model.transactions.operation import Touch
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import Action
from sparktxlog.protocol.messages.events import PostReceived
from sparktxlog.protocol.messages.posts import RunHeader

_TABLE = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))
_NOTE = TableChange(add=(Column(name="note", type="string"),))
_NAMES = (
    _NOTE,
    TableChange(rename=(("id", "number"),)),
    TableChange(drop=("note",)),
    _NOTE,
)
_CREATE: dict[str, Any] = {"creates": ((0, _TABLE),)}
_DROP = ((0, "t", DROPPED),)


def _writes(version: int, *txs: int) -> Touch:
    return Touch(table="t", schema_version=version, txs=txs)


def _changing(index: int = 0, version: int = 1) -> dict[str, Any]:
    """Return facts of a run in which one transaction changes the table."""
    return {"touches": (_writes(version, index),), "changes": ((index, "t", _NOTE),)}


def _told(actions: list[Action]) -> list[tuple[int, str, int | None]]:
    """Return position, code and winner of what the appended runs reject."""
    return [
        (entry.position + one.index, one.code, one.winner)
        for appended in queued(actions)
        for entry in appended.entries
        for one in entry.rejections
    ]


def _alone(core: type[Master]) -> Lone:
    """Return a node that orders by itself, with the table at position 1."""
    node = Lone(core, votes={"a": 1})
    node.start()
    assert not _told(node.submit(**_CREATE))
    return node


def _columns(node: Lone) -> tuple[int, list[str]]:
    table = node.master.tables["t"]
    return table.schema_version, [column.name for column in table.columns]


def a_change_counts_from_its_place_on(core: type[Master]) -> None:
    """P33: of one run, those before the change know the old schema, those after it the new one."""
    node = _alone(core)
    touches = (_writes(1, 0, 1, 2), _writes(2, 3), _writes(3, 4))
    told = _told(node.submit(5, touches=touches, changes=((1, "t", _NOTE),)))
    assert told == [(4, "stale-schema", 3), (6, "stale-schema", 5)]
    assert _columns(node) == (2, ["id", "note"])


def a_stale_writer_of_another_site_is_rejected(core: type[Master]) -> None:
    """P33: its node knew the table as it was; another site's change came before it in the order."""
    node = Lone(core, votes={"a": 1, "b": 1})
    first = node.run_of("b", 1, node.now, **_CREATE)
    assert not _told(node.push(first) + _heard(node, first))
    change = node.run_of("b", 2, node.now + 1, **_changing())
    node.now += SECOND_US
    assert not queued(node.submit(touches=(_writes(1, 0),))), "b may have stamped something before"
    assert _told(node.push(change) + _heard(node, change)) == [(3, "stale-schema", 2)]
    node.submit(touches=(_writes(2, 0),))
    assert _told(_heard(node)) == []


def _heard(node: Lone, *runs: RunHeader) -> list[Action]:
    """Let `b` say that it stamped these runs, and has all that this node stamped."""
    node.now += SECOND_US
    own = {"a": node.master.standing.seq_now}
    post = replace(
        node.post_of("b", node.now, *runs),
        known=own,
        acquired=own,
        base=node.master.base,
        last_seq=max([run.last for run in runs], default=2),
    )
    return node.feed(PostReceived(post=post))


def of_two_changes_the_first_wins(core: type[Master]) -> None:
    """P33: two changes of one schema version: the second one was made for what is no more."""
    node = _alone(core)
    assert not _told(node.submit(**_changing()))
    other = TableChange(add=(Column(name="rank", type="int"),))
    again: dict[str, Any] = {"touches": (_writes(1, 0),), "changes": ((0, "t", other),)}
    assert _told(node.submit(**again)) == [(3, "stale-schema", 2)]
    assert _columns(node) == (2, ["id", "note"])


def what_lost_changes_nothing(core: type[Master]) -> None:
    """P27, P33: a transaction whose condition does not hold leaves its table as it was."""
    node = _alone(core)
    unread = ((0, Condition(versions=(("t", 7),))),)
    assert _told(node.submit(**_changing(), conditions=unread)) == [(2, "conflict", 1)]
    assert _columns(node) == (1, ["id"])
    assert not _told(node.submit(touches=(_writes(1, 0),)))


def a_change_is_a_write(core: type[Master]) -> None:
    """P27, P33: what was read before a change lost to it; the table's version goes on."""
    node = _alone(core)
    node.submit(touches=(_writes(1, 0),))
    node.submit(**_changing())
    assert node.master.writes("t") == TableWrites(version=2, position=3)
    read = ((0, Condition(read_position=2, reads=("t",))),)
    told = _told(node.submit(touches=(_writes(2, 0),), conditions=read))
    assert told == [(4, "conflict", 3)]


def changes_survive_a_restart(core: type[Master]) -> None:
    """P33: a node that starts knows the schema version that is in force."""
    node = _alone(core)
    node.submit(**_changing())
    node.start()
    assert _columns(node) == (2, ["id", "note"])
    told = _told(node.submit(2, touches=(_writes(1, 0), _writes(2, 1))))
    assert told == [(3, "stale-schema", 2)]


def a_repeated_change_is_a_repeat(core: type[Master]) -> None:
    """P25c, P33: the same transaction again is answered as a repeat, and changes nothing again."""
    node = _alone(core)
    node.submit(**_changing())
    again = {**_changing(), "ids": node.submits[2].facts.ids}
    assert _told(node.submit(**again)) == [(3, "duplicate-transaction", None)]
    assert _columns(node) == (2, ["id", "note"])


def names_in_files_stay_and_are_never_given_again(core: type[Master]) -> None:
    """P33: the rows of a renamed or dropped column are still in the files, under the old name."""
    node = _alone(core)
    for version, change in enumerate(_NAMES, start=1):
        touches = (_writes(version, 0),)
        assert not _told(node.submit(touches=touches, changes=((0, "t", change),)))
    node.start()
    found = [(column.name, column.in_files) for column in node.master.tables["t"].columns]
    assert found == [("number", "id"), ("note", "__txlog_5_note")]


def a_renamed_table_is_created_again_without_effect(core: type[Master]) -> None:
    """P25b, P33: the creator of a table names its columns as users see them."""
    node = _alone(core)
    rename = TableChange(rename=(("id", "number"),))
    assert not _told(node.submit(touches=(_writes(1, 0),), changes=((0, "t", rename),)))
    like = replace(_TABLE, columns=(Column(name="number", type="bigint"),))
    assert not _told(node.submit(creates=((0, like),)))
    assert _told(node.submit(creates=((0, _TABLE),))) == [(4, "schema-mismatch", None)]
    assert _columns(node) == (2, ["number"])


def a_dropped_table_is_unknown_from_its_place_on(core: type[Master]) -> None:
    """P33: of one run, those before the drop take effect, and those after it find no table."""
    node = _alone(core)
    touches = (_writes(1, 0, 1, 2), _writes(2, 3))
    told = _told(node.submit(4, touches=touches, changes=((1, "t", DROPPED),)))
    assert told == [(4, "unknown-table", None), (5, "unknown-table", None)]
    assert "t" not in node.master.tables and not list(node.master.tables)


def what_was_made_for_a_dropped_table_does_not_fit_the_next_one(core: type[Master]) -> None:
    """P33: schema versions of a name go on, so none of them is that of two tables."""
    node = _alone(core)
    assert not _told(node.submit(touches=(_writes(1, 0),), changes=_DROP))
    assert not _told(node.submit(**_CREATE))
    touches = (_writes(1, 0), _writes(2, 1), _writes(3, 2))
    told = _told(node.submit(3, touches=touches))
    assert told == [(4, "stale-schema", 3), (5, "stale-schema", 3)]
    assert _columns(node) == (3, ["id"])


def what_rests_on_a_dropped_table_never_holds_again(core: type[Master]) -> None:
    """P27, P33: neither while there is no table, nor once there is another one of its name."""
    node = _alone(core)
    node.submit(touches=(_writes(1, 0),))
    node.submit(touches=(_writes(1, 0),), changes=_DROP)
    rests = [Condition(read_position=2, reads=("t",))]
    rests += [Condition(versions=(("t", version),)) for version in (0, 1, 2)]
    conditions = tuple(enumerate(rests))
    told = _told(node.submit(4, conditions=conditions))
    assert [code for _, code, _ in told] == ["unknown-table"] * 4
    assert not _told(node.submit(**_CREATE))
    assert node.master.writes("t") == TableWrites(version=3, position=8)
    told = _told(node.submit(4, conditions=conditions))
    assert told == [(at, "conflict", 8) for at in range(9, 13)]


def a_drop_survives_a_restart(core: type[Master]) -> None:
    """P33: a node that starts has no dropped table, and knows where its schema versions go on."""
    node = _alone(core)
    node.submit(touches=(_writes(1, 0),), changes=_DROP)
    node.start()
    assert _told(node.submit(touches=(_writes(1, 0),))) == [(3, "unknown-table", None)]
    node.submit(**_CREATE)
    node.start()
    assert _columns(node) == (3, ["id"])
