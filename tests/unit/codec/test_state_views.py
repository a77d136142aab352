"""State as rows of fixed schemas."""

from __future__ import annotations

import traceback
from dataclasses import fields
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from sparktxlog.api.connect import TxLog
from sparktxlog.api.spark_errors import errors_from_spark
from sparktxlog.codec.state_views import KEPT, VIEWS, check_view
from sparktxlog.errors import (
    CommitStateUnknownError,
    ConflictError,
    InvalidRequestError,
    SchemaMismatchError,
    TxLogError,
)
from sparktxlog.model.answers import Survival
from sparktxlog.model.copying import CatchUpKind, Transfer
from sparktxlog.model.epoch import EpochRecord, QueueEnd, RosterSeat
from sparktxlog.model.tables.table import Column
from sparktxlog.model.tables.table_kind import TableDescription, TableKind
from sparktxlog.storage.log_tables.log_schemas import LOG_TABLES

STATUS: dict[str, Any] = {
    "node_id": "A",
    "epoch": 1,
    "position": 7,
    "published": 6,
    "counter": 99,
    "round": 3,
    "busy": True,
    "incoming_runs": 1,
    "incoming_transactions": 2,
    "halted": None,
    "waiting_for": [{"peer": "C", "why": "promise", "since_us": 10, "behind": None}],
    "peers": [
        {
            "id": "B",
            "url": "http://b",
            "linked": True,
            "position": 7,
            "counter": 98,
            "age_s": 0.5,
            "acquired": {"A": 3, "C": 1},
        },
        {
            "id": "C",
            "url": "http://c",
            "linked": False,
            "reason": "refused",
            "position": 3,
            "counter": 50,
        },
    ],
    "replicas": [
        {
            "worker_id": "w1",
            "node_id": "A",
            "position": 5,
            "verdict": "IN_SYNC",
            "alive": True,
            "age_s": 1.0,
            "table_count": 1,
            "tables": {"t": {"version": 4, "signature": "1:0:0", "schema": "x", "diverged": ""}},
        }
    ],
}
ANSWERS: dict[str, Any] = {
    "status": STATUS,
    "info": {"master_url": "http://a"},
    "descriptions": [
        TableDescription(
            name="t",
            kind=TableKind.ROW_TABLE,
            comment="of t",
            columns=(
                Column(name="id", type="bigint", nullable=False),
                Column(name="v", type="string"),
            ),
            keys=("id",),
            properties={"team": "sales"},
            schema_version=1,
        ).to_document()
    ],
    "transfers": [
        msgspec.to_builtins(
            Transfer(
                transfer_id="c",
                worker_id="w1",
                node_id="A",
                kind=CatchUpKind.COPY,
                donors=("B",),
                from_position=0,
                to_position=5,
                started_at=1,
                finished_at=2,
                estimated_s=None,
                actual_s=2.5,
            )
        )
    ],
    "epochs": [
        msgspec.to_builtins(
            EpochRecord(
                log_id="l",
                epoch=2,
                members=("A", "B"),
                quorum=2,
                quorum_rule="default",
                roster=(RosterSeat(id="A", url="u", weight=1, witness=False, incarnation=1),),
                begins_after=QueueEnd(position=7, chain_hash="ab"),
                joined=("B",),
                left=None,
                changed=(),
                phase="NORMAL",
                taken_up_at=1_700_000_000_000_000,
            )
        )
    ],
}


ANSWERS["status_with_tables"] = STATUS
ANSWERS["differences"] = []


def view(name: str, answers: dict[str, Any] = ANSWERS) -> pa.Table:
    return VIEWS[name].table(answers)


def test_masters_show_this_node_its_peers_and_who_is_awaited() -> None:
    rows = view("masters").to_pylist()
    assert [(r["node_id"], r["is_asked"], r["linked"], r["awaited"]) for r in rows] == [
        ("A", True, True, []),
        ("B", False, True, []),
        ("C", False, False, ["promise"]),
    ]
    assert rows[0]["url"] == "http://a"
    assert [row["reason"] for row in rows] == [None, None, "refused"]
    assert [row["acquired"] for row in rows] == [None, [("A", 3), ("C", 1)], None]


def test_signatures_have_one_row_for_each_table_of_each_replica() -> None:
    (row,) = view("signatures").to_pylist()
    assert (row["node_id"], row["table"], row["version"], row["position"]) == ("A", "t", 4, 5)
    assert row["difference"] is None
    writer = {"position": 3, "transaction_id": "x", "origin": "B", "kind": "append"}
    found = {"equal_to": 2, "position": 3, "signature": "1:0:0", "others": {"B": "2:0:0"}}
    found |= {"convicted": True, "sentence": "It differs.", "transactions": [writer]}
    differences = [{"site": site, "table": "t", **found} for site in "AC"]
    (row,) = view("signatures", {**ANSWERS, "differences": differences}).to_pylist()
    assert row["difference"] == {**found, "others": [("B", "2:0:0")]}
    (worker,) = view("workers").to_pylist()
    assert (worker["worker_id"], worker["tables"], worker["verdict"]) == ("w1", 1, "IN_SYNC")


