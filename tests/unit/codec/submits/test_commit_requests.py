"""Transactions of commit tables, as a node takes them (P36)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparktxlog.codec.containers.assembly import assemble_run
from sparktxlog.codec.containers.payload import read_manifest
from sparktxlog.codec.containers.runs import RunLimits, validate_run
from sparktxlog.codec.submits.commit_requests import (
    as_uuid,
    committing,
    creating,
    dropping,
    renaming,
)
from sparktxlog.codec.submits.condition_requests import conflict_of, is_conflict
from sparktxlog.codec.submits.transactions import PreparedTransaction
from sparktxlog.errors import InvalidNameError, InvalidRequestError, VersionConflictError
from sparktxlog.model.tables.commit_table import CommitKind, CommitOperation
from sparktxlog.model.transactions.receipt import Level, Receipt, ReceiptRejection

UUID = "0a0b0c0d-0000-4000-8000-000000000001"
X, Y, Z = b"x" * 16, b"y" * 16, b"z" * 16


def test_each_says_one_thing_and_does_nothing_else() -> None:
    made = [
        creating(X, UUID.upper(), "shop.Orders", 5, version=2),
        committing(Y, UUID.replace("-", ""), 3, 6),
        dropping(Z, UUID),
        renaming(Z, UUID, "shop.sold"),
    ]
    create = CommitOperation(
        kind=CommitKind.CREATE, uuid=UUID, name="shop.Orders", version=2, timestamp=5
    )
    assert [(one.transaction_id, one.commits) for one in made] == [
        (X, (create,)),
        (Y, (CommitOperation(kind=CommitKind.COMMIT, uuid=UUID, version=3, timestamp=6),)),
        (Z, (CommitOperation(kind=CommitKind.DROP, uuid=UUID),)),
        (Z, (CommitOperation(kind=CommitKind.RENAME, uuid=UUID, name="shop.sold"),)),
    ]
    assert all(not one.operations for one in made)
    manifest, payload = assemble_run(
        [made[0], PreparedTransaction(transaction_id=b"-" * 16, operations=()), *made[1:]],
        submitted_at=1,
    )
    assert read_manifest(payload) == manifest
    assert manifest.commits == tuple(
        zip((0, 2, 3, 4), (one.commits[0] for one in made), strict=True)
    )
    with pytest.raises(InvalidRequestError, match="expected a run of version 1"):
        validate_run(payload, {}, RunLimits())


def test_what_cannot_be_is_refused() -> None:
    wrongs: tuple[Callable[[], object], ...] = (
        lambda: creating(X, "1", "s.t", 5),
        lambda: creating(X, UUID, "t", 5),
        lambda: committing(X, UUID, 0, 5),
        lambda: committing(X, UUID, 1, -5),
        lambda: dropping(X, UUID + "0"),
        lambda: renaming(X, UUID, "t"),
        lambda: renaming(X, UUID, "a.b.c"),
    )
    for wrong in wrongs:
        with pytest.raises(InvalidRequestError):
            wrong()
    for name in ("s.con", "aux.t", "s."):
        with pytest.raises((InvalidNameError, InvalidRequestError)):
            creating(X, UUID, name, 5)
    assert as_uuid("x") == "x"


def test_a_lost_commit_tells_who_has_the_version() -> None:
    lost = ReceiptRejection(
        index=0,
        code=VersionConflictError.code,
        text="it has version 7",
        table="s.t",
        winner=4,
        origin="b",
        version=7,
        winner_id="w",
    )
    receipt = Receipt(transaction_id="x", n=1, level=Level.ORDERED, position=9, outcome="rejected")
    assert is_conflict(lost)
    error = conflict_of(receipt, lost)
    assert isinstance(error, VersionConflictError)
    told = {name: error.fields[name] for name in ("table", "version", "winner", "winner_id")}
    assert told == {"table": "s.t", "version": 7, "winner": 4, "winner_id": "w"}
    assert (error.fields["position"], error.fields["origin"]) == (9, "b")
