#!/usr/bin/env bash
# A declarative pipeline whose view names Delta as its format empties its table in the second run, and then fails.
#
# pyspark 4.2.0 (spark-pipelines), delta-spark 4.4.0 (its JARs by Spark's resolver); Java 17.
#
# `CREATE MATERIALIZED VIEW … USING delta` makes the table in the first run.  The next run takes its rows out in a
# commit of its own, then alters the table with the format once more, which Delta refuses
# (DELTA_CANNOT_CHANGE_PROVIDER).  The run fails, and readers find no rows until somebody mends the definition.  With
# the format in the setting spark.sql.sources.default instead of the statement, the second run succeeds.
#
# Output seen:
#   USING delta, run 1: ends with 0, 3 rows
#   USING delta, run 2: ends with 1, DELTA_CANNOT_CHANGE_PROVIDER, 0 rows
#   format by the setting, run 1: ends with 0, 3 rows
#   format by the setting, run 2: ends with 0, 3 rows
#   as described
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'pyspark[connect,pipelines]==4.2.0' delta-spark==4.4.0 deltalake==1.6.2
cat > "$folder/look.py" <<'PY'
import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
from deltalake import DeltaTable

folder = Path(sys.argv[1])
home = Path(pyspark.__file__).parent
said = []
for name, using, format in (("USING delta", "USING delta", "parquet"), ("format by the setting", "", "delta")):
    place = folder / name.replace(" ", "-")
    (place / "definitions").mkdir(parents=True)
    (place / "conf").mkdir()
    (place / "definitions" / "few.sql").write_text(
        f"CREATE MATERIALIZED VIEW few {using} AS SELECT id FROM range(3);"
    )
    spec = {
        "name": "few",
        "storage": f"file://{place}/storage",
        "libraries": [{"glob": {"include": "definitions/**"}}],
        "configuration": {"spark.sql.sources.default": format},
    }
    (place / "spark-pipeline.yml").write_text(json.dumps(spec))
    settings = {
        "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": f"file://{place}/warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={place}/metastore;create=true",
        "spark.ui.enabled": "false",
    }
    (place / "conf" / "spark-defaults.conf").write_text("".join(f"{k} {v}\n" for k, v in settings.items()))
    environ = os.environ | {"SPARK_CONF_DIR": str(place / "conf"), "SPARK_HOME": str(home)}
    for number in (1, 2):
        done = subprocess.run(
            [home / "bin" / "spark-pipelines", "run"], env=environ, cwd=place, capture_output=True, text=True
        )
        text = done.stdout + done.stderr
        print(text[-3000:], file=sys.stderr)
        refused = ", DELTA_CANNOT_CHANGE_PROVIDER" if "DELTA_CANNOT_CHANGE_PROVIDER" in text else ""
        rows = DeltaTable(place / "warehouse" / "few").to_pyarrow_table().num_rows
        said.append(f"{name}, run {number}: ends with {min(done.returncode, 1)}{refused}, {rows} rows")
print("\n".join(said))
same = said == [
    "USING delta, run 1: ends with 0, 3 rows",
    "USING delta, run 2: ends with 1, DELTA_CANNOT_CHANGE_PROVIDER, 0 rows",
    "format by the setting, run 1: ends with 0, 3 rows",
    "format by the setting, run 2: ends with 0, 3 rows",
]
print("as described" if same else "no longer as described")
sys.exit(0 if same else 1)
PY
cd "$folder"
PATH="$folder/venv/bin:$PATH" PYSPARK_PYTHON="$folder/venv/bin/python" SPARK_LOCAL_IP=127.0.0.1 "$folder/venv/bin/python" "$folder/look.py" "$folder" 2>"$folder/err" || { tail -40 "$folder/err" >&2; exit 1; }
