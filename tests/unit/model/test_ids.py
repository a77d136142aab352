"""Names that some file system or SQL engine does not take are refused where they are given."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest

from sparktxlog.cli.example import example_config
from sparktxlog.codec.containers.runs import RunLimits
from sparktxlog.codec.submits.requests import decode_request, prepare
from sparktxlog.errors import InvalidNameError, InvalidRequestError
from sparktxlog.model.ids import (
    check_table_name,
    find_table,
    full_table_name,
    local_path,
    log_name,
    table_name,
)
from sparktxlog.model.tables.table import Column, TableDefinition

TABLE = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))


def submit(operation: dict[str, Any]) -> None:
    wanted = decode_request(msgspec.json.encode({"operations": [operation]}))
    prepare(wanted, uuid.uuid4().bytes, {"t": TABLE}, RunLimits())


def create(table: str = "orders", column: str = "id") -> dict[str, Any]:
    columns = [{"name": column, "type": "bigint"}, {"name": "other", "type": "string"}]
    return {"kind": "create_table", "table": table, "columns": columns}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("orders", "orders"),
        ("default.orders", "orders"),
        ("DEFAULT.Orders", "Orders"),
        ("bronze.orders", "bronze.orders"),
        ("Bronze.Orders", "Bronze.Orders"),
        ("defaults.orders", "defaults.orders"),
        (f"{'a' * 63}.{'b' * 64}", f"{'a' * 63}.{'b' * 64}"),
    ],
)
def test_a_table_has_one_name(text: str, name: str) -> None:
    assert table_name(text) == table_name(name) == check_table_name(name) == name
    assert full_table_name(name).count(".") == 1
    assert log_name(*full_table_name(name).split(".")) == name
    assert find_table(text.upper(), ["other", name]) == name
    if text != name:
        with pytest.raises(InvalidNameError, match="the log calls it"):
            TableDefinition(name=text, columns=TABLE.columns)


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        ("tx.bronze.orders", "it has 3 parts", "no catalog"),
        ("bronze.", "a part of it is empty", "or table alone"),
        (".orders", "a part of it is empty", "or table alone"),
        ("", "other characters, or too many", "Use a letter"),
        ("bronze.or-ders", "other characters", "Use a letter"),
        ("bronze/orders", "other characters", "Use a letter"),
        ("..", "it has 3 parts", "no catalog"),
        ("bronze.orders\n", "other characters", "Use a letter"),
        ("_sparktxlog.state", "other characters", "Use a letter"),
        ("größe.x", "other characters", "Use a letter"),
        (f"{'a' * 64}.{'b' * 64}", "it has 129 characters", "Schema and table together: 128"),
        ("a" * 129, "too many", "128 at most"),
        (7, "other characters", "Use a letter"),
    ],
)
def test_what_names_no_table(text: Any, why: str, hint: str) -> None:
    with pytest.raises(InvalidNameError, match=why) as caught:
        table_name(text)
    assert hint in caught.value.hint and caught.value.fields["value"] == str(text)


@pytest.mark.parametrize("name", ["CON", "con", "Nul", "LPT1", "com9", "AUX", "prn", "aux.orders"])
def test_tables(name: str) -> None:
    with pytest.raises(InvalidNameError, match="do not accept"):
        submit(create(table=name))
    # A log that has such a table keeps it.
    TableDefinition(name=name, columns=TABLE.columns)


@pytest.mark.parametrize(
    "name",
    [
        "CON",
        "nul.txt",
        ".",
        "..",
        "...",
        "a\x01b",
        "a\x7f",
        "a\x85",
        "\u2028",
        "\x1b[31m",
        "_Metadata",
    ],
)
def test_columns(name: str) -> None:
    with pytest.raises(InvalidNameError):
        submit(create(column=name))


@pytest.mark.parametrize("name", ["contents", "common", "com10", "a.b", "größe", "名前", ".a"])
def test_names_that_are_good(name: str) -> None:
    submit(create(column=name))


@pytest.mark.parametrize("part", ["CON", "aux.parquet", "a\nb", "...", "a\x00b"])
def test_staged_files(part: str) -> None:
    file = {"path": f"x/{part}", "size_bytes": 1, "rows": 1, "digest": "0" * 64}
    with pytest.raises(InvalidNameError, match=r"do not accept|not a path below"):
        submit({"kind": "append", "table": "t", "files": [file]})


def test_nodes() -> None:
    with pytest.raises(InvalidNameError):
        example_config(node_id="CON", port=1)


def test_no_place_is_not_the_present_directory() -> None:
    with pytest.raises(InvalidRequestError, match="lake is empty"):
        local_path("", "lake")
    assert local_path(".") == "."


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("/data/lake", "/data/lake"),
        ("data/a:b", "data/a:b"),
        ("at:noon", "at:noon"),
        ("file:///data/lake", "/data/lake"),
        ("file:/data/lake", "/data/lake"),
        ("s3://bucket/x", None),
        ("s3:/bucket/x", None),
        ("dbfs:/x", None),
        ("file://host/x", None),
    ],
)
def test_places_of_this_machine(given: str, wanted: str | None) -> None:
    if wanted is not None:
        assert local_path(given) == wanted
        return
    with pytest.raises(InvalidRequestError, match="not supported yet") as caught:
        local_path(given, "lake-dir")
    error = caught.value
    assert error.definite and error.fields == {"field": "lake-dir", "value": given} and error.hint
