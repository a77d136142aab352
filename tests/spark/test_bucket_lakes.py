"""Row tables of a site in a bucket: the same as those of a site with a disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.architecture.source_tree import ROOT
from tests.support.node_processes import MANUAL, NodeProcess, free_ports
from tests.support.store_servers import BUCKET, SECRET, StoreServer, seaweedfs

from sparktxlog.delta.live_files import live_files
from sparktxlog.files.stores.part import PartOfStore

#: A Delta table that jobs write.
RAW = f"s3://{BUCKET}/raw/orders"

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Sites:
    """A has a lake on its disk, B one in the bucket."""

    server: StoreServer
    urls: tuple[str, str]
    directory: Path

    def run(self, act: str, code: int = 0) -> dict[str, Any]:
        """Run an act of `bucket_lake_job`; return what it prints."""
        done = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("bucket_lake_job.py")),
                *(act, *self.urls, str(self.directory / "another machine"), RAW),
            ],
            env=os.environ | self.server.environment() | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            capture_output=True,
            text=True,
            timeout=840,
            check=False,
        )
        assert done.returncode == code, done.stderr[-4000:]
        assert SECRET not in done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout or "{}")
        return found


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    tmp_path = tmp_path_factory.mktemp("lakes")
    ports = dict(zip("AB", free_ports(2), strict=True))
    with seaweedfs(tmp_path / "bucket") as server, ExitStack() as running:
        in_bucket = (f'lake-url = "s3://{BUCKET}/rows-of-B"', *server.node_settings())
        nodes = [
            NodeProcess(
                tmp_path,
                name,
                port,
                {other: ports[other] for other in ports if other != name},
                settings=(MANUAL, *(in_bucket if name == "B" else ())),
            )
            for name, port in ports.items()
        ]
        for node in nodes:
            running.callback(node.stop)
            node.start()
        for node in nodes:
            node.wait_ready()
        yield Sites(server, (nodes[0].url, nodes[1].url), tmp_path)


@pytest.fixture(scope="module")
def story(sites: Sites) -> dict[str, Any]:
    """Return what the first job found."""
    return sites.run("story")


def test_a_table_of_a_bucket_is_followed(story: dict[str, Any]) -> None:
    found = story["followed"]
    assert found["told"] == ["copy", 8, RAW]
    assert found["became"] == ["8 rows", "append", "upserts and deletes", "upserts and deletes", ""]
    rows = [json.loads(row) for row in story["b"]["rows"]["followed"]]
    assert sorted([row["id"], row["p"], row["v"]] for row in rows) == found["there"]
    assert [row[2] for row in found["there"] if row[0] in (3, 4, 8)] == [-1, 80]


def test_a_lake_in_a_bucket_has_what_one_on_a_disk_has(sites: Sites, story: dict[str, Any]) -> None:
    found = story
    assert found["first"]["sound"] and not found["first"]["diverged"]
    assert len(found["first"]["rows"]["gone"]) == 3
    a, b = found["a"], found["b"]
    assert not a["diverged"] and not b["diverged"]
    assert b["rows"] == a["rows"] and b["signatures"] == a["signatures"]
    assert found["by format"].items() <= b["rows"].items()
    assert b["by_view"] == a["by_view"] == {name: len(rows) for name, rows in a["rows"].items()}
    assert a["sound"] and b["sound"], b["found"]
    assert "is owned by another worker" in found["second worker"]
    store = sites.server.store("rows-of-B")
    assert any(".checkpoint" in name for name in store.names("plain/_delta_log"))
    dropped = {one.key.split("/")[2] for one in store.list("_sparktxlog/attic")}
    assert len(dropped) == 1 and min(dropped).startswith("dropped-gone-")


@pytest.mark.faults
@pytest.mark.usefixtures("story")
def test_a_killed_worker_goes_on_exactly_once(sites: Sites) -> None:
    sites.run("die", -signal.SIGKILL)
    found = sites.run("go-on")
    a, b = found["a"], found["b"]
    assert b["rows"] == a["rows"] and b["signatures"] == a["signatures"]
    assert a["sound"] and b["sound"], b["found"]


@pytest.mark.repeated
@pytest.mark.usefixtures("story")
def test_an_object_that_somebody_removes_is_found_and_comes_back_from_another_site(
    sites: Sites,
) -> None:
    store = sites.server.store("rows-of-B")
    table = PartOfStore(store, "plain")
    removed = min(live_files(table).sizes)
    store.remove([f"plain/{removed}"])
    found = sites.run("verify")
    assert not found["sound"]
    assert removed in "\n".join(found["found"])
    done = sites.run("repair")
    assert done["repair"]["way"] == "rebuild" and done["repair"]["copy"]
    assert not done["repair"]["done"], "a copy was offered"
    assert done["b"]["sound"] and not done["b"]["diverged"]


@pytest.mark.repeated
@pytest.mark.usefixtures("story")
def test_an_object_that_somebody_changes_is_replaced_by_a_replay(sites: Sites) -> None:
    """Its bytes are no Parquet file any more; the log reaches back to its beginning."""
    store = sites.server.store("rows-of-B")
    table = PartOfStore(store, "plain")
    changed, size = min(live_files(table).sizes.items())
    table.replace(changed, b"?" * size)
    done = sites.run("repair-local")
    assert done["repair"]["done"] and done["repair"]["way"] == "rebuild"
    assert done["repair"]["kept"].startswith("_sparktxlog/attic/table-plain-")
    assert done["b"]["sound"] and not done["b"]["diverged"]


@pytest.mark.repeated
@pytest.mark.usefixtures("story")
def test_a_copy_into_an_empty_bucket_that_is_killed_goes_on(sites: Sites) -> None:
    store = sites.server.store("rows-of-B")
    store.remove([one.key for one in store.list() if not one.key.startswith("_sparktxlog/lock")])
    sites.run("die-copying", -signal.SIGKILL)
    assert [one.key for one in store.list("_sparktxlog/placing")], "killed in the middle"
    found = sites.run("copy")
    assert {*found["copied"]["tables"].values()} == {"rename"}
    a, b = found["a"], found["b"]
    assert b["rows"] == a["rows"] and b["signatures"] == a["signatures"]
    assert b["sound"], b["found"]
    assert not [*store.list("_sparktxlog/placing")]


@pytest.mark.repeated
@pytest.mark.usefixtures("story")
def test_a_bucket_is_copied_to_an_empty_disk(sites: Sites) -> None:
    shutil.rmtree(sites.directory / "A" / "lake")
    found = sites.run("copy-back")
    assert {*found["copied"]["tables"].values()} == {"rename"}
    a, b = found["a"], found["b"]
    assert a["rows"] == b["rows"] and a["signatures"] == b["signatures"]
    assert a["sound"] and b["sound"]
