"""Copies of checkpoints: whole or not there, never of a query that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.command_line import invoke

from sparktxlog.errors import InvalidRequestError, LockedError, StorageError
from sparktxlog.files.durability import sync_file
from sparktxlog.storage import stream_checkpoints
from sparktxlog.storage.stream_checkpoints import copy_checkpoint, last_batch_in

QUERY = "5d1d0c4e-32a2-4c3c-9a3c-1d8a2f0f6f3e"


def checkpoint(root: Path, begun: int, done: int) -> Path:
    """Write what Spark writes: `begun` batches, the first `done` of them done."""
    for folder, count in (("offsets", begun), ("commits", done), ("state/0/1", 1)):
        (root / folder).mkdir(parents=True)
        for batch in range(count):
            (root / folder / str(batch)).write_text(f"v1\n{{}}\n{batch}")
            (root / folder / f".{batch}.crc").write_text("sum")
    (root / "metadata").write_text(json.dumps({"id": QUERY}))
    return root


def files_of(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_all_files_are_copied_and_the_last_batch_is_told(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "a", begun=12, done=11)
    target = tmp_path / "b" / "q"
    found = copy_checkpoint(source, target)
    assert files_of(target) == files_of(source)
    assert (found.query_id, found.done, found.begun) == (QUERY, 10, 11)
    assert found.files == len(files_of(source))
    assert [path.name for path in target.parent.iterdir()] == ["q"]
    between = copy_checkpoint(checkpoint(tmp_path / "c", begun=3, done=3), tmp_path / "d")
    assert (between.done, between.begun) == (2, None)
    first = copy_checkpoint(checkpoint(tmp_path / "e", begun=1, done=0), tmp_path / "f")
    assert (first.done, first.begun) == (None, 0)


@pytest.mark.parametrize("change", ["written", "new", "gone"])
def test_a_query_that_runs_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    source = checkpoint(tmp_path / "a", begun=3, done=3)

    def changing(path: Path) -> None:
        """The query works while a file is copied."""
        sync_file(path)
        if change == "written":
            (source / "state/0/1/0").write_text("more state")
        elif change == "new":
            (source / "offsets/3").write_text("v1")
        else:
            (source / "offsets/0").unlink(missing_ok=True)

    monkeypatch.setattr(stream_checkpoints, "sync_file", changing)
    with pytest.raises(LockedError, match="its query runs"):
        copy_checkpoint(source, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = checkpoint(tmp_path / "a", begun=3, done=3)

    def failing(path: Path) -> None:
        raise OSError(5, "the disk failed")

    monkeypatch.setattr(stream_checkpoints, "sync_file", failing)
    with pytest.raises(StorageError, match="the disk failed"):
        copy_checkpoint(source, tmp_path / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_is_refused(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "a", begun=3, done=3)
    (tmp_path / "there").mkdir()
    with pytest.raises(InvalidRequestError, match="exists already"):
        copy_checkpoint(source, tmp_path / "there")
    with pytest.raises(InvalidRequestError, match="is inside"):
        copy_checkpoint(source, source / "copy")
    with pytest.raises(InvalidRequestError, match="has no file 'metadata'"):
        copy_checkpoint(tmp_path / "nowhere", tmp_path / "b")
    with pytest.raises(InvalidRequestError, match="batch 6 as the last one begun, 2 as"):
        copy_checkpoint(checkpoint(tmp_path / "c", begun=7, done=3), tmp_path / "b")
    (source / "metadata").write_text("no JSON")
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        copy_checkpoint(source, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def sink(root: Path, *batches: tuple[str, int]) -> Path:
    """Write the log of a table: one version for each batch of a query."""
    (root / "_delta_log").mkdir(parents=True)
    for version, (query, batch) in enumerate(batches):
        lines = [{"commitInfo": {"operation": query}}, {"txn": {"appId": query, "version": batch}}]
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (root / "_delta_log" / f"{version:020}.json").write_text(text)
    return root


def test_a_checkpoint_that_is_older_than_the_sink_is_refused(tmp_path: Path) -> None:
    table = sink(tmp_path / "t", (QUERY, 0), (QUERY, 1), (QUERY, 2), ("another", 9))
    assert last_batch_in(table, 3, QUERY) == 2
    assert last_batch_in(table, 0, QUERY) == 0
    assert last_batch_in(table, 3, "a third") is None
    (table / "_delta_log" / f"{2:020}.json").unlink()
    assert last_batch_in(table, 3, QUERY) is None, "its log begins later"
    source = checkpoint(tmp_path / "a", begun=3, done=2)
    copy_checkpoint(source, tmp_path / "b", lambda _: None)
    copy_checkpoint(source, tmp_path / "c", lambda _: 2)
    asked: list[str] = []

    def later(query_id: str) -> int:
        asked.append(query_id)
        return 3

    with pytest.raises(InvalidRequestError, match="ends at batch 2, and the sink has batch 3"):
        copy_checkpoint(source, tmp_path / "d", later)
    assert asked == [QUERY] and not (tmp_path / "d").exists()


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = checkpoint(tmp_path / "a", begun=3, done=2)
    target = f"file://{tmp_path}/b"
    assert invoke(monkeypatch, "checkpoint", "copy", str(source), target) == 0
    said = capsys.readouterr().out
    assert f"Query {QUERY} goes on after batch 1; batch 2 was begun, and is run again." in said
    assert files_of(tmp_path / "b") == files_of(source)
    assert invoke(monkeypatch, "checkpoint", "copy", str(source), "s3://bucket/q") == 2
    assert "object stores and other machines are not supported yet" in capsys.readouterr().err
