#!/usr/bin/env bash
# An Observation fails when adaptive execution finds the other side of a join empty, though the job succeeds.
#
# pyspark 4.2.0; Java 17.
#
# DataFrame.observe beside a write counts rows on the way.  With adaptive execution, which is Spark's default, a join
# whose one side turns out to have no rows is taken out of the plan while it runs, and the observed rows with it.  The
# write succeeds, and Observation.get raises a Java AssertionError instead of the metrics, or none of them.  The same
# job gives the metrics where the other side has a row, and where adaptive execution is off.
#
# Output seen:
#   adaptive true, other side with a row: 5 rows observed
#   adaptive true, other side empty: Py4JJavaError, java.lang.AssertionError
#   adaptive false, other side with a row: 5 rows observed
#   adaptive false, other side empty: 5 rows observed
#   as described
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.2.0
cat > "$folder/look.py" <<'PY'
import sys

from py4j.protocol import Py4JJavaError
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F

folder = sys.argv[1]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.autoBroadcastJoinThreshold", "-1")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
spark.range(5).write.parquet(f"{folder}/rows")
said = []
for adaptive in ("true", "false"):
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    for name, least in (("with a row", 4), ("empty", 9)):
        rows = spark.read.parquet(f"{folder}/rows")
        observation = Observation()
        observed = rows.observe(observation, F.count("*").alias("rows"))
        other = spark.read.parquet(f"{folder}/rows").where(f"id >= {least}")
        observed.join(other, "id").write.parquet(f"{folder}/{adaptive}-{least}")
        try:
            found = f"{observation.get['rows']} rows observed"
        except Py4JJavaError as error:
            found = f"Py4JJavaError, {error.java_exception.getClass().getName()}"
        said.append(f"adaptive {adaptive}, other side {name}: {found}")
print("\n".join(said))
same = said == [
    "adaptive true, other side with a row: 5 rows observed",
    "adaptive true, other side empty: Py4JJavaError, java.lang.AssertionError",
    "adaptive false, other side with a row: 5 rows observed",
    "adaptive false, other side empty: 5 rows observed",
]
print("as described" if same else "no longer as described")
sys.exit(0 if same else 1)
PY
cd "$folder"
PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1 "$folder/venv/bin/python" "$folder/look.py" "$folder" 2>"$folder/err" || { tail -20 "$folder/err" >&2; exit 1; }
