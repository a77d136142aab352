"""Files in place: names, links, copies, statistics, and repeats after a crash."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.support.worker_log import LogBuilder, own_commit, table

from sparktxlog.delta import classic_checkpoints
from sparktxlog.delta.live_files import live_files
from sparktxlog.delta.log_files import commit_path, newest_version
from sparktxlog.errors import ApplyError
from sparktxlog.files import arrivals
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.worker.apply import placing
from sparktxlog.worker.apply.altering import alter_table
from sparktxlog.worker.apply.batches import STEPS
from sparktxlog.worker.apply.placing import Placer, is_checkpoint_due, placed_name, placed_path
from sparktxlog.worker.apply.tables import create_table, read_commit
from sparktxlog.worker.lakes.disk_lake import DiskLake
from sparktxlog.worker.lakes.payload_files import StagedOnDisk


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
    return log, Placer(DiskLake(tmp_path / "lake"), StagedOnDisk(log.payloads))


def staged(tmp_path: Path) -> tuple[LogBuilder, Placer, StagedFile]:
    """Return a log with one staged file that is to be placed."""
    log, to = placer(tmp_path)
    log.staged("append", "t", [(1, "x")])
    log.publish()
    (file,) = log.segments[0].effects[1].files
    return log, to, file


def place(log: LogBuilder, to: Placer, version: int = 1) -> int:
    """Place files after version 0: the worker knows no later one."""
    files = [file for effect in log.segments[-1].effects for file in effect.files]
    return to.place(log.tables["t"], files, own_commit(version), 0)


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
    files = [lake / "t" / path for path in live_files(lake / "t").sizes]
    assert {file.stat().st_nlink for file in files} == {2}
    places = {str(file.parent.relative_to(lake / "t")) for file in files}
    null = "p=__HIVE_DEFAULT_PARTITION__"
    assert places == ({"p=x", null, "p=a b%2F%25"} if partitioned else {"."})
    counted = pa.table(DeltaTable(lake / "t").get_add_actions()).column("num_records")
    assert sum(counted.to_pylist()) == 3
    assert DeltaTable(lake / "t").transaction_version("sparktxlog:l:t") == STEPS


def test_another_file_system_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, to, _ = staged(tmp_path)
    link = os.link

    def refuse(source: Path | str, target: Path | str, **places: Any) -> None:
        if isinstance(source, Path) and source.is_relative_to(log.payloads):
            raise OSError(errno.EXDEV, "another file system")
        link(source, target, **places)

    monkeypatch.setattr(os, "link", refuse)
    place(log, to)
    (file,) = (tmp_path / "lake" / "t").glob("*.parquet")
    assert file.stat().st_nlink == 1
    assert read(tmp_path / "lake") == [{"id": 1, "p": "x"}]


@pytest.mark.parametrize("is_wide", [False, True])
def test_partitions_lie_where_spark_puts_them(tmp_path: Path, is_wide: bool) -> None:
    """Spark and delta-rs quote each other's names: once on the disk, once more in the log."""
    values = ["x", "a b", "a/b", "100%", "100%25", "ü=+&#?", "'\"\\", "日本", "{[^*]}", "..", "\t"]
    names = ["x", "a b", "a%2Fb", "100%25", "100%2525", "ü%3D+&%23%3F", "%27%22%5C", "日本"]
    names += ["%7B%5B%5E%2A%5D}", "..", "%09"]
    log, to = placer(tmp_path, partitioned=True)
    root = tmp_path / "lake" / "t"
    if is_wide:
        wide = TableChange(widen=(("id", "decimal(20,0)"),))
        alter_table(root, 0, log.tables["t"], wide, own_commit(0))
    log.staged("append", "t", list(enumerate(values)))
    log.publish()
    place(log, to)
    there = [path.parent.name for path in root.rglob("*.parquet")]
    assert sorted(there) == sorted(f"p={name}" for name in names)
    handle = DeltaTable(root)
    # Spark leaves `=` as it is, and readers compare such texts.
    paths = pa.table(handle.get_add_actions())["path"].to_pylist()
    assert all(path.startswith("p=") for path in paths)
    assert all((root / path).is_file() for path in live_files(root).sizes)
    assert all(Path(uri).exists() for uri in handle.file_uris())
    handle.create_checkpoint()
    if not is_wide:
        assert [row["p"] for row in read(tmp_path / "lake")] == values


