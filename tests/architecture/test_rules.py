"""A rule that the repository cites can be looked up: docs/rules.md says what each code means."""

from __future__ import annotations

import re
from pathlib import Path

from tests.architecture.source_tree import ROOT

RULES = ROOT / "docs" / "rules.md"
#: P1a, C3, S2b, I12; and the codes of a list of requirements that is not part of the repository.
CODE = re.compile(r"\b(?:[PCSI]\d{1,2}[a-z]?|[GRVTB]\d\d|D\d{1,2})\b")
FOLDERS = {"src": ".py", "jobs": ".py", "tests": ".py", "docs": ".md"}


def _defined() -> set[str]:
    return set(re.findall(r"^\| ([A-Z]\d+[a-z]?) \|", RULES.read_text(), re.MULTILINE))


def _cited(path: Path) -> list[tuple[int, str]]:
    lines = path.read_text().splitlines()
    return [
        (number, code)
        for number, line in enumerate(lines, start=1)
        for code in CODE.findall(line.partition("# noqa")[0])
    ]


def test_the_pattern_finds_codes_only() -> None:
    """Codes of rules, also in a range; no codes of the linter, and no names that look like one."""
    assert CODE.findall("a promise (P2, P25b–P28) of I12, G04 and D3") == [
        *("P2", "P25b", "P28", "I12", "G04", "D3"),
    ]
    assert CODE.findall("S310 D103 A1*3 b1 PT011 sha256 T1 P.1 x_P1") == []


def test_every_cited_rule_is_defined() -> None:
    """A code in code, tests or pages is a row of docs/rules.md; data should not look like one."""
    files = [
        path
        for folder, ending in FOLDERS.items()
        for path in sorted((ROOT / folder).rglob(f"*{ending}"))
        if path != Path(__file__)
    ]
    files += sorted((ROOT / "tests" / "testdata" / "rounds").glob("*.txt"))
    defined = _defined()
    assert len(defined) > 50
    unknown = [
        f"{path.relative_to(ROOT)}:{number} {code}"
        for path in files
        for number, code in _cited(path)
        if code not in defined
    ]
    assert unknown == []


def test_every_demand_names_tests_that_exist() -> None:
    """Each rule of the sections of demands has a row, and each test that a row names is there."""
    page = (ROOT / "docs" / "verification" / "demands.md").read_text()
    rows = dict(re.findall(r"^\| ([VBRT]\d\d) \|.*\|(.*)\|$", page, re.MULTILINE))
    assert rows.keys() == {code for code in _defined() if code[0] in "VBRT"}
    for code, cell in rows.items():
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", cell)
        assert named, code
        for path, test in named:
            assert f"\ndef {test}(" in (ROOT / path).read_text(), (code, path, test)


def test_rules_are_one_line_each() -> None:
    """A rule of the page is one row, defined once."""
    rows = re.findall(r"^\| ([A-Z]\d+[a-z]?) \|(.*)\|$", RULES.read_text(), re.MULTILINE)
    codes = [code for code, _ in rows]
    assert len(set(codes)) == len(codes)
    assert [code for code, text in rows if not text.strip().endswith(".")] == []
