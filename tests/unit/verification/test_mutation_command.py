"""What `python -m tests.verification.mutation` promises; the hunting itself is stood in for."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.verification.mutation import __main__ as command
from tests.verification.mutation.mutant import (
    BY_NAME,
    MUTANTS,
    SURVIVORS,
    Kill,
    Killer,
    Result,
)
from tests.verification.mutation.report import PAGES, page_of

FOLDER = Path(__file__).parents[3] / "docs" / "verification"
#: A row of the page: rule, name, and what the broken core does.
ROW = re.compile(r"^\| ([CP]\w+) \| `([^`]+)`: ([^|]+) \|", re.MULTILINE)
Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the command with all mutations found, but those that shall survive."""

    def run(*arguments: str, surviving: Sequence[str]) -> int:
        def examine_all(names: Sequence[str], budget_s: float, *, jobs: int) -> list[Result]:
            kill = Kill(killer=Killer.TRACE, where="a_trace", runs=1, seconds=0.1, violation="I1")
            kills = {name: None if name in surviving else kill for name in names}
            return [Result(name=n, kill=k, tried={}, seconds=0.2) for n, k in kills.items()]

        monkeypatch.setattr(command, "examine_all", examine_all)
        monkeypatch.setattr(
            sys, "argv", ["mutation", "--jobs", "1", "--pages", str(tmp_path), *arguments]
        )
        return command.main()

    return run


def test_listed_survivors_are_well(run: Run, tmp_path: Path) -> None:
    assert run(surviving=sorted(SURVIVORS)) == 0
    written = (tmp_path / "mutants.md").read_text()
    found = len(MUTANTS) - len(SURVIVORS)
    assert f"{len(MUTANTS)} mutations, {found} found." in written
    assert "not expected to survive" not in written


def test_a_listed_survivor_may_be_found(run: Run) -> None:
    assert run(surviving=[]) == 0


def test_another_survivor_fails(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(surviving=[*SURVIVORS, "no-wedge", "tripwire-off"]) == 1
    said = capsys.readouterr()
    assert "survived: tripwire-off, no-wedge" in said.err.splitlines()
    assert said.out.count("**not expected to survive**") == 2


def test_single_mutations_write_no_page(run: Run, tmp_path: Path) -> None:
    assert run("--only", "no-wedge", "--json", surviving=["no-wedge"]) == 1
    assert not list(tmp_path.iterdir())


def test_json_names_what_survived(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", surviving=["no-wedge", *SURVIVORS]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["mutants"], told["unexpected"]) == (len(MUTANTS), ["no-wedge"])
    assert sorted(told["survivors"]) == sorted(["no-wedge", *SURVIVORS])


def test_an_unknown_mutation_is_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--only", "no-wedge", "no-such-rule", surviving=[]) == 2
    assert "no such mutation: no-such-rule" in capsys.readouterr().err


def test_a_rule_without_a_page_is_an_error() -> None:
    assert (page_of("P1a"), page_of("P36")) == ("mutants.md", "mutants-tables.md")
    with pytest.raises(ValueError, match="rule P999 has no page"):
        page_of("P999")


def test_page_is_of_the_present_table() -> None:
    """Who changes the table runs `make mutants`: the pages name each mutation, and no other."""
    texts = {name: (FOLDER / name).read_text() for name in PAGES}
    for name, page in texts.items():
        assert {page_of(rule) for rule, _, _ in ROW.findall(page.partition("## Surv")[0])} == {name}
    text = "\n".join(texts.values())
    rows = {name: (rule, says) for rule, name, says in ROW.findall(text)}
    assert rows.keys() == BY_NAME.keys()
    assert rows == {mutant.name: (mutant.rule, mutant.says) for mutant in MUTANTS}
    assert f"\n{len(MUTANTS)} mutations, " in text
    assert "not expected to survive" not in text
