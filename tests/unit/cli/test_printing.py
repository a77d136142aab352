"""Output of commands: on a terminal it fits and cuts no id, elsewhere it is lines with tabs."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
import typer
from tests.support.command_line import invoke

from sparktxlog.cli import printing, repeating
from sparktxlog.cli.command_line import app
from sparktxlog.cli.commands import status_commands
from sparktxlog.cli.common_options import GROUPS, ExitCode, GroupedCommands
from sparktxlog.errors import InvalidRequestError, TransportError

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> int:
    """A terminal of 80 columns."""
    del capsys  # its file is in the place of stdout
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    return 80


def _lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return ESCAPES.sub("", capsys.readouterr().out).splitlines()


ROWS: list[dict[str, Any]] = [
    {"id": ID, "text": "a long text with many words that has to give way", "n": 1_204},
    {"id": ID.replace("0", "9"), "text": "short", "n": None},
]
COLUMNS: printing.Columns = {"transaction": "id", "what is said": "text", "number": "n"}


def test_a_table_folds_texts_and_no_id(wide: int, capsys: pytest.CaptureFixture[str]) -> None:
    printing.print_table("rows", COLUMNS, ROWS)
    lines = _lines(capsys)
    assert max(map(len, lines)) <= wide
    assert sum(ID in line for line in lines) == 1
    assert any(line.endswith("1,204") for line in map(str.rstrip, lines))
    words = " ".join(" ".join(lines).split())
    assert "transaction" in words and "give way" in words


@pytest.mark.parametrize("spare", [0, 1, 5])
def test_a_table_that_just_fits_cuts_no_word(
    wide: int, capsys: pytest.CaptureFixture[str], spare: int
) -> None:
    """Ten columns of one word; what is between them is counted as it is printed."""
    words = ["abcdef"] * 9 + ["g" * (wide - 9 * 6 - 10 * 2 - spare)]
    columns: printing.Columns = {f"h{i}": str(i) for i in range(len(words))}
    printing.print_table("rows", columns, [dict(zip("0123456789", words, strict=True))])
    lines = _lines(capsys)
    assert lines[0].strip() == "rows"
    assert [line.split() for line in lines[1:]][-1] == words
    assert len(lines) == 4, "title, headings, rule, one row"
    assert max(map(len, lines)) <= wide
    printing.print_table("rows", columns, [])
    assert _lines(capsys) == ["rows: none"]


def test_what_does_not_fit_side_by_side_becomes_records(
    wide: int, capsys: pytest.CaptureFixture[str]
) -> None:
    columns: printing.Columns = {
        **COLUMNS,
        "another": lambda row: row["id"],
        "url": lambda _: "u" * 90,
    }
    printing.print_table("rows", columns, ROWS)
    lines = _lines(capsys)
    assert lines[0] == "rows"
    assert lines[1].split() == ["transaction", ID]
    assert sum(ID in line for line in lines) == 2  # the transaction, and another
    assert [line for line in lines if len(line) > wide] == [
        line for line in lines if "u" * 90 in line
    ]


@pytest.mark.parametrize("columns", [1, 3, 7, 12])
def test_widths_fit_and_hold_every_word(columns: int) -> None:
    lines = [[f"{'word ' * (i + 1)}{'x' * i}".strip() for i in range(columns)]]
    for wide in range(20, 200):
        widths = printing.fitting_widths(lines, wide)
        words = [max(map(len, cell.split())) for cell in lines[0]]
        if widths is None:
            assert sum(words) + 2 * columns > wide
            continue
        assert sum(widths) + 2 * columns <= wide
        assert all(has >= word for has, word in zip(widths, words, strict=True))
        assert all(has <= len(cell) for has, cell in zip(widths, lines[0], strict=True))
        if any(has < len(cell) for has, cell in zip(widths, lines[0], strict=True)):
            assert sum(widths) + 2 * columns == wide, "room is left over"


def test_elsewhere_rows_are_lines_with_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    printing.print_table("rows", COLUMNS, [*ROWS, {"id": "a\tb", "text": "c\nd", "n": 1_000_000}])
    assert capsys.readouterr().out == (
        "rows\ntransaction\twhat is said\tnumber\n"
        f"{ID}\t{ROWS[0]['text']}\t1204\n{ROWS[1]['id']}\tshort\t-\na b\tc d\t1000000\n"
    )


def test_a_sentence_is_folded_around_an_id(
    wide: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"It lost to the write of the table flights at position 1,204: transaction {ID}."
    printing.say(text)
    lines = _lines(capsys)
    assert len(lines) == 2 and lines[1] == f"{ID}."
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: False)
    printing.say(text)
    assert _lines(capsys) == [text]


# -- --watch --------------------------------------------------------------------------------------


class Answers:
    """Gives one answer after the other, and then Ctrl-C."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self._answers = list(answers)
        self.waits: list[float] = []
        monkeypatch.setattr(repeating, "sleep", self._sleep)

    def once(self) -> ExitCode:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        printing.print_table("t", {"answer": "answer"}, [{"answer": answer.name}])
        return ExitCode(answer)

    def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        if not self._answers:
            raise KeyboardInterrupt


