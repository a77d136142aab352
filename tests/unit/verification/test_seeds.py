"""What both simulations promise of their commands; the seeds themselves are stood in for."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.verification.mutation.mutant import patched_sources
from tests.verification.nodes import command as of_nodes
from tests.verification.nodes import marks as of_nodes_marks
from tests.verification.nodes.mutants import MUTANTS
from tests.verification.nodes.placing_mutants import PLACING
from tests.verification.seeds import Outcome
from tests.verification.simulation import __main__ as of_cores
from tests.verification.simulation import marks as of_cores_marks

LAST_LINE = re.compile(
    r"seeds (\d+), events (\d+), epochs (\d+), transactions (\d+), violations (\d+)"
)
Change = Callable[[Outcome], Outcome]


@dataclass(slots=True)
class Told:
    """What a run of the command said."""

    code: int
    lines: list[str]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@dataclass(slots=True)
class Command:
    """One of the two commands, whose seeds do what the test wants."""

    program: str
    main: Callable[[list[str]], int]
    capsys: pytest.CaptureFixture[str]
    marks: tuple[str, ...]
    #: From so many seeds on all marks must show.
    enough: int
    #: Seed → what becomes of it; those of all other seeds are well.
    changes: dict[int, Change] = field(default_factory=dict)

    def outcome(self, seed: int) -> Outcome:
        """Return what a seed did; seed 0 has every mark, the others none."""
        well = Outcome(
            seed=seed,
            layout="three",
            events=10,
            epochs=3,
            transactions=1_000,
            simulated_s=3_600.0,
            seconds=0.5,
            marks=Counter([] if seed else self.marks),
        )
        return self.changes[seed](well) if seed in self.changes else well

    def run(self, *arguments: str) -> Told:
        code = self.main(list(arguments))
        return Told(code, self.capsys.readouterr().out.splitlines())


@pytest.fixture(params=["cores", "nodes"])
def command(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    made = _of_cores if request.param == "cores" else _of_nodes
    return made(monkeypatch, capsys)


def _of_cores(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    program = "python -m tests.verification.simulation"

    def main(arguments: list[str]) -> int:
        monkeypatch.setattr(sys, "argv", [program, "--jobs", "1", *arguments])
        return of_cores.main()

    found = Command(program, main, capsys, of_cores_marks.EXPECTED, 200)
    monkeypatch.setattr(of_cores, "run_seed", found.outcome)
    return found


def _of_nodes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    found = Command(of_nodes._PROGRAM, of_nodes.command, capsys, of_nodes_marks.EXPECTED, 20)

    def run_all(seeds: range, asked: Any) -> Iterator[Outcome]:
        return map(found.outcome, seeds)

    monkeypatch.setattr(of_nodes, "_run_all", run_all)
    # What these set holds for the whole process.
    monkeypatch.setattr("structlog.configure", lambda **settings: None)
    monkeypatch.setattr("logging.disable", lambda: None)
    monkeypatch.setattr(of_nodes, "MUTANTS", dict.fromkeys(MUTANTS, lambda: None))
    return found


def _violated(outcome: Outcome) -> Outcome:
    return replace(outcome, violation="InvariantViolation: I1: a has another queue than b")


def _without(mark: str) -> Change:
    return lambda outcome: replace(outcome, marks=outcome.marks - Counter([mark]))


def test_seeds_without_a_violation_are_well(command: Command) -> None:
    """One seed with a mark is enough for it."""
    told = command.run("--seeds", str(command.enough))
    assert told.code == 0, told.text
    assert not [line for line in told.lines if "again: " in line or "never happened" in line]


def test_last_line_adds_up_the_seeds(command: Command) -> None:
    command.changes[5] = lambda outcome: replace(outcome, events=90, epochs=7, transactions=4_000)
    command.changes[6] = _violated
    totals = LAST_LINE.fullmatch(command.run("--first", "4", "--seeds", "4").lines[-1])
    assert totals is not None
    assert [int(number) for number in totals.groups()] == [4, 120, 16, 7_000, 1]


def test_last_line_is_an_object_if_asked_for(command: Command) -> None:
    mark = command.marks[0]
    command.changes[0] = _without(mark)
    told = command.run("--seeds", str(command.enough), "--json")
    totals = json.loads(told.lines[-1])
    assert (told.code, totals["seeds"], totals["missing"]) == (1, command.enough, [mark])
    assert mark not in totals["marks"]


def test_a_violation_fails_and_says_how_to_see_it_again(command: Command) -> None:
    command.changes[7] = _violated
    told = command.run("--seeds", "9")
    assert told.code == 1
    assert "seed 7 (three): InvariantViolation: I1: a has another queue than b" in told.text
    (again,) = (line.removeprefix("  again: ") for line in told.lines if "again: " in line)
    assert again == f"{command.program} --seed 7"
    shown = command.run(*shlex.split(again.removeprefix(command.program)))
    assert shown.code == 1
    assert "seed 7, three" in shown.text and "I1: a has another queue" in shown.text


def test_one_seed_that_is_well_is_no_failure(command: Command) -> None:
    told = command.run("--seed", "7")
    assert told.code == 0
    assert "seed 7, three" in told.text and "no violation" in told.text


def test_a_mark_that_never_shows_fails(command: Command) -> None:
    for mark in command.marks:
        command.changes[0] = _without(mark)
        told = command.run("--seeds", str(command.enough))
        assert (told.code, f"never happened: {mark}" in told.lines) == (1, True), mark


def test_marks_of_few_seeds_are_not_asked_for(command: Command) -> None:
    command.changes[0] = _without(command.marks[0])
    told = command.run("--seeds", str(command.enough - 1))
    assert told.code == 0
    assert f"marks are not checked: that takes {command.enough} seeds" in told.text


@pytest.mark.parametrize(
    ("field", "number", "said"),
    [
        ("transactions", 999, "only 999 transactions and 3 epochs; 1000 and 3 are needed"),
        ("epochs", 2, "only 1000 transactions and 2 epochs; 1000 and 3 are needed"),
    ],
)
def test_a_seed_with_too_little_in_it_fails(
    field: str,
    number: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What it lacks may hide what it should have found."""
    command = _of_cores(monkeypatch, capsys)
    command.changes[3] = lambda outcome: replace(outcome, **{field: number})  # type: ignore[arg-type]
    told = command.run("--seeds", "5")
    assert told.code == 1
    assert f"seed 3 (three): {said}" in told.lines


def test_the_same_history_is_shown_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The printed command names what a seed of whole nodes was run with."""
    command = _of_nodes(monkeypatch, capsys)
    command.changes[7] = _violated
    different = ["--mutant", "hasty", "--faults-until", "30"]
    told = command.run("--first", "7", "--seeds", "1", *different)
    again = f"{command.program} --seed 7 {' '.join(different)}"
    assert f"  again: {again}" in told.lines
    assert command.run(*shlex.split(again.removeprefix(command.program))).code == 1


@pytest.mark.parametrize("name", PLACING)
def test_what_a_mutant_of_whole_nodes_patches_is_there(name: str) -> None:
    found = patched_sources((PLACING[name],))
    assert found
    for path, text in found.items():
        compile(text, path, "exec")  # lines of another depth are found in deeper ones