def test_what_no_directory_can_be_named_after_lies_flat(tmp_path: Path) -> None:
    """Such values are refused today; a log of before may have them, and no table stands still."""
    _, _, file = staged(tmp_path)
    for value in ("v" * 254, "é" * 127, "a\0b"):
        assert placed_path(replace(file, partition={"p": value})) == placed_name(file.path)
    deep = placed_path(replace(file, partition={"a": "1", "b=": None}))
    assert deep == f"a=1/b%3D=__HIVE_DEFAULT_PARTITION__/{placed_name(file.path)}"


def test_a_vacuum_may_remove_a_directory_before_its_first_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, to = placer(tmp_path, partitioned=True)
    log.staged("append", "t", [(1, "x")])
    log.publish()
    link, vacuumed = os.link, list[Path]()

    def vacuum_first(source: Path | str, target: Path | str, **places: Any) -> None:
        if not vacuumed and isinstance(target, Path) and target.suffix == ".parquet":
            vacuumed.append(target.parent)
            target.parent.rmdir()
        link(source, target, **places)

    monkeypatch.setattr(os, "link", vacuum_first)
    place(log, to)
    assert vacuumed and read(tmp_path / "lake") == [{"id": 1, "p": "x"}]


def test_links_left_by_a_crash_are_kept(tmp_path: Path) -> None:
    log, to, file = staged(tmp_path)
    os.link(log.payloads / file.path, tmp_path / "lake" / "t" / placed_name(file.path))
    assert place(log, to) == 1
    assert len(read(tmp_path / "lake")) == 1


def test_missing_and_changed_payloads_leave_the_table_alone(tmp_path: Path) -> None:
    log, to, file = staged(tmp_path)
    path = log.payloads / file.path
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(ApplyError, match="is missing"):
        place(log, to)
    path.write_bytes(content + b"?")
    with pytest.raises(ApplyError, match="its manifest says"):
        place(log, to)
    assert DeltaTable(tmp_path / "lake" / "t").version() == 0


def test_a_file_damaged_after_it_was_accepted_enters_no_table(tmp_path: Path) -> None:
    log, to, file = staged(tmp_path)
    path = log.payloads / file.path
    good = path.read_bytes()
    bad = bytearray(good)
    bad[len(bad) // 2] ^= 1
    path.write_bytes(bad)
    with pytest.raises(ApplyError, match="has the digest") as caught:
        place(log, to)
    assert caught.value.fields["path"] == file.path
    assert not list((tmp_path / "lake" / "t").glob("*.parquet"))
    path.write_bytes(good)
    assert place(log, to) == 1
    assert read(tmp_path / "lake") == [{"id": 1, "p": "x"}]


def test_a_damaged_file_left_by_a_crash_is_linked_anew(tmp_path: Path) -> None:
    log, to, file = staged(tmp_path)
    left = tmp_path / "lake" / "t" / placed_name(file.path)
    left.write_bytes(bytes(file.size_bytes))
    assert place(log, to) == 1
    assert os.path.samefile(left, log.payloads / file.path)


def test_a_disk_that_cannot_read_a_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, to, _ = staged(tmp_path)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(arrivals, "digest_of", fail)
    with pytest.raises(ApplyError, match="cannot be read: Input/output error"):
        place(log, to)
    assert DeltaTable(tmp_path / "lake" / "t").version() == 0


@pytest.mark.parametrize("is_wide", [False, True])
def test_a_commit_comes_after_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_wide: bool
) -> None:
    """Also in a widened table: delta-rs reads the log of one, and commits nothing to it."""
    monkeypatch.setattr(placing, "_CHECKPOINT_EVERY", 3)
    log, to = placer(tmp_path, partitioned=True)
    root = tmp_path / "lake" / "t"
    handle = DeltaTable(root)
    wide = TableChange(widen=(("id", "decimal(20,0)"),)) if is_wide else TableChange(comment="c")
    alter_table(root, 0, log.tables["t"], wide, own_commit(0))
    log.staged("append", "t", [(1, "x"), (2, None)])
    log.publish()
    # Somebody compacts the table meanwhile.
    commit_path(root, 2).write_text('{"commitInfo":{"operation":"OPTIMIZE"}}\n')
    assert place(log, to) == 3
    handle.update_incremental()
    actions = pa.table(handle.get_add_actions())
    assert sum(actions.column("num_records").to_pylist()) == 2
    assert {one["p"] for one in actions.column("partition").to_pylist()} == {"x", None}
    assert handle.transaction_version("sparktxlog:l:t") == STEPS
    commit = read_commit(root, 3)
    assert commit.changes and commit.own is not None and commit.own.log_id == "l"
    assert (root / "_delta_log" / f"{3:020}.checkpoint.parquet").exists()
    commit_path(root, 3).unlink()
    assert DeltaTable(root).transaction_version("sparktxlog:l:t") == STEPS


