"""Checkpoints of all forms say the same; those of twins: `tests/unit/storage/commit_tables`."""

from __future__ import annotations

import errno
import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparktxlog.delta.checkpoints import drop_torn, newest_checkpoint, newest_of_twin
from sparktxlog.delta.live_files import live_files
from sparktxlog.delta.log_files import commit_path, log_of
from sparktxlog.errors import CorruptLogError, StorageError

PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}
VECTOR = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "offset": 1}
INLINE = {
    "storageType": "i",
    "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
}
ADDS = [
    {"path": "p=%C3%BC/a", "size": 1, "stats": "{}"},
    {"path": "b", "size": 2, "deletionVector": {**VECTOR, "sizeInBytes": 36}},
    {"path": "c", "size": 3, "deletionVector": {**INLINE, "sizeInBytes": 36}},
]
REMOVE = {"path": "gone", "deletionTimestamp": 7}
FILES = {
    "p=ü/a": 1,
    "b": 2,
    "c": 3,
    "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin": 45,
}
FORMS = ["classic", "parts", "json", "json with files", "parquet"]


def write(table: Path, form: str, protocol: dict[str, Any] = PROTOCOL) -> list[Path]:
    """Write a checkpoint of version 4; return its files."""
    log = log_of(table)
    (log / "_sidecars").mkdir(parents=True, exist_ok=True)
    files: list[dict[str, Any]] = [*({"add": add} for add in ADDS), {"remove": REMOVE}]
    top = [{"checkpointMetadata": {"version": 4}}, {"protocol": protocol}]
    named = log / f"{4:020}.checkpoint.{uuid.uuid4()}"
    if form == "classic":
        return [parquet(log / f"{4:020}.checkpoint.parquet", top[1:] + files)]
    if form == "parts":
        parts = (top[1:] + files[:2], files[2:])
        names = [f"{4:020}.checkpoint.{n:010}.{2:010}.parquet" for n in (1, 2)]
        return [parquet(log / name, rows) for name, rows in zip(names, parts, strict=True)]
    if form == "json with files":
        return [lines(named.with_name(f"{named.name}.json"), top + files)]
    sidecars = [
        parquet(log / "_sidecars" / f"{name}.parquet", rows)
        for name, rows in (("x", files[:1]), ("y", files[1:]))
    ]
    top += [{"sidecar": {"path": path.name, "sizeInBytes": 1}} for path in sidecars]
    if form == "json":
        return [lines(named.with_name(f"{named.name}.json"), top), *sidecars]
    return [parquet(named.with_name(f"{named.name}.parquet"), top), *sidecars]


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    kinds = {kind for row in rows for kind in row}
    pq.write_table(
        pa.Table.from_pylist([{kind: row.get(kind) for kind in kinds} for row in rows]), path
    )
    return path


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(tmp_path: Path, form: str) -> None:
    write(tmp_path, form)
    found = newest_checkpoint(tmp_path, 5)
    assert found is not None and found.version == 4 and newest_checkpoint(tmp_path, 3) is None
    assert {path: one.size for path, one in live_files(tmp_path, 4).needed.items()} == FILES
    assert [one["path"] for one in found.removed_after(6)] == ["gone"]
    assert not [*found.removed_after(7)]
    protocol = found.protocol()
    assert protocol is not None and protocol.reader_features == ("deletionVectors",)
    assert (newest_of_twin(tmp_path, 5) is not None) is form.startswith("json")
    commit_path(tmp_path, 5).write_text('{"remove":{"path":"c"}}\n{"add":{"path":"d","size":4}}')
    assert live_files(tmp_path).sizes == {"p=ü/a": 1, "b": 2, "d": 4}


@pytest.mark.parametrize("form", FORMS)
def test_features_that_nobody_knows_are_seen_in_every_form(tmp_path: Path, form: str) -> None:
    write(tmp_path, form, {**PROTOCOL, "readerFeatures": ["of tomorrow"]})
    with pytest.raises(StorageError, match="of tomorrow"):
        live_files(tmp_path, 4)


@pytest.mark.parametrize("form", ["parts", "json", "parquet"])
def test_one_that_is_not_whole_does_not_count(tmp_path: Path, form: str) -> None:
    write(tmp_path, form)[-1].unlink()
    assert newest_checkpoint(tmp_path, 4) is None
    with pytest.raises(CorruptLogError, match="has no version 0"):
        live_files(tmp_path, 4)


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_one_is_named(tmp_path: Path, form: str) -> None:
    path = write(tmp_path, form)[0]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CorruptLogError, match=path.name):
        live_files(tmp_path, 4)


def test_a_sidecar_beyond_a_link_is_not_taken(tmp_path: Path) -> None:
    sidecar = write(tmp_path / "t", "json")[1]
    sidecar.rename(tmp_path / "secret")
    sidecar.symlink_to(tmp_path / "secret")
    assert newest_checkpoint(tmp_path / "t", 4) is None


def test_only_what_is_torn_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkpoint,) = write(tmp_path, "classic")

    def cannot_be_opened(path: Path) -> None:
        raise OSError(errno.EMFILE, "Failed to open local file", str(path))

    with monkeypatch.context() as context:
        context.setattr(pq, "read_metadata", cannot_be_opened)
        with pytest.raises(OSError, match="Failed to open"):
            drop_torn(tmp_path)
    drop_torn(tmp_path)
    assert checkpoint.exists()
    checkpoint.write_bytes(b"PAR1" + b"\xff" * 100 + b"\x60\0\0\0PAR1")  # no footer, says Arrow
    drop_torn(tmp_path)
    assert not checkpoint.exists()
    first, second = write(tmp_path, "parts")
    first.write_bytes(b"")
    drop_torn(tmp_path)
    assert not first.exists() and not second.exists()
