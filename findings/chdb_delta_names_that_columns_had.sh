#!/usr/bin/env bash
# chdb 4.4.0: deltaLakeLocal finds no row by a column of a Delta table whose name was that of another column before.
#
# Versions: chdb 4.4.0 with chdb-core 26.9.0 (ClickHouse 26.9.2.1), pyarrow 26.0.1.
#
# A column `a` was renamed to `b`, and then a new column `a` was added: with Delta's column mapping the files go on
# calling the old column `a`, and the new one has another name there.  Without a filter chdb reads both columns rightly.
# A filter on `a` is tried on the old column, too, which files call so: it finds neither the rows that have the value nor
# those in which the column is NULL, and count() of them is 0.  No error comes.  A filter on `b` is right.
#
# The table has the rows (a, b) = (NULL, 1), written before `a` was added, and (20, 10).
# Output seen (Python 3.11, Linux):
#   all rows    [(None, 1), (20, 10)]
#   a = 20      [], count() 0
#   a > 15      [], count() 0
#   a IS NULL   [], count() 0
#   b = 10      [(20, 10)], count() 1
#   b = 1       [(None, 1)], count() 1
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check chdb==4.4.0 chdb-core==26.9.0 pyarrow==26.0.1
cd "$work"
cat >run.py <<'PY'
import json
import os

import chdb
import pyarrow as pa
import pyarrow.parquet as pq

os.makedirs("t/_delta_log")
features = ["columnMapping"]
fields = [
    {
        "name": name,
        "type": "long",
        "nullable": True,
        "metadata": {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": in_files},
    }
    for number, name, in_files in ((1, "b", "a"), (2, "a", "col-2"))
]
actions = [
    {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
    },
    {
        "metaData": {
            "id": "t",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": [],
            "configuration": {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"},
        }
    },
]
for name, row in {"before": {"a": 1}, "later": {"a": 10, "col-2": 20}}.items():
    schema = pa.schema(
        pa.field(column, pa.int64(), metadata={"PARQUET:field_id": "1" if column == "a" else "2"}) for column in row
    )
    pq.write_table(pa.table([pa.array([value], pa.int64()) for value in row.values()], schema), f"t/{name}.parquet")
    actions.append(
        {
            "add": {
                "path": f"{name}.parquet",
                "partitionValues": {},
                "size": os.path.getsize(f"t/{name}.parquet"),
                "modificationTime": 0,
                "dataChange": True,
                "stats": json.dumps(
                    {"numRecords": 1, "minValues": row, "maxValues": row, "nullCount": dict.fromkeys(row, 0)}
                ),
            }
        }
    )
with open(f"t/_delta_log/{0:020}.json", "w") as log:
    log.writelines(json.dumps(action) + "\n" for action in actions)


def asked(what, where):
    text = str(chdb.query(f"SELECT {what} FROM deltaLakeLocal('{os.path.abspath('t')}') {where}", "JSONCompact"))
    return [tuple(None if value is None else int(value) for value in row) for row in json.loads(text)["data"]]


every = asked("a, b", "ORDER BY b")
print("all rows   ", every)
seen = {}
for where in ("a = 20", "a > 15", "a IS NULL", "b = 10", "b = 1"):
    ((count,),) = asked("count()", f"WHERE {where}")
    seen[where] = (asked("a, b", f"WHERE {where}"), count)
    print(f"{where:11} {seen[where][0]}, count() {count}")
assert every == [(None, 1), (20, 10)]
assert seen["b = 10"] == ([(20, 10)], 1) and seen["b = 1"] == ([(None, 1)], 1)
assert all(seen[where] == ([], 0) for where in ("a = 20", "a > 15", "a IS NULL")), "it is no longer so"
PY
"$work/venv/bin/python" run.py
