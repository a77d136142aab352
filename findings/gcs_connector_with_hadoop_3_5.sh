#!/usr/bin/env bash
# gcs-connector 4.0.0 with the Hadoop 3.5.0 of PySpark 4.2.0: no gs:// URL can be opened.
#
# Hadoop 3.5.0 has a connector of its own, and its core-default.xml gives that one's defaults for
# names that both use.  One is fs.gs.block.size = 64m.  Google's connector reads it as a plain
# number and fails, before it asks any server.  With a number of bytes there it works.
#
# Output seen (Python 3.11, Java 17, Linux):
#   as it is          NumberFormatException: For input string: "64m"
#   with a number     com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.2.0
cd "$work"
cat >ivysettings.xml <<'XML'
<ivysettings>
  <settings defaultResolver="shaded"/>
  <resolvers>
    <ibiblio name="shaded" m2compatible="true" usepoms="false"
             pattern="[organisation]/[module]/[revision]/[module]-[revision]-shaded.[ext]"/>
  </resolvers>
</ivysettings>
XML
cat >run.py <<'PY'
from pyspark.errors import NumberFormatException
from pyspark.sql import SparkSession

connector = "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem"
settings = {
    "spark.jars.packages": "com.google.cloud.bigdataoss:gcs-connector:4.0.0",
    "spark.jars.ivy": "ivy",
    "spark.jars.ivySettings": "ivysettings.xml",
    "spark.ui.enabled": "false",
    "spark.hadoop.fs.gs.impl": connector,
    "spark.hadoop.fs.gs.auth.type": "UNAUTHENTICATED",
    "spark.hadoop.fs.gs.project.id": "any",
}
builder = SparkSession.builder.master("local[1]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
hadoop = spark.sparkContext._jsc.hadoopConfiguration()
path = spark.sparkContext._jvm.org.apache.hadoop.fs.Path("gs://bucket/table")


def opened():
    try:
        return path.getFileSystem(hadoop).getClass().getName()
    except NumberFormatException as error:
        return f"NumberFormatException: {str(error).splitlines()[0]}"


found = [opened()]
hadoop.set("fs.gs.block.size", str(64 * 1024 * 1024))
found.append(opened())
print("as it is         ", found[0])
print("with a number    ", found[1])
assert found == ['NumberFormatException: For input string: "64m"', connector], (
    "the connector is no longer so"
)
PY
SPARK_LOCAL_IP=127.0.0.1 "$work/venv/bin/python" run.py 2>"$work/log" || { tail -5 "$work/log" >&2; exit 1; }
