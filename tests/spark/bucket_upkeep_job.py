"""Upkeep and transactions of tables in a bucket: `bucket_upkeep_job.py CLASSES PREFIX URL URL`."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from typing import Any

from pyspark.sql import SparkSession
from tests.spark.buckets_job import QUICK, until_equal

import sparktxlog
from sparktxlog.api.session import build_session
from sparktxlog.http.catalog_link import CatalogLink
from sparktxlog.storage.commit_tables import bucket_tables
from sparktxlog.worker.tables.commit_upkeep import CommitTableKeeper
from sparktxlog.worker.tables.places_of_tables import tables_below
from sparktxlog.worker.tables.table_upkeep import TableUpkeep, Upkeep

NAME = "default.u"


class Session:
    """A session at two sites; catalogs `a` and `b` are their nodes."""

    def __init__(self, classes: str, prefix: str, urls: tuple[str, ...]) -> None:
        self.prefix, self.urls = prefix, urls
        settings = QUICK | {"spark.driver.extraClassPath": classes}
        for name, url in zip("ab", urls, strict=True):
            catalog = f"spark.sql.catalog.{name}"
            settings[catalog] = "io.unitycatalog.spark.UCSingleCatalog"
            settings |= {f"{catalog}.uri": url, f"{catalog}.token": "any"}
        self.spark: SparkSession = build_session("local[2]", settings, stores=["s3"])

    def sql(self, text: str) -> list[list[Any]]:
        return [list(row) for row in self.spark.sql(text).collect()]

    def maintain(self, site: str, **wanted: Any) -> TableUpkeep:
        """Maintain the table at a site, as the job does."""
        url = self.urls["ab".index(site)]
        with closing(CatalogLink(url, token="any")) as link:
            places = tables_below(f"{self.prefix}/{site.upper()}")
            keeper = CommitTableKeeper(
                lambda: self.spark, link, places, Upkeep(tables=[NAME], **wanted)
            )
            (done,) = keeper.maintain(link.tables())
            keeper.remove_unused(link.tables())
            keeper.remove_abandoned()
        assert (done.failed, done.skipped) == ("", ""), done
        return done


def main(classes: str, prefix: str, *urls: str) -> None:
    """Do it; print what became of the rows and files."""
    session = Session(classes, prefix, urls)
    sql = session.sql
    sql(
        "CREATE TABLE a.default.u (id BIGINT, p STRING) USING delta PARTITIONED BY (p) "
        "TBLPROPERTIES ('delta.checkpointInterval' = '4')"
    )
    for number in range(4):
        sql(f"INSERT INTO a.default.u VALUES ({number}, 'x y'), ({number + 10}, 'z')")
    sql("DELETE FROM a.default.u WHERE id IN (1, 11)")  # each the only row of its file
    sql("INSERT INTO b.default.u VALUES (20, 'x y'), (21, 'x y')")
    sql("DELETE FROM b.default.u WHERE id = 21")  # by a deletion vector
    until_equal(session.spark, "u")
    rows = sql("SELECT * FROM a.default.u ORDER BY id")
    # At the other site, which wrote no checkpoint.
    checked = session.maintain("b", many_files=100)
    compacted = session.maintain("a", many_files=3)
    again = session.maintain("a", many_files=3)
    found = {
        "rows": rows,
        "after": [sql(f"SELECT * FROM {site}.default.u ORDER BY id") for site in "ab"],
        "checkpoint": checked.checkpoint,
        "compacted": [compacted.optimized, compacted.attempts, compacted.files],
        "again": again.attempts,
        "vacuumed_at_once": compacted.vacuumed_files,
    }
    # A month later; the bucket's own times are of today.
    real = bucket_tables.BucketTables.now_ms
    bucket_tables.BucketTables.now_ms = lambda self: real(self) + 30 * 86_400_000  # type: ignore[method-assign]
    later = {site: session.maintain(site, optimize=False) for site in "ab"}
    bucket_tables.BucketTables.now_ms = real  # type: ignore[method-assign]
    found["vacuumed"] = {site: [one.vacuumed_files, one.files] for site, one in later.items()}
    found["staged"] = {site: one.staged_commits for site, one in later.items()}
    session.spark.sql("CLEAR CACHE")
    found["after_vacuum"] = [sql(f"SELECT * FROM {site}.default.u ORDER BY id") for site in "ab"]
    sql("INSERT INTO b.default.u VALUES (30, 'z')")
    found["transaction"] = transaction(session)
    found["adopted"] = adopted(session)
    print(json.dumps(found))
    session.spark.stop()


def transaction(session: Session) -> dict[str, Any]:
    """Change two tables in one transaction, and lose one."""
    sql, spark = session.sql, session.spark
    sql("CREATE TABLE a.default.v (id BIGINT, n BIGINT) USING delta")
    sql("INSERT INTO a.default.v VALUES (1, 10), (2, 20)")
    with sparktxlog.connect(spark, session.urls[0], token="any") as log:
        with log.transaction() as t:
            t.append("default.u", spark.createDataFrame([(40, "new 'p'")], "id bigint, p string"))
            sql(f"UPDATE {t.in_sql('default.v')} SET n = n + 1 WHERE id = 1")
            sql(f"DELETE FROM {t.in_sql('default.v')} WHERE id = 2")
            t.delete_where("default.u", "id = 0")
            inside = [list(row) for row in t.read("default.v").collect()]
            outside = sql("SELECT * FROM a.default.v ORDER BY id")
        lost = ""
        try:
            with log.transaction() as t:
                t.append("default.u", spark.createDataFrame([(50, "z")], "id bigint, p string"))
                t.overwrite("default.v", spark.createDataFrame([(5, 50)], "id bigint, n bigint"))
                sql("INSERT INTO b.default.v VALUES (9, 90)")
        except sparktxlog.errors.TxLogError as error:
            lost = error.code
    until_equal(spark, "u")
    return {
        "inside": inside,
        "outside": outside,
        "lost": lost,
        "u": sql("SELECT * FROM b.default.u ORDER BY id"),
        "v": sql("SELECT * FROM b.default.v ORDER BY id"),
    }


def adopted(session: Session) -> dict[str, Any]:
    """Adopt a table that a job wrote elsewhere in the bucket, write it, and give it back."""
    sql, spark, url = session.sql, session.spark, f"{session.prefix}/raw/o"
    spark.range(4).selectExpr("id", "concat('p ', id % 2) AS p").write.format("delta").partitionBy(
        "p"
    ).save(url)
    sql(f"DELETE FROM delta.`{url}` WHERE id = 1")
    with sparktxlog.connect(spark, session.urls[0], token="any") as log:
        done = log.adopt_table("default.o", url, kind="commit-table", files="copy")
        until_equal(spark, "o")
        there = sql("SELECT * FROM b.default.o ORDER BY id")
        sql("INSERT INTO b.default.o VALUES (9, 'p 9')")
        sql("DELETE FROM a.default.o WHERE id = 0")
        back = log.release_table("default.o", f"{session.prefix}/back/o", drop=True)
    rows = spark.read.format("delta").load(back.path).orderBy("id").collect()
    return {
        "files": done.files,
        "there": there,
        "old": [list(row) for row in spark.read.format("delta").load(url).orderBy("id").collect()],
        "back": [list(row) for row in rows],
        "versions": len(sql(f"DESCRIBE HISTORY delta.`{back.path}`")),
        "features": back.features,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
