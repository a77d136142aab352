"""docs/lost-region.md, word for word: a site is lost while jobs write, and another one comes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.typed_pages import lost_lines, typed

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.slow, pytest.mark.thorough]


@pytest.mark.timeout(600)
def test_the_page_works(tmp_path: Path) -> None:
    blocks = typed("lost-region.md", tmp_path, timeout_s=540)
    assert sum(bool(shown) for shown, _ in blocks) >= 5
    assert [
        (lost_lines(shown, said), said) for shown, said in blocks if lost_lines(shown, said)
    ] == []
    counts = [
        {job: int(count) for job, count in re.findall(r"^(.+): (\d+) rows, ", said, re.MULTILINE)}
        for _, said in blocks
        if "rows, the last is" in said
    ]
    at_a, at_d = counts
    assert at_a == at_d and at_a.keys() == {"at-a", "at-c", "late"}, "only C had the load"
    for job in ("at-a", "at-c"):
        answered = int((tmp_path / f"{job}.txt").read_text().split()[-1])
        # The last one may be there although its job was killed before it had the answer.
        assert at_a[job] - answered in (0, 1)
