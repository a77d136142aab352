"""What a Delta commit file says: files that it needs, and paths that are refused."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from tests.support.delta_writer import info_of, lines_of

from sparktxlog.delta.commit_contents import (
    LiveFiles,
    NeededFile,
    TableMetadata,
    read_commit_file,
)
from sparktxlog.errors import StagedCommitError

#: A deletion vector as Delta writes it: the prefix "ab", then this UUID as Z85.
VECTOR = uuid.UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")
CODED = "ab^-aqEH.-t@S}K{vb[*k^"


def read(*actions: dict[str, Any]) -> Any:
    return read_commit_file(lines_of(info_of(7), *actions))


def test_files_that_a_commit_needs() -> None:
    vector = {"storageType": "u", "pathOrInlineDv": CODED, "offset": 4, "sizeInBytes": 40}
    inline = {"storageType": "i", "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000"}
    found = read(
        {"add": {"path": "p=a%20b/x%2Fy.parquet", "size": 3, "deletionVector": vector}},
        {"add": {"path": "z.parquet", "size": 5, "deletionVector": inline}},
        {"add": {"path": "w.parquet", "size": 6, "deletionVector": vector | {"offset": 90}}},
        {"cdc": {"path": "_change_data/c.parquet", "size": 2}},
        {"remove": {"path": "gone.parquet"}},
        {"txn": {"appId": "a", "version": 1}},
    )
    assert found.timestamp == 7
    assert set(found.files) == {
        NeededFile(path="p=a b/x/y.parquet", size=3),
        NeededFile(path="z.parquet", size=5),
        NeededFile(path="w.parquet", size=6),
        NeededFile(path="_change_data/c.parquet", size=2),
        # One file with two vectors: the one that lies further back tells its least size.
        NeededFile(path=f"ab/deletion_vector_{VECTOR}.bin", size=138, is_exact=False),
    }


def test_a_file_that_only_gets_a_deletion_vector_is_not_new() -> None:
    vector = {"storageType": "u", "pathOrInlineDv": CODED, "offset": 4, "sizeInBytes": 40}
    found = read(
        {"add": {"path": "x%20y", "size": 3, "deletionVector": vector}},
        {"remove": {"path": "x%20y"}},
        {"add": {"path": "z", "size": 3}},
        {"remove": {"path": "w"}},
    )
    new = {file.path: file.is_new for file in found.files}
    assert new == {"x y": False, f"ab/deletion_vector_{VECTOR}.bin": True, "z": True}


def test_what_readers_of_a_version_need() -> None:
    """A file with the vectors of two data files is needed as long as one of them is."""
    vector = {"storageType": "u", "pathOrInlineDv": CODED, "offset": 4, "sizeInBytes": 40}
    live, path = LiveFiles(), f"ab/deletion_vector_{VECTOR}.bin"
    steps: list[tuple[list[dict[str, Any]], set[str]]] = [
        ([{"add": {"path": "x"}}, {"add": {"path": "y"}}], {"x", "y"}),
        (
            [
                *({"add": {"path": name, "deletionVector": vector}} for name in "xy"),
                *({"remove": {"path": name}} for name in "xy"),
                {"cdc": {"path": "_change_data/c"}},
            ],
            {"x", "y", path},
        ),
        ([{"remove": {"path": "x"}}], {"y", path}),
        ([{"remove": {"path": "y"}}, {"add": {"path": "z"}}], {"z"}),
    ]
    for actions, needed in steps:
        live.follow(read(*actions))
        assert live.needed.keys() == needed


@pytest.mark.parametrize(
    "action",
    [
        {"add": {"path": "s3://bucket/x", "size": 1}},
        {"add": {"path": "/x", "size": 1}},
        {"add": {"path": "//host/x", "size": 1}},
        {"add": {"path": "a/../x", "size": 1}},
        {"add": {"path": "%2e%2e/x", "size": 1}},
        {"add": {"path": "a%00", "size": 1}},
        {"add": {"path": "%ff", "size": 1}},
        {"add": {"path": "_delta_log/00000000000000000009.json", "size": 1}},
        {"add": {"path": "", "size": 1}},
        {"add": {"path": "x", "size": "1"}},
        {"cdc": {"path": "file:/x", "size": 1}},
        {"remove": {"path": "../x"}},
        {"add": {"path": "x", "deletionVector": {"storageType": "p", "pathOrInlineDv": "/x"}}},
        {"add": {"path": "x", "deletionVector": {"storageType": "u", "pathOrInlineDv": "x"}}},
        {"add": {"path": "x", "deletionVector": {"storageType": "u", "pathOrInlineDv": "~" * 20}}},
    ],
)
def test_what_leaves_the_table_is_refused(action: dict[str, Any]) -> None:
    with pytest.raises(StagedCommitError) as refused:
        read(action)
    assert refused.value.fields["field"]


def test_what_is_no_commit_is_refused() -> None:
    good = lines_of(info_of(1))
    for content in (b"", b"[]\n", b"\xff\n", lines_of({"commitInfo": {}}), lines_of(info_of(0))):
        with pytest.raises(StagedCommitError):
            read_commit_file(content)
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    for action in ({"protocol": protocol}, {"domainMetadata": {"domain": "d"}}):
        with pytest.raises(StagedCommitError, match=r"once|twice"):
            read_commit_file(good + lines_of(action, action))
    with pytest.raises(StagedCommitError):  # its timestamp must be known before anything else
        read_commit_file(lines_of({"protocol": protocol}) + good)


def test_domains_are_set_and_removed() -> None:
    found = read(
        {"domainMetadata": {"domain": "a", "configuration": "{}", "removed": False}},
        {"domainMetadata": {"domain": "b", "configuration": "", "removed": True}},
    )
    assert found.domains == {"a": "{}", "b": None}


def test_files_that_a_commit_removes() -> None:
    vector = {"storageType": "u", "pathOrInlineDv": CODED, "offset": 4, "sizeInBytes": 40}
    found = read(
        {"remove": {"path": "x%20y", "deletionVector": vector}},
        {"remove": {"path": "w"}},
        {"add": {"path": "w", "size": 3}},
    )
    assert found.removed == {"x y", f"ab/deletion_vector_{VECTOR}.bin"}


def test_partition_values_have_the_names_that_the_table_has_in_its_files() -> None:
    """A reader takes a name that is missing for NULL: the rows would silently have other values."""
    mapped = {"delta.columnMapping.physicalName": "col-7"}
    whole = {"type": "long", "nullable": True}
    fields = [{"name": "Day", "metadata": mapped, **whole}, {"name": "n", **whole}]
    table = TableMetadata(
        schema_string=json.dumps({"type": "struct", "fields": fields}),
        partition_columns=("day", "n"),
    )
    assert table.partition_names == {"col-7", "n"}
    path = {"path": "x.parquet", "size": 3}
    right = {"add": path | {"partitionValues": {"col-7": "2026-01-01", "n": None}}}
    read(right, {"remove": path}).check_partitions(table.partition_names)
    read({"remove": path}).check_partitions(table.partition_names)
    for kind in ("add", "cdc"):
        for values in ({"Day": "1", "n": "1"}, {"col-7": "1"}, {}, None, {"n": "1", "m": "2"}):
            with pytest.raises(StagedCommitError, match="are not those of the table") as wrong:
                read(right, {kind: path | {"partitionValues": values}}).check_partitions(
                    table.partition_names
                )
            assert wrong.value.fields["field"] == "add.partitionValues"
            assert wrong.value.fields["value"] == str(sorted(values or ()))
            assert "x.parquet" in wrong.value.message
    with pytest.raises(StagedCommitError, match="are not those of the table"):
        read({"add": path | {"partitionValues": {"n": "1"}}}).check_partitions(frozenset())
    nowhere = TableMetadata(schema_string=table.schema_string, partition_columns=("gone",))
    with pytest.raises(StagedCommitError, match="no column"):
        _ = nowhere.partition_names


def test_columns_that_no_reader_could_read_are_no_schema() -> None:
    """One such table would fail the list of all tables, and every reader of it."""
    whole = {"name": "id", "type": "long", "nullable": True, "metadata": {}}

    def struct(*columns: Any) -> dict[str, Any]:
        return {"type": "struct", "fields": [*columns]}

    array = {"type": "array", "elementType": "long", "containsNull": True}
    nested = {"type": "map", "keyType": "string", "valueType": array, "valueContainsNull": False}
    for good in (
        struct(),
        struct(whole),
        struct(whole | {"type": struct(whole | {"type": nested})}),
    ):
        assert TableMetadata(schema_string=json.dumps(good)).columns == good
    lacking = [{key: value for key, value in whole.items() if key != gone} for gone in whole]
    for bad in (
        *({}, {"type": "struct"}, {"fields": []}, array, struct() | {"fields": None}, [], "long"),
        *(struct(column) for column in lacking if "metadata" in column),
        struct(3),
        struct(whole | {"type": {"type": "array"}}),
        struct(whole | {"type": array | {"elementType": {"type": "set"}}}),
        struct(whole | {"type": struct(lacking[0])}),
        struct(whole | {"type": nested | {"valueType": {"type": "struct"}}}),
    ):
        with pytest.raises(StagedCommitError, match="is no schema") as wrong:
            _ = TableMetadata(schema_string=json.dumps(bad)).columns
        assert wrong.value.fields["field"] == "metaData.schemaString"
