#!/usr/bin/env bash
# deltalake 1.6.6: to_pyarrow_table(filters=…) finds no row by a column for which a file's statistics
# have no bounds, if they have some for another column.
#
# Delta's own writer for Spark writes no minimum and maximum of booleans, and none is certain where
# a column of doubles holds NaN.  deltalake then makes `column >= null` a guarantee of the file,
# and Arrow leaves the whole file out.  The rows are there: without the filter, and by QueryBuilder,
# which reads the same log.
#
# Output seen (Python 3.11, Linux):
#   all rows            [(1, True, 1.5), (2, False, nan)]
#   flag = true         []
#   f = 1.5             []
#   id = 1              [1]
#   QueryBuilder        [1] [1]
#   without statistics  [1] [1]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1
cd "$work"
cat >run.py <<'PY'
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder


def make(table, stats):
    os.makedirs(f"{table}/_delta_log")
    field = {"nullable": True, "metadata": {}}
    kinds = {"id": "long", "flag": "boolean", "f": "double"}
    fields = [{"name": name, "type": kind} | field for name, kind in kinds.items()]
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "flag": pa.array([True, False]),
            "f": pa.array([1.5, float("nan")]),
        }
    )
    pq.write_table(rows, f"{table}/f.parquet")
    actions = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": table,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": {},
            }
        },
        {
            "add": {
                "path": "f.parquet",
                "partitionValues": {},
                "size": os.path.getsize(f"{table}/f.parquet"),
                "modificationTime": 0,
                "dataChange": True,
                "stats": json.dumps(stats),
            }
        },
    ]
    with open(f"{table}/_delta_log/{0:020}.json", "w") as log:
        log.writelines(json.dumps(action) + "\n" for action in actions)


def ids(table, column, value):
    return DeltaTable(table).to_pyarrow_table(filters=[(column, "=", value)])["id"].to_pylist()


def queried(table, where):
    query = QueryBuilder().register("t", DeltaTable(table))
    return pa.table(query.execute(f"SELECT id FROM t WHERE {where}").read_all())["id"].to_pylist()


counts = {"id": 0, "flag": 0, "f": 0}
make("t", {"numRecords": 2, "minValues": {"id": 1}, "maxValues": {"id": 2}, "nullCount": counts})
make("u", {"numRecords": 2})
every = [tuple(row.values()) for row in DeltaTable("t").to_pyarrow_table().to_pylist()]
flag, f, by_id = ids("t", "flag", True), ids("t", "f", 1.5), ids("t", "id", 1)
print("all rows           ", every)
print("flag = true        ", flag)
print("f = 1.5            ", f)
print("id = 1             ", by_id)
print("QueryBuilder       ", queried("t", "flag"), queried("t", "f = 1.5"))
print("without statistics ", ids("u", "flag", True), ids("u", "f", 1.5))
assert by_id == queried("t", "flag") == queried("t", "f = 1.5") == ids("u", "flag", True) == [1]
assert flag == f == [], "deltalake is no longer so"
PY
"$work/venv/bin/python" run.py
