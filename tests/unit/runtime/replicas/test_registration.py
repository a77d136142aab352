"""Two workers with one name or one lake: refused, with the other one and where it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.known_replicas import base_of, hash_at, report

from sparktxlog.errors import InvalidRequestError, NotFoundError
from sparktxlog.model.replicas import MOST_REPLICAS
from sparktxlog.model.report import OwnReport
from sparktxlog.runtime.replicas.judged_replicas import Replicas
from sparktxlog.runtime.replicas.registration import Registration

DEAD_US = 10_000_000


class Site:
    """Node A with its registration; the clock stands still."""

    def __init__(
        self, directory: Path, lake_url: str | None = None, saved: dict[str, bytes] | None = None
    ) -> None:
        self.now = 1_000
        self.lake = directory / "lake"
        self.lake.mkdir(parents=True, exist_ok=True)
        self.saved = dict(saved or {})
        base = base_of("A", hash_at, position=100, dead_after_us=DEAD_US, saved=self.saved)
        base.config.lake_dir, base.config.lake_url = self.lake, lake_url
        base.clock = SimpleNamespace(now=lambda: self.now)
        base.run_on_files = lambda place, work, *args: asyncio.to_thread(work, *args)
        self.replicas = Replicas(base)
        self.registration = Registration(base, self.replicas)

    def take(self, name: str, lake: str | Path, worker: str = "w", **more: Any) -> list[Any]:
        """Take a report as the node does."""
        said = msgspec.to_builtins(report(10)) | {"follows": True} | more
        said |= {"name": name, "worker_id": worker, "lake": str(lake)}
        said["runs_on"] = f"host of {worker}"
        found = msgspec.convert(said, OwnReport)
        writes = asyncio.run(self.registration.take(found))
        self.keep(self.replicas.accept(found.for_peers(), self.now)[2])
        return writes

    def keep(self, writes: list[Any]) -> None:
        """Make writes durable."""
        self.saved.update({write.name: write.value for write in writes})


def test_a_replica_is_registered_once_with_its_lake(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.take("main", site.lake) == []
    (write,) = site.take("reports", tmp_path / "other")
    assert write.value == str(tmp_path / "other").encode()
    assert site.take("reports", tmp_path / "other") == []
    assert site.replicas.lakes == {"reports": str(tmp_path / "other")}


@pytest.mark.parametrize("lake", ["lake", "lake/below", "."])
def test_a_lake_in_or_around_that_of_another_is_refused(tmp_path: Path, lake: str) -> None:
    site = Site(tmp_path)
    with pytest.raises(InvalidRequestError, match="is that of replica 'main'") as failure:
        site.take("reports", tmp_path / lake)
    assert failure.value.definite and failure.value.fields["field"] == "name"
    assert site.replicas.lakes == {}


def test_one_lake_of_two_names_is_refused_with_the_other_and_where_it_runs(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.take("one", tmp_path / "x", "w1")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    for again in ("x", "link"):
        with pytest.raises(InvalidRequestError, match=r"replica 'one'.*\(host of w1\)"):
            site.take("two", tmp_path / again, "w2")


def test_one_name_of_two_lakes_is_refused_until_it_is_forgotten(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.take("one", tmp_path / "x", "w1")
    with pytest.raises(InvalidRequestError, match=r"has the lake .*/x \(host of w1\)") as failure:
        site.take("one", tmp_path / "y", "w2")
    assert "sparktxlog workers forget one" in str(failure.value.hint)
    with pytest.raises(InvalidRequestError, match=r"replica 'one' runs \(host of w1\)"):
        site.registration.check_forgettable("one")
    site.now += DEAD_US + 1
    site.registration.check_forgettable("one")
    site.replicas.unregister("one")
    assert site.take("one", tmp_path / "y", "w2")
    with pytest.raises(NotFoundError, match="no replica 'x'"):
        site.registration.check_forgettable("x")


def test_a_second_worker_takes_the_place_of_one_that_ended(tmp_path: Path) -> None:
    """On two machines one path names two lakes: there no lock keeps their workers apart."""
    site = Site(tmp_path)
    site.take("one", tmp_path / "x", "w1")
    with pytest.raises(InvalidRequestError, match=r"worker w1 of that name and lake runs"):
        site.take("one", tmp_path / "x", "w2")
    site.take("one", tmp_path / "x", "w1", follows=False)
    site.take("one", tmp_path / "x", "w2")
    with pytest.raises(InvalidRequestError, match="worker w2"):
        site.take("one", tmp_path / "x", "w1")


def test_there_are_only_so_many_replicas(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for number in range(MOST_REPLICAS - 1):
        site.take(f"r{number}", tmp_path / f"lake{number}")
    with pytest.raises(InvalidRequestError, match=f"at most {MOST_REPLICAS}"):
        site.take("more", tmp_path / "more")
    with pytest.raises(InvalidRequestError, match="says no lake"):
        site.take("none", "")


@pytest.mark.parametrize("only", [["B.*"], ["b.*", "a.*"], ["*"], ["[a]"]])
def test_a_set_that_no_worker_writes_is_refused(tmp_path: Path, only: list[str]) -> None:
    site = Site(tmp_path)
    with pytest.raises(InvalidRequestError):
        site.take("one", tmp_path / "x", only=only)
    assert site.take("one", tmp_path / "x", only=["a.*", "b.*"])


def test_lakes_in_buckets(tmp_path: Path) -> None:
    site = Site(tmp_path, "s3://bucket/lake")
    site.take("main", "s3a://bucket/lake")
    with pytest.raises(InvalidRequestError, match="this node shows s3://bucket/lake"):
        site.take("main", "s3://bucket/other", "w2")
    with pytest.raises(InvalidRequestError, match="is that of replica 'main'"):
        site.take("one", "s3a://bucket/lake/below")
    site.take("one", "s3://bucket/lake2")
    site.take("two", tmp_path / "disk")


@pytest.mark.parametrize("lake", ["hdfs://host/lake", "s3://", "lake/below", "/x" * 2_049, "/\0"])
def test_a_lake_that_is_no_place_is_refused(tmp_path: Path, lake: str) -> None:
    """It would be kept in the journal, and be taken for a directory of the node."""
    site = Site(tmp_path)
    with pytest.raises(InvalidRequestError, match="'A/one' is not taken") as failure:
        site.take("one", lake)
    assert failure.value.definite and failure.value.hint and not site.replicas.lakes


def test_a_worker_that_ran_before_a_restart_of_the_node_keeps_its_name(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.keep(site.take("one", tmp_path / "x", "w1"))
    again = Site(tmp_path, saved=site.saved)
    again.now = site.now + 2
    again.replicas.newly_silent(again.now)
    with pytest.raises(InvalidRequestError, match="may run, as this node has just started"):
        again.registration.check_forgettable("one")
    with pytest.raises(InvalidRequestError, match="worker w1 of that name and lake runs"):
        again.take("one", tmp_path / "x", "w2")
    again.take("one", tmp_path / "x", "w1")
    with pytest.raises(InvalidRequestError, match="replica 'one' runs"):
        again.registration.check_forgettable("one")
    gone = Site(tmp_path, saved=site.saved)
    gone.replicas.newly_silent(gone.now)
    gone.now += DEAD_US + 1
    gone.registration.check_forgettable("one")
    assert gone.take("one", tmp_path / "x", "w2") == []


def test_a_renamed_replica_is_told_to_forget_the_old_name(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.take("old", tmp_path / "x", "w1", follows=False)
    with pytest.raises(InvalidRequestError) as failure:
        site.take("new", tmp_path / "x", "w2")
    assert "If it was renamed: sparktxlog workers forget old" in str(failure.value.hint)
    site.registration.check_forgettable("old")
    site.replicas.unregister("old")
    assert site.take("new", tmp_path / "x", "w2")
