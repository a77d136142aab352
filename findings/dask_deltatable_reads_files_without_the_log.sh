#!/usr/bin/env bash
# dask-deltatable 0.4.0 takes from the log of a Delta table only which files there are: deleted rows return, renamed
# columns are swapped or empty, and the values of partitions are those of directories.
#
# Versions: dask-deltatable 0.4.0, dask 2026.8.0, deltalake 1.6.6, pyarrow 25.0.1.
#
# read_deltalake gives the list of files to Dask's reader of Parquet.  It reads a table whose protocol asks readers for
# deletion vectors or column mapping as any other, without an error or a warning.  The specification says that a reader
# without the feature must refuse the table.  deltalake's QueryBuilder reads each of the tables right.
#
# Output seen (Python 3.11, Linux):
#   a vector deletes id 0      QueryBuilder [(1,), (2,)]  Dask [(0,), (1,), (2,)]
#   a and b changed names      QueryBuilder [(1, 2)]  Dask [(2, 1)]
#   a was renamed to c         QueryBuilder [(1,)]  Dask [(None,)]
#   file in another directory  QueryBuilder [(1, 'DE')]  Dask [(1, 'FR')]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    dask-deltatable==0.4.0 dask==2026.8.0 deltalake==1.6.6 pyarrow==25.0.1
cd "$work"
cat >run.py <<'PY'
import base64
import json
import os
import struct

import dask_deltatable
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

# Delta writes inline vectors in Z85, Python's base85 with another alphabet.
DIGITS = "0123456789"
LOWER, UPPER = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
B85 = DIGITS + UPPER + LOWER + "!#$%&()*+-;<=>?@^_`{|}~"
Z85 = DIGITS + LOWER + UPPER + ".-:+=^!/*?&<>()[]{}@%$#"
# One bitmap of one container of one value, 0, in Roaring's portable form.
BITMAP = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 0)
VECTOR = struct.pack("<IQI", 1681511377, 1, 0) + BITMAP
PADDED = VECTOR + bytes(-len(VECTOR) % 4)
DELETED = {
    "storageType": "i",
    "pathOrInlineDv": base64.b85encode(PADDED).decode().translate(str.maketrans(B85, Z85)),
    "sizeInBytes": len(VECTOR),
    "cardinality": 1,
}


def make(table, rows, fields, path="f.parquet", vector=None, partitions=None, feature=None):
    os.makedirs(os.path.dirname(f"{table}/{path}"), exist_ok=True)
    os.makedirs(f"{table}/_delta_log")
    pq.write_table(pa.table({name: pa.array(values, pa.int64()) for name, values in rows.items()}), f"{table}/{path}")
    size = os.path.getsize(f"{table}/{path}")
    add = {
        "path": path,
        "partitionValues": partitions or {},
        "size": size,
        "modificationTime": 0,
        "dataChange": True,
    }
    if vector:
        add["deletionVector"] = vector
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    if feature:
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
        protocol |= {"readerFeatures": [feature], "writerFeatures": [feature]}
    metadata = {
        "id": table,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": list(partitions or {}),
        "configuration": {"delta.columnMapping.mode": "name"} if feature == "columnMapping" else {},
    }
    actions = [{"protocol": protocol}, {"metaData": metadata}, {"add": add}]
    with open(f"{table}/_delta_log/{0:020}.json", "w") as log:
        log.writelines(json.dumps(action) + "\n" for action in actions)


def field(name, kind="long", number=None, in_files=None):
    mapped = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": in_files} if number else {}
    return {"name": name, "type": kind, "nullable": True, "metadata": mapped}


make("deleted", {"id": [0, 1, 2]}, [field("id")], vector=DELETED, feature="deletionVectors")
swapped = [field("a", number=1, in_files="b"), field("b", number=2, in_files="a")]
make("swapped", {"b": [1], "a": [2]}, swapped, feature="columnMapping")
make("renamed", {"a": [1]}, [field("c", number=1, in_files="a")], feature="columnMapping")
other = {"path": "country=FR/f.parquet", "partitions": {"country": "DE"}}
make("moved", {"id": [1]}, [field("id"), field("country", "string")], **other)
CASES = {
    "deleted": "a vector deletes id 0",
    "swapped": "a and b changed names",
    "renamed": "a was renamed to c",
    "moved": "file in another directory",
}
seen = {}
for table, shown in CASES.items():
    query = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT * FROM t")
    queried = sorted(tuple(row.values()) for row in pa.table(query.read_all()).to_pylist())
    found = dask_deltatable.read_deltalake(table).compute()
    by_dask = [tuple(None if pd.isna(one) else one for one in row) for row in found.itertuples(index=False)]
    seen[table] = (queried, sorted(by_dask))
    print(f"{shown:26} QueryBuilder {queried}  Dask {seen[table][1]}")
assert seen == {
    "deleted": ([(1,), (2,)], [(0,), (1,), (2,)]),
    "swapped": ([(1, 2)], [(2, 1)]),
    "renamed": ([(1,)], [(None,)]),
    "moved": ([(1, "DE")], [(1, "FR")]),
}, "it is no longer so"
PY
"$work/venv/bin/python" run.py
