"""Commits of several statements as one: what is added, removed, and told of the version."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sparktxlog.codec.delta_catalog.merged_commits import merged_commits
from sparktxlog.delta.commit_contents import read_commit_file
from sparktxlog.errors import InvalidRequestError

VECTOR = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1}


def commit(timestamp: int, *actions: dict[str, Any], blind: bool = False) -> bytes:
    info = {"inCommitTimestamp": timestamp, "txnId": str(timestamp), "isBlindAppend": blind}
    lines = [{"commitInfo": info}, *actions]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def add(path: str, *, vector: bool = False, rows: int | None = None) -> dict[str, Any]:
    action: dict[str, Any] = {"path": path, "size": 4}
    if vector:
        action["deletionVector"] = VECTOR
    if rows is not None:
        action["defaultRowCommitVersion"] = rows
    return {"add": action}


def remove(path: str, *, vector: bool = False) -> dict[str, Any]:
    return {"remove": {"path": path} | ({"deletionVector": VECTOR} if vector else {})}


def merged(*raws: bytes) -> list[dict[str, Any]]:
    """Return the actions of the version 5 that they become, the first one left out."""
    raw = merged_commits(raws, 5)
    read_commit_file(raw)
    return [json.loads(line) for line in raw.splitlines()][1:]


def test_one_commit_stays_as_it_is() -> None:
    raw = commit(7, add("a"))
    assert merged_commits([raw], 5) is raw


def test_the_last_one_tells_of_the_version() -> None:
    raw = merged_commits(
        [
            commit(7, {"txn": {"appId": "a", "version": 1}}, {"metaData": {"schemaString": "1"}}),
            commit(8, {"txn": {"appId": "b", "version": 1}}, {"domainMetadata": {"domain": "d"}}),
            commit(
                9,
                {"txn": {"appId": "a", "version": 2}},
                {"metaData": {"schemaString": "2"}},
                {"domainMetadata": {"domain": "d", "configuration": "last"}},
                blind=True,
            ),
        ],
        5,
    )
    first, *others = [json.loads(line) for line in raw.splitlines()]
    info = {"inCommitTimestamp": 9, "txnId": "9", "readVersion": 4, "isBlindAppend": False}
    assert first["commitInfo"] == info
    assert others == [
        {"txn": {"appId": "a", "version": 2}},
        {"metaData": {"schemaString": "2"}},
        {"txn": {"appId": "b", "version": 1}},
        {"domainMetadata": {"domain": "d", "configuration": "last"}},
    ]


@pytest.mark.parametrize(
    ("commits", "left"),
    [
        ([[add("a")], [add("b")]], [add("a"), add("b")]),
        ([[remove("x")], [remove("y")]], [remove("x"), remove("y")]),
        # It never was there.
        ([[add("a")], [remove("a")]], []),
        ([[add("a")], [remove("a"), add("b")]], [add("b")]),
        # A deletion vector is set, and another one.
        ([[add("a")], [remove("a"), add("a", vector=True)]], [add("a", vector=True)]),
        (
            [[remove("x"), add("x", vector=True)], [remove("x", vector=True), add("b")]],
            [remove("x"), add("b")],
        ),
        # The version before has it: removed, added again, and removed again.
        ([[remove("x")], [add("x")]], [add("x")]),
        ([[remove("x")], [add("x")], [remove("x")]], [remove("x")]),
        # Rows are of the one version that there will be.
        (
            [[add("a", rows=5)], [add("b", rows=6), add("c", rows=3)]],
            [add("a", rows=5), add("b", rows=5), add("c", rows=3)],
        ),
        # Rows of the first statement may be copied, and those of a later one removed.
        ([[add("a", rows=5)], [remove("a"), add("b", rows=6)]], [add("b", rows=5)]),
        ([[], [add("a", rows=6)], [remove("a")]], []),
        (
            [[], [add("a", rows=6)], [remove("a"), add("a", vector=True, rows=6), add("b")]],
            [add("a", vector=True, rows=5), add("b")],
        ),
    ],
)
def test_files_are_what_is_left_of_all(
    commits: list[list[dict[str, Any]]], left: list[dict[str, Any]]
) -> None:
    assert merged(*(commit(7 + at, *actions) for at, actions in enumerate(commits))) == left


@pytest.mark.parametrize(
    ("last", "match"),
    [
        ([remove("a"), add("b", rows=7)], "statement 3 of the transaction copies rows"),
        ([{"cdc": {"path": "c", "size": 1}}], "one wrote 'cdc'"),
    ],
)
def test_what_would_be_told_wrong_is_refused(last: list[dict[str, Any]], match: str) -> None:
    with pytest.raises(InvalidRequestError, match=match):
        merged(commit(7), commit(8, add("a", rows=6)), commit(9, *last))
