"""Conditions in requests, runs and manifests: what is let through, and what is not (P27)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.codec.containers.test_runs import T, container, section
from tests.unit.codec.submits.test_requests import ID, ORDERS, ROW, TABLES

from sparktxlog.codec.containers.assembly import assemble_run
from sparktxlog.codec.containers.payload import (
    digest_of,
    encode_payload,
    read_manifest,
    split_payload,
)
from sparktxlog.codec.containers.runs import RunLimits, validate_run
from sparktxlog.codec.submits.condition_requests import conflict_of
from sparktxlog.codec.submits.requests import decode_request, prepare, request_of
from sparktxlog.codec.submits.transactions import PreparedTransaction
from sparktxlog.errors import ConflictError, InvalidRequestError, TxLogError, UnknownTableError
from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.model.transactions.receipt import Level, Receipt, ReceiptRejection

_READ = {"read_position": 41, "reads": ["orders"], "versions": {"bulk": 7}}
_CONDITION = Condition(read_position=41, reads=("orders",), versions=(("bulk", 7),))


def _body(conditions: Any, *more: dict[str, Any]) -> bytes:
    operation = {"kind": "append", "table": "orders", "rows": [ROW]}
    return json.dumps({"operations": [operation, *more], "conditions": conditions}).encode()


def _prepared(conditions: Any, *more: dict[str, Any]) -> PreparedTransaction:
    return prepare(decode_request(_body(conditions, *more)), ID.bytes, TABLES, RunLimits())


def test_a_request_comes_back_as_it_was() -> None:
    prepared = _prepared(_READ)
    assert prepared.condition == _CONDITION
    again = prepare(decode_request(request_of(prepared)), ID.bytes, TABLES, RunLimits())
    assert again.condition == _CONDITION
    assert _prepared(None).condition is None
    assert b"conditions" not in request_of(_prepared(None))


def test_tables_have_the_names_of_the_log() -> None:
    said = {"read_position": 41, "reads": ["ORDERS", "default.orders"], "versions": {"Bulk": 7}}
    assert _prepared(said).condition == _CONDITION
    twice = {"versions": {"orders": 1, "default.orders": 2}}
    with pytest.raises(InvalidRequestError, match="each table once"):
        _prepared(twice)


@pytest.mark.parametrize(
    ("conditions", "field", "text"),
    [
        ({}, "conditions", "name no table"),
        ({"read_position": 3}, "conditions", "name no table"),
        ({"reads": []}, "conditions", "name no table"),
        ({"reads": ["orders"]}, "conditions.read_position", "belong together"),
        ({"read_position": 3, "versions": {"orders": 1}}, "conditions.reads", "belong together"),
        ({**_READ, "read_position": -1}, "conditions.read_position", "is -1; a position is 0"),
        ({**_READ, "read_position": 1 << 62}, "conditions.read_position", "position is 0"),
        ({"versions": {"orders": -2}}, "conditions.versions", "is -2; table 'orders'"),
    ],
)
def test_what_cannot_be_is_refused_with_field_and_value(
    conditions: Any, field: str, text: str
) -> None:
    with pytest.raises(InvalidRequestError, match=text) as caught:
        _prepared(conditions)
    assert caught.value.definite and caught.value.hint
    assert caught.value.fields["field"] == field


@pytest.mark.parametrize(
    "conditions",
    [
        {"reads": "orders"},
        {"versions": ["orders"]},
        {"read_position": "3"},
        {"unknown": 1},
        [],
        {"versions": {"orders": 1.5}},
        {"read_position": 1, "reads": ["orders"] * 1_001},
    ],
)
def test_another_form_is_no_request(conditions: Any) -> None:
    with pytest.raises(InvalidRequestError, match="conditions"):
        decode_request(_body(conditions))


def test_tables_must_be_there_before_the_transaction() -> None:
    create = {"kind": "create_table", "table": "new", "columns": [{"name": "id", "type": "int"}]}
    for conditions in ({"read_position": 1, "reads": ["order"]}, {"versions": {"new": 0}}):
        with pytest.raises(UnknownTableError) as caught:
            _prepared(conditions, create)
        assert caught.value.fields["table"] in ("order", "new")


def _refused(conditions: tuple[tuple[int, Condition], ...]) -> TxLogError:
    payload = container(({}, section([0, 1, 2])), conditions=conditions)
    with pytest.raises(TxLogError) as caught:
        validate_run(payload, {"t": T}, RunLimits())
    return caught.value


def test_runs_name_their_transactions_once_ascending() -> None:
    fine = Condition(versions=(("t", 3),))
    payload = container(({}, section([0, 1, 2])), conditions=((0, fine), (2, fine)))
    assert validate_run(payload, {"t": T}, RunLimits()).conditions == ((0, fine), (2, fine))
    for indices in ((3,), (-1,), (1, 1), (2, 0)):
        error = _refused(tuple((index, fine) for index in indices))
        assert error.fields["field"] == "conditions"
    assert isinstance(_refused(((0, Condition(versions=(("x", 1),))),)), UnknownTableError)
    for wrong in (
        Condition(),
        Condition(read_position=1, reads=("t", "t")),
        Condition(versions=(("t", 1), ("t", 2))),
    ):
        assert isinstance(_refused(((0, wrong),)), InvalidRequestError)


def test_conditions_are_part_of_what_a_run_is_known_by() -> None:
    plain, bound = _prepared(None), _prepared(_READ)
    manifest, payload = assemble_run([plain, plain], 1)
    assert read_manifest(payload) == manifest
    manifest, bound_payload = assemble_run([plain, bound], 1)
    assert manifest.conditions == ((1, _CONDITION),)
    assert read_manifest(bound_payload) == manifest
    assert digest_of(payload) != digest_of(bound_payload)
    assert RunFacts.of(manifest).conditions == ((1, _CONDITION),)
    assert encode_payload(read_manifest(payload), split_payload(payload)[1]) == payload


def test_a_conflict_names_who_won() -> None:
    rejection = ReceiptRejection(
        index=0, code="conflict", text="lost", table=ORDERS.name, winner=7, origin="b"
    )
    receipt = Receipt(transaction_id=str(ID), n=1, level=Level.ORDERED, position=9)
    error = conflict_of(receipt, rejection)
    assert isinstance(error, ConflictError) and error.definite and error.retryable
    problem = error.to_problem()
    assert (problem["status"], problem["title"]) == (409, "conflict")
    assert problem["fields"] == {
        "transaction_id": str(ID),
        "position": 9,
        "table": "orders",
        "winner": 7,
        "origin": "b",
    }
    assert "new" in error.hint
