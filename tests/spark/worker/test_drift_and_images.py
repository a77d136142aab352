"""Faults of one site are found at the next signature; an image and the log bring it back."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.support.worker_log import LogBuilder, MemoryLog, expected, rows_table, table

from sparktxlog.catchup.comparison import LogView, compare
from sparktxlog.model.report import ReplicaVerdict, WorkerReport
from sparktxlog.worker.apply.placing import placed_name
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.backup.imaging import back_up_replica
from sparktxlog.worker.backup.restoring import restore_replica
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.state import ReplicaDirectory
from sparktxlog.worker.verify.comparing import PairFinding, compare_histories
from sparktxlog.worker.verify.histories import HISTORY, SiteHistory
from sparktxlog.worker.verify.verify import recount_tables, verify_replica

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(900)]


class Sites:
    """Sites A and B, each with its replica of one log."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark = spark
        self.log = LogBuilder(root)
        self.nodes = {name: MemoryLog(self.log, root / name) for name in "AB"}
        self.log.transaction()
        self.log.create(table("t", "id bigint, name string", keys=["id"], deletion_vectors=True))
        self.log.create(table("plain", "id bigint, name string", keys=["id"]))
        self.append(1)
        self.apply()

    def append(self, number: int) -> None:
        self.log.transaction()
        for name in ("t", "plain"):
            self.log.staged("append", name, [(number, "n"), (number + 100, "m")])
        self.log.publish()

    def upsert(self, name: str, *rows: tuple[int, str]) -> None:
        self.log.transaction().inline("upsert", name, rows)
        self.log.publish()

    def apply(self, names: str = "AB") -> None:
        for name in names:
            with closing(ReplicaDirectory(self.nodes[name].lake)) as directory:
                Applier(self.spark, self.nodes[name], directory).run_once()

    def newest(self, name: str) -> WorkerReport:
        return self.nodes[name].reports[-1]

    def compare(self) -> PairFinding:
        histories = {}
        for name, node in self.nodes.items():
            histories[name] = SiteHistory(site=name)
            for report in node.reports:
                tables = {
                    found: state.signature.to_text() + (" (stands still)" if state.diverged else "")
                    for found, state in report.tables.items()
                }
                histories[name].add(report.position, report.chain_hash, tables, replace=True)
                assert HISTORY in histories[name].states.get(report.position, {HISTORY: ""})
        (pair,) = compare_histories(histories)
        return pair

    def alter(self, name: str) -> None:
        """Change a row of B's first file of a table, its size in the log's eyes untouched."""
        segment = self.log.segments[0]
        effect = next(e for e in segment.effects if e.table == name and e.files)
        target = self.nodes["B"].lake / name / placed_name(effect.files[0].path)
        rows = pq.read_table(target).to_pydict()
        changed = list(zip(rows["id"], ["?" for _ in rows["id"]], strict=True))
        fresh = target.with_suffix(".new")
        pq.write_table(rows_table(self.log.tables[name], changed), fresh)
        os.replace(fresh, target)


@pytest.fixture
def sites(spark: SparkSession, tmp_path: Path) -> Sites:
    return Sites(spark, tmp_path)


def test_a_foreign_commit_is_found_at_the_next_signature(sites: Sites) -> None:
    sites.append(2)
    sites.apply()
    equal = sites.compare()
    assert not equal.differences and equal.equal_to == sites.log.position
    DeltaTable(sites.nodes["B"].lake / "plain").delete("id = 101")
    # Nothing of the next batch touches the table, and yet the difference is seen.
    sites.upsert("t", (1, "new"))
    sites.apply()
    found = sites.compare()
    (difference,) = found.differences
    assert (difference.table, difference.last_equal) == ("plain", equal.equal_to)
    assert difference.first_differing == sites.log.position
    assert difference.signatures["B"].endswith("(stands still)")
    assert "was written by" in sites.newest("B").tables["plain"].diverged
    assert sites.newest("A").tables["plain"].diverged == ""


def test_an_altered_row_is_found_once_it_is_touched_and_before_by_a_recount(sites: Sites) -> None:
    sites.alter("plain")
    sites.append(2)
    sites.apply()
    equal = sites.compare()
    # Signatures are sums of what was added: only a recount reads the rows.
    assert not equal.differences
    good, bad = (
        verify_replica(sites.spark, sites.nodes[name], sites.nodes[name].lake, ["plain"])
        for name in "AB"
    )
    assert good.sound and not bad.sound
    assert bad.tables[0].counted != bad.tables[0].recorded
    assert any("was altered" in cause or "bytes" in cause for cause in bad.tables[0].causes)
    # A MERGE counts the rows that it replaces.
    sites.upsert("plain", (1, "new"))
    sites.apply()
    (difference,) = sites.compare().differences
    assert (difference.table, difference.last_equal) == ("plain", equal.equal_to)
    assert difference.first_differing == sites.log.position


def test_an_image_and_the_log_bring_a_site_back(sites: Sites, tmp_path: Path) -> None:
    log, lake = sites.log, sites.nodes["B"].lake
    # Deletion vectors at the position of the image.
    sites.upsert("t", (1, "once"), (500, "up"))
    sites.apply()
    store = DiskImages(tmp_path / "backups")
    image = back_up_replica(lake, store, name="drill", site="B").image
    assert any(file.path.endswith(".bin") for file in image.tables["t"].files)
    for number in range(2, 5):
        sites.append(number)
    sites.upsert("t", (2, "more"))
    sites.apply()
    before = sites.newest("B")
    again = back_up_replica(lake, store, name="later")
    assert 0 < again.new_files < again.image.files
    shutil.rmtree(lake)

    state = restore_replica(store, store.image("drill"), lake)
    assert recount_tables(sites.spark, lake) == {}
    sites.nodes["B"].reports.clear()
    sites.apply("B")
    first, last = sites.nodes["B"].reports[0], sites.newest("B")
    assert first.worker_id == state.worker_id != before.worker_id
    # What the node makes of the first report: the image's position and hash are the log's.
    there = next(r for r in sites.nodes["A"].reports if r.position == first.position)
    view = LogView(
        log_id=log.log_id,
        position=log.position,
        published=log.position,
        chain_hash=next(s.to_hash for s in log.segments if s.last == first.position),
    )
    judged = compare(first, view)
    assert judged.verdict is ReplicaVerdict.IN_SYNC and first.position == image.position
    assert judged.behind == log.position - image.position
    for name, table_there in there.tables.items():
        assert first.tables[name].signature == table_there.signature
    assert last.position == before.position == log.position
    for name in ("t", "plain"):
        assert last.tables[name].signature == before.tables[name].signature
        assert last.tables[name].signature == sites.newest("A").tables[name].signature
        read = sites.spark.read.format("delta").load(str(lake / name)).collect()
        assert sorted((tuple(row) for row in read), key=repr) == expected(log, name)
    assert recount_tables(sites.spark, lake) == {}
