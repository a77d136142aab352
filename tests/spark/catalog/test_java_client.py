"""Delta's own Java clients against a node: requests, answers, and what failures are to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.api.nodes import RunningNode
from tests.spark.catalog.conftest import TOKEN
from tests.support.delta_writer import SCHEMA, StagedTable
from tests.support.java_programs import JavaContract, contract_client

pytestmark = [pytest.mark.spark, pytest.mark.e2e]


@pytest.fixture(scope="module")
def java(node: RunningNode, contract_classes: Path) -> Iterator[JavaContract]:
    with contract_client(contract_classes, node.url, TOKEN) as running:
        yield running


def staged(java: JavaContract, name: str) -> StagedTable:
    """Return a staged table; its very first request is the first POST of a Java process."""
    found = java("stage", name=name)
    assert "failed" not in found, found
    assert set(found["features"]) >= {"catalogManaged", "inCommitTimestamp"}
    required = {
        "min-reader-version": 3,
        "min-writer-version": 7,
        "reader-features": [name for name in found["features"] if name != "inCommitTimestamp"],
        "writer-features": found["features"],
    }
    return StagedTable.of(
        {
            "table-id": found["id"],
            "location": found["location"],
            "required-protocol": required,
            "required-properties": found["properties"],
        }
    )


def created(java: JavaContract, name: str) -> tuple[StagedTable, dict[str, Any]]:
    """Return a created table, and what names it in requests."""
    table = staged(java, name)
    table.write_first(table.add())
    named = {"name": name, "id": table.table_id, "location": table.location}
    found = java("create", **named)
    assert "failed" not in found, found
    assert (found["id"], found["location"]) == (table.table_id, table.location)
    assert json.loads(found["schema"]) == SCHEMA
    assert found["properties"]["delta.feature.catalogManaged"] == "supported"
    return table, named


def test_a_table_is_created_and_written(java: JavaContract) -> None:
    table, named = created(java, "written")
    assert java("commits", **named) == {"latest": 0, "unpublished": 0}
    for version in (1, 2):
        commit = table.stage(version, table.add())
        assert java("commit", **named, commit=commit) == {}
        assert table.published(version).exists()
    assert java("commits", **named) == {"latest": 2, "unpublished": 0}
    assert java("load", **named)["id"] == table.table_id
    assert java("metrics", **named) == {}
    # Delta's kernel reads the table by the versions that the node shows.
    assert java("snapshot", **named) == {"version": 2}
    table.published(3).write_bytes(table.published(2).read_bytes())
    assert java("snapshot", **named) == {"version": 2}


def test_a_table_is_renamed_and_goes_on(java: JavaContract) -> None:
    table, named = created(java, "before")
    assert java("rename", name="before", to="after") == {}
    assert java("load", **named)["failed"] == "NoSuchTableException"
    assert java("commit", **named | {"name": "after"}, commit=table.stage(1)) == {}
    assert java("load", name="after")["id"] == table.table_id
    refused = java("rename", name="after", to="no name")
    assert (refused["failed"], "BadRequestException" in refused["message"]) == (
        "ApiException",
        True,
    )


def test_what_failures_are_to_the_client(java: JavaContract) -> None:
    table, named = created(java, "refused")
    first, second = table.stage(1), table.stage(1)
    assert java("commit", **named, commit=first) == {}
    lost = java("commit", **named, commit=second)
    # Retryable and a conflict: Delta reads the table again, checks, and rewrites its commit.
    assert (lost["failed"], lost["retryable"], lost["conflict"]) == (
        "CommitFailedException",
        True,
        True,
    )
    assert "CommitVersionConflictException" in lost["message"]
    assert java("commit", **named, commit=first) == {}  # a repeat
    wrong = java("commit", **named, commit=table.stage(2) | {"file-size": 3})
    # Neither: Delta gives up, and tells its user why.
    assert (wrong["failed"], wrong["retryable"], wrong["conflict"]) == (
        "CommitFailedException",
        False,
        False,
    )
    assert "InvalidParameterValueException" in wrong["message"]
    assert java("commit", **named, commit=table.stage(2)) == {}
    assert java("load", name="nowhere")["failed"] == "NoSuchTableException"
    gone = java("commit", **{**named, "name": "nowhere"}, commit=table.stage(3))
    assert gone["failed"] == "InvalidTargetTableException"
    other = "00000000-0000-0000-0000-000000000000"
    assert java("commits", **{**named, "id": other})["failed"] == "InvalidTargetTableException"


def test_a_wrong_token_is_told_as_that(node: RunningNode, contract_classes: Path) -> None:
    with contract_client(contract_classes, node.url, "expired") as java:
        refused = java("stage", name="t")
        assert refused["failed"] == "IOException"
        assert "HTTP 401" in refused["message"]
        assert "NotAuthorizedException" in refused["message"]
