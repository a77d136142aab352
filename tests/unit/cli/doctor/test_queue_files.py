"""Old files of the queue table, which nobody reads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sparktxlog.cli.doctor.findings import Grade
from sparktxlog.cli.doctor.queue_files import check_queue_files
from sparktxlog.storage.log_tables.queue_table import QUEUE_NAME


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Make a queue table of three files; return them, the oldest first."""
    found: list[Path] = []
    for number in range(3):
        rows = pa.table({"position": list(range(1_000)), "n": [str(number)] * 1_000})
        write_deltalake(str(tmp_path / QUEUE_NAME), rows, mode="append")
        found += sorted(set((tmp_path / QUEUE_NAME).glob("*.parquet")) - set(found))
    return found


def test_whole_files_are_one_good_finding(tmp_path: Path, files: list[Path]) -> None:
    (found,) = check_queue_files(tmp_path)
    assert (found.grade, found.text) == (Grade.OK, "3 of 3 files of the queue table are whole")
    assert list(check_queue_files(tmp_path / "no log")) == []


@pytest.mark.parametrize(
    ("harm", "words"),
    [("page", "damaged"), ("short", "bytes, the table says"), ("gone", "No such file")],
)
def test_a_damaged_old_file_is_named(
    tmp_path: Path, files: list[Path], harm: str, words: str
) -> None:
    data = files[0].read_bytes()
    if harm == "gone":
        files[0].unlink()
    elif harm == "short":
        files[0].write_bytes(data[:-5])
    else:  # the footer is whole
        files[0].write_bytes(data[:40] + b"\xff" * 60 + data[100:])
    (found,) = check_queue_files(tmp_path)
    assert found.grade is Grade.PROBLEM and str(files[0]) in found.text
    assert words in found.text and found.fix


def test_the_check_ends_after_a_while(tmp_path: Path, files: list[Path]) -> None:
    times: Iterator[int] = count()
    (found,) = check_queue_files(tmp_path, clock=lambda: float(next(times)), patience_s=2.5)
    assert found.text.startswith("2 of 3 files")
