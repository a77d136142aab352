#!/usr/bin/env bash
# deltalake 1.6.6: of a table with column mapping and reader version 2, it reads NULL in all columns.
#
# Two protocols name column mapping: reader version 2, and version 3 with the table feature
# `columnMapping`.  The schema, the files and the meaning are the same.  to_pyarrow_table refuses the
# second one; the first one it takes, looks for the columns under their logical names, which the
# files do not have, and returns the right number of rows with NULL in every column.
#
# Output seen (Python 3.11, Linux):
#   reader version 2  [{'id': None, 'v': None}, {'id': None, 'v': None}]
#   reader version 3  DeltaProtocolError
#   in the file       [{'col-1': 1, 'col-2': 'a'}, {'col-1': 2, 'col-2': 'b'}]
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
from deltalake import DeltaTable


def make(table, protocol):
    os.makedirs(f"{table}/_delta_log")
    fields = [
        {
            "name": name,
            "type": kind,
            "nullable": True,
            "metadata": {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"col-{number}",
            },
        }
        for number, (name, kind) in enumerate((("id", "long"), ("v", "string")), 1)
    ]
    rows = pa.table({"col-1": pa.array([1, 2], pa.int64()), "col-2": ["a", "b"]})
    pq.write_table(rows, f"{table}/f.parquet")
    configuration = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    actions = [
        {"protocol": protocol},
        {
            "metaData": {
                "id": table,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": configuration,
            }
        },
        {
            "add": {
                "path": "f.parquet",
                "partitionValues": {},
                "size": os.path.getsize(f"{table}/f.parquet"),
                "modificationTime": 0,
                "dataChange": True,
            }
        },
    ]
    with open(f"{table}/_delta_log/{0:020}.json", "w") as log:
        log.writelines(json.dumps(action) + "\n" for action in actions)


def read(table):
    try:
        return DeltaTable(table).to_pyarrow_table().to_pylist()
    except Exception as error:
        return type(error).__name__


feature = ["columnMapping"]
make("old", {"minReaderVersion": 2, "minWriterVersion": 5})
make("new", {"minReaderVersion": 3, "minWriterVersion": 7}
     | {"readerFeatures": feature, "writerFeatures": feature})
old, new = read("old"), read("new")
print("reader version 2 ", old)
print("reader version 3 ", new)
print("in the file      ", pq.read_table("old/f.parquet").to_pylist())
assert old == [{"id": None, "v": None}] * 2, "deltalake is no longer so"
PY
"$work/venv/bin/python" run.py