def test_an_answer_that_is_lost_adds_no_row_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version is there, and it is the worker's own."""
    log, to, _ = staged(tmp_path)
    link = os.link

    def lose(source: Path | str, target: Path | str, **places: Any) -> None:
        link(source, target, **places)
        if Path(target).suffix == ".json":
            raise OSError(errno.EIO, "no answer")

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", lose)
        assert place(log, to) == 1
    root = tmp_path / "lake" / "t"
    found = read_commit(root, 1).own
    assert found is not None and found.last_position == 1
    assert newest_version(root, 0) == 1 and read(tmp_path / "lake") == [{"id": 1, "p": "x"}]


@pytest.mark.parametrize("cleans", ["true", "false"])
def test_the_log_is_kept_as_its_properties_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cleans: str
) -> None:
    log, to, _ = staged(tmp_path)
    root = tmp_path / "lake" / "t"
    synced = list[tuple[str, bool]]()

    def sync(path: Path) -> None:
        synced.append((path.name, commit_path(root, 0).exists()))

    monkeypatch.setattr(classic_checkpoints, "sync_file", sync)
    properties = (("delta.checkpointInterval", "2"), ("delta.enableExpiredLogCleanup", cleans))
    log.tables["t"] = replace(log.tables["t"], properties=properties)
    for version in range(1, 5):
        place(log, to, version)
        if version == 2:
            for path in (root / "_delta_log").iterdir():
                os.utime(path, (1, 1))
    assert sorted(path.name for path in (root / "_delta_log").glob("*.checkpoint*")) == [
        f"{version:020}.checkpoint.parquet" for version in (2, 4)
    ]
    assert commit_path(root, 0).exists() == (cleans == "false")
    assert (f"{2:020}.checkpoint.parquet", True) in synced  # before what it replaces goes
    assert len(read(tmp_path / "lake")) == 1


def test_a_version_that_may_be_undone_replaces_no_log(tmp_path: Path) -> None:
    """Its checkpoint goes with it, and readers are at the version before until the batch ends."""
    log, to, _ = staged(tmp_path)
    root = tmp_path / "lake" / "t"
    log.tables["t"] = replace(log.tables["t"], properties=(("delta.checkpointInterval", "2"),))
    for version in range(1, 4):
        place(log, to, version)
    for path in (root / "_delta_log").iterdir():
        os.utime(path, (1, 1))
    assert place(log, to, 4) == 4
    assert DeltaTable(root, version=3).to_pyarrow_table().num_rows == 1
    for path in (root / "_delta_log").glob(f"{4:020}.*"):
        path.unlink()
    assert len(live_files(root).sizes) == 1


def test_a_checkpoint_is_due_as_the_properties_say() -> None:
    """None of a table that was just made: a job of Spark would say what one line says."""
    made = table("t", "id bigint")
    assert [v for v in range(301) if is_checkpoint_due(made, v)] == [100, 200, 300]
    often = replace(made, properties=(("delta.checkpointInterval", "7"),))
    assert [v for v in range(20) if is_checkpoint_due(often, v)] == [7, 14]
