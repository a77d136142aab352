#!/usr/bin/env bash
# Delta's CREATE OR REPLACE TABLE of a table by its path replaces nothing, and reports success.
#
# pyspark 4.2.0, delta-spark 4.4.0 (its JARs by Spark's resolver); Java 17.
#
# With the columns that the table has, the statement succeeds, makes no version, and all rows stay; DROP TABLE by path
# does the same.  With other columns it fails as if it were CREATE TABLE (DELTA_CREATE_TABLE_SCHEME_MISMATCH).
# REPLACE TABLE, CREATE OR REPLACE TABLE … AS SELECT, and the same statement by a name of the catalog replace the rows.
#
# Output seen:
#   CREATE OR REPLACE TABLE by path: 2 rows, version 0
#   DROP TABLE by path: 2 rows, version 0
#   CREATE OR REPLACE TABLE by path, other columns: DELTA_CREATE_TABLE_SCHEME_MISMATCH
#   CREATE OR REPLACE TABLE … AS SELECT by path: 1 rows, version 1
#   REPLACE TABLE by path: 0 rows, version 2
#   CREATE OR REPLACE TABLE by name: 0 rows
#   as described
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.2.0 delta-spark==4.4.0
cat > "$folder/look.py" <<'PY'
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

folder = sys.argv[1]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.jars.packages", "io.delta:delta-spark_4.2_2.13:4.4.0")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
table = f"delta.`{folder}/table`"
spark.sql(f"CREATE TABLE {table} USING delta AS SELECT id FROM range(2)")
said = []


def do(name: str, statement: str) -> None:
    try:
        spark.sql(statement)
        version = spark.sql(f"DESCRIBE HISTORY {table}").first()["version"]
        said.append(f"{name}: {spark.table(table).count()} rows, version {version}")
    except PySparkException as error:
        said.append(f"{name}: {error.getCondition()}")


do("CREATE OR REPLACE TABLE by path", f"CREATE OR REPLACE TABLE {table} (id BIGINT) USING delta")
do("DROP TABLE by path", f"DROP TABLE {table}")
do("CREATE OR REPLACE TABLE by path, other columns", f"CREATE OR REPLACE TABLE {table} (n INT) USING delta")
do("CREATE OR REPLACE TABLE … AS SELECT by path", f"CREATE OR REPLACE TABLE {table} USING delta AS SELECT 7L AS id")
do("REPLACE TABLE by path", f"REPLACE TABLE {table} (id BIGINT) USING delta")
spark.sql("CREATE TABLE named USING delta AS SELECT id FROM range(2)")
spark.sql("CREATE OR REPLACE TABLE named (id BIGINT) USING delta")
said.append(f"CREATE OR REPLACE TABLE by name: {spark.table('named').count()} rows")
print("\n".join(said))
same = said == [
    "CREATE OR REPLACE TABLE by path: 2 rows, version 0",
    "DROP TABLE by path: 2 rows, version 0",
    "CREATE OR REPLACE TABLE by path, other columns: DELTA_CREATE_TABLE_SCHEME_MISMATCH",
    "CREATE OR REPLACE TABLE … AS SELECT by path: 1 rows, version 1",
    "REPLACE TABLE by path: 0 rows, version 2",
    "CREATE OR REPLACE TABLE by name: 0 rows",
]
print("as described" if same else "no longer as described")
sys.exit(0 if same else 1)
PY
cd "$folder"
PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1 "$folder/venv/bin/python" "$folder/look.py" "$folder" 2>"$folder/err" || { tail -20 "$folder/err" >&2; exit 1; }
