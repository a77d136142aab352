"""What workers do with a lake in a bucket: `bucket_lake_job.py ACT URL_A URL_B …`; prints JSON.

Acts: `story` commits all kinds of operations at A, follows a table of the bucket there, and applies
all of it at both sites; `die` ends the
process after a commit of the next batch, before the state says so; `go-on` applies the rest;
`verify` recounts.  `copy` copies A's replica into the bucket, `copy-back` the bucket's to A's disk;
`die-copying` ends the process while a copy puts files; `repair` repairs a table at the bucket.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sparktxlog
from sparktxlog.api.adopting.table_follower import TableFollower
from sparktxlog.api.session import build_session
from sparktxlog.errors import LockedError
from sparktxlog.files.stores.counting import RequestKind
from sparktxlog.worker.apply.steps import TableSteps
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.lakes import bucket_lake
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.bucket_replica import BucketReplica, open_replica
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import read_state
from sparktxlog.worker.verify.verify import verify_replica

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparktxlog.api.connect import TxLog
    from sparktxlog.files.stores.store import Store

QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
}


def commit_all(log: TxLog, spark: SparkSession) -> int:
    """Commit operations of most kinds; return the last position."""
    rows = spark.range(100)
    often = {"delta.checkpointInterval": "2"}
    log.create_table("plain", "id bigint, v string", keys=["id"], properties=often)
    log.create_table("parted", "id bigint, p string", keys=["id", "p"], partition_by=["p"])
    log.create_table("vectors", "id bigint, v string", keys=["id"], deletion_vectors=True)
    log.create_table("gone", "id bigint")
    for name in ("plain", "vectors"):
        log.append(name, rows.selectExpr("id", "concat('first ', id) AS v"))
        log.upsert(name, rows.where("id % 7 = 0").selectExpr("id", "'upserted' AS v"))
        log.delete_keys(name, rows.where("id % 10 = 3").select("id"))
        log.delete_where(name, "v = 'first 5' OR id = 6")
    log.append("parted", rows.selectExpr("id", "concat('a b/', id % 2) AS p"))
    log.delete_where("parted", "p = 'a b/1' AND id > 50")
    last = log.append("gone", rows.limit(3))
    return last.position or 0


def change_all(log: TxLog, spark: SparkSession) -> int:
    """Change, clear and drop tables; return the last position."""
    log.alter_table("plain", add={"n": "int"}, rename={"v": "w"})
    log.upsert("plain", spark.sql("SELECT 1000L AS id, 'new' AS w, 7 AS n"))
    log.overwrite("parted", spark.sql("SELECT 1L AS id, 'over' AS p"))
    log.delete_where("vectors", "id > 90")
    log.drop_table("gone")
    log.create_table("gone", "other string")
    last = log.append("gone", spark.sql("SELECT 'again' AS other"))
    return last.position or 0


def apply_at(spark: SparkSession, url: str, at_least: int) -> dict[str, Any]:
    """Run a worker once; return what its state says, and the rows that Spark reads."""
    with closing(HttpLogSource(url)) as source:
        info = source.info()
        with closing(open_replica(info.lake, info.lake_root)) as replica:
            outcome = Applier(spark, source, replica).run_once(at_least, timeout_s=60)
            counts = {}
            if isinstance(replica, BucketReplica):
                asked = replica.place.store.counts.now()
                counts = {kind.value: asked[kind].requests for kind in RequestKind}
        state = read_state(info.lake)
        assert state is not None
        found = verify_replica(spark, source, info.lake)
    log = sparktxlog.connect(spark, url)
    views = sparktxlog.register(spark, log, schema="site")
    return {
        "position": outcome.position,
        "diverged": outcome.diverged,
        "signatures": {name: one.signature.to_text() for name, one in state.tables.items()},
        "rows": {
            name: sorted(json.dumps(row.asDict()) for row in log.table(name).collect())
            for name in state.tables
        },
        "by_view": {
            name: spark.table(f"site.{name}").count()
            for name in state.tables
            if f"site.{name}" in views
        },
        "sound": found.sound,
        "found": found.lines(),
        "requests": counts,
    }


def by_format(spark: SparkSession, url: str, name: str) -> list[str]:
    """Return the rows of a table as the data source reads them, file by file."""
    found = spark.read.format("txlog").option("url", url).load(name)
    return sorted(json.dumps(row.asDict()) for row in found.collect())


def follow(spark: SparkSession, url: str, place: str) -> dict[str, Any]:
    """Adopt and follow a Delta table that jobs write in a bucket; return what the log has of it."""
    table = f"delta.`{place}`"
    rows = spark.range(8).selectExpr("id", "concat('p ', id % 2) AS p", "id * 10 AS v")
    rows.write.format("delta").partitionBy("p").save(place)
    log = sparktxlog.connect(spark, url)
    told = log.adopt_table("adopted", place, kind="row-table", keys=["id"], dry_run=True)
    follower = TableFollower(log, "followed", place, keys=["id"])
    brought = follower.step()
    spark.sql(f"INSERT INTO {table} VALUES (8, 'p 0', 80)")
    spark.sql(f"UPDATE {table} SET v = -1 WHERE id = 3")
    spark.sql(f"DELETE FROM {table} WHERE id = 4")
    spark.sql(f"OPTIMIZE {table}")
    # Another one goes on where the first one has left its note.
    brought += TableFollower(log, "followed", place).step()
    shown = spark.table(table).orderBy("id").collect()
    return {
        "told": [told.way, told.rows, told.source],
        "became": [one.became.split(",")[0] for one in brought],
        "there": [list(row) for row in shown],
        "position": log.position(),
    }


def refused(url: str, other: Path) -> str:
    """Try to be a second worker, on another machine; return why not."""
    with closing(HttpLogSource(url)) as source:
        info = source.info()
        with closing(open_replica(info.lake, info.lake_root)):
            try:
                open_replica(info.lake, other).close()
            except LockedError as error:
                return str(error)
    return ""


def repaired(spark: SparkSession, url: str, *, local: bool) -> dict[str, Any]:
    """Repair a table of the site; return what was found and done."""
    with closing(HttpLogSource(url)) as source:
        info = source.info()
        with closing(open_replica(info.lake, info.lake_root)) as replica:
            outcome = Applier(spark, source, replica).repair("plain", local=local)
    found = outcome.found
    return {"way": found.way.value, "reason": found.reason, "copy": found.copy} | {
        "done": outcome.done,
        "kept": outcome.path,
    }


def copied(spark: SparkSession, url: str) -> dict[str, Any]:
    """Replace the replica of a site by a copy; return what was done."""
    with closing(HttpLogSource(url)) as source:
        info = source.info()
        with closing(open_replica(info.lake, info.lake_root)) as replica:
            forced = CopyOptions(forced=True)
            outcome = Applier(spark, source, replica, copies=forced).catch_up(60)
    (made,) = outcome.copies
    return {"tables": made.tables, "kept": made.quarantined, "reused": made.reused_bytes}


def die_at_a_put(url: str, spark: SparkSession) -> None:
    """Copy, and end in the middle of the second table, while its log is put."""
    put_file, done = bucket_lake.put_file, list[str]()

    def put_and_die(store: Store, key: str, file: Path) -> None:
        put_file(store, key, file)
        done.append(store.url)
        if len({*done}) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    bucket_lake.put_file = put_and_die  # type: ignore[attr-defined]
    copied(spark, url)


def die_at_a_commit(url: str, spark: SparkSession) -> None:
    """Apply the next batch, and end after its first MERGE."""
    run_step = TableSteps.run_step

    def run_and_die(self: TableSteps, batch: Any, step: Any, *rest: Any) -> None:
        run_step(self, batch, step, *rest)
        os.kill(os.getpid(), signal.SIGKILL)

    TableSteps.run_step = run_and_die  # type: ignore[method-assign]
    apply_at(spark, url, 0)


def main(act: str, here: str, bucket: str, other: str, raw: str) -> None:
    """Do it."""
    spark = build_session("local[2]", QUICK, stores=["s3"])
    log = sparktxlog.connect(spark, here)
    found: dict[str, Any] = {}
    if act == "story":
        position = commit_all(log, spark)
        apply_at(spark, here, position)
        found["first"] = apply_at(spark, bucket, position)
        change_all(log, spark)
        found["followed"] = follow(spark, here, raw)
        position = found["followed"]["position"]
        found |= {"a": apply_at(spark, here, position), "b": apply_at(spark, bucket, position)}
        # Deletion vectors, partitions, a renamed and a new column.
        names = ("vectors", "parted", "plain")
        found["by format"] = {name: by_format(spark, bucket, name) for name in names}
        found["second worker"] = refused(bucket, Path(other))
    elif act == "die":
        log.upsert("plain", spark.sql("SELECT 1L AS id, 'late' AS w, 1 AS n"))
        log.append("parted", spark.sql("SELECT 7L AS id, 'late' AS p"))
        last = log.upsert("vectors", spark.sql("SELECT 2L AS id, 'late' AS v"))
        sparktxlog.connect(spark, bucket).position()  # it has heard of it
        assert last.position
        die_at_a_commit(bucket, spark)
    elif act == "go-on":
        position = log.append("vectors", spark.sql("SELECT -1L AS id, 'last' AS v")).position or 0
        found = {"a": apply_at(spark, here, position), "b": apply_at(spark, bucket, position)}
    elif act in ("copy", "copy-back"):
        source, target = (here, bucket) if act == "copy" else (bucket, here)
        position = sparktxlog.connect(spark, source).position()
        apply_at(spark, source, position)
        found["copied"] = copied(spark, target)
        found |= {"a": apply_at(spark, here, position), "b": apply_at(spark, bucket, position)}
    elif act == "die-copying":
        apply_at(spark, here, log.position())
        die_at_a_put(bucket, spark)
    elif act in ("repair", "repair-local"):
        found["repair"] = repaired(spark, bucket, local=act == "repair-local")
        if found["repair"]["copy"]:
            found["copied"] = copied(spark, bucket)
        found["b"] = apply_at(spark, bucket, log.position())
    elif act == "verify":
        with closing(HttpLogSource(bucket)) as source:
            counted = verify_replica(spark, source, source.info().lake)
        found = {"sound": counted.sound, "found": counted.lines()}
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
