"""Commit messages: one habit for all subjects, from a certain commit on."""

from __future__ import annotations

import re
import subprocess

from tests.architecture.source_tree import ROOT

#: Subjects after this commit are checked, its own is too long; a shallow clone may not have it.
FIRST = "f9b518e1"
MAX_SUBJECT = 72
SUBJECT = re.compile(r"[a-z][a-z0-9/-]*: \S.*\S")


def _subjects() -> list[str]:
    command = ["git", "log", "--no-merges", "--format=%s", f"{FIRST}..HEAD"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return answer.stdout.splitlines() if answer.returncode == 0 else []


def test_what_a_subject_looks_like() -> None:
    """`room: what`, at most 72 characters."""
    assert SUBJECT.fullmatch("docs: rules one can look up")
    assert not SUBJECT.fullmatch("Rules one can look up")
    assert not SUBJECT.fullmatch("docs:rules")


def test_subjects_are_short_and_name_a_room() -> None:
    """Every subject in reach; without git, or without its history, there is none to check."""
    wrong = [
        subject
        for subject in _subjects()
        if len(subject) > MAX_SUBJECT or not SUBJECT.fullmatch(subject)
    ]
    assert wrong == []
