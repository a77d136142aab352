"""The succession yields outcomes, and the master applies each one before the next step."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.verification.mutation.lone import Lone

from sparktxlog.protocol.epoch import succession
from sparktxlog.protocol.epoch.outcomes import Outcomes, SuspectNodes, Wedge
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.view import Phase


def test_a_method_goes_on_after_its_outcome_was_applied() -> None:
    master = Lone(Master).master
    seen: list[Phase] = []

    def method() -> Outcomes:
        yield SuspectNodes((master.view.members[1],))
        seen.append(master.phase)
        yield Wedge("because")
        seen.append(master.phase)

    master._apply(method(), 0)
    assert seen == [Phase.SUSPECT, Phase.WEDGED]


def test_no_outcome_is_dropped() -> None:
    """A generator that is only called does nothing: `yield from` stands before each call."""
    tree = ast.parse(Path(succession.__file__).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    yielding = {
        function.name
        for function in functions
        if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(function))
    }
    taken = {node.value for node in ast.walk(tree) if isinstance(node, ast.YieldFrom)}
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in yielding
    ]
    assert "_propose" in yielding and len(calls) > 10
    assert [ast.unparse(call) for call in calls if call not in taken] == []
