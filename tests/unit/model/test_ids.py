"""Names that some file system or SQL engine does not take are refused where they are given."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest

from sparktxlog.cli.example import example_config
from sparktxlog.codec.requests import decode_request, prepare
from sparktxlog.codec.runs import RunLimits
from sparktxlog.errors import InvalidNameError
from sparktxlog.model.table import Column, TableDefinition

TABLE = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))


def submit(operation: dict[str, Any]) -> None:
    wanted = decode_request(msgspec.json.encode({"operations": [operation]}))
    prepare(wanted, uuid.uuid4().bytes, {"t": TABLE}, RunLimits())


def create(table: str = "orders", column: str = "id") -> dict[str, Any]:
    columns = [{"name": column, "type": "bigint"}, {"name": "other", "type": "string"}]
    return {"kind": "create_table", "table": table, "columns": columns}


@pytest.mark.parametrize("name", ["CON", "con", "Nul", "LPT1", "com9", "AUX", "prn"])
def test_tables(name: str) -> None:
    with pytest.raises(InvalidNameError, match="do not accept"):
        submit(create(table=name))
    # A log that has such a table keeps it.
    TableDefinition(name=name, columns=TABLE.columns)


@pytest.mark.parametrize(
    "name", ["CON", "nul.txt", ".", "..", "...", "a\x01b", "a\x7f", "a\x85", "\u2028", "\x1b[31m"]
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
