#!/usr/bin/env bash
# polars 2.1.0 with deltalake 1.6.6: pl.read_delta takes the values of partition columns from the
# names of directories, not from `partitionValues` of the table's log.
#
# The Delta protocol says that readers must take them from the log, and that directories named
# `column=value` are only a custom.  Of a table whose files lie flat, polars returns NULL in the
# partition column of every row, without an error or a warning; a filter on it then finds nothing.
# deltalake itself, over the same log, reads the values.
#
# Output seen (Python 3.11, Linux):
#   deltalake flat   [('DE', 1), ('FR', 2)]
#   polars    flat   [(None, 1), (None, 2)]
#   polars    filter []
#   polars    hive   [('DE', 1), ('FR', 2)]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    polars==2.1.0 deltalake==1.6.6 pyarrow==26.0.1
cd "$work"
cat >run.py <<'PY'
import json
import os

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable


def make(table, place):
    os.makedirs(f"{table}/_delta_log")
    field = {"nullable": True, "metadata": {}}
    schema = {
        "type": "struct",
        "fields": [
            {"name": "country", "type": "string"} | field,
            {"name": "id", "type": "long"} | field,
        ],
    }
    actions = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": table,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": ["country"],
                "configuration": {},
            }
        },
    ]
    for number, country in enumerate(("DE", "FR"), 1):
        path = place(number, country)
        os.makedirs(os.path.dirname(f"{table}/{path}"), exist_ok=True)
        pq.write_table(pa.table({"id": pa.array([number], pa.int64())}), f"{table}/{path}")
        add = {"path": path, "partitionValues": {"country": country}}
        add |= {"size": os.path.getsize(f"{table}/{path}"), "modificationTime": 0}
        actions.append({"add": add | {"dataChange": True}})
    with open(f"{table}/_delta_log/{0:020}.json", "w") as log:
        log.writelines(json.dumps(action) + "\n" for action in actions)


def rows(found):
    return sorted(((row["country"], row["id"]) for row in found), key=lambda row: row[1])


make("flat", lambda number, country: f"{number}.parquet")
make("hive", lambda number, country: f"country={country}/{number}.parquet")
by_log = rows(DeltaTable("flat").to_pyarrow_table().to_pylist())
by_polars = rows(pl.read_delta("flat").to_dicts())
sought = pl.scan_delta("flat").filter(pl.col("country") == "DE").collect()["id"].to_list()
by_directory = rows(pl.read_delta("hive").to_dicts())
print("deltalake flat  ", by_log)
print("polars    flat  ", by_polars)
print("polars    filter", sought)
print("polars    hive  ", by_directory)
right = [("DE", 1), ("FR", 2)]
assert by_log == by_directory == right
assert by_polars == [(None, 1), (None, 2)] and sought == [], "polars is no longer so"
PY
"$work/venv/bin/python" run.py
