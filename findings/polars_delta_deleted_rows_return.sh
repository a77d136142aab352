#!/usr/bin/env bash
# polars 2.1.0 with deltalake 1.6.6: pl.read_delta returns rows that deletion vectors delete, where
# the value of a partition has a character that a URI escapes, such as a blank or a slash.
#
# polars looks vectors up by the path of the file as text.  It takes the path from file_uris(),
# which is not escaped, and the vectors from deletion_vectors(), whose paths are.  The join finds
# nothing, and no vector means that no row is deleted: no error, no warning.  deltalake's own
# QueryBuilder reads the same tables right.
#
# The tables have one file with the ids 0, 1 and 2, and a vector that deletes id 0.
# Output seen (Python 3.11, Linux):
#   no partitions     QueryBuilder [1, 2]  polars [1, 2]
#   country='ab'      QueryBuilder [1, 2]  polars [1, 2]
#   country='a b'     QueryBuilder [1, 2]  polars [0, 1, 2]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    polars==2.1.0 deltalake==1.6.6 pyarrow==26.0.1
cd "$work"
cat >run.py <<'PY'
import base64
import json
import os
import struct
from urllib.parse import quote

import polars as pl
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


def make(table, country=None):
    os.makedirs(f"{table}/_delta_log")
    field = {"nullable": True, "metadata": {}}
    fields = [{"name": "id", "type": "long"} | field]
    if country is not None:
        fields.append({"name": "country", "type": "string"} | field)
    path = "f.parquet" if country is None else f"country={country}/f.parquet"
    os.makedirs(os.path.dirname(f"{table}/{path}"), exist_ok=True)
    pq.write_table(pa.table({"id": pa.array([0, 1, 2], pa.int64())}), f"{table}/{path}")
    vector = {
        "storageType": "i",
        "pathOrInlineDv": base64.b85encode(PADDED).decode().translate(str.maketrans(B85, Z85)),
        "sizeInBytes": len(VECTOR),
        "cardinality": 1,
    }
    features = ["deletionVectors"]
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
                "id": table,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [] if country is None else ["country"],
                "configuration": {"delta.enableDeletionVectors": "true"},
            }
        },
        {
            "add": {
                "path": quote(path, safe="/="),
                "partitionValues": {} if country is None else {"country": country},
                "size": os.path.getsize(f"{table}/{path}"),
                "modificationTime": 0,
                "dataChange": True,
                "stats": json.dumps({"numRecords": 3}),
                "deletionVector": vector,
            }
        },
    ]
    with open(f"{table}/_delta_log/{0:020}.json", "w") as log:
        log.writelines(json.dumps(action) + "\n" for action in actions)


def found(table):
    query = QueryBuilder().register("t", DeltaTable(table))
    queried = pa.table(query.execute("SELECT id FROM t").read_all())["id"].to_pylist()
    return sorted(queried), sorted(pl.read_delta(table)["id"].to_list())


cases = {"no partitions": None, "country='ab'": "ab", "country='a b'": "a b"}
seen = []
for number, (shown, country) in enumerate(cases.items()):
    make(f"t{number}", country)
    seen.append(found(os.path.abspath(f"t{number}")))
    print(f"{shown:17} QueryBuilder {seen[-1][0]}  polars {seen[-1][1]}")
assert [queried for queried, _ in seen] == [[1, 2]] * 3
assert [by_polars for _, by_polars in seen] == [[1, 2], [1, 2], [0, 1, 2]], "it is no longer so"
PY
"$work/venv/bin/python" run.py
