"""docs/sql-at-two-sites.md, word for word: a table made at one site is written at both."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.java_programs import connector_jar
from tests.support.typed_pages import lost_lines, typed

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.slow, pytest.mark.thorough]


@pytest.mark.timeout(600)
def test_the_page_works(tmp_path: Path) -> None:
    """The JAR that the reader fetches is stood in for by the connector of the tests."""
    (tmp_path / "unitycatalog-spark.jar").symlink_to(connector_jar(tmp_path / "made"))
    blocks = typed("sql-at-two-sites.md", tmp_path, timeout_s=540)
    assert sum(bool(shown) for shown, _ in blocks) >= 3
    assert [
        (lost_lines(shown, said), said) for shown, said in blocks if lost_lines(shown, said)
    ] == []
