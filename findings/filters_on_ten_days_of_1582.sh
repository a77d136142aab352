#!/usr/bin/env bash
# Spark finds no date or timestamp of 5 to 14 October 1582 in Parquet files by a filter, though it wrote and reads it.
#
# pyspark 4.2.0, all settings as they are by default; Java 17.
#
# These ten days are in Spark's calendar (proleptic Gregorian), and not in that of java.sql.Date and Timestamp, through
# which Spark passes the value of a filter that it pushes into a file.  The filter then asks for another day, and the
# bounds of the row group exclude the row: `=` and `>=` find nothing, in every time zone.  The days before and after
# are right, and so are timestamps without time zone.
# spark.sql.datetime.java8API.enabled=true, or spark.sql.parquet.filterPushdown=false, finds the row: settings that
# should change no answer.
#
# Output seen:
#   1582-10-04  timestamp pushed 1 not pushed 1 java8 1   date 1  timestamp_ntz 1
#   1582-10-05  timestamp pushed 0 not pushed 1 java8 1   date 0  timestamp_ntz 1
#   1582-10-14  timestamp pushed 0 not pushed 1 java8 1   date 0  timestamp_ntz 1
#   1582-10-15  timestamp pushed 1 not pushed 1 java8 1   date 1  timestamp_ntz 1
#   as described
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.2.0
cat > "$folder/look.py" <<'PY'
import sys

from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
same = True
for day in ("1582-10-04", "1582-10-05", "1582-10-14", "1582-10-15"):
    values = {"at": f"TIMESTAMP'{day} 12:00:00'", "d": f"DATE'{day}'", "n": f"TIMESTAMP_NTZ'{day} 12:00:00'"}
    path = f"{sys.argv[1]}/{day}"
    selected = ", ".join(f"{value} AS {name}" for name, value in values.items())
    spark.sql(f"SELECT {selected}").coalesce(1).write.parquet(path)

    def found(name: str, **settings: str) -> int:
        for setting, value in settings.items():
            spark.conf.set(setting.replace("__", "."), value)
        count = spark.read.parquet(path).where(f"{name} = {values[name]}").count()
        for setting in settings:
            spark.conf.unset(setting.replace("__", "."))
        return count

    pushed = found("at")
    not_pushed = found("at", spark__sql__parquet__filterPushdown="false")
    java8 = found("at", spark__sql__datetime__java8API__enabled="true")
    others = found("d"), found("n")
    print(
        f"{day}  timestamp pushed {pushed} not pushed {not_pushed} java8 {java8}   "
        f"date {others[0]}  timestamp_ntz {others[1]}"
    )
    by_filter = 0 if day in ("1582-10-05", "1582-10-14") else 1
    same = same and (pushed, not_pushed, java8, *others) == (by_filter, 1, 1, by_filter, 1)
print("as described" if same else "no longer as described")
sys.exit(0 if same else 1)
PY
PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1 "$folder/venv/bin/python" "$folder/look.py" "$folder" 2>"$folder/err" || { tail -20 "$folder/err" >&2; exit 1; }
