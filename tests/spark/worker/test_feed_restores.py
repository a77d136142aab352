"""Tables that are made from a feed, with no node left: equal to those of the site, by signature."""

from __future__ import annotations

import json
import shlex
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.spark.api.nodes import RunningNode, start_node
from tests.support.command_line import invoke

from sparktxlog import connect
from sparktxlog.api.connect import TxLog
from sparktxlog.errors import (
    CorruptLogError,
    DivergedError,
    InvalidRequestError,
    NotFoundError,
    StorageError,
)
from sparktxlog.worker.backup.imaging import back_up_replica
from sparktxlog.worker.feed import feed_restoring
from sparktxlog.worker.feed.feed_page import page_bytes
from sparktxlog.worker.feed.feed_points import FeedRoute, route_to, target_of
from sparktxlog.worker.feed.feed_restoring import restore_rows
from sparktxlog.worker.feed.feed_store import FeedStore
from sparktxlog.worker.feed.shipping import feed
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory, ReplicaState, read_state
from sparktxlog.worker.verify.verify import recount_tables

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(900)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A site that is gone, and what is left of it."""

    place: FeedStore
    #: What its worker recorded at some positions, ascending.
    states: list[ReplicaState]
    #: Its lake as it was at the end.
    lake: Path


def _applied(spark: SparkSession, node: RunningNode, lake: Path) -> ReplicaState:
    with (
        closing(HttpLogSource(node.url)) as source,
        closing(ReplicaDirectory(lake)) as directory,
    ):
        Applier(spark, source, directory).run_once(0, timeout_s=60)
    state = read_state(lake)
    assert state is not None and not state.diverged
    return state


def _work(log: TxLog, session: SparkSession) -> Iterator[None]:
    """Write to tables in every way; after each step the site is looked at."""

    def frame(*rows: tuple[int, str]) -> Any:
        return session.createDataFrame(list(rows), "id bigint, item string")

    log.create_table("orders", "id bigint, item string", keys=["id"])
    log.create_table("plain", "id bigint, item string")
    log.upsert("orders", frame((1, "a"), (2, "b")))
    yield
    many = session.range(2_000).selectExpr("id", "concat('item ', id) AS item")
    log.append("plain", many)  # staged
    with log.transaction() as both:
        both.upsert("orders", frame((2, "two"), (3, "three")))
        both.append("plain", frame((-1, "beside")))
    yield
    log.delete_where("plain", "id >= 0 AND id < 1000")
    log.create_table("gone", "id bigint")
    log.append("gone", session.range(3).toDF("id"))
    yield
    log.drop_table("gone")
    log.overwrite("plain", frame((7, "seven")))
    log.create_table("gone", "id bigint, item string")
    log.append("gone", frame((1, "again")))
    yield
    for number in range(4, 9):
        log.upsert("orders", frame((number, f"item {number}")))
    yield


@pytest.fixture(scope="module")
def site(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """V66: a node, its worker and a feed; then the node and its directories are gone."""
    root = tmp_path_factory.mktemp("site")
    place, lake, states = FeedStore(root / "feed"), root / "data/lake", list[ReplicaState]()
    session = spark.newSession()
    node = start_node(root, "inline-limit = 16384")
    try:
        with closing(connect(session, node.url)) as log:
            for step, _ in enumerate(_work(log, session)):
                states.append(_applied(spark, node, lake))
                if step == 2:
                    back_up_replica(lake, place.images, name="middle", site="A")
                feed(place, [node.url], threading.Event(), once=True)
    finally:
        node.stop()
    kept = lake.rename(root / "kept lake")
    shutil.rmtree(root / "data")
    return Site(place=place, states=states, lake=kept)


def _route(site: Site, position: int | None = None) -> FeedRoute:
    return route_to(site.place, target_of(site.place, None if position is None else str(position)))


def _from_beginning(site: Site, position: int) -> FeedRoute:
    return FeedRoute(image=None, target=target_of(site.place, str(position)))


def _same(found: ReplicaState, wanted: ReplicaState) -> None:
    assert (found.position, found.chain_hash) == (wanted.position, wanted.chain_hash)
    assert {name: (one.definition, one.signature) for name, one in found.tables.items()} == {
        name: (one.definition, one.signature) for name, one in wanted.tables.items()
    }


def test_any_position_is_restored_with_equal_signatures(
    spark: SparkSession, site: Site, tmp_path: Path
) -> None:
    """V66: on an empty host, at positions before and after the image, from it or the beginning."""
    for number in (0, 2, 4):
        wanted = site.states[number]
        route = _route(site, wanted.position)
        assert (route.image is not None) == (number >= 2)
        lake = tmp_path / f"at {wanted.position}"
        done = restore_rows(spark, site.place, route, lake)
        _same(done.state, wanted)
        assert done.transactions == wanted.position - route.begins_after
        assert done.proven_at == wanted.position
    whole = tmp_path / "whole"
    found = restore_rows(spark, site.place, _from_beginning(site, wanted.position), whole)
    _same(found.state, wanted)
    for one in (lake, whole):
        assert recount_tables(spark, one) == {}
        assert not (one / "_sparktxlog" / "feed").exists()


@pytest.mark.thorough
def test_a_restored_lake_goes_on_and_never_back(
    spark: SparkSession, site: Site, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    for wanted in site.states[:2]:
        _same(restore_rows(spark, site.place, _route(site, wanted.position), lake).state, wanted)
    done = restore_rows(spark, site.place, _from_beginning(site, site.states[-1].position), lake)
    _same(done.state, site.states[-1])
    assert recount_tables(spark, lake) == {}
    with pytest.raises(InvalidRequestError, match="which is after"):
        restore_rows(spark, site.place, _route(site, site.states[0].position), lake)
    with pytest.raises(InvalidRequestError, match="is that of site 'A'"):
        restore_rows(spark, site.place, _route(site), site.lake)


def _stumbled(*_: Any) -> ReplicaState:
    raise StorageError("killed after the commits of a batch")


def test_a_killed_restore_goes_on(
    spark: SparkSession, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the image and the log, before a batch, after its commits, and between batches."""
    wanted = site.states[-1]
    lake, route = tmp_path / "lake", _from_beginning(site, wanted.position)
    monkeypatch.setattr(feed_restoring, "_SEGMENTS", 2)
    fetch = feed_restoring.fetch_files
    left = [1]

    def fails(*given: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise StorageError("killed before a batch")
        fetch(*given)

    with monkeypatch.context() as patched:
        patched.setattr(feed_restoring, "fetch_files", fails)
        with pytest.raises(StorageError, match="before a batch"):
            restore_rows(spark, site.place, route, lake)
    state = read_state(lake)
    assert state is not None and 0 < state.position < wanted.position
    with monkeypatch.context() as patched:
        patched.setattr(ReplicaState, "finish", _stumbled)
        with pytest.raises(StorageError, match="after the commits"):
            restore_rows(spark, site.place, route, lake)
    pending = read_state(lake)
    assert pending is not None and pending.pending is not None
    _same(restore_rows(spark, site.place, route, lake).state, wanted)
    assert recount_tables(spark, lake) == {}


@pytest.mark.thorough
def test_a_batch_that_was_begun_ends_where_it_would_have(
    spark: SparkSession, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the feed has a report inside of it by now."""
    wanted, lake = site.states[-1], tmp_path / "lake"
    before = site.states[-2].position
    route = _from_beginning(site, before + 2)
    assert before + 2 < wanted.position
    with monkeypatch.context() as patched:
        patched.setattr(feed_restoring, "proof_of", lambda *_: None)
        patched.setattr(ReplicaState, "finish", _stumbled)
        with pytest.raises(StorageError, match="after the commits"):
            restore_rows(spark, site.place, route, lake)
    done = restore_rows(spark, site.place, route, lake)
    assert (done.state.position, done.proven_at) == (before + 2, 0)
    done = restore_rows(spark, site.place, _from_beginning(site, wanted.position), lake)
    _same(done.state, wanted)
    assert done.proven_at == wanted.position and recount_tables(spark, lake) == {}


@pytest.mark.thorough
def test_a_restore_that_is_killed_in_the_image_begins_again(
    spark: SparkSession, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, route = tmp_path / "lake", _route(site)
    assert route.image is not None
    with monkeypatch.context() as patched:
        patched.setattr(ReplicaDirectory, "save", _stumbled)
        with pytest.raises(StorageError):
            restore_rows(spark, site.place, route, lake)
    with pytest.raises(InvalidRequestError, match="was broken off"):
        restore_rows(spark, site.place, route, lake)
    done = restore_rows(spark, site.place, route, lake, force_clean=True)
    _same(done.state, site.states[-1])


@pytest.fixture
def torn(site: Site, tmp_path: Path) -> Site:
    """A copy of the site's feed, to be torn."""
    place = tmp_path / "torn"
    shutil.copytree(site.place.url, place)
    return Site(place=FeedStore(place), states=site.states, lake=site.lake)


def _first_file(site: Site, page: int) -> tuple[Path, int]:
    found = [*site.place.pages(0)][page]
    file, position = next(found.files)
    return Path(site.place.store.url_of(site.place.content_key(file))), position


@pytest.mark.thorough
@pytest.mark.parametrize("spoil", ["remove", "change"])
def test_a_torn_feed_gives_what_is_whole(
    spark: SparkSession, torn: Site, tmp_path: Path, spoil: str
) -> None:
    """V67: the object and the position are named, and the lake stands before them, whole."""
    wanted = torn.states[-1]
    pages = [*torn.place.pages(0)]
    file, position = _first_file(torn, len(pages) - 1)
    if spoil == "remove":
        file.unlink()
    else:
        file.write_bytes(b"x" * file.stat().st_size)
    lake = tmp_path / "lake"
    with pytest.raises(CorruptLogError, match=file.name) as caught:
        restore_rows(spark, torn.place, _route(torn), lake)
    assert caught.value.fields["position"] >= position
    shutil.rmtree(lake)
    before = torn.states[-2]
    assert before.position < position <= wanted.position
    _same(restore_rows(spark, torn.place, _route(torn, before.position), lake).state, before)
    assert recount_tables(spark, lake) == {}


def test_pages_that_are_missing_or_of_another_log_stop_it(
    spark: SparkSession, torn: Site, tmp_path: Path
) -> None:
    firsts = torn.place.firsts()
    route = _from_beginning(torn, torn.states[-1].position)
    page = Path(torn.place.store.url_of(torn.place.page_key(firsts[1])))
    content = page.read_bytes()
    page.unlink()
    with pytest.raises(CorruptLogError, match="are missing") as caught:
        restore_rows(spark, torn.place, route, tmp_path / "lake 1")
    assert caught.value.fields["position"] == firsts[1]
    page.write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptLogError, match="is damaged"):
        restore_rows(spark, torn.place, route, tmp_path / "lake 2")
    page.write_bytes(content)
    lake = tmp_path / "lake"
    restore_rows(spark, torn.place, _route(torn, torn.states[0].position), lake)
    state = read_state(lake)
    assert state is not None
    with closing(ReplicaDirectory(lake)) as directory:
        directory.save(replace(state, chain_hash="00" * 32))
    with pytest.raises(DivergedError, match="another chain hash"):
        restore_rows(spark, torn.place, route, lake)


def test_other_signatures_than_the_site_reported_are_named(
    spark: SparkSession, torn: Site, tmp_path: Path
) -> None:
    """V66: equal to the site that is gone, and not only to itself."""
    wanted = torn.states[0]
    page = torn.place.page(1)
    (said,) = (one for one in page.signatures if one.position == wanted.position)
    assert said.tables == {name: one.signature.to_text() for name, one in wanted.tables.items()}
    other = replace(
        said, tables=said.tables | {"orders": wanted.tables["plain"].signature.to_text()}
    )
    place = Path(torn.place.store.url_of(torn.place.page_key(1)))
    place.write_bytes(page_bytes(replace(page, signatures=(other,))))
    with pytest.raises(DivergedError, match="table 'orders' has the signature"):
        restore_rows(spark, torn.place, _route(torn, wanted.position), tmp_path / "lake")


@pytest.fixture
def shell(
    jobs_share_spark: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Return what runs commands in this process."""

    def run(*arguments: object, code: int = 0) -> Any:
        found = invoke(monkeypatch, *map(str, arguments))
        out, err = capsys.readouterr()
        assert found == code, out + err
        return out + err

    return run


@pytest.mark.thorough
def test_a_new_cluster_takes_the_tables(
    spark: SparkSession,
    site: Site,
    tmp_path: Path,
    shell: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """V65, V70: restore, adopt by the commands that it prints, apply, verify."""
    lake, wanted = tmp_path / "lake", site.states[-1]
    plan = shell("feed", "restore", site.place.url, "--lake", lake, "--dry-run")
    assert "From image middle" in plan and not lake.exists()
    said = json.loads(
        shell("feed", "restore", site.place.url, "--lake", lake, "--json").split("\n")[0]
    )
    assert (said["position"], said["signatures"]) == (wanted.position, "equal")
    assert said["tables"]["orders"]["signature"] == wanted.tables["orders"].signature.to_text()
    node = start_node(tmp_path)
    monkeypatch.setenv("SPARKTXLOG_URL", node.url)
    try:
        for command in said["adopt"]:
            shell(*shlex.split(command)[1:])
        shell("apply", "--once")
        shell("verify")
        new = read_state(tmp_path / "data" / "lake")
    finally:
        node.stop()
    assert new is not None
    assert {name: one.signature for name, one in new.tables.items()} == {
        name: one.signature for name, one in wanted.tables.items()
    }
    assert new.tables["orders"].definition.keys == ("id",)
    rows = DeltaTable(tmp_path / "data" / "lake" / "plain").to_pyarrow_table().to_pylist()
    assert rows == [{"id": 7, "item": "seven"}]


def test_positions_that_it_does_not_have_are_refused(site: Site, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="ends at position"):
        target_of(site.place, str(site.states[-1].position + 1))
    with pytest.raises(NotFoundError, match="begins after position 0"):
        target_of(site.place, "0")
