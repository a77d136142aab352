"""Documents that must agree with the code: settings, commands, README, decisions."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from tests.architecture.source_tree import PACKAGE, ROOT, package_modules
from tests.architecture.test_imports import MAY_IMPORT
from tools.reference import PAGES, filled
from typer.testing import CliRunner

from sparktxlog import errors
from sparktxlog.api.writing.operations import Isolation
from sparktxlog.cli.command_line import app
from sparktxlog.config import SETTINGS
from sparktxlog.model.transactions.receipt import Level

_README = ROOT / "README.md"


@pytest.mark.parametrize("path", sorted(PAGES), ids=lambda path: path.name)
def test_generated_pages_are_up_to_date(path: Path) -> None:
    """`make docs` writes them; a new setting, option or outcome must show."""
    assert path.read_text() == PAGES[path](), f"{path.name} is out of date: run make docs"


def test_a_generated_part_needs_its_marks() -> None:
    """A page whose marks were lost would never be written again."""
    with pytest.raises(ValueError, match="no marks of 'types'"):
        filled("index.md", {"types": ""})


def test_every_setting_has_a_meaning() -> None:
    """A setting nobody can explain should not exist."""
    assert [s.key for s in SETTINGS if len(s.description) < 15] == []


def test_every_setting_is_read() -> None:
    """A setting is a field that some module outside `config` reads; `-file` ones are read there."""
    sources = [m.text for m in package_modules() if m.room != "config"]
    unread = [
        setting.key
        for setting in SETTINGS
        if not setting.key.endswith("-file")
        and not any(re.search(rf'\.{setting.attribute}\b|"{setting.key}"', t) for t in sources)
    ]
    assert unread == []


def test_tests_that_documents_name_exist() -> None:
    """The remedy of an edge is believed for its test; one that moved proves nothing."""
    pages = [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    files = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    lost = []
    for page in pages:
        for path, name in re.findall(
            r"`([\w/]*\btest_\w+\.py)(?:::(test_\w+))?`", page.read_text()
        ):
            texts = [text for file, text in files.items() if f"/{file}".endswith(f"/{path}")]
            if not any(f"def {name}(" in text if name else text for text in texts):
                lost.append(f"{page.name}: {path}::{name}")
        for name in re.findall(r"`(test_\w+)(?:\[[^`]*\])?`", page.read_text()):
            if not any(f"def {name}(" in text or path.stem == name for path, text in files.items()):
                lost.append(f"{page.name}: {name}")
    assert lost == []


def test_where_to_look_is_true() -> None:
    """Each file of the table is there, and names what the table says it has."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("## Where to look")[2].partition("## ")[0]
    named = re.findall(r"`([\w/]+\.py)`(?: \(`(\w+)`\))?", table)
    assert table.count("| Wh") >= 20
    wrong = [f"{file}: {word}" for file, word in named if not _has(file, word)]
    assert wrong == []


def _has(file: str, word: str) -> bool:
    path = PACKAGE / file
    found = rf"^\s*(?:async )?(?:def|class) {word}\b|^{word}\b|\.{word}\(" if word else ""
    return path.is_file() and re.search(found, path.read_text(), re.MULTILINE) is not None


def _rejection_codes() -> set[str]:
    """Return the codes with which the order of the log rejects a transaction."""
    codes = set()
    for module in package_modules():
        if module.room == "protocol" or module.room.startswith("protocol."):
            for node in ast.walk(ast.parse(module.text)):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "Rejection":
                    code = next(k.value for k in node.keywords if k.arg == "code")
                    if isinstance(code, ast.Constant):
                        codes.add(str(code.value))
                    else:  # that of an error's class
                        codes.add(getattr(errors, ast.unparse(code).partition(".")[0]).code)
    return codes


