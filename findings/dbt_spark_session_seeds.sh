#!/usr/bin/env bash
# Seeds of dbt-spark by the method `session`: an empty cell becomes the text None, and large integers are rounded.
#
# dbt-core 1.11.16, dbt-spark 1.11.0, pyspark 4.2.0; Java 17.
#
# `dbt seed` succeeds.  A cell of a text column that is empty is in the table as the four letters None, so
# `is null` finds nothing; dbt's other adapters write NULL.  An integer above 2^53 loses its last digits, unless
# column_types names the type of its column.
#
# Output seen:
#   empty cell: 'None', is null finds 0 rows
#   9007199254740993: 9007199254740992
#   as described
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dbt-core==1.11.16 dbt-spark==1.11.0 pyspark==4.2.0
mkdir -p "$folder/project/seeds"
cat > "$folder/project/dbt_project.yml" <<'YML'
name: few
version: "1.0"
profile: few
seeds:
  few:
    +column_types: {note: string}
    +file_format: parquet
YML
cat > "$folder/project/profiles.yml" <<'YML'
few:
  target: here
  outputs:
    here: {type: spark, method: session, host: none, schema: few, threads: 1}
YML
printf 'number,note\n9007199254740993,\n1,text\n' > "$folder/project/seeds/given.csv"
cat > "$folder/look.py" <<'PY'
import sys
from pathlib import Path

from dbt.cli.main import dbtRunner
from pyspark.sql import SparkSession

folder = Path(sys.argv[1])
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    .config("spark.hadoop.javax.jdo.option.ConnectionURL", f"jdbc:derby:;databaseName={folder}/metastore;create=true")
    .enableHiveSupport()
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
project = str(folder / "project")
done = dbtRunner().invoke(["--quiet", "seed", "--project-dir", project, "--profiles-dir", project])
if not done.success:
    sys.exit(f"dbt seed failed: {done.exception}")
table = spark.table("few.given").orderBy("number")
note = table.collect()[1]["note"]
said = [
    f"empty cell: {note!r}, is null finds {table.where('note is null').count()} rows",
    f"9007199254740993: {table.collect()[1]['number']}",
]
print("\n".join(said))
same = said == [
    "empty cell: 'None', is null finds 0 rows",
    "9007199254740993: 9007199254740992",
]
print("as described" if same else "no longer as described")
sys.exit(0 if same else 1)
PY
cd "$folder"
DBT_SEND_ANONYMOUS_USAGE_STATS=false PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1 "$folder/venv/bin/python" "$folder/look.py" "$folder" 2>"$folder/err" || { tail -20 "$folder/err" >&2; exit 1; }
