"""Which files of a table a copy may carry, and how the copy takes the place of the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import ApplyError
from sparktxlog.worker.copy.layout import Way, check_copyable, swap_way

PLAIN = LogState(
    version=1,
    protocol={"minReaderVersion": 1, "minWriterVersion": 2},
    metadata={"id": "i", "schemaString": "{}", "partitionColumns": [], "configuration": {}},
    adds={"a": {"path": "a.parquet"}},
)


def with_features(*names: str) -> LogState:
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": list(names)}
    return replace(PLAIN, protocol=protocol)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (with_features("catalogManaged"), "feature 'catalogManaged'"),
        (with_features("somethingNew"), "feature 'somethingNew'"),
        (replace(PLAIN, adds={"a": {"path": "file:/other/a.parquet"}}), "shallow clone"),
        (replace(PLAIN, adds={"a": {"path": "/other/a.parquet"}}), "shallow clone"),
        (replace(PLAIN, adds={"a": {"path": "%2e%2e/a.parquet"}}), "leaves the table"),
        (
            replace(PLAIN, adds={"a": {"path": "a", "deletionVector": {"storageType": "p"}}}),
            "absolute path",
        ),
    ],
)
def test_what_files_do_not_carry_is_refused(log: LogState, reason: str) -> None:
    with pytest.raises(ApplyError, match=reason) as caught:
        check_copyable("t", log)
    assert caught.value.definite and caught.value.hint and "'t'" in caught.value.message


def test_features_of_a_log_travel_with_it_only() -> None:
    check_copyable("t", with_features("rowTracking", "domainMetadata"))
    assert swap_way(PLAIN, with_features("rowTracking")) is Way.RENAME
    assert swap_way(PLAIN, with_features("appendOnly")) is Way.COMMIT
    assert swap_way(with_features("changeDataFeed"), PLAIN) is Way.RENAME
    append_only = replace(
        PLAIN, metadata={**PLAIN.metadata, "configuration": {"delta.appendOnly": "true"}}
    )
    assert swap_way(append_only, PLAIN) is Way.RENAME
    assert swap_way(None, PLAIN) is Way.RENAME
