"""The jobs of a replica between real nodes: what they do, their exit codes, their JSON line."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from tests.spark.api.test_types import COLUMNS, rows_of_types
from tests.support import command_line
from tests.support.command_line import invoke
from tests.support.node_processes import TABLE, Cluster, append, call, wait_until
from tests.support.span_collector import span_collector
from tests.support.steady_load import SteadyLoad

from sparktxlog import Client
from sparktxlog.api.connect import connect
from sparktxlog.api.jobs import job
from sparktxlog.api.reading.restore_points import create_point
from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.files.tasks import Fetched
from sparktxlog.http.link import Http
from sparktxlog.model.restore_point import RESTORE_POINTS
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.backup.imaging import back_up_replica
from sparktxlog.worker.copy.donor_fetcher import DonorFetcher
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
#: Runs a job or a command in this process: name, arguments → exit code, JSON of its last line.
RunJob = Callable[..., tuple[int, dict[str, Any]]]
RunCommand = Callable[..., tuple[int, Any]]


class Sites:
    """Two nodes: A has an applied replica, B's belongs to the tests."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.spark = spark
        self.cluster = Cluster(directory, "AB")
        for node in self.cluster.nodes.values():
            # The workers end after their batches here, and stay donors.
            node.config.write_text('"worker-dead-after" = 3600\n' + node.config.read_text())

    def start(self) -> None:
        self.cluster.start()
        self.cluster.nodes["A"].commit(TABLE)
        for number in range(3):
            self.cluster.nodes["A"].commit(append(number))

    def apply_at_a(self) -> int:
        """Apply everything ordered at A; B's node hears of it.  Return the position."""
        ordered = self.cluster.settle()
        source = HttpLogSource(self.url("A"))
        with closing(source), closing(ReplicaDirectory(self.lake("A"))) as directory:
            outcome = Applier(self.spark, source, directory).run_once(ordered, 30.0)
        assert (outcome.verdict, outcome.position) == ("IN_SYNC", ordered)
        self.cluster.nodes["B"].hear("A", ordered)
        return ordered

    def url(self, name: str) -> str:
        return self.cluster.nodes[name].url

    def lake(self, name: str) -> Path:
        return self.cluster.nodes[name].lake

    def signatures(self, name: str) -> Any:
        """Return the newest position and signatures that a site's worker reported."""
        newest = call(f"{self.url(name)}/v1/signatures?after=0&limit=1000")["signatures"][-1]
        return newest["position"], newest["tables"]

    def rows(self, name: str) -> list[Any]:
        # By delta-rs, which keeps no table open: copies replace whole directories.
        return sorted(
            (row["id"], row["v"])
            for row in DeltaTable(self.lake(name) / "t").to_pyarrow_table().to_pylist()
        )

    def stop(self) -> None:
        self.cluster.stop()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Sites]:
    sites = Sites(tmp_path_factory.mktemp("jobs"), spark)
    try:
        sites.start()
        yield sites
    finally:
        sites.stop()


@pytest.fixture
def sites(running: Sites) -> Sites:
    """A holds the whole log, whatever the test before left."""
    running.apply_at_a()
    return running


