"""What a check of `sparktxlog doctor` returns: how it is, in a sentence, and what mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Grade(str, Enum):
    """How it is, in rising order of need."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check."""

    #: What was looked at, one word.
    check: str
    grade: Grade
    #: What was found, with the value.
    text: str
    #: What to do, one sentence; empty if it is good.
    fix: str = ""


def good(check: str, text: str) -> Finding:
    """Return that all is well."""
    return Finding(check, Grade.OK, text)


def warning(check: str, text: str, fix: str) -> Finding:
    """Return what works, and not as it should."""
    return Finding(check, Grade.WARNING, text, fix)


def problem(check: str, text: str, fix: str) -> Finding:
    """Return what does not work."""
    return Finding(check, Grade.PROBLEM, text, fix)


def graded(check: str, wrong: Sequence[str], fix: str, well: str) -> list[Finding]:
    """Return a problem for each text that says what is wrong, or one finding that all is well."""
    return [problem(check, text, fix) for text in wrong] or [good(check, well)]
