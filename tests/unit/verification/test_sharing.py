"""Files of tests are shared so that few processes start Spark, and none is waited for long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.architecture.source_tree import ROOT
from tests.support.sharing import LONGEST, file_for, shuffled

_FILES = ["tests/e2e/test_a.py", "tests/spark/test_b.py", "tests/spark/test_c.py"]


def test_files_with_spark_are_for_the_first_two() -> None:
    assert file_for(0, _FILES) == file_for(1, _FILES) == "tests/spark/test_b.py"
    assert file_for(2, [*_FILES[1:], _FILES[0]]) == "tests/e2e/test_a.py"


def test_nobody_is_idle_while_files_are_left() -> None:
    assert file_for(2, _FILES[1:]) == "tests/spark/test_b.py"
    assert file_for(0, _FILES[:1]) == "tests/e2e/test_a.py"


def test_the_longest_files_are_there() -> None:
    assert [file for file in LONGEST if not (ROOT / file).is_file()] == []


def test_another_commit_has_another_order_of_the_same_files() -> None:
    assert shuffled(_FILES, "1") == shuffled(_FILES[::-1], "1")
    assert len({tuple(shuffled(_FILES, str(commit))) for commit in range(50)}) > 1
    assert all(sorted(shuffled(_FILES, str(commit))) == _FILES for commit in range(5))


def test_no_file_is_begun_after_the_minutes_and_it_is_said(tmp_path: Path) -> None:
    for name in "abcdef":
        (tmp_path / f"test_{name}.py").write_text("def test_it(): pass\n")
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n1", "--dist=loadfile", "--minutes=0"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    left = [line for line in run.stdout.splitlines() if line.startswith("LEFT test_")]
    assert (run.returncode, len(left)) == (0, 5), run.stdout + run.stderr
    assert "1 passed" in run.stdout


def test_a_process_that_ends_fails_one_test_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Its files go to another one, without what was done and without the test that ended it."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text("def test_1(): pass\ndef test_2(): pass\n")
    ending = "import os\ndef test_0(): pass\ndef test_1(): os._exit(1)\ndef test_2(): pass\n"
    (tmp_path / "test_d.py").write_text(ending)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n2", "--dist=loadfile", "--no-loadscope-reorder"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert "crashed while running 'test_d.py::test_1'" in run.stdout
    assert "1 failed, 8 passed" in run.stdout
