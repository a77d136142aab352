#!/usr/bin/env bash
# daft 0.7.26: write_deltalake appends rows that the table's constraints exclude; after a NULL in a NOT NULL column the
# table cannot be read by others.
#
# Versions: daft 0.7.26 with pyiceberg 0.12.0 (which its writer loads), deltalake 1.6.6, duckdb 1.5.5 with
# duckdb-extension-delta 1.5.5, pyarrow 25.0.1.
#
# A Delta writer must check CHECK constraints, NOT NULL and the values of generated columns, or else refuse the table.  daft
# commits by deltalake, but writes the files itself, and deltalake checks rows only in its own writer: it refuses each of
# these appends, and so does DuckDB.  daft's succeeds.  PySpark 4.2.0 with delta-spark 4.4.0 (not installed here) then reads
# id -5 and the wrong generated value, and fails at the NULL, as QueryBuilder does.
#
# Output seen (Python 3.11, Linux):
#   CHECK id > 0, -5 appended         deltalake refuses  DuckDB refuses  daft appends, QueryBuilder [{'id': -5}, {'id': 1}]
#   twice AS id * 2, (5, 3) appended  deltalake refuses  DuckDB refuses  daft appends, QueryBuilder [{'id': 1, 'twice': 2}, {'id': 5, 'twice': 3}]
#   NOT NULL, NULL appended           deltalake refuses  DuckDB refuses  daft appends, QueryBuilder fails
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    daft==0.7.26 pyiceberg==0.12.0 deltalake==1.6.6 duckdb==1.5.5 duckdb-extension-delta==1.5.5 pyarrow==25.0.1
cd "$work"
cat >run.py <<'PY'
import json
import os
from pathlib import Path

import daft
import duckdb
import duckdb_extension_delta
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, write_deltalake

(extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")


def made(table, row, more, metadata, writer):
    os.makedirs(f"{table}/_delta_log")
    pq.write_table(rows_of(row), f"{table}/first.parquet")
    fields = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in row]
    fields[-1] |= more
    whole = {
        "id": Path(table).name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": metadata,
    }
    size = os.path.getsize(f"{table}/first.parquet")
    add = {"path": "first.parquet", "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}
    actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": writer}}, {"metaData": whole}, {"add": add}]
    Path(table, "_delta_log", f"{0:020}.json").write_text("".join(json.dumps(one) + "\n" for one in actions))


def rows_of(row):
    return pa.table({name: pa.array([value], pa.int64()) for name, value in row.items()})


def by_duckdb(table, row):
    with duckdb.connect(config={"autoload_known_extensions": "false"}) as duck:
        duck.execute(f"LOAD '{extension}'")
        duck.execute(f"ATTACH '{table}' AS t (TYPE delta)")
        duck.execute(f"INSERT INTO t VALUES ({', '.join('NULL' if one is None else str(one) for one in row.values())})")


def by_query(table):
    query = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT * FROM t")
    return sorted(pa.table(query.read_all()).to_pylist(), key=lambda row: row["id"])


WRITERS = {
    "deltalake": lambda table, row: write_deltalake(table, rows_of(row), mode="append"),
    "DuckDB": by_duckdb,
    "daft": lambda table, row: daft.from_arrow(rows_of(row)).write_deltalake(table, mode="append"),
}
CASES = {
    "CHECK id > 0, -5 appended": ({"id": 1}, {}, {"delta.constraints.positive": "id > 0"}, 3, {"id": -5}),
    "twice AS id * 2, (5, 3) appended": (
        {"id": 1, "twice": 2},
        {"metadata": {"delta.generationExpression": "id * 2"}},
        {},
        4,
        {"id": 5, "twice": 3},
    ),
    "NOT NULL, NULL appended": ({"id": 1}, {"nullable": False}, {}, 2, {"id": None}),
}
seen = []
for number, (shown, (row, more, metadata, writer, added)) in enumerate(CASES.items()):
    said = []
    for name, write in WRITERS.items():
        table = os.path.abspath(f"{name}{number}")
        made(table, row, more, metadata, writer)
        try:
            write(table, added)
        except Exception:
            said.append(f"{name} refuses")
            assert by_query(table) == [row]
            continue
        try:
            said.append(f"{name} appends, QueryBuilder {by_query(table)}")
        except Exception:
            said.append(f"{name} appends, QueryBuilder fails")
    seen.append(said)
    print(f"{shown:33} {'  '.join(said)}")
assert all(said[:2] == ["deltalake refuses", "DuckDB refuses"] for said in seen)
assert [said[2] for said in seen] == [
    "daft appends, QueryBuilder [{'id': -5}, {'id': 1}]",
    "daft appends, QueryBuilder [{'id': 1, 'twice': 2}, {'id': 5, 'twice': 3}]",
    "daft appends, QueryBuilder fails",
], "it is no longer so"
PY
DAFT_PROGRESS_BAR=0 "$work/venv/bin/python" run.py
