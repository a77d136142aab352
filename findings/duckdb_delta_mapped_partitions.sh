#!/usr/bin/env bash
# DuckDB 1.5.5 with its delta extension 1.5.5: delta_scan returns NULL in a partition column, if
# another column comes before it that has another name in files.
#
# All names differ so where a table has column mapping from its creation, and one after a rename.
# Whether the partition column itself has two names makes no difference, only its place: as the
# first column it has its values.  There is no error and no warning, and a filter on the partition
# column finds nothing.
#
# Output seen (Python 3.11, Linux):
#   same names                  [('DE', 1), ('FR', 2)]
#   renamed, partition last     [(None, 1), (None, 2)]
#   the same, filter            []
#   renamed, partition first    [('DE', 1), ('FR', 2)]
#   partition renamed, last     [('DE', 1), ('FR', 2)]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    duckdb==1.5.5 duckdb-extension-delta==1.5.5 pyarrow==26.0.1
cd "$work"
cat >run.py <<'PY'
import json
import os
from pathlib import Path

import duckdb
import duckdb_extension_delta
import pyarrow as pa
import pyarrow.parquet as pq

(extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
database = duckdb.connect(config={"autoload_known_extensions": "false"})
database.execute(f"LOAD '{extension}'")


def make(table, stored, order):
    os.makedirs(f"{table}/_delta_log")
    fields = [
        {
            "name": name,
            "type": {"country": "string", "id": "long"}[name],
            "nullable": True,
            "metadata": {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": stored[name],
            },
        }
        for number, name in enumerate(order, 1)
    ]
    features = ["columnMapping"]
    configuration = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
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
                "partitionColumns": ["country"],
                "configuration": configuration,
            }
        },
    ]
    for number, country in enumerate(("DE", "FR"), 1):
        path = f"{table}/{number}.parquet"
        pq.write_table(pa.table({stored["id"]: pa.array([number], pa.int64())}), path)
        add = {"path": f"{number}.parquet", "partitionValues": {stored["country"]: country}}
        add |= {"size": os.path.getsize(path), "modificationTime": 0, "dataChange": True}
        actions.append({"add": add})
    with open(f"{table}/_delta_log/{0:020}.json", "w") as log:
        log.writelines(json.dumps(action) + "\n" for action in actions)


def read(table, where=""):
    path = os.path.abspath(table)
    query = f"SELECT country, id FROM delta_scan('{path}'){where} ORDER BY id"
    return database.execute(query).fetchall()


right, last, first = [("DE", 1), ("FR", 2)], ("id", "country"), ("country", "id")
make("same", {"country": "country", "id": "id"}, last)
make("after", {"country": "country", "id": "col-1"}, last)
make("before", {"country": "country", "id": "col-1"}, first)
make("itself", {"country": "col-1", "id": "id"}, last)
after, sought = read("after"), read("after", " WHERE country = 'DE'")
print("same names                 ", read("same"))
print("renamed, partition last    ", after)
print("the same, filter           ", sought)
print("renamed, partition first   ", read("before"))
print("partition renamed, last    ", read("itself"))
assert read("same") == read("before") == read("itself") == right
assert after == [(None, 1), (None, 2)] and sought == [], "DuckDB is no longer so"
PY
"$work/venv/bin/python" run.py
