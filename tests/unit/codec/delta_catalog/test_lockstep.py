"""What a request says of a commit that changes a table's definition."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.support.delta_writer import SCHEMA, info_of, lines_of
from tests.support.table_updates import changes_of

from sparktxlog.codec.delta_catalog.catalog_requests import (
    ProposedCommit,
    UpdateTableRequest,
    read_update,
    update_of,
)
from sparktxlog.codec.delta_catalog.lockstep import check_changes
from sparktxlog.codec.delta_catalog.table_states import DeltaTableState
from sparktxlog.delta.commit_contents import read_commit_file
from sparktxlog.errors import StagedCommitError

ADDED = {"name": "n", "type": "long", "nullable": True, "metadata": {}}
WIDER = {**SCHEMA, "fields": [*SCHEMA["fields"], ADDED]}
PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": ["clustering"]}
COMMIT = ProposedCommit(
    version=1, timestamp=2, file_name="x", file_size=3, file_modification_timestamp=4
)


def metadata(schema: Any = SCHEMA, **more: Any) -> dict[str, Any]:
    parts = {"partitionColumns": [], "configuration": {"a": "1", "b": "2"}}
    return {"metaData": {"schemaString": json.dumps(schema), **parts, **more}}


def domain(name: str, configuration: str, removed: bool = False) -> dict[str, Any]:
    said = {"domain": name, "configuration": configuration, "removed": removed}
    return {"domainMetadata": said}


CLUSTERED = domain("delta.clustering", '{"clusteringColumns": [["id"]]}')


@pytest.mark.parametrize(
    "actions",
    [
        [{"add": {"path": "x", "size": 1}}],
        [metadata(WIDER, description="text", configuration={"a": "3", "c": "4"})],
        [metadata(partitionColumns=["id"])],
        [{"protocol": {**PROTOCOL, "writerFeatures": ["clustering", "appendOnly"]}}, CLUSTERED],
        [domain("gone", "{}", removed=True)],
    ],
)
def test_what_a_commit_changes_is_said_as_the_node_wants_it(actions: list[dict[str, Any]]) -> None:
    first = read_commit_file(
        lines_of(info_of(1), metadata(), {"protocol": PROTOCOL}, domain("gone", '{"x": 1}'))
    )
    before, content = DeltaTableState.first(first), read_commit_file(lines_of(info_of(2), *actions))
    changes = changes_of(before, content)
    sent = msgspec.json.encode(update_of("u", COMMIT, changes))
    update = read_update(msgspec.json.decode(sent, type=UpdateTableRequest))
    assert (update.uuid, update.commit) == ("u", COMMIT)
    check_changes(update, before, content)
    assert bool(changes) == ("add" not in actions[0])
    if changes and "metaData" in actions[0]:
        with pytest.raises(StagedCommitError):
            unsaid = read_update(update_of("u", COMMIT))
            check_changes(unsaid, before, content)
