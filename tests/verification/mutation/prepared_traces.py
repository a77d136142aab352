"""Directed traces of prepared transactions and of the marks that decide them (protocol P35)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.verification.mutation.lone import LOG_ID, SECOND_US, Lone, entry_of, queued, tail_of

from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.conditions import Condition, TableWrites
from sparktxlog.model.transactions.operation import Mark, Touch
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import Action, Alarm
from sparktxlog.protocol.messages.events import PostReceived
from sparktxlog.protocol.messages.posts import Verdict

_TABLE = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))
_CREATE: dict[str, Any] = {"creates": ((0, _TABLE),)}
_WRITE: dict[str, Any] = {"touches": (Touch(table="t", schema_version=1),)}
_CHANGE: dict[str, Any] = {
    "changes": ((0, "t", TableChange(add=(Column(name="note", type="string"),))),),
    **_WRITE,
}
_X, _Y = b"x" * 16, b"y" * 16
#: Where a trace begins, and how long what it prepares is valid.
_START_US, _VALID_US = 10 * SECOND_US, 60 * SECOND_US


def _prepared(
    *names: str, one: bytes = _X, read: int | None = None, valid_us: int = _VALID_US
) -> dict[str, Any]:
    """Return facts of a prepared run that writes to the table."""
    condition = Condition(read_position=read, reads=("t",))
    return {
        "ids": one,
        "participants": names,
        "valid_until": ((0, _START_US + valid_us),),
        "conditions": () if read is None else ((0, condition),),
        **_WRITE,
    }


def _said(*marks: str, of: bytes = _X) -> dict[str, Any]:
    """Return facts of a run of marks: `a` is a YES of a, `-a` its NO."""
    said = [Mark(transaction_id=of, participant=m.strip("-"), yes="-" not in m) for m in marks]
    return {"n": len(said), "marks": tuple(enumerate(said))}


def _verdicts(actions: list[Action]) -> list[tuple[int, int, str]]:
    """Return where each was ordered, where it is decided, and why it takes no effect."""
    return [
        (one.position, entry.position + one.index, one.rejection.code if one.rejection else "")
        for appended in queued(actions)
        for entry in appended.entries
        for one in entry.verdicts
    ]


def _codes(actions: list[Action]) -> list[tuple[int, str]]:
    """Return position and code of what the appended runs reject."""
    return [
        (entry.position + one.index, one.code)
        for appended in queued(actions)
        for entry in appended.entries
        for one in entry.rejections
    ]


def _alone(core: type[Master]) -> Lone:
    """Return a node that orders by itself, with the table at position 1."""
    node = Lone(core, votes={"a": 1})
    assert not _codes(node.submit(**_CREATE))
    return node


def the_last_yes_lets_it_take_effect_there(core: type[Master]) -> None:
    """P35: what was prepared is a write in the place of the last YES, and nothing before."""
    node = _alone(core)
    assert _codes(node.submit(**_prepared("p", "q"))) == [(2, "prepared")]
    assert node.master.writes("t") == TableWrites(version=0, position=1)
    node.submit(**_WRITE)
    assert _verdicts(node.submit(**_said("p", "p"))) == [], "one participant said YES, twice"
    assert _verdicts(node.submit(**_said("p", "q"))) == [(2, 7, "")]
    assert node.master.writes("t") == TableWrites(version=2, position=7)


def a_no_is_final(core: type[Master]) -> None:
    """P35: a participant may say NO after its own YES, and no YES counts after that."""
    node = _alone(core)
    node.submit(**_prepared("p", "q"))
    node.submit(**_said("p"))
    assert _verdicts(node.submit(**_said("-p"))) == [(2, 4, "rolled-back")]
    assert _codes(node.submit(**_said("q", "p"))) == [(5, "not-prepared"), (6, "not-prepared")]
    assert node.master.writes("t") == TableWrites(version=0, position=1)


def a_stranger_decides_nothing(core: type[Master]) -> None:
    """P35: only participants count, for YES and for NO."""
    node = _alone(core)
    node.submit(**_prepared("p"))
    actions = node.submit(**_said("s", "-s"))
    assert _codes(actions) == [(3, "not-a-participant"), (4, "not-a-participant")]
    assert _verdicts(actions) == []


def what_it_read_is_compared_at_its_place(core: type[Master]) -> None:
    """P27, P35: somebody wrote after it was ordered; all said YES, and it lost."""
    node = _alone(core)
    node.submit(**_prepared("p", read=1))
    node.submit(**_WRITE)
    actions = node.submit(**_said("p"))
    assert (_verdicts(actions), _codes(actions)) == ([(2, 4, "conflict")], [])
    assert node.master.writes("t") == TableWrites(version=1, position=3), "it wrote nothing"


def a_table_changed_before_the_last_yes(core: type[Master]) -> None:
    """P33, P35: it was made for a schema that the table has no more where it would take effect."""
    node = _alone(core)
    node.submit(**_prepared("p"))
    assert not _codes(node.submit(**_CHANGE))
    assert _verdicts(node.submit(**_said("p"))) == [(2, 4, "stale-schema")]


def what_lost_already_is_not_prepared(core: type[Master]) -> None:
    """P35: what does not fit where it is ordered is rejected there; nobody is asked in vain."""
    node = _alone(core)
    node.submit(**_WRITE)
    assert _codes(node.submit(**_prepared("p", read=1))) == [(3, "conflict")]
    assert _codes(node.submit(**_said("p"))) == [(4, "not-prepared")]


def a_repeat_is_not_prepared_again(core: type[Master]) -> None:
    """P25c, P35: the same transaction again changes nothing, and no mark is lost by it."""
    node = _alone(core)
    node.submit(**_prepared("p", "q"))
    node.submit(**_said("p"))
    assert _codes(node.submit(**_prepared("p", "q"))) == [(4, "duplicate-transaction")]
    assert _verdicts(node.submit(**_said("q"))) == [(2, 5, "")]
    assert _codes(node.submit(**_prepared("p", "q"))) == [(6, "duplicate-transaction")]


def log_time_decides_before_the_run_that_brings_it(core: type[Master]) -> None:
    """P35: the last YES comes with the first timestamp that is too late."""
    node = _alone(core)
    node.submit(**_prepared("p", valid_us=5 * SECOND_US))
    node.submit(**_prepared("p", one=_Y))
    node.now = _START_US + 5 * SECOND_US + 1
    actions = node.submit(**_said("p"))
    assert (_verdicts(actions), _codes(actions)) == (
        [(2, 4, "expired-transaction")],
        [(4, "not-prepared")],
    )
    node.now = _START_US + _VALID_US + SECOND_US
    assert _verdicts(node.submit()) == [(3, 5, "expired-transaction")], "any run lets time pass"


def a_yes_may_come_at_the_last_moment(core: type[Master]) -> None:
    """P35: it is valid until its time, and at its time."""
    node = _pair(core)
    until = _START_US + _VALID_US
    node.push(node.run_of("b", 2, node.now + 1, **_prepared("p")))
    run = node.run_of("b", 3, until, **_said("p"))
    node.push(run)
    assert _verdicts(_heard(node, run)) == [(2, 3, "")]


def undecided_ones_survive_a_restart(core: type[Master]) -> None:
    """P35: a node that starts knows what is undecided, each YES, and what is decided."""
    node = _alone(core)
    node.submit(**_prepared("p", "q", read=1))
    node.start()
    node.submit(**_said("p"))
    node.start()
    assert _verdicts(node.submit(**_said("q"))) == [(2, 4, "")]
    node.start()
    assert _codes(node.submit(**_said("q"))) == [(5, "not-prepared")]
    assert node.master.writes("t") == TableWrites(version=1, position=4)


def a_tail_with_another_verdict_stops_the_node(core: type[Master]) -> None:
    """I7, P35: a node that decides otherwise than a node that is ahead is wrong, or that one is."""
    for position, stops in ((2, False), (3, True)):
        node = _pair(core)
        prepared = node.run_of("b", 2, node.now + 1, **_prepared("p"))
        node.push(prepared)
        _heard(node, prepared)
        marks = node.run_of("b", 3, node.now + 1, **_said("p"))
        verdict = Verdict(transaction_id=_X, position=position, index=0)
        entry = entry_of(marks, 3, node.master.base.chain_hash)
        node.feed(tail_of(LOG_ID, replace(entry, verdicts=(verdict,))))
        actions = node.push(marks)
        assert any(isinstance(a, Alarm) and a.fatal for a in actions) == stops


def there_is_room_for_so_many_bytes(core: type[Master]) -> None:
    """P35: what would be too much is rejected in its place; a decision makes room."""
    node = _pair(core)
    ids = [bytes([at]) * 16 for at in range(3)]
    large = 200 << 20
    runs = [
        replace(node.run_of("b", 2 + at, node.now + 1 + at, **facts), size_bytes=large)
        for at, facts in enumerate(
            (
                _prepared("p", one=ids[0]),
                _prepared("p", one=ids[1]),
                _said("-p", of=ids[0]),
                _prepared("p", one=ids[2]),
            )
        )
    ]
    actions = [action for run in runs for action in node.push(run)] + _heard(node, *runs)
    assert _codes(actions) == [(2, "prepared"), (3, "too-many-prepared"), (5, "prepared")]


def _pair(core: type[Master]) -> Lone:
    """Return one of two members, with the table at position 1."""
    node = Lone(core, votes={"a": 1, "b": 1})
    run = node.run_of("b", 1, node.now, **_CREATE)
    node.push(run)
    _heard(node, run)
    assert node.master.base.position == 1
    return node


def _heard(node: Lone, *runs: Any) -> list[Action]:
    """Let `b` say that it stamped these runs."""
    node.now += SECOND_US
    last = max(run.last for run in runs)
    counter = max(node.now, *(run.ts for run in runs))
    post = node.post_of("b", counter, *runs)
    post = replace(post, base=node.master.base, last_seq=last, acquired={"b": last})
    return node.feed(PostReceived(post=post))
