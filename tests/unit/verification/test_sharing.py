"""Files of tests are shared so that few processes start Spark."""

from __future__ import annotations

from tests.support.sharing import file_for

_FILES = ["tests/spark/test_a.py", "tests/spark/test_b.py", "tests/e2e/test_c.py"]


def test_files_with_spark_are_for_the_first_two() -> None:
    assert file_for(0, _FILES) == file_for(1, _FILES) == "tests/spark/test_a.py"
    assert file_for(2, _FILES) == "tests/e2e/test_c.py"


def test_nobody_is_idle_while_files_are_left() -> None:
    assert file_for(2, _FILES[:2]) == "tests/spark/test_a.py"
    assert file_for(0, _FILES[2:]) == "tests/e2e/test_c.py"