def test_the_guarantees_have_a_row_for_all_that_a_client_is_told() -> None:
    """Each level, isolation and outcome has a row; each row names a test, or is no promise."""
    outcomes = re.split(r"^## ", (ROOT / "docs" / "outcomes.md").read_text(), flags=re.MULTILINE)
    promises = (ROOT / "docs" / "guarantees.md").read_text().partition("## Levels")[2]
    promises += "".join(part for part in outcomes if part.startswith(("Outcomes", "What nobody")))
    rows = [line for line in promises.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith(("| level |", "| what happens |"))]
    told = {code for row in rows for code in re.findall(r"`([^`]+)`", row.split(" | ")[0])}
    wanted = {level.value for level in Level} | {"committed", "rejected", "unknown-outcome"}
    wanted |= _rejection_codes()
    wanted |= {f'isolation="{name}"' for name in get_args(get_args(Isolation)[0])}
    assert {"conflict", "expired-id", 'isolation="serializable"'} <= wanted
    assert wanted - told == set()
    headings = ("| property |", "| guarantee |", "| answer |")
    assert [
        row
        for row in rows
        if not row.startswith(headings)
        and not re.search(r"`[\w/]+/test_\w+\.py::test_\w+`", row.split(" | ")[-1])
        and not row.endswith("| – |")
    ] == []


def _shell_commands(text: str) -> list[str]:
    blocks = re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", " "))]