@pytest.fixture
def run_job(
    jobs_share_spark: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> RunJob:
    """Return what runs a job in this process."""

    def run(name: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        capfd.readouterr()
        code = command_line.run_job(monkeypatch, name, *arguments, "--json")
        found: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[-1])
        assert found["exit_code"] == code
        return code, found

    return run


@pytest.fixture
def run_command(
    run_job: RunJob, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> RunCommand:
    """Return what runs a command of `sparktxlog` as `run_job` runs jobs."""

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        capfd.readouterr()
        code = invoke(monkeypatch, *arguments, "--json")
        found: Any = json.loads(capfd.readouterr().out.splitlines()[-1])
        assert not isinstance(found, dict) or found.get("exit_code", code) == code
        return code, found

    return run


@pytest.mark.faults
def test_a_fault_of_one_site_is_found_and_repaired_without_an_operator(
    sites: Sites, tmp_path: Path
) -> None:
    command = [
        sys.executable,
        str(ROOT / "jobs" / "apply.py"),
        "--url",
        sites.url("B"),
        "--follow",
        "--json",
        "--master",
        "local[1]",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        worker = subprocess.Popen(command, env=environment, stdout=stdout, stderr=stderr)
    try:
        before = sites.cluster.nodes["A"].replica()["position"]

        def stands_at(position: int) -> bool:
            assert worker.poll() is None, err.read_text()[-3000:]
            replica = sites.cluster.nodes["B"].replica()
            return (replica.get("position"), replica.get("verdict")) == (position, "IN_SYNC")

        wait_until(lambda: stands_at(before), 200, "B's worker has applied the log")
        DeltaTable(sites.lake("B") / "t").delete("id = 1")
        sites.cluster.nodes["A"].commit(append(100))
        position = sites.apply_at_a()
        assert position > before
        wait_until(lambda: stands_at(position), 200, "B's worker has repaired its replica")
        assert sites.signatures("B") == sites.signatures("A")
        assert sites.rows("B") == sites.rows("A")
        assert (1, "x") in sites.rows("B")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(120) == 0, err.read_text()[-3000:]
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.wait(10)
    found = json.loads(out.read_text().splitlines()[-1])
    (repair,) = found["repairs"]
    assert (found["exit_code"], found["verdict"], found["copies"]) == (0, "IN_SYNC", [])
    assert (repair["found"]["table"], repair["found"]["way"]) == ("t", "restore")
    assert found["position"] == position and found["diverged"] == {}
    log = sites.cluster.nodes["B"].log_text()
    assert re.search(r"Replicating \(out of sync\)(?!, forced)", log)
    (kept,) = Attic.of_lake(sites.lake("B")).entries(Kind.ROWS)
    assert (kept.table, kept.path) == ("t", sites.lake("B") / repair["path"])
    assert [commit["operation"] for commit in kept.facts["foreign"]] == ["DELETE"]
    # The foreign hand only took rows away: there is none that the repair would lose.
    assert (kept.facts["rows"], repair["quarantined"]) == (0, 0)


def test_a_worker_in_another_lake_or_of_another_site_is_refused(
    sites: Sites, run_job: RunJob, tmp_path: Path
) -> None:
    """Two jobs, each with one wrong word in its command line; both would go on for ever."""
    applied, own = sites.cluster.nodes["A"].replica(), sites.lake("A")
    sites.cluster.nodes["A"].commit(append(125))
    sites.cluster.publish()
    other = tmp_path / "lake"
    (at_other, elsewhere), (at_b, foreign) = (
        run_job("apply", "--url", url, "--lake", str(lake), "--follow")
        for url, lake in ((sites.url("A"), other), (sites.url("B"), own))
    )
    assert [at_other, at_b] == [job.ERROR] * 2
    for words in (f"to the lake {other}", f"shows and lends {own}", "set lake-dir of this node"):
        assert words in str(elsewhere["error"])
    for words in (f"in {own} is that of site 'A'", "is site 'B'", "(--url)", "--take-lake"):
        assert words in str(foreign["error"])
    # Neither wrote a row, and what is told of A's lake are the versions that it has.
    assert not (other / "t").exists()
    for node in sites.cluster.nodes.values():
        assert node.replica("A")["worker_id"] == applied["worker_id"]
        assert node.replica("A")["position"] == applied["position"]
    shown = call(f"{sites.url('A')}/v1/snapshot")
    table = DeltaTable(own / "t", version=shown["tables"]["t"]["version"])
    assert shown["position"] == applied["position"]
    rows = table.to_pyarrow_table().num_rows
    assert shown["tables"]["t"]["signature"].startswith(f"{rows}:")


def test_what_peers_confirmed_is_a_column_of_the_masters(sites: Sites) -> None:
    """Each node says up to which run of each origin it holds them, and shows it of its peers."""
    sites.cluster.nodes["A"].commit(append(150))
    with connect(sites.spark, sites.url("A")) as log:
        for frame in (log.masters(), sites.spark.read.format("txlog").load("masters")):
            own, other = frame.orderBy("node_id").collect()
            assert (own["is_asked"], other["linked"]) == (True, True)
            # To be ordered a transaction of A must be held by both of two.
            assert min(own["acquired"]["A"], other["acquired"]["A"]) >= 5


def test_a_batch_of_a_worker_is_a_span(
    sites: Sites, run_job: RunJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites.cluster.nodes["A"].commit(append(151))
    with span_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        code, found = run_job("apply", "--url", sites.url("A"))
    assert (code, found["batches"]) == (0, 1)
    (batch,) = collector.named("sparktxlog apply", "A")
    assert batch.service == "sparktxlog-worker"
    assert batch.attributes["sparktxlog.tables"] == ["t"]
    last = batch.attributes["sparktxlog.last_position"]
    assert batch.attributes["sparktxlog.first_position"] <= last == found["position"]


def test_a_lost_lake_is_brought_back_by_catch_up(sites: Sites, run_job: RunJob) -> None:
    shutil.rmtree(sites.lake("B"), ignore_errors=True)
    arguments = ("catch_up", "--url", sites.url("B"))
    code, found = run_job(*arguments, "--force", "copy")
    (copy,) = found["copies"]
    assert (code, found["verdict"], copy["donor"]) == (0, "IN_SYNC", "A")
    assert copy["size_bytes"] > 0 and copy["wire_bytes"] > 0
    assert sites.rows("B") == sites.rows("A")
    # A fresh lake is empty, not another log's.
    assert "verdict=FOREIGN" not in sites.cluster.nodes["B"].log_text()
    code, found = run_job(*arguments)
    assert (code, found["verdict"], found["copies"], found["batches"]) == (0, "IN_SYNC", [], 0)
    with closing(ReplicaDirectory(sites.lake("B"))):
        code, found = run_job(*arguments, "--force", "copy")
    assert code == job.ERROR == 1
    detail = str(found["error"])
    assert "owned by another worker" in detail and str(os.getpid()) in detail
    assert "stop that one first" in detail
    assert sites.rows("B") == sites.rows("A")


def test_writers_go_on_while_a_replica_is_copied_and_replays(
    sites: Sites, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sites commit all the time, and no commit fails."""
    copied, fetch = sites.apply_at_a(), DonorFetcher.fetch
    shutil.rmtree(sites.lake("B"), ignore_errors=True)
    with SteadyLoad(sites.cluster, pause_s=0.1, timeout_s=60) as load:

        def fetch_among_writers(*arguments: Any) -> Fetched:
            load.progress("AB", 2)
            fetched = fetch(*arguments)
            load.progress("AB", 2)
            # What is told as acquired is ordered and published later, and replayed after that.
            call(f"{sites.url('B')}/v1/published?at_least={copied + 16}&timeout=60")
            return fetched

        monkeypatch.setattr(DonorFetcher, "fetch", fetch_among_writers)
        code, found = run_command("catch-up", "--url", sites.url("B"), "--force", "copy")
        load.progress("AB", 2)
    (copy,) = found["copies"]
    assert (code, found["verdict"], copy["donor"], copy["position"]) == (0, "IN_SYNC", "A", copied)
    # What they wrote meanwhile was replayed behind the copy.
    assert found["position"] >= copied + 16
    assert load.count("AB") == sum(len(made.tried) for made in load.promises.values())
    position = load.check()
    assert sites.apply_at_a() == position
    assert run_command("apply", "--url", sites.url("B"), "--at-least", str(position))[0] == 0
    assert sites.rows("B") == sites.rows("A")


def test_replicate_copies_by_executors(sites: Sites, run_job: RunJob) -> None:
    shutil.rmtree(sites.lake("B"), ignore_errors=True)
    code, found = run_job("replicate", "--url", sites.url("B"), "--parts", "2")
    (copy,) = found["copies"]
    assert (code, found["verdict"], copy["tables"]) == (0, "IN_SYNC", {"t": "rename"})
    assert copy["wire_bytes"] > 0 and sites.rows("B") == sites.rows("A")


def test_commands_do_what_the_jobs_do(
    sites: Sites, run_command: RunCommand, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for command in (("catch-up", "--force", "copy"), ("replicate", "--parts", "2")):
        shutil.rmtree(sites.lake("B"), ignore_errors=True)
        code, found = run_command(*command, "--url", sites.url("B"))
        (copy,) = found["copies"]
        assert (code, found["verdict"], copy["donor"]) == (0, "IN_SYNC", "A")
        assert sites.rows("B") == sites.rows("A")
    before = found["position"]
    sites.cluster.nodes["A"].commit(append(200))
    code, found = run_command("apply", "--url", sites.url("B"), "--at-least", str(before + 1))
    assert (code, found["verdict"], found["transactions"]) == (0, "IN_SYNC", 1)
    assert found["position"] == before + 1 and (200, "x") in sites.rows("B")
    # Long work says how far it is: a fetch by executors, a replay from where it begins.
    assert re.search(r"([\d,]+) of \1 bytes are here", caplog.text)
    assert f"position {before} of {before + 1} is applied" in caplog.text


def test_a_table_that_somebody_wrote_to_is_repaired_by_command(
    sites: Sites, run_command: RunCommand
) -> None:
    arguments = ("repair", "t", "--url", sites.url("B"))
    assert run_command("catch-up", "--url", sites.url("B"))[0] == 0
    stranger = pa.table({"id": pa.array([666], pa.int64()), "v": ["eve"]})
    write_deltalake(sites.lake("B") / "t", stranger, mode="append")
    code, found = run_command(*arguments, "--dry-run")
    looked = found["repair"]["found"]
    assert (code, looked["way"], looked["foreign"][0]["operation"]) == (4, "restore", "WRITE")
    # Site A can lend the table; nothing happens unless somebody says so.
    code, found = run_command(*arguments)
    assert (code, found["repair"]["done"]) == (4, False)
    assert "copy from A" in found["repair"]["found"]["copy"]
    assert (666, "eve") in sites.rows("B")
    code, found = run_command(*arguments, "--local")
    assert (code, found["repair"]["done"], found["verdict"]) == (0, True, "IN_SYNC")
    assert found["repair"]["quarantined"] == 1
    assert sites.rows("B") == sites.rows("A")
    code, found = run_command(*arguments)
    assert (code, found["repair"]["found"]["way"]) == (0, "nothing")


@pytest.mark.thorough
def test_every_kept_type_is_copied_and_compared(sites: Sites, run_command: RunCommand) -> None:
    """Extreme values, and NULL at every level: after inserts and a MERGE, at both sites."""
    with Client(sites.url("A")) as client:
        client.create_table("types", COLUMNS, ["way", "id"])
        client.append("types", rows_of_types("json"))
        client.upsert("types", rows_of_types("json", shift=1)[:5])
    sites.apply_at_a()
    shutil.rmtree(sites.lake("B"), ignore_errors=True)
    assert run_command("catch-up", "--url", sites.url("B"), "--force", "copy")[0] == 0
    for name in "AB":
        url = ("--url", sites.url(name))
        code, found = run_command("verify", "--table", "types", "--compare", "--recount", *url)
        assert (code, found["equal"]) == (0, True)
    tables = [
        sites.spark.read.format("delta").load(str(sites.lake(name) / "types")).toArrow()
        for name in "AB"
    ]
    one, two = (sorted(map(repr, table.to_pylist())) for table in tables)
    assert one == two and len(one) == len(rows_of_types("json"))


PAGE = (ROOT / "docs" / "backups.md").read_text()


def documented(section: str, **places: str) -> list[list[str]]:
    """Return the command lines of a section of the page on backups, for other places than its own.

    Args:
        section: Heading.
        places: For `store`, `config`, `lake`, `url` and `position`.
    """
    written = {
        "/backups/site-a": "store",
        "conf/site-a.toml": "config",
        "data/a/lake": "lake",
        "http://127.0.0.1:7070": "url",
        "1000": "position",
    }
    text = PAGE.split(f"# {section}\n")[1].split("\n#")[0]
    lines = re.findall(r"^    sparktxlog (.*)$", text, re.MULTILINE)
    return [[places.get(written.get(word, ""), word) for word in line.split()] for line in lines]


@pytest.mark.thorough
def test_a_lost_lake_comes_back_by_the_page_on_backups(
    sites: Sites, run_command: RunCommand, tmp_path: Path
) -> None:
    """The page's drill, as it is written: backup, destroy, restore, apply, verify."""
    node, lake = sites.cluster.nodes["B"], sites.lake("B")
    places = {
        "store": str(tmp_path / "store"),
        "config": str(node.config),
        "lake": str(lake),
        "url": node.url,
    }
    assert run_command("apply", "--url", node.url)[0] == 0
    done = [run_command(*line) for line in documented("What an image is", **places)]
    assert [code for code, _ in done] == [0, 0, 0]
    made, listed, checked = (found for _, found in done)
    assert made["image"] == listed[0]["image"] == checked["image"] and checked["damaged"] == []
    node.commit(append(400))
    shutil.rmtree(lake)
    done = [run_command(*line) for line in documented("Restoring", **places)]
    assert [code for code, _ in done] == [0, 0, 0]
    restored, applied, verified = (found for _, found in done)
    assert (restored["image"], restored["signatures"]) == (made["image"], "equal")
    assert (applied["verdict"], applied["position"]) == ("IN_SYNC", made["position"] + 1)
    assert (verified["sound"], verified["position"]) == (True, made["position"] + 1)
    assert (400, "x") in sites.rows("B")
    drill(tmp_path, places["store"], made)


def drill(directory: Path, store: str, made: dict[str, Any]) -> None:
    """Run the script of the page in a process of its own."""
    text = PAGE.split("# A restore drill\n")[1].split("\n#")[0]
    lines = re.findall(r"^    (.*)$", text, re.MULTILINE)
    assert lines[0].startswith("#!")
    for name, script in {
        "drill.sh": "\n".join(lines),
        "sparktxlog": f'#!/bin/sh\nexec {sys.executable} -m sparktxlog.cli "$@"',
    }.items():
        (directory / name).write_text(f"{script}\n")
        (directory / name).chmod(0o755)
    said = subprocess.run(
        [str(directory / "drill.sh"), store, str(directory / "scratch")],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "PATH": f"{directory}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert said.returncode == 0, said.stderr[-3000:]
    assert f"Image {made['image']}: all {made['files']:,} files have their digests" in said.stdout
    assert "signatures: equal" in said.stdout
    assert re.search(r"restored and recounted after \d+ s", said.stdout)
    assert not (directory / "scratch" / "drill-lake").exists()


def test_image_and_log_bring_a_site_to_one_position(
    sites: Sites, run_command: RunCommand, tmp_path: Path
) -> None:
    at_b, lake, store = ("--url", sites.url("B")), sites.lake("B"), tmp_path / "images"
    assert run_command("apply", *at_b)[0] == 0
    back_up_replica(lake, DiskImages(store), name="before", site="B")
    sites.cluster.nodes["A"].commit(append(300))
    wanted = create_point(Http(sites.url("A")), "night").position
    sites.cluster.nodes["A"].commit(append(301))
    end = sites.cluster.settle()
    assert run_command("apply", *at_b, "--at-least", str(end))[0] == 0
    code, found = run_command("apply", *at_b, "--at-most", str(wanted))
    assert code == job.ERROR and f"has already applied position {end}" in str(found["error"])
    code, found = run_command("apply", *at_b, "--at-most", str(end + 1))
    assert code == job.ERROR and "is not ordered yet" in str(found["error"])
    back_up_replica(lake, DiskImages(store), name="after", site="B")
    shutil.rmtree(lake)

    restore, apply = documented(
        "To one position",
        store=str(store),
        lake=str(lake),
        url=sites.url("B"),
        position=str(wanted),
    )
    code, found = run_command(*restore)
    assert (code, found["image"], found["signatures"]) == (0, "before", "equal")
    # By the name of the restore point, or by its position: where it stands then.
    for command in (("apply", *at_b, "--at", "night"), apply):
        code, found = run_command(*command)
        assert (code, found["position"], found["verdict"]) == (0, wanted, "IN_SYNC")
    assert (300, "x") in sites.rows("B") and (301, "x") not in sites.rows("B")
    # The node compared the hash there, and the worker goes on when it may.
    code, found = run_command("apply", *at_b)
    assert (code, found["position"], found["verdict"]) == (0, end, "IN_SYNC")
    assert (301, "x") in sites.rows("B")
    with Client(sites.url("A")) as client:
        client.drop_table(RESTORE_POINTS)


def test_maintain_tells_of_the_log_and_of_each_table(
    sites: Sites, run_job: RunJob, tmp_path: Path
) -> None:
    store = DiskImages(tmp_path / "images")
    for name in ("older", "newer"):
        back_up_replica(sites.lake("A"), store, name=name, site="A")
    code, found = run_job(
        "maintain",
        "--url",
        sites.url("A"),
        "--no-vacuum",
        "--images",
        str(store.root),
        "--keep-images",
        "1",
        "--empty-attic-older-than",
        "1",
    )
    assert code == 0
    # The log still begins before both images, and the attic is empty.
    images, attic = found["removed"]
    assert (images["removed"], images["kept"], images["files"]) == ([], 2, 0)
    assert (attic["removed"], attic["failed"]) == ([], "")
    log, tables = found["log"], {each["table"]: each for each in found["tables"]}
    # Other tests of this module may have left tables of theirs.
    assert tables.keys() == {
        path.name for path in sites.lake("A").iterdir() if (path / "_delta_log").is_dir()
    }
    table = tables["t"]
    position = sites.cluster.nodes["A"].replica()["position"]
    assert 0 <= log["pruned_to"] <= position
    assert 0 < log["log_bytes"] <= log["log_bytes_before"]
    assert (table["table"], table["failed"], table["vacuumed"]) == ("t", "", "")
    assert 0 < table["files"] <= table["files_before"] and table["bytes"] > 0
    assert table["disk"] >= table["bytes"] and table["small_files"] == table["files_before"]
