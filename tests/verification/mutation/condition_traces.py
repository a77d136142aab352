"""Directed traces of conditions and of what is known of writes (protocol P27)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.verification.mutation.lone import (
    LOG_ID,
    SECOND_US,
    Lone,
    entry_of,
    next_view,
    queued,
    tail_of,
)

from sparktxlog.model.ids import NodeId
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.conditions import Condition, TableWrites
from sparktxlog.model.transactions.operation import Touch
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import Action, PersistRestamp
from sparktxlog.protocol.messages.balloting import Decide
from sparktxlog.protocol.messages.events import PostReceived
from sparktxlog.protocol.messages.posts import MergeBase, RunHeader, chain_hash
from sparktxlog.protocol.messages.versions import NEWEST

_TABLE = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))
#: A run that creates the table, and one of which each transaction writes to it.
_CREATE: dict[str, Any] = {"creates": ((0, _TABLE),)}
_WRITE: dict[str, Any] = {"touches": (Touch(table="t", schema_version=1),)}


def _read(position: int) -> Condition:
    return Condition(read_position=position, reads=("t",))


def _expect(version: int) -> Condition:
    return Condition(versions=(("t", version),))


def _under(*conditions: Condition | None) -> dict[str, Any]:
    """Return facts of a run that writes to the table, under one condition a transaction."""
    stated = [(i, condition) for i, condition in enumerate(conditions) if condition is not None]
    return {"n": len(conditions), "conditions": tuple(stated), **_WRITE}


def _told(actions: list[Action]) -> list[tuple[int, str, int | None]]:
    """Return position, code and winner of what the appended runs reject."""
    return [
        (entry.position + one.index, one.code, one.winner)
        for appended in queued(actions)
        for entry in appended.entries
        for one in entry.rejections
    ]


def _alone(core: type[Master], **settings: Any) -> Lone:
    """Return a node that orders by itself, with the table at position 1."""
    node = Lone(core, votes={"a": 1})
    node.config = replace(node.config, **settings)
    node.start()
    assert not _told(node.submit(**_CREATE))
    return node


def _pair(core: type[Master]) -> Lone:
    """Return one of two members, with the table at position 1."""
    node = Lone(core, votes={"a": 1, "b": 1})
    run = node.run_of("b", 1, node.now, **_CREATE)
    assert not _told(node.push(run) + _heard(node, run))
    assert node.master.base.position == 1
    return node


def _heard(node: Lone, *runs: RunHeader, epoch: int = 1) -> list[Action]:
    """Let `b` say that it stamped these runs, and has all that this node stamped."""
    node.now += SECOND_US
    own = {"a": node.master.standing.seq_now}
    post = replace(
        node.post_of("b", node.now, *runs),
        epoch=epoch,
        known=own,
        acquired=own,
        base=node.master.base,
        last_seq=max([run.last for run in runs], default=2),
    )
    return node.feed(PostReceived(post=post))


def reads_are_judged_where_they_take_effect(core: type[Master]) -> None:
    """P27: another origin wrote before it in the order: what the accepting node saw is nothing."""
    node = _pair(core)
    other = node.run_of("b", 2, node.now + 1, **_WRITE)
    node.now += SECOND_US
    accepted = node.submit(**_under(_read(1)))
    assert not queued(accepted), "b has not said that it stamps nothing before"
    actions = node.push(other) + _heard(node, other)
    assert _told(actions) == [(3, "conflict", 2)]
    assert node.master.writes("t") == TableWrites(version=1, position=2)
    node.submit(**_under(_read(2)))
    assert _told(_heard(node)) == [], "nobody wrote after position 2: what lost wrote nothing"


def a_run_sees_its_own_writes(core: type[Master]) -> None:
    """P27: transactions of one run are judged in order; what is rejected writes nothing."""
    node = _alone(core)
    run = _under(None, _read(1), _expect(1), _read(2), _read(4), _expect(1))
    assert _told(node.submit(**run)) == [(3, "conflict", 2), (5, "conflict", 4), (7, "conflict", 6)]
    assert node.master.writes("t") == TableWrites(version=3, position=6)


def a_table_is_written_once_by_a_transaction(core: type[Master]) -> None:
    """P27: a version counts transactions, not operations, blocks or runs; repeats do not count."""
    node = _alone(core)
    touches = tuple(Touch(table="t", schema_version=1, txs=txs) for txs in ((0, 1), (1, 2)))
    node.submit(4, touches=touches)
    assert node.master.writes("t") == TableWrites(version=3, position=4)
    ids = bytes(node.submits[2].facts.ids[32:])
    node.submit(3, ids=(99).to_bytes(16, "big") + ids, **_WRITE)
    assert node.master.writes("t") == TableWrites(version=4, position=6)
    assert not _told(node.submit(**_under(_expect(4))))


def a_read_is_as_old_as_the_window(core: type[Master]) -> None:
    """P27: what was read longer ago than the window is a conflict, whatever was written since."""
    node = _alone(core, condition_window=4)
    node.submit(3)
    assert _told(node.submit(**_under(_read(1), _read(1)))) == [(6, "conflict", None)]


def a_table_that_is_not_there_is_unknown(core: type[Master]) -> None:
    """P27: a condition about a table that comes later, or by its own transaction, names nothing."""
    node = Lone(core, votes={"a": 1})
    actions = node.submit(2, conditions=((0, _expect(0)), (1, _expect(0))), creates=((1, _TABLE),))
    assert _told(actions) == [(1, "unknown-table", None), (2, "unknown-table", None)]
    assert not dict(node.master.tables)
    both = node.submit(2, conditions=((1, _expect(0)),), creates=((0, _TABLE),), **_WRITE)
    assert _told(both) == [(4, "conflict", 3)]
    assert node.master.writes("t") == TableWrites(version=1, position=3)


def writes_survive_a_restart(core: type[Master]) -> None:
    """P27: a node that starts judges as those that went on."""
    node = _alone(core)
    node.submit(2, **_WRITE)
    node.start()
    assert node.master.writes("t") == TableWrites(version=2, position=3)
    assert _told(node.submit(**_under(_read(2), _expect(2)))) == [(4, "conflict", 3)]


def a_repeat_is_no_conflict(core: type[Master]) -> None:
    """P25c, P27: what took effect stays committed, though its own write broke its read."""
    node = _alone(core)
    assert not _told(node.submit(**_under(_read(1))))
    again = {**_under(_read(1)), "ids": node.submits[2].facts.ids}
    assert _told(node.submit(**again)) == [(3, "duplicate-transaction", None)]


def a_new_stamp_is_judged_at_its_new_place(core: type[Master]) -> None:
    """P20, P27: what the final queue left out is judged where it takes effect later."""
    node = _pair(core)
    node.submit(**_under(_read(1)))
    other = node.run_of("b", 2, node.now + 5 * SECOND_US, **_WRITE)
    node.push(other)
    base = node.master.base
    end = MergeBase(position=2, chain_hash=chain_hash(base.chain_hash, other), origin="b", seq=2)
    view = replace(next_view(node.view, "a", "b"), base=base, tail=(other,), end=end)
    actions = node.hear(Decide(sender=NodeId("b"), view=view))
    assert [a.header.epoch for a in actions if isinstance(a, PersistRestamp)] == [2]
    node.now += 10 * SECOND_US
    assert _told(_heard(node, epoch=2)) == [(3, "conflict", 2)]


def a_table_counts_as_written_where_it_was_created(core: type[Master]) -> None:
    """P27: what was read before a table was created lost to its creation."""
    node = _alone(core)
    assert _told(node.submit(**_under(_read(0), _read(1)))) == [(2, "conflict", 1)]


def a_tail_waits_for_its_rules(core: type[Master]) -> None:
    """P31: runs of a later epoch wait for its view, which may bring another version into force."""
    node = Lone(core)
    node.config = replace(node.config, newest=NEWEST + 1)
    node.start()
    first = node.run_of("b", 1, node.now, **_CREATE)
    second = replace(node.run_of("b", 2, node.now + 1, **_WRITE), epoch=2)
    node.hear(node.prepare("b", 1))  # a member takes nothing of a later epoch, but for this
    entries = [entry_of(first, 1, bytes(32))]
    entries.append(entry_of(second, 2, entries[0].chain_hash))
    for entry in entries:
        node.feed(tail_of(LOG_ID, entry))
        node.push(entry.header)
    assert node.master.base.position == 1, "nobody said which rules hold in epoch 2"
    end = MergeBase(position=1, chain_hash=entries[0].chain_hash, origin="b", seq=1)
    view = replace(
        next_view(node.view, "a", "b", "c"),
        base=end,
        end=end,
        version=NEWEST + 1,
    )
    node.hear(Decide(sender=NodeId("b"), view=view))
    node.feed(tail_of(LOG_ID, entries[1]))
    node.push(second)
    node.feed(tail_of(LOG_ID, entries[1]))
    assert node.master.base.position == 2
    assert node.disk.writes == {"t": TableWrites(version=1, position=2)}
