"""What becomes of an existing table's protocol, properties and files, and what is in the way."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.delta_writer import SCHEMA

from sparktxlog.codec.delta_catalog.adopted_tables import PlainTable, creation_of
from sparktxlog.codec.delta_catalog.lockstep import check_created
from sparktxlog.codec.delta_catalog.table_states import DeltaTableState
from sparktxlog.delta.commit_contents import read_commit_file
from sparktxlog.delta.log_state import LogState

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
NEEDED = {"catalogManaged", "deletionVectors", "v2Checkpoint", "vacuumProtocolCheck"}
CLUSTERING = {"delta.clustering": json.dumps({"clusteringColumns": [["id"]]})}
ADD = {"path": "p%20a=1/f.parquet", "size": 7, "partitionValues": {"p": None}, "stats": "{}"}
FEATURES = {"minReaderVersion": 3, "minWriterVersion": 7}


def plain(protocol: dict[str, Any], *adds: dict[str, Any], **properties: str) -> PlainTable:
    metadata = {
        "id": "its old id",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(SCHEMA),
        "partitionColumns": [],
        "configuration": {key.replace("__", "."): value for key, value in properties.items()},
        "description": "all of them",
    }
    log = LogState(version=41, protocol=protocol, metadata=metadata, domains=CLUSTERING)
    log.adds = {add["path"]: add for add in adds}
    return PlainTable(path="/data/t", log=log)


@pytest.mark.parametrize(
    ("versions", "readers", "writers"),
    [
        ((1, 2), set(), {"appendOnly", "invariants"}),
        (
            (1, 4),
            set(),
            {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"},
        ),
        (
            (2, 6),
            {"columnMapping"},
            {
                *("appendOnly", "invariants", "checkConstraints", "changeDataFeed"),
                *("generatedColumns", "columnMapping", "identityColumns"),
            },
        ),
    ],
)
def test_an_old_protocol_becomes_its_features(
    versions: tuple[int, int], readers: set[str], writers: set[str]
) -> None:
    made = plain({"minReaderVersion": versions[0], "minWriterVersion": versions[1]})
    found = made.protocol_of_commits
    assert {*found["readerFeatures"]} == NEEDED | readers
    assert {*found["writerFeatures"]} == NEEDED | writers | {"inCommitTimestamp"}
    assert made.obstacles == []


def test_the_first_commit_is_what_the_catalog_takes() -> None:
    table = plain(
        FEATURES | {"readerFeatures": ["deletionVectors"], "writerFeatures": ["clustering"]},
        ADD | {"dataChange": False, "baseRowId": 5, "defaultRowCommitVersion": 30},
        delta__appendOnly="true",
        delta__checkpointPolicy="classic",
        delta__inCommitTimestampEnablementVersion="9",
        io__unitycatalog__tableId="another",
    )
    raw = table.first_commit(UUID, 1_700_000_000_000)
    content = read_commit_file(raw)
    state = DeltaTableState.first(content)
    state.check(UUID)
    check_created(creation_of(content, "t", "file:/x"), state)
    assert state.metadata.configuration == {
        "delta.appendOnly": "true",
        "delta.checkpointPolicy": "v2",
        "delta.enableDeletionVectors": "true",
        "delta.enableInCommitTimestamps": "true",
        "io.unitycatalog.tableId": UUID,
    }
    assert state.domains == CLUSTERING
    assert [file.path for file in content.files] == ["p a=1/f.parquet"]
    lines = [json.loads(line) for line in raw.splitlines()]
    own = {"dataChange": True, "baseRowId": 5, "defaultRowCommitVersion": 0}
    assert lines[-1]["add"] == ADD | own
    assert lines[1]["metaData"]["id"] != "its old id"
    assert lines[0]["commitInfo"]["operationParameters"]["sourceVersion"] == "41"


@pytest.mark.parametrize(
    ("feature", "add", "said"),
    [
        ("icebergCompatV2", ADD, "feature 'icebergCompatV2', which commit tables do not have"),
        ("catalogManaged", ADD, "is managed by a catalog"),
        ("checkpointProtection", ADD, None),
        ("clustering", ADD | {"path": "file:/elsewhere/f"}, "is no path below the table"),
        (
            "clustering",
            ADD | {"deletionVector": {"storageType": "p", "pathOrInlineDv": "/elsewhere/d"}},
            "is no place below the table",
        ),
    ],
)
def test_what_is_in_the_way(feature: str, add: dict[str, Any], said: str | None) -> None:
    table = plain(FEATURES | {"readerFeatures": [], "writerFeatures": [feature]}, add)
    assert len(table.obstacles) == (said is not None)
    assert said is None or said in table.obstacles[0]


def test_what_a_commit_table_does_not_keep_is_named() -> None:
    features = {"writerFeatures": ["checkpointProtection", "clustering"], "readerFeatures": []}
    table = plain(
        FEATURES | features,
        delta__requireCheckpointProtectionBeforeVersion="7",
        delta__checkpointPolicy="classic",
        team="sales",
    )
    table.log.transactions["a query"] = 7
    assert table.left_behind == [
        "feature checkpointProtection",
        "property delta.requireCheckpointProtectionBeforeVersion",
        "how far a query came (a stream that goes on may write its last batch twice)",
    ]
    assert plain({"minReaderVersion": 1, "minWriterVersion": 2}, ADD).left_behind == []
