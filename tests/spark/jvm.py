"""How the JVMs of tests start: quickly, and from an archive of the classes that Spark loads.

Tests start dozens of short JVMs, and half of the work of each is reading Spark's and Delta's
classes.  `python -m tests.spark.jvm` (part of `make test`) keeps them, parsed and linked, in an
archive inside the environment (Java's "class data sharing"), which saves about 8 s of processor
time a JVM.  It also compiles `LocalFiles`, without which Hadoop starts a process for each file.
Without the archive everything works as well, only slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

_DIRECTORY = Path(sys.prefix) / "test-jvm"
_ARCHIVE = _DIRECTORY / "classes.jsa"
#: The class `LocalFiles`; an archive takes classes of JARs only.
_FILES = _DIRECTORY / "local-files.jar"
#: Spark puts this directory on the class path, where the archive allows only an empty one.
_CONF = _DIRECTORY / "conf"

_OPTIONS = (
    # Short lives: compiling hot code a second time costs more than it gives, and so does verifying
    # the classes of Spark again.
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    # With that level Java keeps 48 MB of compiled code, and Spark needs more in minutes.
    "-XX:ReservedCodeCacheSize=240m",
    # What a query leaves is gone before it is copied.
    "-Xmn320m",
    # Room for what stays, and for classes, from the beginning: growing costs half a second each
    # time.  A JVM with a smaller heap takes what it has.
    "-XX:OldSize=690m",
    "-XX:MetaspaceSize=400m",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    # At the address it was made for the archive need not be rewritten, and is shared.
    "-XX:ArchiveRelocationMode=0",
    # Else each call of a Column asks the JVM ten times to note its line for messages of errors.
    "-Dspark.python.sql.dataFrameDebugging.enabled=false",
    # Nobody looks at the page of queries.
    "-Dspark.sql.ui.explainMode=simple",
    # An archive that does not fit is left alone without a word on stdout.
    "-Xlog:disable",
    "-Xlog:all=error:stderr",
)
#: Tables of a few rows: interpreting a query costs less than compiling it.  A plan that changes on
#: the way is another one, too, so `make test-spark-as-users` leaves these out.
_QUERY_OPTIONS = (
    "-Dspark.sql.codegen.wholeStage=false",
    "-Dspark.sql.codegen.factoryMode=NO_CODEGEN",
    "-Dspark.sql.adaptive.enabled=false",
)
#: Set to `as-users` for queries with Spark's own settings.
_QUERIES = "SPARKTXLOG_TEST_QUERIES"
_FILE_OPTIONS = (
    "-Dspark.hadoop.fs.file.impl=sparktxlog.LocalFiles$Quick",
    "-Dspark.hadoop.fs.AbstractFileSystem.file.impl=sparktxlog.LocalFiles$QuickContext",
)


def environment() -> dict[str, str]:
    """Return the variables that every Spark process of tests inherits."""
    if not _ARCHIVE.is_file():
        return {"JDK_JAVA_OPTIONS": " ".join(_query_options())}
    options = (*_options(), f"-XX:SharedArchiveFile={_ARCHIVE}")
    return _places() | {"JDK_JAVA_OPTIONS": " ".join(options)}


def _options() -> tuple[str, ...]:
    options = _query_options()
    return (*options, *_FILE_OPTIONS) if _FILES.is_file() else options


def _query_options() -> tuple[str, ...]:
    return _OPTIONS if os.environ.get(_QUERIES) == "as-users" else (*_OPTIONS, *_QUERY_OPTIONS)


def _places() -> dict[str, str]:
    """Put Delta where Java's own loader finds it: only its classes can be in the archive.

    What Delta itself needs must be there, too: the clients of catalogs.  And `LocalFiles`.
    """
    from sparktxlog.api.session import SPARK_RELEASE
    from sparktxlog.api.spark_jars import known_jars

    jars = [jar.removeprefix("file://") for jar in known_jars(SPARK_RELEASE).split(",")]
    found = [
        jar
        for begin in ("io.delta_", "io.unitycatalog_")
        for jar in jars
        if Path(jar).name.startswith(begin)
    ]
    if _FILES.is_file():
        found.append(str(_FILES))
    return {"SPARK_CONF_DIR": str(_CONF), "SPARK_DIST_CLASSPATH": ":".join(found)}


def make_archive() -> None:
    """Use Spark once for what tests do, and keep the classes it loaded."""
    from tests.support.java_programs import make_jar

    _CONF.mkdir(parents=True, exist_ok=True)
    make_jar("sparktxlog/LocalFiles.java", _FILES)
    part = _ARCHIVE.with_suffix(".part")
    options = (*_options(), f"-XX:ArchiveClassesAtExit={part}")
    environ = os.environ | _places() | {"JDK_JAVA_OPTIONS": " ".join(options)}
    command = [sys.executable, "-m", "tests.spark.jvm", "--use"]
    subprocess.run(command, env=environ, check=True, stderr=subprocess.DEVNULL)
    part.replace(_ARCHIVE)


def use_spark() -> None:
    """Write, change and read a table in the ways that tests do."""
    from delta.tables import DeltaTable
    from pyspark.sql import functions as F

    from sparktxlog.api.session import build_session

    spark = build_session()
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/table"
        rows = spark.range(20).select("id", (F.col("id") % 3).alias("part"), F.lit("x").alias("v"))
        rows.write.format("delta").partitionBy("part").save(path)
        rows.write.parquet(f"{directory}/files")
        spark.createDataFrame([(1, 2, "y")], rows.schema).write.format("delta").mode("append").save(
            path
        )
        changes = spark.read.parquet(f"{directory}/files").where("id > 10").alias("s").cache()
        table = DeltaTable.forPath(spark, path)
        merge = table.alias("t").merge(changes, "t.id = s.id AND t.part = s.part")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
        table.delete("id = 3")
        table.update("id = 4", {"v": F.lit("z")})
        table.optimize().executeCompaction()
        table.history(3).collect()
        hashed = F.xxhash64("id", "v").bitwiseAND(0xFFFFFFFF)
        read = spark.read.format("delta").option("versionAsOf", 1).load(path)
        read.groupBy("part").agg(F.sum(hashed), F.count("*")).orderBy("part").toPandas()
        read.join(changes, "id", "left_anti").toArrow()
        read.mapInArrow(lambda batches: batches, read.schema).collect()
    java = spark.sparkContext._gateway.proc
    spark.stop()
    # The archive is written when Java ends, which it does when nobody writes to it any more.
    java.stdin.close()
    java.wait()


if __name__ == "__main__":
    use_spark() if "--use" in sys.argv else make_archive()
