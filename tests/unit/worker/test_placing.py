"""Files in place: names, links, copies, statistics, and repeats after a crash."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.worker_log import LogBuilder, table

from sparktxlog.errors import ApplyError
from sparktxlog.worker.placing import Placer, placed_name
from sparktxlog.worker.tables import create_table


def test_names_are_plain_and_tell_files_apart() -> None:
    paths = [
        "00000000-0000-0000-0000-000000000001/t/part-0.parquet",
        "00000000-0000-0000-0000-000000000001/t/p=1/part-0.parquet",
        "00000000-0000-0000-0000-000000000001/t/p=a b/part-0.parquet",
        "00000000-0000-0000-0000-000000000001/t/p=a_b/part-0.parquet",
        "00000000-0000-0000-0000-000000000001/t/p=a%20b/part-0.parquet",
        "_hidden/t/part-0.parquet",
        "x/" + "long" * 100,
    ]
    names = [placed_name(path) for path in paths]
    assert len(set(names)) == len(paths)
    assert names[0] == "00000000-0000-0000-0000-000000000001-t-part-0.parquet"
    for name in names:
        assert len(name) <= 200 and name[0] not in "._"
        assert all(char.isascii() and (char.isalnum() or char in "._-") for char in name)


def placer(tmp_path: Path, *, partitioned: bool = False) -> tuple[LogBuilder, Placer]:
    log = LogBuilder(tmp_path)
    definition = table("t", "id bigint, p string", partition_by=["p"] if partitioned else [])
    create_table(tmp_path / "lake" / "t", definition, "{}", {"appId": "a", "version": 0})
    log.transaction().create(definition)
    return log, Placer(tmp_path / "lake", log.payloads)


def place(log: LogBuilder, to: Placer, version: int = 1) -> int:
    files = [file for effect in log.segments[-1].effects for file in effect.files]
    return to.place(log.tables["t"], files, app_id="a", txn_version=version, user_metadata="m")


def read(lake: Path) -> list[dict[str, object]]:
    rows = DeltaTable(lake / "t").to_pyarrow_table().sort_by("id").to_pylist()
    return [dict(row) for row in rows]


@pytest.mark.parametrize("partitioned", [False, True])
def test_placed_files_are_links_with_statistics(tmp_path: Path, partitioned: bool) -> None:
    log, to = placer(tmp_path, partitioned=partitioned)
    log.staged("append", "t", [(1, "x"), (2, None), (3, "a b/%")])
    log.publish()
    assert place(log, to) == 1
    lake = tmp_path / "lake"
    assert [row["id"] for row in read(lake)] == [1, 2, 3]
    assert [row["p"] for row in read(lake)] == ["x", None, "a b/%"]
    files = list((lake / "t").glob("*.parquet"))
    assert {file.stat().st_nlink for file in files} == {2}
    counted = pa.table(DeltaTable(lake / "t").get_add_actions()).column("num_records")
    assert sum(counted.to_pylist()) == 3
    assert DeltaTable(lake / "t").transaction_version("a") == 1


def test_another_file_system_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, to = placer(tmp_path)
    log.staged("append", "t", [(1, "x")])
    log.publish()

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", refuse)
    place(log, to)
    (file,) = (tmp_path / "lake" / "t").glob("*.parquet")
    assert file.stat().st_nlink == 1
    assert read(tmp_path / "lake") == [{"id": 1, "p": "x"}]


def test_links_left_by_a_crash_are_kept(tmp_path: Path) -> None:
    log, to = placer(tmp_path)
    log.staged("append", "t", [(1, "x")])
    log.publish()
    (file,) = log.segments[0].effects[1].files
    os.link(log.payloads / file.path, tmp_path / "lake" / "t" / placed_name(file.path))
    assert place(log, to) == 1
    assert len(read(tmp_path / "lake")) == 1


def test_missing_and_changed_payloads_leave_the_table_alone(tmp_path: Path) -> None:
    log, to = placer(tmp_path)
    log.staged("append", "t", [(1, "x")])
    log.publish()
    (file,) = log.segments[0].effects[1].files
    path = log.payloads / file.path
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(ApplyError, match="is missing"):
        place(log, to)
    path.write_bytes(content + b"?")
    with pytest.raises(ApplyError, match="its manifest says"):
        place(log, to)
    assert DeltaTable(tmp_path / "lake" / "t").version() == 0
