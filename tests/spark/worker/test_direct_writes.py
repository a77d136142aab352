"""What others do to a replica's tables past the log: each of five acts, and what comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.worker.test_apply import check, rows_in
from tests.spark.worker.test_repair import Site
from tests.support.worker_log import LogBuilder, MemoryLog, expected, table

from sparktxlog.catchup.comparison import LogView, compare
from sparktxlog.model.report import ReplicaVerdict
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.state import ReplicaDirectory

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(900)]

#: Statement on `@` → operation that the table stops with; none = it goes on.
ACTS = {
    "INSERT INTO @ VALUES (77, 'eve')": "WRITE",
    "UPDATE @ SET v = 'eve' WHERE id = 1": "UPDATE",
    "RESTORE TABLE @ TO VERSION AS OF 1": "RESTORE",
    "OPTIMIZE @": "",
    "VACUUM @": "",
}
#: A statement's first word, the name of its table, in a schema of the log.
NAMES = {f"lake.of_{act.split()[0].lower()}": act for act in ACTS}
STOPPED = {name for name, act in NAMES.items() if ACTS[act]}


@contextmanager
def worker(spark: SparkSession, source: MemoryLog) -> Iterator[Applier]:
    with closing(ReplicaDirectory(source.lake)) as directory:
        yield Applier(spark, source, directory)


def write(log: LogBuilder, value: str) -> None:
    """Order a transaction that upserts a row of every table, and adds one."""
    log.transaction()
    for name in (*NAMES, "other"):
        log.inline("upsert", name, [(2, value)]).staged("append", name, [(len(value), value)])
    log.publish()


def test_each_act_is_noticed_and_stops_its_table_only(spark: SparkSession, tmp_path: Path) -> None:
    log = LogBuilder(tmp_path, interval=1)
    source, lake = Site(log, tmp_path / "lake"), tmp_path / "lake"
    log.transaction()
    for name in (*NAMES, "other"):
        log.create(table(name, "id bigint, v string", keys=["id"]))
        log.staged("append", name, [(1, "a"), (3, "c")], files=2)
    log.publish()
    write(log, "second")
    with worker(spark, source) as applier:
        assert not applier.run_once().diverged
    before = {name: rows_in(spark, lake, name) for name in NAMES}
    newest = dict(source.reports[-1].tables)
    for name, act in NAMES.items():
        spark.sql(act.replace("@", f"delta.`{lake / name}`")).collect()
        if act.split()[0] == "VACUUM":
            # Versions of the last week that were reported stay whole.
            for version in {told.tables[name].version for told in source.reports if told.tables}:
                reader = spark.read.format("delta").option("versionAsOf", version)
                reader.load(str(lake / name)).collect()

    # The next batch says nothing of these tables, and finds it before it writes.
    log.transaction().inline("upsert", "other", [(1, "third")])
    log.publish()
    with worker(spark, source) as applier:
        outcome = applier.run_once()
        assert (outcome.position, set(outcome.diverged)) == (log.position, STOPPED)
    report = source.reports[-1]
    for name in STOPPED:
        reason = report.tables[name].diverged
        assert f"version {newest[name].version + 1} was written by user " in reason
        assert "Delta-Lake" in reason and f"({ACTS[NAMES[name]]})" in reason
        assert f"sparktxlog repair {name}" in reason
    known = LogView(
        log_id=log.log_id,
        position=log.position,
        published=log.position,
        chain_hash=report.chain_hash,
    )
    judged = compare(report, known)
    assert judged.verdict is ReplicaVerdict.DIVERGED
    assert "was written by user" in judged.reason and min(STOPPED) in judged.reason
    assert rows_in(spark, lake, "other") == expected(log, "other")

    # All others go on, with the table that somebody compacted or vacuumed.
    write(log, "fourth")
    with worker(spark, source) as applier:
        assert set(applier.run_once().diverged) == STOPPED
        for name in (*(NAMES.keys() - STOPPED), "other"):
            assert rows_in(spark, lake, name) == expected(log, name)
        for name in sorted(STOPPED):
            found = applier.repair(name, local=True)
            assert found.done, name
            assert bool(found.quarantined) is (ACTS[NAMES[name]] in ("WRITE", "UPDATE")), name
        assert not applier.run_once().diverged
    check(spark, log, lake)
    assert all(rows_in(spark, lake, name) != before[name] for name in NAMES)

    # What comes after a repair is applied; RESTORE had kept the newer `txn` of what it undid.
    write(log, "last")
    with worker(spark, source) as applier:
        assert not applier.run_once().diverged
    check(spark, log, lake)