def test_transfers_keep_expected_and_measured_apart() -> None:
    (row,) = view("transfers").to_pylist()
    assert set(row) == {f.name for f in fields(Transfer)}
    assert (row["kind"], row["donors"], row["estimated_s"], row["actual_s"]) == (
        "copy",
        ["B"],
        None,
        2.5,
    )


def test_epochs_have_the_columns_of_their_table() -> None:
    found = view("epochs")
    (row,) = found.to_pylist()
    assert (row["begins_after"]["position"], row["joined"], row["left"]) == (7, ["B"], None)
    assert row["roster"][0]["id"] == "A"
    assert row["taken_up_at"].timestamp() == 1_700_000_000
    table = LOG_TABLES["epochs"]
    assert [(f.name, f.type) for f in found.schema] == [(f.name, f.type) for f in table]


def test_tables_show_their_columns_as_ddl() -> None:
    (row,) = view("tables").to_pylist()
    assert (row["table"], row["columns"]) == ("t", "id bigint not null, v string")
    assert (row["kind"], row["comment"], row["location"]) == ("row-table", "of t", None)
    assert row["properties"] == [("team", "sales")]


def test_settings_and_commit_tables_are_rows() -> None:
    answers = {
        **ANSWERS,
        "settings": {"TxLogMaxDepth": {"value": 168, "origin": "default"}},
        "commit_tables": [{"name": "shop.orders", "uuid": "u", "version": 3, "state": "in-sync"}],
        "prepared": [{"transaction_id": "t", "position": 9, "missing": ["p"]}],
        "incoming": [
            {"origin": "A", "n": 3, "waits": [{"peer": "B", "why": "promise", "since_us": 5}]}
        ],
        "audit": [{"at": 7, "who": "operator", "action": "maintain", "outcome": "done"}],
    }

    def rows(name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = view(name, answers).to_pylist()
        return found

    assert rows("settings") == [{"key": "TxLogMaxDepth", "value": "168", "origin": "default"}]
    (table,), (prepared,) = rows("commit_tables"), rows("prepared")
    assert (table["table"], table["version"], table["lag"]) == ("shop.orders", 3, None)
    assert (prepared["position"], prepared["missing"]) == (9, ["p"])
    (act,) = rows("audit")
    assert (act["who"], act["action"], act["outcome"]) == ("operator", "maintain", "done")
    (run,) = rows("incoming")
    assert (run["n"], run["waits"]) == (3, [{"peer": "B", "why": "promise"}])


def test_empty_views_keep_their_schema() -> None:
    status = {**STATUS, "peers": [], "replicas": []}
    quiet = {**ANSWERS, "status": status, "status_with_tables": status} | {
        "descriptions": [],
        "commit_tables": [],
        "prepared": [],
        "incoming": [],
        "survival": [],
        "differences": [],
        "settings": {},
        "audit": [],
        "transfers": [],
        "epochs": [],
    }
    for name, known in VIEWS.items():
        found = view(name, quiet)
        assert found.schema == known.schema
        assert found.num_rows == (name == "masters")


def test_a_view_has_all_that_is_known_of_a_loss() -> None:
    """What it left out, `survival`, `drill` and `site switch` would not see."""
    assert set(VIEWS["survival"].schema.names) == set(Survival.__annotations__)


def test_what_people_are_promised_is_there() -> None:
    """Each view is a method of a log; the other ways read `KEPT` and `VIEWS` themselves."""
    promised = "queue incoming masters workers signatures transfers epochs lag settings"
    assert set(promised.split()) <= {*KEPT, *VIEWS}
    for name in (*KEPT, *VIEWS):
        assert callable(getattr(TxLog, name)), name


def test_an_unknown_view_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"'nothing'.*queue, lag, .*masters"):
        check_view("nothing")


def test_typed_errors_come_back_out_of_spark_s_text() -> None:
    inner = SchemaMismatchError("column 'x' is missing", hint="Add it.")
    found = errors_from_spark(RuntimeError(_in_spark(inner)))
    assert isinstance(found, SchemaMismatchError)
    assert (found.message, found.hint, found.definite) == ("column 'x' is missing", "Add it.", True)
    assert found.fields == {}


def test_fields_come_back_too() -> None:
    inner = ConflictError("it lost", table="t}", winner=7, origin=None)
    found = errors_from_spark(RuntimeError(_in_spark(inner)))
    assert isinstance(found, ConflictError)
    assert found.fields == {"table": "t}", "winner": 7, "origin": None}
    found = errors_from_spark(RuntimeError(_in_spark(ConflictError("a\nfields: {no}"))))
    assert isinstance(found, ConflictError)
    assert found.fields == {}


def _in_spark(error: TxLogError) -> str:
    """Return what Spark says of an error that a data source raised."""
    told = "".join(traceback.format_exception(error))
    return f"[PYTHON_DATA_SOURCE_ERROR] …\n{told} SQLSTATE: 38000\n\nat java"


def test_an_outcome_that_is_unknown_stays_unknown() -> None:
    inner = CommitStateUnknownError("transaction 1 has not reached 'ordered' in time")
    found = errors_from_spark(RuntimeError(f"sparktxlog.errors.CommitStateUnknownError: {inner}"))
    assert isinstance(found, CommitStateUnknownError)
    assert not found.definite


def test_other_errors_stay_what_they_are() -> None:
    error = RuntimeError("[some-code] text")
    assert errors_from_spark(error) is error
