"""Which properties a row table may have (P33)."""

from __future__ import annotations

import pytest

from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.tables.table_properties import check_properties, property_pairs, why_not


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("team", "sales"),
        ("owner.mail", ""),
        ("delta.logRetentionDuration", "interval 90 days"),
        ("delta.deletedFileRetentionDuration", "1 week"),
        ("delta.checkpointInterval", "20"),
        ("delta.dataSkippingNumIndexedCols", "-1"),
        ("delta.targetFileSize", "128mb"),
        ("delta.autoOptimize.autoCompact", "auto"),
        ("delta.enableExpiredLogCleanup", "false"),
    ],
)
def test_what_a_table_may_have(name: str, value: str) -> None:
    assert why_not(name, value) is None


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("delta.appendOnly", "true", "rewrite rows"),
        ("delta.columnMapping.mode", "name", "maps columns itself"),
        ("delta.constraints.positive", "a > 0", "does not check constraints"),
        ("delta.enableDeletionVectors", "true", "argument deletion_vectors"),
        ("delta.enableChangeDataFeed", "true", "readStream"),
        ("delta.setTransactionRetentionDuration", "interval 1 day", "transaction versions"),
        ("delta.minReaderVersion", "3", "which protocol"),
        ("DELTA.appendonly", "true", "rewrite rows"),
        ("delta.unheardOf", "1", "they may have delta.autoOptimize"),
        ("delta.deletedFileRetentionDuration", "interval 0 hours", "hours, days or weeks"),
        ("delta.deletedFileRetentionDuration", "interval 5 seconds", "hours, days or weeks"),
        ("delta.checkpointInterval", "often", "'often' is not a whole number"),
        ("sparktxlog.keys", "[]", "the log's own"),
        ("", "x", "1 to 255"),
        ("a\nb", "x", "printable"),
        ("long", "x" * 4001, "4,000 characters"),
    ],
)
def test_what_a_table_cannot_have_is_refused_with_the_reason(
    name: str, value: str, reason: str
) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        check_properties("t", {name: value})


def test_properties_are_kept_by_name() -> None:
    assert property_pairs("t", {"b": "1", "a": "2", "none": None}) == (("a", "2"), ("b", "1"))
    with pytest.raises(InvalidRequestError, match="201 properties"):
        property_pairs("t", {f"p{index}": "x" for index in range(201)})
