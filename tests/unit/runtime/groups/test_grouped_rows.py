"""Rows for tables of groups, in files: which table they are written for."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.support.node_processes import run_payload

from sparktxlog.codec.containers.runs import RunLimits, validate_run
from sparktxlog.codec.submits.requests import decode_request, prepare
from sparktxlog.errors import StaleSchemaError
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.tables.table_properties import GROUP_OF_TABLE
from sparktxlog.runtime.groups.grouped_rows import in_files, run_in_files
from sparktxlog.storage.payloads.local_store import LocalPayloadStore

TABLE = TableDefinition(
    name="t",
    columns=(Column(name="id", type="bigint"), Column(name="v", type="string")),
    properties=((GROUP_OF_TABLE, "here"),),
)
NEXT = replace(TABLE, columns=(*TABLE.columns, Column(name="n", type="int")), schema_version=2)


def test_a_table_that_changed_since_the_check_gets_no_files(tmp_path: Path) -> None:
    rows = {"kind": "append", "table": "t", "rows": [{"id": 1, "v": "x"}]}
    body = msgspec.json.encode({"operations": [rows]})
    made = prepare(decode_request(body), uuid.uuid4().bytes, {"t": TABLE}, RunLimits())
    (staged,) = in_files(made, {"t": TABLE}).operations
    assert [file.rows for file in staged.files] == [1]
    payload = run_payload(3, 1)
    manifest = validate_run(payload, {"t": TABLE}, RunLimits())
    payloads = LocalPayloadStore(tmp_path)
    with pytest.raises(StaleSchemaError):
        in_files(made, {"t": NEXT}, payloads)
    with pytest.raises(StaleSchemaError):
        run_in_files(payload, manifest, {"t": NEXT}, payloads)
    assert not list(tmp_path.rglob("*.parquet"))