def test_watching_ends_with_the_last_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = TransportError("no node answers")
    answers = Answers(monkeypatch, ExitCode.IN_SYNC, gone, ExitCode.LAGGING)
    with pytest.raises(typer.Exit) as ended:
        repeating.repeat(2.5, False, answers.once)
    assert (ended.value.exit_code, answers.waits) == (3, [2.5] * 3)
    assert capsys.readouterr().out == (
        "t\nanswer\nIN_SYNC\n\n[transport] no node answers\n\nt\nanswer\nLAGGING\n\n"
    )
    with pytest.raises(InvalidRequestError):
        repeating.repeat(1, False, Answers(monkeypatch, InvalidRequestError("no")).once)


def test_on_a_terminal_an_answer_takes_the_place_of_the_last(
    wide: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    answers = Answers(monkeypatch, ExitCode.LAGGING, ExitCode.IN_SYNC)
    repeating.repeat(1, False, answers.once)
    shown = capsys.readouterr().out
    assert "LAGGING" in shown and "\x1b[1A" in shown.partition("LAGGING")[2]
    assert "IN_SYNC" in shown.partition("\x1b[1A")[2]


def test_without_it_a_command_answers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers(monkeypatch, ExitCode.LAGGING, ExitCode.LAGGING)
    with pytest.raises(typer.Exit):
        repeating.repeat(None, False, answers.once)
    assert answers.waits == []


def test_a_status_is_watched_as_lines_of_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Answers(monkeypatch)
    status = {"node_id": "A", "phase": "JOINING"}
    monkeypatch.setattr(status_commands, "_status_of", lambda *_: status)
    assert invoke(monkeypatch, "status", "--json", "--watch", "1") == 3
    assert len(capsys.readouterr().out.splitlines()) == 1


# -- --help and --json ----------------------------------------------------------------------------


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_every_command_is_in_a_group_of_the_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = typer.main.get_command(app)
    assert isinstance(program, GroupedCommands)
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(program.commands), "GROUPS names each once"
    assert invoke(monkeypatch, "--help") == 0
    shown = capsys.readouterr().out
    places = [shown.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places) and "More:" not in shown


def test_every_command_that_prints_takes_json() -> None:
    """`serve` prints its log."""
    without = [
        path
        for path, command in _commands(typer.main.get_command(app))
        if not any("--json" in parameter.opts for parameter in command.params)
    ]
    assert without == [("serve",)]


def test_what_modules_log_is_not_in_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts read the one line of JSON on stdout, whatever was noticed on the way."""
    structlog.reset_defaults()
    try:
        assert invoke(monkeypatch, "--version") == 0
        capsys.readouterr()
        structlog.get_logger("x").warning("the bucket did not answer")
        said = capsys.readouterr()
    finally:
        printing.records_to_stderr()
    assert not said.out and "the bucket did not answer" in said.err