def test_readme_make_targets_exist() -> None:
    """A `make` command of the README names a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    wanted = {
        word
        for line in _shell_commands(_README.read_text())
        if line.startswith("make ")
        for word in shlex.split(line, comments=True)[1:2]
    }
    assert wanted
    assert wanted - targets == set()


def test_readme_commands_are_understood() -> None:
    """A `sparktxlog` command of the README is parsed by the command line."""
    lines = [line for line in _shell_commands(_README.read_text()) if line.startswith("sparktxlog")]
    assert lines
    for line in lines:
        words = [word for word in shlex.split(line, comments=True)[1:] if word != "&"]
        command = [word for word in words[:2] if re.fullmatch(r"[a-z]+", word)]
        answer = CliRunner().invoke(app, [*_command_path(command), "--help"])
        assert answer.exit_code == 0, line
        for option in (word.split("=")[0] for word in words if word.startswith("-")):
            assert option in answer.stdout, f"{line}: {option}"


def _command_path(words: list[str]) -> list[str]:
    groups = {"config", "tx"}
    return words if words and words[0] in groups else words[:1]


def _named_commands(text: str) -> list[list[str]]:
    """Return the words behind `sparktxlog` in code of a page, in its sentences and in blocks."""
    fence = re.compile(r"```.*?```", re.DOTALL)
    blocks = [line.strip() for block in fence.findall(text) for line in block.splitlines()]
    prose = fence.sub("", text)
    blocks += [line.strip() for line in prose.splitlines() if line.startswith("    ")]
    pieces = [line.removeprefix("$ ") for line in blocks] + re.findall(r"`([^`]+)`", prose)
    return [piece.split()[1:] for piece in pieces if piece.startswith("sparktxlog ")]


@cache
def _program() -> Any:
    """Return the command line as an object; to make it takes a while."""
    return typer.main.get_command(app)


def _unknown_command(words: list[str]) -> str:
    """Return the first word that is no command where one must stand, empty if there is none."""
    command = _program()
    for word in words:
        known = getattr(command, "commands", None)  # of a group of commands
        if known is None or not re.fullmatch(r"[a-z][a-z-]*", word):
            return ""
        if word not in known:
            return word
        command = known[word]
    return ""


def test_commands_that_documents_name_exist() -> None:
    """Every `sparktxlog …` of a page in docs/ is a command; its arguments are not looked at."""
    assert _unknown_command(["force"]) == "force"
    assert _unknown_command(["peer", "farce", "A"]) == "farce"
    pages = sorted((ROOT / "docs").rglob("*.md"))
    found = [(page.name, words) for page in pages for words in _named_commands(page.read_text())]
    assert len({name for name, _ in found}) >= 6
    assert [(name, words) for name, words in found if _unknown_command(words)] == []


def test_the_pages_of_commands_have_each_command_once() -> None:
    """A new group of commands needs a page in `tools/reference.py`."""
    found = [
        name
        for page in (ROOT / "docs").glob("cli*.md")
        for name in re.findall(r"^###? (sparktxlog .*)$", page.read_text(), re.MULTILINE)
    ]
    assert sorted(found) == sorted(_all_commands(_program(), "sparktxlog"))


def _all_commands(command: Any, name: str) -> list[str]:
    known = getattr(command, "commands", None)
    if known is None:
        return [name]
    return [full for word in known for full in _all_commands(known[word], f"{name} {word}")]


def test_readme_jobs_exist() -> None:
    """A job the README starts is a file of the repository."""
    named = re.findall(r"\bjobs/\w+\.py", _README.read_text())
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_readme_is_short() -> None:
    """What it is, a picture, two commands, one screen of output, where to go."""
    assert len(_README.read_text().splitlines()) <= 150


def _pages() -> set[str]:
    """Return the pages of docs/ but the decisions, as paths below it."""
    docs = ROOT / "docs"
    found = (*docs.glob("*.md"), *docs.glob("verification/*.md"))
    return {path.relative_to(docs).as_posix() for path in found}


def test_each_page_is_for_one_task() -> None:
    """A page of the site has 3,000 words at most, as `wc -w` counts them."""
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    words = {page.relative_to(ROOT).as_posix(): len(page.read_text().split()) for page in pages}
    assert len(words) > 150
    assert {page: count for page, count in words.items() if count > 3_000} == {}


def test_the_index_lists_every_page() -> None:
    """A page that docs/index.md does not name is not found."""
    text = (ROOT / "docs" / "index.md").read_text()
    listed = set(re.findall(r"\]\(((?:verification/)?\w[\w-]*\.md)\)", text))
    assert listed == _pages() - {"index.md"}


def test_the_site_lists_every_page() -> None:
    """`make site` says so too, but needs MkDocs."""
    text = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r": ((?:verification/)?[a-z-]+\.md)$", text, re.MULTILINE))
    assert listed == _pages()


def test_files_that_contributors_are_sent_to_exist() -> None:
    """CONTRIBUTING.md names files and folders that are there; whoever moves one mends the page."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:src|tests|docs|tools|jobs)/[^`]*)`", text)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_architecture_names_what_is_there() -> None:
    """Files that ARCHITECTURE.md names exist; its tables name every folder, as `test_imports`."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*(?:/|\.py))`", text)
    of_nodes = {
        "log/",
        "payload_log/",
        "payloads/",
        "quarantine/",
        "summaries/",
        "lake/",
        "leases/",
        "_sparktxlog/",
    }
    assert len(named) > 40
    places = (ROOT, PACKAGE, PACKAGE / "runtime", PACKAGE / "protocol", PACKAGE / "storage")
    lost = {name for name in named if not any((place / name).exists() for place in places)}
    assert lost <= of_nodes
    rows = set(re.findall(r"^\| `([\w/.]+?)(?:\.py|/)` \|", text, re.MULTILINE))
    rooms = {rule.replace(".", "/") for rule in MAY_IMPORT} - {"__init__", "pyspark_txlog"}
    folders = {path.parent.name for path in (PACKAGE / "runtime").glob("[a-z]*/__init__.py")}
    assert (rooms | folders) - rows == set()


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as a viewer makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


def test_links_between_documents_lead_somewhere() -> None:
    """Relative links of README and docs name files that exist, and headings in them."""
    broken = []
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", page.read_text()):
            name, _, anchor = target.partition("#")
            file = page.parent / name if name else page
            if "://" not in target and (
                not file.exists() or (anchor and anchor not in _anchors(file))
            ):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_decisions_are_numbered_without_gaps() -> None:
    """docs/decisions/NNNN-title.md, each with context, decision and consequences."""
    files = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [int(file.name[:4]) for file in files]
    assert numbers == list(range(1, len(files) + 1))
    for file in files:
        text = file.read_text()
        assert text.startswith(f"# {int(file.name[:4])}. "), file
        assert all(f"## {part}" in text for part in ("Context", "Decision", "Consequences")), file
