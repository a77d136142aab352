"""Files of tests are shared so that few processes start Spark, and none is waited for long."""

from __future__ import annotations

from tests.architecture.source_tree import ROOT
from tests.support.sharing import LONGEST, file_for

_FILES = ["tests/e2e/test_a.py", "tests/spark/test_b.py", "tests/spark/test_c.py"]


def test_files_with_spark_are_for_the_first_two() -> None:
    assert file_for(0, _FILES) == file_for(1, _FILES) == "tests/spark/test_b.py"
    assert file_for(2, [*_FILES[1:], _FILES[0]]) == "tests/e2e/test_a.py"


def test_nobody_is_idle_while_files_are_left() -> None:
    assert file_for(2, _FILES[1:]) == "tests/spark/test_b.py"
    assert file_for(0, _FILES[:1]) == "tests/e2e/test_a.py"


def test_the_longest_files_are_there() -> None:
    assert [file for file in LONGEST if not (ROOT / file).is_file()] == []
