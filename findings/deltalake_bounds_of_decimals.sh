#!/usr/bin/env bash
# deltalake 1.6.6 writes the bounds of decimals as doubles, so readers find no row by a decimal of 16 digits or more.
#
# Versions: deltalake 1.6.6, polars 2.1.0 (its write_delta is deltalake's), duckdb 1.5.5 with duckdb-extension-delta
# 1.5.5, pyarrow 26.0.1.
#
# The log of a Delta table has the least and the greatest value of each column of a file, and readers leave out files
# that cannot have what a query looks for.  deltalake makes a double of a decimal there, which may be above
# the least value or below the greatest.  The rows are in the file, and a scan shows them; a filter on the value itself
# finds none, in all readers that trust the bounds, also in deltalake.  Which reader misses which value depends on how
# it rounds; 0.01 has few digits, and all find it.  PySpark 4.2.0 with delta-spark 4.4.0 (not installed here) finds neither
# of the first two by a filter.
#
# Output seen (Python 3.11, Linux):
#   decimal(20,0) 9007199254740993: bounds 9007199254740992 and 9007199254740992
#     without a filter 1  QueryBuilder 0  filters= 0  polars 0  DuckDB 0
#   decimal(38,18) 12345678901234567890.123456789012345678: bounds 1.2345678901234567e+19 and 1.2345678901234567e+19
#     without a filter 1  QueryBuilder 1  filters= 0  polars 1  DuckDB 0
#   decimal(20,2) 123456789012345678.91: bounds 1.2345678901234566e+17 and 1.2345678901234566e+17
#     without a filter 1  QueryBuilder 1  filters= 0  polars 1  DuckDB 0
#   decimal(20,2) 0.01: bounds 0.01 and 0.01
#     without a filter 1  QueryBuilder 1  filters= 1  polars 1  DuckDB 1
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    deltalake==1.6.6 polars==2.1.0 pyarrow==26.0.1 duckdb==1.5.5 duckdb-extension-delta==1.5.5
cd "$work"
cat >run.py <<'PY'
import json
import os
from decimal import Decimal
from pathlib import Path

import duckdb
import duckdb_extension_delta
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

(extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
duck = duckdb.connect(config={"autoload_known_extensions": "false"})
duck.execute(f"LOAD '{extension}'")


def bounds(table):
    lines = Path(table, "_delta_log", f"{0:020}.json").read_text().splitlines()
    (stats,) = (json.loads(line)["add"]["stats"] for line in lines if "add" in json.loads(line))
    stats = json.loads(stats)
    return stats["minValues"]["d"], stats["maxValues"]["d"]


def found(table, value, precision, scale):
    where = f"d = CAST('{value}' AS DECIMAL({precision}, {scale}))"
    query = QueryBuilder().register("t", DeltaTable(table)).execute(f"SELECT d FROM t WHERE {where}")
    same = pl.col("d") == pl.lit(value, dtype=pl.Decimal(precision, scale))
    return {
        "without a filter": DeltaTable(table).to_pyarrow_table()["d"].to_pylist().count(value),
        "QueryBuilder": pa.table(query.read_all()).num_rows,
        "filters=": DeltaTable(table).to_pyarrow_table(filters=[("d", "=", value)]).num_rows,
        "polars": pl.scan_delta(table).filter(same).collect().height,
        "DuckDB": duck.execute(f"SELECT count(*) FROM delta_scan('{table}') WHERE {where}").fetchone()[0],
    }


CASES = [
    ("9007199254740993", 20, 0),
    ("12345678901234567890.123456789012345678", 38, 18),
    ("123456789012345678.91", 20, 2),
    ("0.01", 20, 2),
]
seen = []
for number, (text, precision, scale) in enumerate(CASES):
    table, value = os.path.abspath(f"t{number}"), Decimal(text)
    write_deltalake(table, pa.table({"d": pa.array([value], pa.decimal128(precision, scale))}))
    print(f"decimal({precision},{scale}) {text}: bounds {bounds(table)[0]} and {bounds(table)[1]}")
    seen.append(found(table, value, precision, scale))
    print("  " + "  ".join(f"{name} {rows}" for name, rows in seen[-1].items()))
assert [one["without a filter"] for one in seen] == [1, 1, 1, 1]
assert list(seen[0].values()) == [1, 0, 0, 0, 0] and list(seen[3].values()) == [1] * 5
assert [list(one.values()) for one in seen[1:3]] == [[1, 1, 0, 1, 0]] * 2, "it is no longer so"
PY
"$work/venv/bin/python" run.py
