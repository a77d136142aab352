#!/usr/bin/env bash
# chdb 4.4.0: count() of a Delta table by deltaLakeLocal counts the rows that deletion vectors delete.
#
# Versions: chdb 4.4.0 with chdb-core 26.9.0 (ClickHouse 26.9.2.1), pyarrow 26.0.1.
#
# Of a table whose log has the number of rows of each file, as Delta's writers note it, count() without a filter is the
# sum of these numbers, and no vector is taken off.  Each query that reads a column is right, so the number of rows of a
# table differs from that of a subquery with all of its rows, and an average made of sum and count is wrong.  Without
# the numbers in the log, and with optimize_trivial_count_query=0, count() is right.
#
# The table has one file with the ids 0 to 9, and a vector that deletes 0, 5 and 9.
# Output seen (Python 3.11, Linux):
#   ids                                1 2 3 4 6 7 8
#   count()                            10
#   count(id)                          7
#   sum(id) / count()                  3.1
#   avg(id)                            4.43
#   count() of a subquery              7
#   count(), no trivial count          7
#   count(), no numbers in the log     7
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check chdb==4.4.0 chdb-core==26.9.0 pyarrow==26.0.1
cd "$work"
cat >run.py <<'PY'
import base64
import json
import os
import struct

import chdb
import pyarrow as pa
import pyarrow.parquet as pq

# Delta writes inline vectors in Z85, Python's base85 with another alphabet.
DIGITS = "0123456789"
LOWER, UPPER = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
B85 = DIGITS + UPPER + LOWER + "!#$%&()*+-;<=>?@^_`{|}~"
Z85 = DIGITS + LOWER + UPPER + ".-:+=^!/*?&<>()[]{}@%$#"
# One bitmap of one container of the values 0, 5 and 9, in Roaring's portable form.
BITMAP = struct.pack("<IIHHIHHH", 12346, 1, 0, 2, 16, 0, 5, 9)
VECTOR = struct.pack("<IQI", 1681511377, 1, 0) + BITMAP
PADDED = VECTOR + bytes(-len(VECTOR) % 4)


def make(table, stats):
    os.makedirs(f"{table}/_delta_log")
    pq.write_table(pa.table({"id": pa.array(range(10), pa.int64())}), f"{table}/f.parquet")
    features = ["deletionVectors"]
    add = {
        "path": "f.parquet",
        "partitionValues": {},
        "size": os.path.getsize(f"{table}/f.parquet"),
        "modificationTime": 0,
        "dataChange": True,
        "deletionVector": {
            "storageType": "i",
            "pathOrInlineDv": base64.b85encode(PADDED).decode().translate(str.maketrans(B85, Z85)),
            "sizeInBytes": len(VECTOR),
            "cardinality": 3,
        },
    }
    if stats:
        add["stats"] = json.dumps({"numRecords": 10, "tightBounds": False})
    field = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
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
                "schemaString": json.dumps({"type": "struct", "fields": [field]}),
                "partitionColumns": [],
                "configuration": {"delta.enableDeletionVectors": "true"},
            }
        },
        {"add": add},
    ]
    with open(f"{table}/_delta_log/{0:020}.json", "w") as log:
        log.writelines(json.dumps(action) + "\n" for action in actions)


def asked(what, of="t", more=""):
    table = f"deltaLakeLocal('{os.path.abspath(of)}')"
    return str(chdb.query(f"SELECT {what} FROM {more.replace('TABLE', table) or table}", "TSV")).split()


make("t", True)
make("u", False)
seen = {
    "ids": asked("id", more="TABLE ORDER BY id"),
    "count()": asked("count()"),
    "count(id)": asked("count(id)"),
    "sum(id) / count()": [*asked("sum(id)"), *asked("count()")],
    "avg(id)": asked("round(avg(id), 2)"),
    "count() of a subquery": asked("count()", more="(SELECT * FROM TABLE)"),
    "count(), no trivial count": asked("count()", more="TABLE SETTINGS optimize_trivial_count_query = 0"),
    "count(), no numbers in the log": asked("count()", "u"),
}
total, count = seen["sum(id) / count()"]
seen["sum(id) / count()"] = [str(int(total) / int(count))]
for what, found in seen.items():
    print(f"{what:34}", *found)
assert seen.pop("ids") == ["1", "2", "3", "4", "6", "7", "8"]
assert list(seen.values()) == [["10"], ["7"], ["3.1"], ["4.43"], ["7"], ["7"], ["7"]], "it is no longer so"
PY
"$work/venv/bin/python" run.py
