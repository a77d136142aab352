#!/usr/bin/env bash
# Spark's filters on float columns of Parquet files lose rows: what files say of floats is not what SQL says of them.
#
# pyspark 4.2.0, pyarrow 26.0.1, all settings as they are by default; Java 17.
#
# 1. NaN.  To Spark NaN is greater than all numbers.  Arrow leaves NaN out of a row group's bounds (the format asks for
#    that), and Spark compares its filter with these bounds.  A file of 1.0, NaN: `f > 5.0`, `f <> 1.0` and even
#    `f = double('NaN')` find nothing.  Written by Spark, the same rows are found: it writes no bounds where NaN is.
# 2. -0.0.  To Spark -0.0 equals 0.0, and bounds are compared so.  But Spark also compares its filter with the
#    dictionary of a row group, bit by bit.  That loses rows of files that Spark itself wrote: of three rows of -0.0
#    `f = 0.0`, `f >= 0.0` and `f IN (0.0, 7.0)` find none.
#    (With one more distinct value in so few rows Spark writes no dictionary, and finds them.)
# With spark.sql.parquet.filterPushdown=false all of them are found.
#
# Output seen:
#   NaN   of Arrow  f > 5.0             pushed 0  not pushed 1
#   NaN   of Arrow  f <> 1.0            pushed 0  not pushed 1
#   NaN   of Arrow  f = double('NaN')   pushed 0  not pushed 1
#   NaN   of Spark  f > 5.0             pushed 1  not pushed 1
#   -0.0  of Arrow  f = 0.0             pushed 0  not pushed 3
#   -0.0  of Spark  f = 0.0             pushed 0  not pushed 3
#   -0.0  of Spark  f >= 0.0            pushed 0  not pushed 3
#   -0.0  of Spark  f IN (0.0, 7.0)     pushed 0  not pushed 3
#   as described
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.2.0 pyarrow==26.0.1
cat > "$folder/look.py" <<'PY'
import math
import sys

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
values = {"NaN": [1.0, math.nan], "-0.0": [-0.0] * 3}
for name, rows in values.items():
    pq.write_table(pa.table({"f": rows}), f"{sys.argv[1]}/{name}-Arrow.parquet")
    frame = spark.createDataFrame([(row,) for row in rows], "f double").coalesce(1)
    frame.write.parquet(f"{sys.argv[1]}/{name}-Spark.parquet")
cases = [
    ("NaN", "Arrow", "f > 5.0", (0, 1)),
    ("NaN", "Arrow", "f <> 1.0", (0, 1)),
    ("NaN", "Arrow", "f = double('NaN')", (0, 1)),
    ("NaN", "Spark", "f > 5.0", (1, 1)),
    ("-0.0", "Arrow", "f = 0.0", (0, 3)),
    ("-0.0", "Spark", "f = 0.0", (0, 3)),
    ("-0.0", "Spark", "f >= 0.0", (0, 3)),
    ("-0.0", "Spark", "f IN (0.0, 7.0)", (0, 3)),
]
same = True
for name, writer, test, wanted in cases:
    found = []
    for pushed in ("true", "false"):
        spark.conf.set("spark.sql.parquet.filterPushdown", pushed)
        found.append(spark.read.parquet(f"{sys.argv[1]}/{name}-{writer}.parquet").where(test).count())
    print(f"{name:5} of {writer}  {test:18}  pushed {found[0]}  not pushed {found[1]}")
    same = same and tuple(found) == wanted
print("as described" if same else "no longer as described")
sys.exit(0 if same else 1)
PY
PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1 "$folder/venv/bin/python" "$folder/look.py" "$folder" 2>"$folder/err" || { tail -20 "$folder/err" >&2; exit 1; }
