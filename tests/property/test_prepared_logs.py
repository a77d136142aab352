"""Prepared transactions in all logs of a few words: the rules of P35 keep every promise.

Each design that was rejected breaks one; the shortest log in which it does is named here, and in
docs/decisions/0046-prepared-transactions.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.verification.model import prepared_log
from tests.verification.model.prepared_log import (
    PARTICIPANTS,
    UNTIL,
    Design,
    Outcome,
    Outcomes,
    Word,
    logs,
    shortest_counterexample,
)

from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.operation import Mark, RunFacts, Touch
from sparktxlog.protocol.effects.effects import Effects
from sparktxlog.protocol.effects.idwindow import IdWindow
from sparktxlog.protocol.effects.last_writes import LastWrites
from sparktxlog.protocol.effects.marking import Marking


def test_the_rules_keep_every_promise_in_all_short_logs() -> None:
    assert sum(1 for _ in logs()) > 15_000
    assert shortest_counterexample(Design) is None


@pytest.mark.parametrize(
    ("design", "promise", "log"),
    [
        (prepared_log.EffectWhereOrdered, "told", ["X", "a-yes", "reader", "b-yes"]),
        (prepared_log.OthersWait, "waits", ["X", "write"]),
        (prepared_log.JudgedWhereOrdered, "read", ["X", "a-yes", "write", "b-yes"]),
        (prepared_log.MarksCounted, "decided", ["X", "a-yes", "a-again"]),
        (prepared_log.AnybodyMarks, "decided", ["X", "stranger"]),
        (prepared_log.NoUndoes, "told", ["X", "a-yes", "b-yes", "b-no"]),
        (prepared_log.OwnClock, "sites", ["X", "a-yes", "a-again"]),
        (prepared_log.ToldAtOnce, "told", ["X", "a-yes", "a-again", "b-no"]),
        (prepared_log.SummaryWithoutMarks, "sites", ["X", "a-yes", "b-yes"]),
        (prepared_log.SummaryWithoutUndecided, "sites", ["X", "b-no"]),
        (prepared_log.LateYesCounts, "decided", ["X", "a-yes", "a-again", "b-yes"]),
    ],
)
def test_a_rejected_design_breaks_a_promise(
    design: Callable[[int], Design], promise: str, log: list[str]
) -> None:
    found = shortest_counterexample(design)
    assert found is not None
    assert (found[0], found[1].partition(":")[0]) == (log, promise), found
    assert shortest_counterexample(design, most=len(log) - 1) is None


_CHANGE = TableChange(keys=())
_KINDS: dict[str, dict[str, Any]] = {
    "write": {"touches": (Touch(table="t", schema_version=1),)},
    "change": {
        "touches": (Touch(table="t", schema_version=1),),
        "changes": ((0, "t", _CHANGE),),
    },
}


def _facts(word: Word, until: int) -> RunFacts:
    """Return a run of the core that is this word."""
    facts = dict(_KINDS.get(word.kind, {}))
    if word.kind == "prepare":
        facts = _KINDS["write"] | {
            "participants": tuple(sorted(PARTICIPANTS)),
            "valid_until": ((0, until),),
        }
    elif word.kind in ("yes", "no"):
        mark = Mark(transaction_id=_id("X"), participant=word.by, yes=word.kind == "yes")
        facts = {"marks": ((0, mark),)}
    if word.read is not None:
        facts["conditions"] = ((0, Condition(read_position=word.read, reads=("t",))),)
    return RunFacts(n=1, ids=_id(word.name), **facts)


def _id(name: str) -> bytes:
    return name.encode().ljust(16, b"-")


def _folded(log: tuple[Word, ...], until: int, joined: int) -> Outcomes:
    """Return what the core says of a log, if its node began from a summary on the way."""
    table = TableDefinition(name="t", columns=(Column(name="c", type="bigint"),), keys=("c",))
    tables, window = [table], IdWindow(16, max_run=4)
    writes, marking, found = LastWrites({}, 100), Marking(), Outcomes()
    effects = Effects(tables, window, writes=writes, marking=marking)
    for position, word in enumerate(log, start=1):
        rejections, _ = effects.apply(position, _facts(word, until), ts=position)
        codes = [one.code for one in rejections] or ["committed"]
        if codes != ["prepared"] and word.kind not in ("yes", "no"):
            found[word.name] = Outcome(codes[0], position)
        for one in marking.end_run(position):
            code = "committed" if one.rejection is None else one.rejection.code
            found["X"] = Outcome(code, position)
        if position == joined:
            written = {"t": writes.of("t")} if writes.winner("t") else {}
            writes, marking = LastWrites(written, 100), Marking(marking.undecided)
            known = effects.tables.values()
            effects = Effects(known, window, writes=writes, marking=marking)
    return found


def test_the_core_does_in_all_short_logs_what_the_model_does() -> None:
    for number, log in enumerate(logs()):
        joined = number % len(log)
        for until in UNTIL:
            found, expected = _folded(log, until, joined), Design(until).outcomes(log)
            assert found == expected, (log, until, joined)
