"""What a change writes into a table's log: names in files, ids, the lowest protocol (P33)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.support.segments import segment

from sparktxlog.delta.commit_files import read_actions
from sparktxlog.model.signature import EMPTY_SIGNATURE
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.worker.apply.altering import alter_table
from sparktxlog.worker.apply.batches import Step, StepKind, TableStage, plan_batch
from sparktxlog.worker.apply.tables import OwnCommit, create_table

ADDED = Column(name="note", type="string", comment="why")
TABLE = TableDefinition(
    name="t",
    columns=(
        Column(name="id", type="bigint", nullable=False),
        Column(name="day", type="date"),
        Column(name="item", type="array<struct<n:int,of:map<string,struct<x:int>>>>"),
        Column(name="n", type="smallint"),
        Column(name="at", type="date"),
    ),
    keys=("id",),
    partition_by=("day",),
)


def own() -> OwnCommit:
    batch = plan_batch([segment(1, 5)], lambda _: pytest.fail("no rows here"))
    step = Step(number=3, kind=StepKind.ALTER, stage=TableStage(index=0), last=True)
    return OwnCommit.of(batch, "l", "t", step, EMPTY_SIGNATURE)


def changed(table: Path, *changes: TableChange) -> list[dict[str, Any]]:
    """Return the actions of each change by name."""
    create_table(table, TABLE, "", {"appId": "a", "version": 1})
    found, definition = [], TABLE
    for version, change in enumerate(changes):
        alter_table(table, version, definition, change, own())
        definition = change.applied_to(definition)
        actions = read_actions(table, version + 1)
        assert actions is not None
        found.append({name: value for action in actions for name, value in action.items()})
        schema = json.loads(found[-1]["metaData"]["schemaString"])["fields"]
        found[-1]["fields"] = {field["name"]: field for field in schema}
        assert list(found[-1]["fields"]) == [column.name for column in definition.columns]
    return found


def test_an_added_column_needs_no_mapping(tmp_path: Path) -> None:
    (found,) = changed(tmp_path, TableChange(add=(ADDED,), keys=("id",)))
    assert "protocol" not in found and found["metaData"]["configuration"] == {}
    assert found["fields"]["note"]["metadata"] == {"comment": "why"}
    assert found["commitInfo"]["operation"] == "ALTER TABLE"
    assert found["commitInfo"]["operationParameters"] == {"add": '["note"]', "keys": '["id"]'}
    assert found["txn"] == {"appId": own().app_id, "version": own().txn_version}


def test_names_in_files_are_in_the_schema(tmp_path: Path) -> None:
    first, second = changed(
        tmp_path,
        TableChange(rename=(("day", "on"), ("id", "number")), add=(ADDED,)),
        TableChange(drop=("note",), rename=(("on", "day"),)),
    )
    for protocol in (first["protocol"], DeltaTable(tmp_path).protocol()._asdict()):
        assert "columnMapping" in (protocol.get("readerFeatures") or protocol["reader_features"])
    assert "protocol" not in second
    assert first["metaData"]["partitionColumns"] == ["on"]
    assert second["metaData"]["partitionColumns"] == ["day"]
    assert first["metaData"]["id"] == second["metaData"]["id"]
    names = {
        name: field["metadata"]["delta.columnMapping.physicalName"]
        for name, field in first["fields"].items()
    }
    assert names == {
        "number": "id",
        "on": "day",
        **{name: name for name in ("item", "n", "at")},
        "note": "__txlog_2_note",
    }
    assert first["fields"]["note"]["metadata"]["comment"] == "why"
    inner = first["fields"]["item"]["type"]["elementType"]["fields"]
    deep = inner[1]["type"]["valueType"]["fields"][0]
    assert deep["metadata"]["delta.columnMapping.physicalName"] == "x"
    fields = [*first["fields"].values(), *inner, deep]
    ids = {field["metadata"]["delta.columnMapping.id"] for field in fields}
    assert ids == set(range(1, 10))
    for found in (first, second):
        assert found["metaData"]["configuration"] == {
            "delta.columnMapping.mode": "name",
            "delta.columnMapping.maxColumnId": "9",
        }
    assert second["fields"]["day"]["metadata"] == first["fields"]["on"]["metadata"]


def test_wider_types_keep_what_they_were(tmp_path: Path) -> None:
    first, second, third = changed(
        tmp_path,
        TableChange(widen=(("n", "int"), ("at", "timestamp_ntz"))),
        TableChange(widen=(("n", "decimal(12,2)"),)),
        TableChange(rename=(("n", "number"),)),
    )
    assert first["protocol"]["readerFeatures"] == ["timestampNtz", "typeWidening"]
    assert "protocol" not in second
    assert third["protocol"]["readerFeatures"] == ["columnMapping", "timestampNtz", "typeWidening"]
    assert first["metaData"]["configuration"] == {"delta.enableTypeWidening": "true"}
    steps = [
        {"fromType": "short", "toType": "integer"},
        {"fromType": "integer", "toType": "decimal(12,2)"},
    ]
    assert first["fields"]["n"]["metadata"] == {"delta.typeChanges": steps[:1]}
    assert first["fields"]["at"]["type"] == "timestamp_ntz"
    for found, name in ((second, "n"), (third, "number")):
        assert found["fields"][name]["metadata"]["delta.typeChanges"] == steps
        assert found["fields"][name]["type"] == "decimal(12,2)"


def test_other_keys_change_nothing_in_the_table(tmp_path: Path) -> None:
    create_table(tmp_path, TABLE, "", {"appId": "a", "version": 1})
    alter_table(tmp_path, 0, TABLE, TableChange(keys=()), own())
    actions = read_actions(tmp_path, 1)
    assert actions is not None and [*actions[0], *actions[1]] == ["commitInfo", "txn"]


def test_another_commit_in_between_is_never_overwritten(tmp_path: Path) -> None:
    changed(tmp_path, TableChange(add=(ADDED,)))
    with pytest.raises(FileExistsError):
        alter_table(tmp_path, 0, TABLE, TableChange(drop=("item",)), own())


def test_comments_and_properties_are_in_the_metadata(tmp_path: Path) -> None:
    before = replace(
        TABLE,
        columns=(replace(TABLE.columns[0], comment="timestamp_ntz"), *TABLE.columns[1:]),
        partition_by=(),
        cluster_by=("n", "id"),
        comment="of the shop",
        properties=(("delta.checkpointInterval", "20"), ("team", "a")),
    )
    create_table(tmp_path, before, "", {"appId": "a", "version": 1})
    table = DeltaTable(tmp_path)
    # A comment is no type, so it brings no feature; clustering is for writers only.
    assert table.protocol().min_reader_version == 1
    assert {"clustering", "domainMetadata"} <= set(table.protocol().writer_features or ())
    assert table.metadata().description == "of the shop"
    assert table.metadata().configuration == dict(before.properties)
    assert {f.name: f.metadata for f in table.schema().fields}["id"] == {"comment": "timestamp_ntz"}
    change = TableChange(
        rename=(("id", "number"),),
        comments=(("id", ""), ("day", "of the order")),
        properties=(("team", None), ("owner", "b")),
    )
    alter_table(tmp_path, 0, before, change, own())
    table = DeltaTable(tmp_path)
    said = {field.name: field.metadata for field in table.schema().fields}
    assert "comment" not in said["number"] and said["day"]["comment"] == "of the order"
    assert table.metadata().description == "of the shop"
    kept = table.metadata().configuration
    assert (kept["owner"], kept["delta.checkpointInterval"], kept.get("team")) == ("b", "20", None)
    assert {"clustering", "columnMapping"} <= set(table.protocol().writer_features or ())
    (told,) = (
        json.loads(action["domainMetadata"]["configuration"])
        for action in read_actions(tmp_path, 0) or ()
        if "domainMetadata" in action
    )
    assert told["clusteringColumns"] == [["n"], ["id"]]
    before = change.applied_to(before)
    change = TableChange(comment="", cluster_by=())
    alter_table(tmp_path, 1, before, change, own())
    assert DeltaTable(tmp_path).metadata().description is None


def test_a_table_is_clustered_by_others_and_stays_of_that_kind(tmp_path: Path) -> None:
    before = replace(TABLE, partition_by=())
    create_table(tmp_path, before, "", {"appId": "a", "version": 1})
    said = []
    changes = [
        TableChange(cluster_by=("day", "n")),
        TableChange(cluster_by=()),
        TableChange(rename=(("n", "number"),)),
        TableChange(cluster_by=("number",)),
    ]
    for version, change in enumerate(changes):
        alter_table(tmp_path, version, before, change, own())
        before = change.applied_to(before)
        actions = read_actions(tmp_path, version + 1) or []
        said += [
            json.loads(a["domainMetadata"]["configuration"])["clusteringColumns"]
            for a in actions
            if "domainMetadata" in a
        ]
    assert said == [[["day"], ["n"]], [], [["n"]]]
    protocol = DeltaTable(tmp_path).protocol()
    assert protocol.reader_features == ["columnMapping"]
    assert {"clustering", "domainMetadata"} <= set(protocol.writer_features or ())
