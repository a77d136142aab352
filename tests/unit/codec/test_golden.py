"""What nodes say, byte for byte: an encoding that changes is a wire version of its own (P31).

`golden/<version>.json` holds the bytes of one sample of each message as the first release of that
version writes them.  `python -m tests.unit.codec.test_golden` writes those of the newest version
again, as long as no release speaks it; those of a released one stay as they are.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.codec.test_wire import EPOCH_MESSAGES, HEADER, MESSAGES

from sparktxlog.codec import wire
from sparktxlog.codec.containers.payload import (
    carried_contents,
    digest_of,
    encode_payload,
    read_manifest,
    verify_payload,
)
from sparktxlog.errors import ManifestMismatchError
from sparktxlog.model.tables.commit_table import CommitKind, CommitOperation
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import (
    Block,
    Mark,
    OperationKind,
    RunManifest,
    StagedFile,
)
from sparktxlog.protocol.messages.posts import QueueEntry
from sparktxlog.protocol.messages.versions import NEWEST, OLDEST
from sparktxlog.storage.interfaces import QueueSummary, StoredEntry
from sparktxlog.storage.journal.summary_files import open_summary, write_summary

_DIRECTORY = Path(__file__).parent / "golden"
_MANIFEST = RunManifest(
    n=2,
    ids=bytes(range(32)),
    submitted_at=1_795_255_315_522_579,
    session="s",
    blocks=(
        Block(
            table="t",
            kind=OperationKind.CREATE_TABLE,
            txs=(0,),
            definition=TableDefinition(name="t", columns=(Column(name="id", type="bigint"),)),
        ),
        Block(
            table="t",
            kind=OperationKind.APPEND,
            txs=(1,),
            files=(StagedFile(path="p/x", size_bytes=1 << 40, rows=3, digest="d"),),
        ),
    ),
)
_SUMMARY = QueueSummary(
    last=StoredEntry(
        entry=QueueEntry(position=1, header=HEADER, previous_hash=bytes(32), chain_hash=b"h" * 32),
        ids=b"i" * 16,
        ordered_at=5,
        payload=None,
    ),
    watermarks={"site-a": 1_006},
    recent_ids=((1, b"i" * 16),),
)


def _encoded() -> dict[str, bytes]:
    """Return the bytes of all samples by name."""
    found = {}
    for number, message in enumerate(MESSAGES):
        found[f"{type(message).__name__} {number}"] = wire.encode(message)
    for part in EPOCH_MESSAGES:
        found[f"epoch {type(part).__name__}"] = wire.encode_epoch(part)
    found["pushes"] = wire.encode_pushes([(HEADER, b"payload")])
    found["run"] = encode_payload(_MANIFEST, [b"section"])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "summary"
        write_summary(_SUMMARY, path)
        found["summary"] = path.read_bytes()
    return found


def _golden(version: int) -> dict[str, bytes]:
    texts: dict[str, str] = json.loads((_DIRECTORY / f"{version}.json").read_text())
    return {name: bytes.fromhex(text) for name, text in texts.items()}


def _reads(earlier: Any, later: Any) -> bool:
    """Return whether a reader of the earlier form finds all that it knows in the later one."""
    if isinstance(earlier, dict) and isinstance(later, dict):
        return all(name in later and _reads(earlier[name], later[name]) for name in earlier)
    if isinstance(earlier, list) and isinstance(later, list):
        return len(earlier) == len(later) and all(map(_reads, earlier, later))
    return bool(earlier == later)


def test_the_newest_version_is_written_as_it_always_was() -> None:
    golden = _golden(NEWEST)
    changed = sorted(name for name, data in _encoded().items() if data != golden.get(name))
    assert not changed, (
        "another encoding: it needs the next wire version (protocol/messages/versions.py)"
    )


@pytest.mark.parametrize("version", range(OLDEST, NEWEST + 1))
def test_an_earlier_version_is_read_and_finds_all_that_it_knows(
    version: int, tmp_path: Path
) -> None:
    golden, now = _golden(version), _encoded()
    assert len(golden) > 20
    for number, message in enumerate(MESSAGES):
        data = golden.get(f"{type(message).__name__} {number}")
        assert data is None or wire.decode(type(message), data) == message
    for part in EPOCH_MESSAGES:
        data = golden.get(f"epoch {type(part).__name__}")
        assert data is None or wire.decode_epoch(data) == part
    assert read_manifest(golden["run"]) == _MANIFEST
    (tmp_path / "summary").write_bytes(golden["summary"])
    summary = open_summary(tmp_path / "summary")
    assert replace(summary, recent_ids=tuple(summary.recent_ids)) == _SUMMARY
    assert list(wire.decode_pushes(golden["pushes"])) == [(HEADER, b"payload")]
    for name in golden.keys() - {"pushes", "run", "summary"}:
        assert _reads(*map(msgspec.msgpack.decode, (golden[name], now[name]))), name


_PREPARED = RunManifest(
    n=1,
    ids=b"x" * 16,
    submitted_at=5,
    blocks=(Block(table="t", kind=OperationKind.DELETE_WHERE, txs=(0,), predicate="id = 1"),),
    valid_until=((0, 9),),
    participants=("a", "b"),
)
_MARKS = RunManifest(
    n=3,
    ids=bytes(48),
    submitted_at=5,
    blocks=(Block(table="t", kind=OperationKind.DELETE_WHERE, txs=(1,), predicate="id = 1"),),
    marks=tuple(
        (at, Mark(transaction_id=b"x" * 16, participant="a", yes=at == 2)) for at in (0, 2)
    ),
)


_UUID = "0a0b0c0d-0000-4000-8000-000000000001"
_COMMITS = RunManifest(
    n=4,
    ids=bytes(64),
    submitted_at=5,
    blocks=(Block(table="t", kind=OperationKind.DELETE_WHERE, txs=(1,), predicate="id = 1"),),
    commits=(
        (0, CommitOperation(kind=CommitKind.CREATE, uuid=_UUID, name="s.t", timestamp=3)),
        (2, CommitOperation(kind=CommitKind.COMMIT, uuid=_UUID, version=1, timestamp=4)),
        (3, CommitOperation(kind=CommitKind.DROP, uuid=_UUID)),
    ),
)


_PREFIX = f"{uuid.UUID(int=0)}/{_UUID}/"
_FILES = RunManifest(
    n=1,
    ids=bytes(16),
    submitted_at=5,
    blocks=(),
    commits=_COMMITS.commits[1:2],
    commit_files=tuple(
        StagedFile(path=_PREFIX + path, size_bytes=9, rows=0, digest="d")
        for path in ("p=1/x.parquet", f"_delta_log/{1:020}.json")
    ),
)
_FILES = replace(_FILES, commits=((0, _FILES.commits[0][1]),))


#: Commits of two tables with files, and between them one without.
_OTHER = f"{_UUID[:-1]}2"
_SHARED = RunManifest(
    n=3,
    ids=b"".join(bytes(15) + bytes([number]) for number in range(3)),
    submitted_at=5,
    blocks=(),
    commits=tuple(
        (index, CommitOperation(kind=CommitKind.COMMIT, uuid=one, version=1, timestamp=4))
        for index, one in enumerate((_UUID, f"{_UUID[:-1]}3", _OTHER))
    ),
    commit_files=(
        *_FILES.commit_files,
        StagedFile(
            path=f"{uuid.UUID(int=2)}/{_OTHER}/_delta_log/{1:020}.json",
            size_bytes=9,
            rows=0,
            digest="d",
        ),
    ),
)
#: One transaction: it commits to one table, drops another, creates a third, and has rows.
_THIRD = f"{_UUID[:-1]}3"
_SEVERAL = replace(
    _FILES,
    blocks=(replace(_COMMITS.blocks[0], txs=(0,)),),
    commits=(
        *_FILES.commits,
        (0, CommitOperation(kind=CommitKind.DROP, uuid=_OTHER)),
        (0, CommitOperation(kind=CommitKind.RENAME, uuid=f"{_UUID[:-1]}4", name="s.v")),
        (0, CommitOperation(kind=CommitKind.CREATE, uuid=_THIRD, name="s.u", timestamp=3)),
    ),
    commit_files=(
        *_FILES.commit_files,
        replace(
            _FILES.commit_files[1],
            path=f"{uuid.UUID(int=0)}/{_THIRD}/_delta_log/{0:020}.json",
        ),
    ),
)


#: The same as `_FILES`, with files that its container carries.
_CARRIED = replace(_FILES, commit_files=(), carried_files=_FILES.commit_files)


def _renamed(path: str, at: int = 0) -> dict[str, Any]:
    files = list(_FILES.commit_files)
    files[at] = replace(files[at], path=path)
    return {"commit_files": tuple(files)}


def test_files_of_a_commit_are_staged_files() -> None:
    assert _FILES.staged_bytes == 18
    assert _FILES.staged_files == list(_FILES.commit_files)
    assert _SHARED.files_by_commit() == {
        (_SHARED.transaction_id(0), _UUID): _FILES.commit_files,
        (_SHARED.transaction_id(2), _OTHER): _SHARED.commit_files[2:],
    }


def test_files_that_a_container_carries_are_not_staged() -> None:
    assert _CARRIED.staged_bytes == 0 and _CARRIED.staged_files == []
    assert _CARRIED.files_by_commit() == _FILES.files_by_commit()


def test_files_that_a_container_carries_are_compared_with_its_manifest() -> None:
    contents = [b"some rows", b"{commit}"]
    files = tuple(
        replace(file, size_bytes=len(content), digest=hashlib.sha256(content).hexdigest())
        for file, content in zip(_CARRIED.carried_files, contents, strict=True)
    )
    manifest = replace(_CARRIED, carried_files=files)
    whole = encode_payload(manifest, contents)
    assert verify_payload(whole, digest_of(whole)) == manifest
    found = carried_contents(whole, manifest)
    assert found == dict(zip((file.path for file in files), contents, strict=True))
    for other in ([b"some rowz", b"{commit}"], [b"some rows"], [b"some rows", b"{commit} "]):
        with pytest.raises(ManifestMismatchError):
            verify_payload(encode_payload(manifest, other), digest_of(whole))


@pytest.mark.parametrize(
    "manifest", [_PREPARED, _MARKS, _COMMITS, _FILES, _SHARED, _SEVERAL, _CARRIED]
)
def test_prepared_transactions_marks_and_commits_are_read_as_they_were_written(
    manifest: RunManifest,
) -> None:
    assert read_manifest(encode_payload(manifest, [])) == manifest


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (_PREPARED, {"n": 2, "ids": bytes(32)}),
        (_PREPARED, {"valid_until": ()}),
        (_PREPARED, {"participants": ("a", "a")}),
        (_PREPARED, {"marks": _MARKS.marks[:1]}),
        (_PREPARED, {"blocks": _MANIFEST.blocks[:1]}),
        (_MARKS, {"marks": _MARKS.marks[::-1]}),
        (_MARKS, {"marks": ((3, _MARKS.marks[0][1]),)}),
        (_MARKS, {"marks": ((0, replace(_MARKS.marks[0][1], transaction_id=b"x")),)}),
        (_MARKS, {"marks": ((1, _MARKS.marks[0][1]),)}),
        (_MARKS, {"blocks": (replace(_MARKS.blocks[0], txs=None),)}),
        (_COMMITS, {"commits": _COMMITS.commits[::-1]}),
        (_COMMITS, {"commits": (_COMMITS.commits[0],) * 2}),
        (_COMMITS, {"commits": ((4, _COMMITS.commits[0][1]),)}),
        (_COMMITS, {"commits": ((0, replace(_COMMITS.commits[0][1], name="t")),)}),
        (_COMMITS, {"marks": _MARKS.marks[1:]}),
        (_PREPARED, {"commits": _COMMITS.commits[:1]}),
        (_COMMITS, {"commits": ((-1, _COMMITS.commits[0][1]),)}),
        (_FILES, {"n": 2, "ids": bytes(32)}),
        (_SEVERAL, {"commits": (*_SEVERAL.commits, _SEVERAL.commits[1])}),
        (_SEVERAL, {"commits": _SEVERAL.commits[:2]}),
        (_SEVERAL, {"commit_files": _FILES.commit_files}),
        (
            _COMMITS,
            {
                "commits": tuple(
                    (0, replace(_SEVERAL.commits[2][1], uuid=u)) for u in (_UUID, _THIRD)
                )
            },
        ),
        (
            _SEVERAL,
            {
                "commit_files": (
                    *_SEVERAL.commit_files,
                    replace(_FILES.commit_files[0], path=f"{uuid.UUID(int=0)}/{_OTHER}/x"),
                )
            },
        ),
        (_FILES, {"commits": ()}),
        (_FILES, {"commits": ((0, _COMMITS.commits[2][1]),)}),
        (_FILES, {"ids": b"x" * 16}),
        (_FILES, {"commit_files": _FILES.commit_files[:1]}),
        (_FILES, {"commit_files": (*_FILES.commit_files, _FILES.commit_files[0])}),
        (_CARRIED, {"carried_files": _FILES.commit_files[:1]}),
        (_CARRIED, {"commits": ()}),
        (
            _CARRIED,
            {"commit_files": _FILES.commit_files[:1], "carried_files": _FILES.commit_files[1:]},
        ),
        (_FILES, _renamed(f"{uuid.UUID(int=0)}/{uuid.UUID(int=1)}/x")),
        (_FILES, _renamed(_PREFIX + "../x")),
        (_FILES, _renamed(_PREFIX + f"_delta_log/{2:020}.json")),
        (_FILES, _renamed(_PREFIX + f"_delta_log/{2:020}.json", 1)),
        (_FILES, _renamed("x/y")),
        (
            _SHARED,
            {"commits": (_SHARED.commits[0], (1, _SHARED.commits[0][1]), _SHARED.commits[2])},
        ),
        (_SHARED, {"commits": _SHARED.commits[:2]}),
        (_SHARED, {"commits": (_SHARED.commits[0], _SHARED.commits[2])}),
        (_SHARED, {"n": 4, "ids": bytes(15) + bytes([9]) + _SHARED.ids}),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    manifest: RunManifest, said: dict[str, Any]
) -> None:
    payload = encode_payload(replace(manifest, **said), [])
    with pytest.raises(ManifestMismatchError, match="contradict its transactions") as refused:
        read_manifest(payload)
    assert refused.value.definite


if __name__ == "__main__":
    _texts = {name: data.hex() for name, data in _encoded().items()}
    (_DIRECTORY / f"{NEWEST}.json").write_text(json.dumps(_texts, indent=1) + "\n")
