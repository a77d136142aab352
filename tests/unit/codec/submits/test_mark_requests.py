"""Prepared transactions and marks in requests."""

from __future__ import annotations

import pytest

from sparktxlog.codec.containers.assembly import assemble_run
from sparktxlog.codec.containers.payload import read_manifest
from sparktxlog.codec.containers.runs import RunLimits, validate_run
from sparktxlog.codec.submits.mark_requests import (
    MOST_PARTICIPANTS,
    MarkRequest,
    check_prepared,
    mark_id,
    marking,
    participants_of,
)
from sparktxlog.codec.submits.requests import decode_request, prepare, request_of
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import Mark, OperationKind

X = b"x" * 16
TABLE = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))


def test_participants_are_some_names_each_once() -> None:
    assert participants_of(None) == ()
    assert participants_of(["site-a.billing", "p_2"]) == ("site-a.billing", "p_2")
    many = [f"p{number}" for number in range(MOST_PARTICIPANTS + 1)]
    assert len(participants_of(many[1:])) == MOST_PARTICIPANTS
    for names in ([], ["p", "p"], many, [""], ["a b"], ["ä"], ["-p"], ["p" * 65], ["p\n"]):
        with pytest.raises(InvalidRequestError) as refused:
            participants_of(names)
        assert refused.value.definite and refused.value.fields["field"] == "participants"


def test_what_cannot_be_decided_or_undone_is_not_prepared() -> None:
    change = TableChange(keys=("id",))
    creates = PreparedOperation(table="t", kind=OperationKind.CREATE_TABLE, definition=TABLE)
    alters = PreparedOperation(table="t", kind=OperationKind.ALTER_TABLE, change=change)
    deletes = PreparedOperation(table="t", kind=OperationKind.DELETE_WHERE, predicate="id = 1")
    check_prepared([deletes], 5, None)
    for operations, until, session, field in (
        ([], None, None, "valid_until"),
        ([], 5, "s", "session"),
        ([deletes, creates], 5, None, "kind"),
        ([alters], 5, None, "kind"),
    ):
        with pytest.raises(InvalidRequestError) as refused:
            check_prepared(operations, until, session)
        assert refused.value.fields["field"] == field


def test_who_says_the_same_again_repeats_one_transaction() -> None:
    said = MarkRequest(participant="p", yes=True)
    first = marking(X, said)
    assert first == marking(X, said) and first.operations == ()
    assert first.mark == Mark(transaction_id=X, participant="p", yes=True)
    others = [
        marking(b"y" * 16, said),
        marking(X, MarkRequest(participant="q", yes=True)),
        marking(X, MarkRequest(participant="p", yes=False)),
    ]
    ids = {one.transaction_id for one in (first, *others)}
    assert len(ids) == 4 and all(len(one) == 16 for one in ids)
    assert first.mark is not None and mark_id(first.mark) == first.transaction_id
    with pytest.raises(InvalidRequestError, match="cannot name a participant"):
        marking(X, MarkRequest(participant="a b", yes=True))


def test_a_request_becomes_a_manifest_and_a_request_again() -> None:
    delete = '{"kind": "delete_where", "table": "t", "predicate": "id = 1"}'
    body = f'{{"operations": [{delete}], "participants": ["p", "q"], "valid_until": 5}}'
    prepared = prepare(decode_request(body.encode()), X, {"t": TABLE}, RunLimits())
    assert prepared.participants == ("p", "q")
    assert decode_request(request_of(prepared)).participants == ["p", "q"]
    manifest, payload = assemble_run([prepared], 7)
    assert read_manifest(payload) == manifest
    assert (manifest.participants, manifest.valid_until) == (("p", "q"), ((0, 5),))


def test_marks_stand_in_a_run_with_others() -> None:
    plain = PreparedTransaction(transaction_id=b"a" * 16, operations=())
    mark = marking(X, MarkRequest(participant="p", yes=True))
    manifest, payload = assemble_run([plain, mark], 7)
    assert manifest.marks == ((1, mark.mark),) and read_manifest(payload) == manifest


def test_a_run_from_a_client_neither_prepares_nor_marks() -> None:
    delete = PreparedOperation(table="t", kind=OperationKind.DELETE_WHERE, predicate="id = 1")
    prepared = PreparedTransaction(
        transaction_id=X, operations=(delete,), valid_until=5, participants=("p",)
    )
    for transaction in (prepared, marking(X, MarkRequest(participant="p", yes=True))):
        _, payload = assemble_run([transaction], 7)
        with pytest.raises(InvalidRequestError, match="expected a run of version 1"):
            validate_run(payload, {"t": TABLE}, RunLimits())
