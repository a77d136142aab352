#!/usr/bin/env bash
# DuckDB 1.5.5 and daft 0.7.26 lose the values that they append to a renamed column of a Delta table.
#
# Versions: duckdb 1.5.5 with duckdb-extension-delta 1.5.5, daft 0.7.26 with pyiceberg 0.12.0 (which its writer loads),
# deltalake 1.6.6, pyarrow 25.0.1.
#
# With column mapping a column has a name for people in the schema, and another one in files: that is how Delta renames
# without writing rows again.  DuckDB (INSERT INTO an attached table) and daft (write_deltalake, mode="append") take the
# table, write files with the name for people, and commit.  No reader finds the column in such a file, so each appended row
# has NULL there, in DuckDB itself as well; no error comes.  Columns that never were renamed keep their values where both
# names are equal.  deltalake appends to the same table rightly.  PySpark 4.2.0 with delta-spark 4.4.0 (not installed
# here) reads NULL, too.
#
# The table has one row, (1, 'Rome'), and its column `town` was renamed to `city`; each writer appends (2, 'Oslo').
# Output seen (Python 3.11, Linux):
#   deltalake  columns in its file ['id', 'town']  QueryBuilder [(1, 'Rome'), (2, 'Oslo')]  DuckDB [(1, 'Rome'), (2, 'Oslo')]
#   DuckDB     columns in its file ['id', 'city']  QueryBuilder [(1, 'Rome'), (2, None)]  DuckDB [(1, 'Rome'), (2, None)]
#   daft       columns in its file ['id', 'city']  QueryBuilder [(1, 'Rome'), (2, None)]  DuckDB [(1, 'Rome'), (2, None)]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    duckdb==1.5.5 duckdb-extension-delta==1.5.5 daft==0.7.26 pyiceberg==0.12.0 deltalake==1.6.6 pyarrow==25.0.1
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
duck = duckdb.connect(config={"autoload_known_extensions": "false"})
duck.execute(f"LOAD '{extension}'")
NAMES = {"id": ("long", "id"), "city": ("string", "town")}
ADDED = pa.table({"id": pa.array([2], pa.int64()), "city": ["Oslo"]})


def made(table):
    os.makedirs(f"{table}/_delta_log")
    fields, in_file = [], []
    for number, (name, (kind, physical)) in enumerate(NAMES.items(), 1):
        mapped = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
        fields.append({"name": name, "type": kind, "nullable": True, "metadata": mapped})
        of = pa.int64() if kind == "long" else pa.string()
        in_file.append(pa.field(physical, of, metadata={"PARQUET:field_id": str(number)}))
    pq.write_table(pa.table([pa.array([1], pa.int64()), ["Rome"]], pa.schema(in_file)), f"{table}/first.parquet")
    features = ["columnMapping"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    metadata = {
        "id": Path(table).name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"},
    }
    size = os.path.getsize(f"{table}/first.parquet")
    add = {"path": "first.parquet", "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}
    actions = [{"protocol": protocol}, {"metaData": metadata}, {"add": add}]
    Path(table, "_delta_log", f"{0:020}.json").write_text("".join(json.dumps(one) + "\n" for one in actions))


def by_duckdb(table):
    duck.execute(f"ATTACH '{table}' AS mapped (TYPE delta)")
    duck.execute("INSERT INTO mapped VALUES (2, 'Oslo')")


WRITERS = {
    "deltalake": lambda table: write_deltalake(table, ADDED, mode="append"),
    "DuckDB": by_duckdb,
    "daft": lambda table: daft.from_arrow(ADDED).write_deltalake(table, mode="append"),
}
seen = {}
for name, write in WRITERS.items():
    table = os.path.abspath(name)
    made(table)
    write(table)
    (new,) = (file for file in Path(table).rglob("*.parquet") if file.name != "first.parquet")
    query = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT id, city FROM t ORDER BY id")
    queried = [tuple(row.values()) for row in pa.table(query.read_all()).to_pylist()]
    by_duck = duck.execute(f"SELECT id, city FROM delta_scan('{table}') ORDER BY id").fetchall()
    seen[name] = (pq.read_schema(new).names, queried, by_duck)
    print(f"{name:10} columns in its file {seen[name][0]}  QueryBuilder {queried}  DuckDB {by_duck}")
right, lost = [(1, "Rome"), (2, "Oslo")], [(1, "Rome"), (2, None)]
assert seen["deltalake"] == (["id", "town"], right, right)
assert seen["DuckDB"] == seen["daft"] == (["id", "city"], lost, lost), "it is no longer so"
PY
DAFT_PROGRESS_BAR=0 "$work/venv/bin/python" run.py
