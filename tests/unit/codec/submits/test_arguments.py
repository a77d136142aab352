"""Arguments of another type: the public calls refuse them by name, before a node is asked."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparktxlog import Client, Column, InvalidNameError, TxLogError
from sparktxlog.api.connect import TxLog, connect
from sparktxlog.api.streams.foreach_batch import write_stream
from sparktxlog.api.writing.operations import Operations
from sparktxlog.codec.submits.arguments import (
    flag_given,
    kind_given,
    mapping_given,
    microseconds,
    seconds_given,
    text_given,
    texts_given,
    whole_given,
)
from sparktxlog.codec.submits.requests import encode_request
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.transactions.operation import OperationKind

NOW = datetime(2026, 1, 2, tzinfo=UTC)
#: Nothing listens there: a call that asked would be another error.
NOWHERE = "http://127.0.0.1:9"
#: As programs without types call them.
CLIENT: Any = Client
COLUMN: Any = Column
CONNECT: Any = connect
STREAM: Any = write_stream


@pytest.mark.parametrize(
    ("check", "good", "wrong"),
    [
        (seconds_given, [0, 1.5, -1, Fraction(1, 2), np.int64(5)], ["5", None, True, 10**400]),
        (seconds_given, [], [float("nan"), NOW, timedelta(seconds=1), b"5", [5]]),
        (whole_given, [1, 8192, np.int64(2)], [0, -1, 1.0, True, "1", None, [1], np.int64(0)]),
        (whole_given, [], [np.True_, np.float64(2), float("inf")]),
        (flag_given, [True, False], ["no", 0, 1, None]),
        (text_given, ["", "x", "\U0001f600"], [b"x", None, 1, "\ud800", ["x"]]),
        (texts_given, [("a", "b"), ()], ["ab", b"ab", None, 5, [1], [None]]),
        (mapping_given, [{}, {"a": 1}], ["a", ["a"], 5, {1: "a"}]),
        (kind_given, [OperationKind.APPEND], ["append ", "create_table", None, [], 5]),
    ],
)
def test_what_an_argument_may_be(
    check: Callable[[Any, str], Any], good: list[Any], wrong: list[Any]
) -> None:
    takes_kinds = check.__name__ == "kind_given"

    def checked(given: Any) -> Any:
        return kind_given(given) if takes_kinds else check(given, "it")

    for given in good:
        assert checked(given) == given
    for given in wrong:
        with pytest.raises(InvalidRequestError) as caught:
            checked(given)
        error = caught.value
        field = "kind" if takes_kinds else "it"
        assert error.definite and error.hint and error.message.startswith(field)
        assert error.fields["field"] == field and "value" in error.fields


@pytest.mark.parametrize("given", [float("inf"), 1e300, 10**300])
def test_a_time_without_end_is_one_that_threads_can_wait(given: float) -> None:
    found = seconds_given(given)
    assert 30 * 86_400 < found < given
    assert threading.Lock().acquire(timeout=found)  # a time that is too long is an error


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    """As pandas has them, such as the versions in `log.tables()`."""
    with Client(NOWHERE, timeout=1) as client:
        t = client.transaction(isolation="serializable")
        number: Any = np.int64(3)
        t.expect_version("t", number)
        t.expect_schema("t", number)
        t.read_at(number, "u")
        t.append("t", [{"id": 1}])
        assert client.retry(attempts=number).attempts == 3
        request = t.hand_over()
    assert request is not None
    sent = json.loads(encode_request(request))
    assert sent["operations"][0]["schema_version"] == 3
    assert sent["conditions"] == {"read_position": 3, "reads": ["u"], "versions": {"t": 3}}


def test_the_end_of_a_transaction_is_a_time_with_a_zone() -> None:
    assert microseconds(None) is None
    assert microseconds(datetime(1970, 1, 1, 1, tzinfo=UTC)) == 3_600_000_000
    for wrong, why in (
        ("2026-01-02", "is no datetime"),
        (5.0, "is no datetime"),
        (NOW.replace(tzinfo=None), "has no time zone"),
    ):
        with pytest.raises(InvalidRequestError, match=why) as caught:
            microseconds(wrong)  # type: ignore[arg-type]
        assert caught.value.fields["field"] == "valid_until"


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("valid_until", lambda c: c.transaction(valid_until="2026-01-02")),
        ("valid_until", lambda c: c.open_transaction(valid_until=5)),
        ("timeout", lambda c: c.transaction(timeout="5s")),
        ("timeout", lambda c: c.open_transaction(timeout="5s")),
        ("timeout", lambda c: c.append("t", [{"id": 1}], timeout="5s")),
        ("timeout", lambda c: c.submit_many("t", [], timeout="5s")),
        ("timeout", lambda c: c.wait(str(uuid.uuid4()), timeout="5s")),
        ("timeout", lambda c: c.decision(str(uuid.uuid4()), "5s")),
        ("timeout", lambda c: c.mark(str(uuid.uuid4()), "p", yes=True, timeout="5s")),
        ("timeout", lambda c: c.snapshot(timeout="5s")),
        ("timeout", lambda c: c.flush("5s")),
        ("timeout", lambda c: c.retry(timeout="5s")),
        ("timeout", lambda c: CLIENT(NOWHERE, timeout=None)),
        ("url", lambda c: CLIENT(None)),
        ("url", lambda c: CLIENT([None])),
        ("ca_file", lambda c: CLIENT(NOWHERE, ca_file=5)),
        ("level", lambda c: CLIENT(NOWHERE, level="never")),
        ("level", lambda c: c.transaction(level=["ordered"])),
        ("level", lambda c: c.wait(str(uuid.uuid4()), level=None)),
        ("session", lambda c: c.transaction(session=b"x")),
        ("is_sync", lambda c: c.transaction(is_sync="no")),
        ("first_wins", lambda c: c.transaction(first_wins="no")),
        ("participants", lambda c: c.transaction(participants="billing", valid_until=NOW)),
        ("participants", lambda c: c.transaction(participants=[5], valid_until=NOW)),
        ("yes", lambda c: c.mark(str(uuid.uuid4()), "p", yes="no")),
        ("receipt", lambda c: c.wait(None)),
        ("kind", lambda c: c.submit_many("t", [], kind="replace")),
        ("connections", lambda c: c.submit_many("t", [], connections="2")),
        ("run_transactions", lambda c: c.submit_many("t", [], run_transactions=0)),
        ("name", lambda c: c.view(None)),
        ("name", lambda c: c.describe(5)),
        ("limit", lambda c: c.queue(limit="\ud800")),
        ("merge_schema", lambda c: c.append("t", [], merge_schema="no")),
        ("merge_schema", lambda c: c.upsert("t", [], merge_schema="no")),
        ("keys", lambda c: c.create_table("t", "id int", keys=None)),
        ("properties", lambda c: c.create_table("t", "id int", properties="a")),
        ("columns", lambda c: c.create_table("t", [COLUMN(name="id", type=None)])),
        ("columns", lambda c: c.create_table("t", [COLUMN(name="i", type="int", nullable="no")])),
        ("add", lambda c: c.alter_table("t", add="note string")),
        ("add", lambda c: c.alter_table("t", add={"note": None})),
        ("add", lambda c: c.alter_table("t", add={"note": ("string", "a", "b")})),
        ("rename", lambda c: c.alter_table("t", rename={"a": 5})),
        ("drop", lambda c: c.alter_table("t", drop="note")),
        ("change", lambda c: c.transaction().change("t", {"drop": "note"})),
    ],
)
def test_a_call_names_its_argument(field: str, call: Callable[[Any], object]) -> None:
    with Client(NOWHERE, timeout=1) as client, pytest.raises(InvalidRequestError) as caught:
        call(client)
    assert caught.value.fields["field"] == field and caught.value.hint


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("valid_until", lambda log: log.transaction(valid_until="2026-01-02")),
        ("timeout", lambda log: log.transaction(timeout="5s")),
        ("timeout", lambda log: log.batch(timeout="5s")),
        ("timeout", lambda log: log.decision(str(uuid.uuid4()), timeout="5s")),
        ("first_wins", lambda log: log.transaction(first_wins="no")),
        ("level", lambda log: log.transaction(level=None)),
        ("kind", lambda log: log.batch().add("bogus", "t", None, transaction="tx")),
        ("kind", lambda log: log.batch().add("create_table", "t", None, transaction="tx")),
        ("kind", lambda log: log.commit_many(None, table="t", kind=5, transaction="tx")),
        ("merge_schema", lambda log: log.append("t", [], merge_schema="no")),
        ("drop", lambda log: log.release_table("t", drop="no")),
        ("mode", lambda log: STREAM(log, None, "t", 5)),
        ("timeout", lambda log: CONNECT(log.site.spark, NOWHERE, timeout="5s")),
        ("url", lambda log: CONNECT(log.site.spark, None)),
        ("session", lambda log: CONNECT(log.site.spark, NOWHERE, session=5)),
    ],
)
def test_a_call_of_a_session_names_its_argument(field: str, call: Callable[[Any], object]) -> None:
    site: Any = SimpleNamespace(spark=None, link=None, timeout_s=1.0, close=lambda: None)
    site.store, site.expressions, site.home = SimpleNamespace(root=Path()), None, None
    with TxLog(site) as log, pytest.raises(InvalidRequestError) as caught:
        call(log)
    assert caught.value.fields["field"] == field and caught.value.hint


@pytest.mark.parametrize("kind", ["overwrite", OperationKind.OVERWRITE])
def test_an_overwrite_by_no_rows_is_one_however_its_kind_is_given(kind: Any) -> None:
    """It empties the table: what does nothing has no id."""
    with Client(NOWHERE, timeout=1) as client:
        t = client.transaction()
        t.add(kind, "t", [])
        request = t.hand_over()
    assert request is not None and request.transaction_id == t.id


@pytest.mark.parametrize("given", [None, 5, b"x" * 16, ["x"]])
def test_an_id_of_another_type(given: Any) -> None:
    with Client(NOWHERE, timeout=1) as client, pytest.raises(InvalidNameError):
        client.receipt(given)


def test_a_value_that_cannot_be_sent() -> None:
    """Where no rule of an argument names it: it is typed all the same."""
    with Client(NOWHERE, timeout=1) as client, pytest.raises(TxLogError) as caught:
        client.create_table("t", "id int", comment=object())  # type: ignore[arg-type]
    assert isinstance(caught.value, InvalidRequestError) and caught.value.definite


def test_operations_take_no_kind_by_another_name() -> None:
    with Client(NOWHERE, timeout=1) as client:
        t: Operations[Any, Any] = client.transaction()
        with pytest.raises(InvalidRequestError, match="no kind of operation"):
            t.add("insert", "t", [{"id": 1}])  # type: ignore[arg-type]
