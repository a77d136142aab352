#!/usr/bin/env bash
# Readers of Parquet files whose footers name the old calendar: only Spark shifts the values, and filters of others miss.
#
# pyspark 4.2.0, pyarrow 26.0.1, polars 2.1.0, duckdb 1.5.5; Java 17.
#
# Spark 2, and any Spark with spark.sql.parquet.datetimeRebaseModeInWrite=LEGACY (int96RebaseModeInWrite for INT96),
# writes days before 15 October 1582 and moments before 1900 in the calendar and the local mean time of then.  The
# footer's keys org.apache.spark.legacyDateTime, legacyINT96 and timeZone say so.  Nothing in the Parquet format does.
#
# - Spark reads what was written.  pyarrow, polars and DuckDB read 1500-03-11 for 1500-03-01.
# - It is not only about the Middle Ages: in New York a moment of 1880 is 3 minutes and 58 seconds off.
# - A filter with the day that was written finds 1 row in Spark, and none in the others.
# - pyarrow (by default) and polars take INT96 as nanoseconds in 64 bits, which begin in 1677: 1600 becomes 2184 in the
#   one and 2262, the end of that range, in the other, without an error.
# So two engines over one table differ in silence, and statistics that one of them makes (for Delta, Iceberg, …) hide
# rows from the other.
#
# Output seen:
#   TIMESTAMP_MICROS Spark   1500-03-01  1600-01-01 00:00:00  1880-01-01 00:00:00  filter finds 1
#   TIMESTAMP_MICROS pyarrow 1500-03-11  1600-01-01 00:03:58  1880-01-01 00:03:58  filter finds 0
#   TIMESTAMP_MICROS polars  1500-03-11  1600-01-01 00:03:58  1880-01-01 00:03:58  filter finds 0
#   TIMESTAMP_MICROS DuckDB  1500-03-11  1600-01-01 00:03:58  1880-01-01 00:03:58  filter finds 0
#   INT96            Spark   1500-03-01  1600-01-01 00:00:00  1880-01-01 00:00:00  filter finds 1
#   INT96            pyarrow 1500-03-11  2184-07-20 23:38:31  1880-01-01 00:03:58  filter finds 0
#   INT96            polars  1500-03-11  2262-04-11 23:47:16  1880-01-01 00:03:58  filter finds 0
#   INT96            DuckDB  1500-03-11  1600-01-01 00:03:58  1880-01-01 00:03:58  filter finds 0
#   as described
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.2.0 pyarrow==26.0.1 polars==2.1.0 duckdb==1.5.5
cat > "$folder/look.py" <<'PY'
import glob
import sys
from datetime import date

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
for setting in ("datetimeRebaseModeInWrite", "int96RebaseModeInWrite"):
    spark.conf.set(f"spark.sql.parquet.{setting}", "LEGACY")
WANTED = {
    "Spark": ("1500-03-01", "1600-01-01 00:00:00", "1880-01-01 00:00:00", 1),
    "shifted": ("1500-03-11", "1600-01-01 00:03:58", "1880-01-01 00:03:58", 0),
}
#: What becomes of 1600 in INT96.
INT96 = {"pyarrow": "2184-07-20 23:38:31", "polars": "2262-04-11 23:47:16"}
DAY = date(1500, 3, 1)
same = True
for kind in ("TIMESTAMP_MICROS", "INT96"):
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    folder = f"{sys.argv[1]}/{kind}"
    moments = "TIMESTAMP'1600-01-01 00:00:00Z' AS m, TIMESTAMP'1880-01-01 00:00:00Z' AS n"
    spark.sql(f"SELECT DATE'1500-03-01' AS d, {moments}").coalesce(1).write.parquet(folder)
    (file,) = glob.glob(f"{folder}/*.parquet")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    of_spark = spark.read.parquet(file)
    arrow = pq.read_table(file)
    frame = polars.read_parquet(file)
    duckdb.sql("SET TimeZone = 'UTC'")
    ducks = f"FROM '{file}'"
    found = {
        "Spark": (
            *of_spark.selectExpr("CAST(d AS STRING)", "CAST(m AS STRING)", "CAST(n AS STRING)").first(),
            of_spark.where("d = DATE'1500-03-01'").count(),
        ),
        "pyarrow": (
            *(arrow[name].cast(pa.string())[0].as_py() for name in "dmn"),
            arrow.filter(pc.field("d") == DAY).num_rows,
        ),
        "polars": (
            *(str(value) for value in frame.row(0)),
            polars.scan_parquet(file).filter(polars.col("d") == DAY).collect().height,
        ),
        "DuckDB": (
            *duckdb.sql(f"SELECT d::VARCHAR, m::VARCHAR, n::VARCHAR {ducks}").fetchone(),
            *duckdb.sql(f"SELECT count(*) {ducks} WHERE d = DATE '1500-03-01'").fetchone(),
        ),
    }
    for reader, (day, *rest, rows) in found.items():
        seen = (day, *(text[:19] for text in rest), rows)
        print(f"{kind:16} {reader:7} {seen[0]}  {seen[1]}  {seen[2]}  filter finds {rows}")
        wanted = list(WANTED["Spark" if reader == "Spark" else "shifted"])
        if kind == "INT96":
            wanted[1] = INT96.get(reader, wanted[1])
        same = same and seen == tuple(wanted)
print("as described" if same else "no longer as described")
sys.exit(0 if same else 1)
PY
PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1 TZ=UTC "$folder/venv/bin/python" "$folder/look.py" "$folder" 2>"$folder/err" || { tail -20 "$folder/err" >&2; exit 1; }
