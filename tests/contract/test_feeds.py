"""What the place of a feed promises: a directory, and a prefix of a bucket."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import invoke
from tests.support.feed_pages import IDENTITY, ORDERED_US, SmallLog
from tests.support.image_lake import Lake
from tests.support.store_servers import BUCKET, StoreServer

from sparktxlog.errors import (
    ApplyError,
    CorruptLogError,
    ForeignLogError,
    InvalidRequestError,
    LockedError,
    NotFoundError,
    StorageError,
    TxLogError,
)
from sparktxlog.files.stores.store import Created
from sparktxlog.worker.backup.imaging import back_up_replica
from sparktxlog.worker.backup.restoring import restore_replica
from sparktxlog.worker.feed.feed_checks import check_feed, lag_of
from sparktxlog.worker.feed.feed_lakes import restored_before
from sparktxlog.worker.feed.feed_page import ReportedSignatures
from sparktxlog.worker.feed.feed_points import check_leads, proof_of, route_to, target_of
from sparktxlog.worker.feed.feed_pruning import FeedPruned, Retention, prune
from sparktxlog.worker.feed.feed_store import (
    FeedIdentity,
    FeedStore,
    FeedWriter,
    Seen,
    content_name,
)
from sparktxlog.worker.feed.shipped_files import WantedFile, ship_files
from sparktxlog.worker.lakes.payload_files import StagedOnDisk


@pytest.fixture(params=["disk", "seaweedfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "disk":
        return str(tmp_path / "feed")
    server: StoreServer = request.getfixturevalue("seaweedfs")
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/feeds/{os.urandom(8).hex()}"


@pytest.fixture
def feed(place: str) -> FeedStore:
    return FeedStore(place)


@pytest.fixture
def log(tmp_path: Path) -> SmallLog:
    return SmallLog(tmp_path / "payloads")


@pytest.fixture
def shipped(feed: FeedStore, log: SmallLog) -> FeedStore:
    """Three pages: positions 1 to 6, 7 to 12, 13 to 18."""
    with feed.writing() as writer:
        writer.begin(IDENTITY)
        for _ in range(3):
            log.ship(writer, log.page())
    return feed


def _key_of(feed: FeedStore, log: SmallLog, page: int) -> str:
    return feed.page_key(log.pages[page].first)


def _spoil(feed: FeedStore, key: str, content: bytes | None) -> None:
    feed.store.remove([key])
    if content is not None:
        feed.store.create(key, content)


# -- a whole feed ----------------------------------------------------------------------------------


def test_pages_come_back_in_their_order(shipped: FeedStore, log: SmallLog, place: str) -> None:
    """V66: what was shipped is there, from any position on."""
    again = FeedStore(place)
    assert list(again.pages(0)) == log.pages and again.firsts() == [1, 7, 13]
    assert [page.first for page in again.pages(6)] == [7, 13]
    assert [page.first for page in again.pages(8)] == [7, 13]
    assert list(again.pages(18)) == []
    last = again.last_page()
    assert last is not None and last.end.position == 18
    found = check_feed(again)
    assert (found.files, found.damaged) == (6, [])
    assert [(part.first, part.last, part.pages) for part in found.parts] == [(1, 18, 3)]


def test_a_content_is_there_once(feed: FeedStore, log: SmallLog) -> None:
    page = log.page()
    with feed.writing() as writer:
        writer.begin(IDENTITY)
        log.ship(writer, page)
        (file, _), _ = page.files
        log.ship(writer, page)  # as after a kill
    there = sorted(found.key for found in feed.store.list("contents"))
    assert there == sorted(feed.content_key(one) for one, _ in page.files)
    assert content_name(file) == f"{file.digest}-{file.size_bytes}"


def test_a_cut_content_is_mended(feed: FeedStore, log: SmallLog) -> None:
    page = log.page()
    key = feed.content_key(next(page.files)[0])
    feed.store.create(key, b"rows")
    with feed.writing() as writer:
        log.ship(writer, page)
    assert feed.store.read(key) == b"rows up to 3"


def test_one_process_feeds_at_a_time(feed: FeedStore, log: SmallLog) -> None:
    with feed.writing(), pytest.raises(LockedError), FeedStore(feed.url).writing():
        pass
    with feed.writing() as writer:
        writer.begin(IDENTITY)
        page = log.page()
        log.ship(writer, page)
        # Even if a lock is lost, of two pages only one is written.
        with pytest.raises(LockedError, match="somebody else wrote"):
            writer.add(replace(page, node_id="B"))
    assert list(feed.pages(0)) == [page]


def test_a_feed_is_of_one_log_and_alone_in_its_place(
    shipped: FeedStore, tmp_path: Path, place: str
) -> None:
    other = FeedIdentity(log_id="other", cluster="d")
    with shipped.writing() as writer, pytest.raises(ForeignLogError, match="cluster 'c'"):
        writer.begin(other)
    elsewhere = FeedStore(f"{place}-x")
    elsewhere.store.create("mine.txt", b"x")
    with elsewhere.writing() as writer, pytest.raises(InvalidRequestError, match=r"mine\.txt"):
        writer.begin(IDENTITY)
    with pytest.raises(NotFoundError, match="there is no feed"):
        elsewhere.identity()


# -- where it leads --------------------------------------------------------------------------------


def _time(run: int, later_s: float = 0.0) -> str:
    return datetime.fromtimestamp(ORDERED_US / 1e6 + run + later_s, UTC).isoformat()


def test_a_position_or_a_time_is_the_end_of_a_run(shipped: FeedStore) -> None:
    assert target_of(shipped, None).position == 18
    assert [target_of(shipped, str(at)).position for at in (3, 6, 9, 18)] == [3, 6, 9, 18]
    # Run 2 has positions 7 to 9, and run 3 was ordered a second later.
    assert target_of(shipped, _time(2)).position == 9
    assert target_of(shipped, _time(2, 0.9)).position == 9
    assert target_of(shipped, _time(3)).position == 12
    assert target_of(shipped, _time(1, 0.5)).position == 6
    assert target_of(shipped, _time(5)).position == 18
    naive = _time(2).removesuffix("+00:00")
    assert target_of(shipped, naive).position == 9


def test_a_clock_that_was_set_back_lets_nothing_in_that_was_ordered_later(
    feed: FeedStore, log: SmallLog
) -> None:
    """As where a feed goes on at another node, whose clock is behind."""
    ordered = (0, 1, 9, 3, 4, 5, 700)
    with feed.writing() as writer:
        writer.begin(IDENTITY)
        for seconds in ordered:
            page = log.page(1)
            (run,) = page.runs
            runs = (replace(run, ordered_at=ORDERED_US + seconds * 1_000_000),)
            log.ship(writer, replace(page, runs=runs))
    assert [target_of(feed, _time(at)).position for at in (1, 3, 8)] == [6, 6, 6]
    assert [target_of(feed, _time(at)).position for at in (9, 699, 700)] == [18, 18, 21]


@pytest.mark.parametrize(
    ("at", "kind", "said"),
    [
        ("8", InvalidRequestError, "inside the run 7 to 9"),
        ("19", NotFoundError, "ends at position 18"),
        ("0", NotFoundError, "begins after position 0"),
        ("soon", InvalidRequestError, "neither a position nor a time"),
        (_time(-1), NotFoundError, "was ordered later"),
        (_time(6), NotFoundError, "nobody knows what came"),
    ],
)
def test_what_a_feed_does_not_have_is_refused(
    shipped: FeedStore, at: str, kind: type[TxLogError], said: str
) -> None:
    with pytest.raises(kind, match=said) as caught:
        target_of(shipped, at)
    assert caught.value.definite and caught.value.hint


def test_a_feed_that_saw_nothing_new_is_whole_until_then(shipped: FeedStore) -> None:
    """V68: what the feed does not have was ordered in its last seconds."""
    now = ORDERED_US + 100_000_000
    lag = lag_of(shipped, now)
    assert lag is not None and lag.lag_s == 95.0
    with shipped.writing() as writer:
        seen = Seen(at=now - 2_000_000, node_id="A", position=18, published=18, is_end=True)
        writer.note(seen)
        lag = lag_of(shipped, now)
        assert lag is not None and (lag.position, lag.lag_s) == (18, 2.0)
        assert target_of(shipped, _time(90)).position == 18
        # The node has more, or may not know that there is more.
        for other in ({"published": 21, "is_end": False}, {"is_end": False}, {"position": 15}):
            writer.note(replace(seen, **other))  # type: ignore[arg-type]
            lag = lag_of(shipped, now)
            assert lag is not None and lag.lag_s == 95.0


def _image(
    feed: FeedStore, tmp_path: Path, log: SmallLog, page: int, name: str, **changes: object
) -> None:
    """Back up a replica that stands at the end of a page."""
    lake = Lake(tmp_path / f"lake of {name}")
    lake.append((1, "x"))
    lake.position = log.pages[page].last - 1
    lake.record(**changes)
    back_up_replica(lake.path, feed.images, name=name)


def test_an_image_is_where_a_restore_begins(
    shipped: FeedStore, log: SmallLog, tmp_path: Path
) -> None:
    assert route_to(shipped, target_of(shipped, None)).image is None
    _image(shipped, tmp_path, log, 1, "one")
    for at, name in ((None, "one"), ("12", "one"), ("9", None)):
        image = route_to(shipped, target_of(shipped, at)).image
        assert (None if image is None else image.name) == name
    assert route_to(shipped, target_of(shipped, "15"), "one").begins_after == 12
    with pytest.raises(InvalidRequestError, match="does not lead to 9"):
        route_to(shipped, target_of(shipped, "9"), "one")
    # One of a replica with a set lacks tables.
    _image(shipped, tmp_path, log, 2, "set", only=("default.t",))
    route = route_to(shipped, target_of(shipped, None))
    assert route.image is not None and route.image.name == "one"
    with pytest.raises(InvalidRequestError, match="t only: rows of"):
        route_to(shipped, target_of(shipped, None), "set")
    lake = tmp_path / "restored"
    state = restore_replica(shipped.images, shipped.images.image("set"), lake)
    assert state.only == ("default.t",)
    with pytest.raises(InvalidRequestError, match="t only: rows of"):
        restored_before(shipped, route, lake)


def test_a_feed_may_have_a_hole_with_an_image_after_it(
    feed: FeedStore, log: SmallLog, tmp_path: Path
) -> None:
    with feed.writing() as writer:
        writer.begin(IDENTITY)
        log.ship(writer, log.page())
        log.page()  # never shipped
        log.ship(writer, log.page(begins_at="one"))
    assert [page.first for page in feed.pages(0)] == [1]
    assert [page.first for page in feed.pages(12)] == [13]
    assert list(feed.pages(8)) == []
    found = check_feed(feed)
    assert found.damaged == []
    assert [(part.begins_at, part.first, part.last) for part in found.parts] == [
        ("-", 1, 6),
        ("one", 13, 18),
    ]
    with pytest.raises(NotFoundError, match="has a hole up to 12 after position 6"):
        target_of(feed, "9")
    # Without the image nothing leads over the hole.
    with pytest.raises(NotFoundError, match="has a hole after position 6") as caught:
        check_leads(feed, 0, target_of(feed, None))
    assert caught.value.definite and "--at 6" in caught.value.hint
    check_leads(feed, 12, target_of(feed, None))
    _image(feed, tmp_path, log, 1, "one")
    assert target_of(feed, "12").position == 12
    assert route_to(feed, target_of(feed, "15")).begins_after == 12


def test_a_site_s_signatures_near_a_position_are_found(feed: FeedStore, log: SmallLog) -> None:
    """They come in later pages, and count only with the chain hash of their position."""

    def said(position: int, chain_hash: str) -> ReportedSignatures:
        return ReportedSignatures(
            node_id="A", position=position, chain_hash=chain_hash, tables={"t": f"{position}"}
        )

    with feed.writing() as writer:
        writer.begin(IDENTITY)
        first = log.page()
        log.ship(writer, first)
        at_3, at_6 = first.ends
        reports = said(3, at_3.chain_hash), said(6, at_6.chain_hash), said(9, "00" * 32)
        second = log.page(signatures=reports)
        log.ship(writer, second)
    for at, wanted in ((3, 3), (6, 6), (9, 6), (12, 6)):
        found = proof_of(feed, target_of(feed, str(at)))
        assert found is not None and found[0].position == found[1].position == wanted
    with feed.writing() as writer:
        log.ship(writer, log.page())
    _spoil(feed, _key_of(feed, log, 1), b"torn")
    assert proof_of(feed, first.end) is None


# -- a torn one ------------------------------------------------------------------------------------


def test_what_no_page_names_does_not_count(shipped: FeedStore, log: SmallLog) -> None:
    """V67: of a transaction that came in part nothing is there."""
    page = log.page()
    with shipped.writing() as writer:
        site = StagedOnDisk(log.payloads)
        ship_files(writer, (WantedFile(file, ((site, file.path),)) for file, _ in page.files))
    assert target_of(shipped, None).position == 18 and check_feed(shipped).damaged == []


def test_a_missing_page_is_named(shipped: FeedStore, log: SmallLog) -> None:
    _spoil(shipped, _key_of(shipped, log, 1), None)
    with pytest.raises(CorruptLogError, match="positions 7 to 12 are missing") as caught:
        list(shipped.pages(0))
    assert caught.value.fields["position"] == 7
    (damage,) = check_feed(shipped).damaged
    assert damage["position"] == 13 and "positions 7 to 12" in str(damage["problem"])
    check_leads(shipped, 0, target_of(shipped, "6"))
    with pytest.raises(CorruptLogError, match="positions 7 to 12 are missing"):
        check_leads(shipped, 0, target_of(shipped, None))
    check_leads(shipped, 12, target_of(shipped, None))


def test_a_missing_first_page_is_named(shipped: FeedStore, log: SmallLog) -> None:
    _spoil(shipped, _key_of(shipped, log, 0), None)
    assert list(shipped.pages(0)) == []
    (damage,) = check_feed(shipped).damaged
    assert damage["position"] == 7 and "says not where" in str(damage["problem"])


def test_a_missing_last_page_is_named(shipped: FeedStore, log: SmallLog) -> None:
    with shipped.writing() as writer:
        writer.note(Seen(at=1, node_id="A", position=18, published=18))
    _spoil(shipped, _key_of(shipped, log, 2), None)
    (damage,) = check_feed(shipped).damaged
    assert damage["position"] == 13 and "had reached 18" in str(damage["problem"])


def test_a_torn_or_reordered_page_is_named(shipped: FeedStore, log: SmallLog) -> None:
    keys = [_key_of(shipped, log, page) for page in range(3)]
    second, third = shipped.store.read(keys[1]), shipped.store.read(keys[2])
    for broken in (second[: len(second) // 2], third, b""):
        _spoil(shipped, keys[1], broken)
        with pytest.raises(CorruptLogError, match="from position 7 on, is damaged") as caught:
            list(shipped.pages(0))
        assert caught.value.fields["path"] == shipped.store.url_of(keys[1])
        assert [one["position"] for one in check_feed(shipped).damaged] == [7]
        assert target_of(shipped, "6").position == 6


def test_a_page_of_another_branch_is_named(
    shipped: FeedStore, log: SmallLog, tmp_path: Path
) -> None:
    """A page that is whole, and does not continue the one before it."""
    other = SmallLog(tmp_path / "other")
    other.end = replace(other.end, chain_hash="11" * 32)
    other.page()
    page = other.page()
    assert not page.problem()
    with shipped.writing() as writer:
        _spoil(shipped, _key_of(shipped, log, 1), None)
        other.ship(writer, page)
    with pytest.raises(CorruptLogError, match="not that of the page before it"):
        list(shipped.pages(0))
    assert [one["position"] for one in check_feed(shipped).damaged] == [7, 13]


@pytest.mark.parametrize("content", [None, b"rows up to X", b"rows"])
def test_a_missing_or_changed_content_is_named(
    shipped: FeedStore, log: SmallLog, content: bytes | None
) -> None:
    files = [file for file, _ in log.pages[1].files]
    key = shipped.content_key(files[0])
    _spoil(shipped, key, content)
    (damage,) = check_feed(shipped).damaged
    assert damage["position"] == 7 and damage["stored"] == shipped.store.url_of(key)


def test_a_file_that_the_site_lost_ends_the_page(feed: FeedStore, log: SmallLog) -> None:
    page = log.page()
    (log.payloads / "inline/6.parquet").unlink()
    with feed.writing() as writer, pytest.raises(ApplyError, match="is missing"):
        log.ship(writer, page)
    assert feed.firsts() == []


# -- a fault at each write -------------------------------------------------------------------------


def test_a_fault_at_any_write_leaves_a_whole_feed(
    feed: FeedStore, log: SmallLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes first, then the page: killed anywhere, the next one goes on after the last page."""
    page, left, create = log.page(), [0], type(feed.store).create

    def limited(store: Any, key: str, *args: Any, **said: Any) -> Created:
        if key.startswith(("feed.json", "contents/", "log/")):
            if left[0] <= 0:
                raise StorageError("killed")
            left[0] -= 1
        return create(store, key, *args, **said)

    monkeypatch.setattr(type(feed.store), "create", limited)
    failed = 0
    while failed < 10:
        left[0] = failed
        try:
            with feed.writing() as writer:
                writer.begin(IDENTITY)
                log.ship(writer, page)
            break
        except StorageError:
            failed += 1
            assert feed.firsts() == []
    # The name of the log was there after the second attempt; then come two files and the page.
    assert failed == 3 and list(feed.pages(0)) == [page]
    assert check_feed(feed).damaged == []


# -- commands --------------------------------------------------------------------------------------


def test_commands_say_what_is_there(
    shipped: FeedStore,
    log: SmallLog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert invoke(monkeypatch, "feed", "list", shipped.url, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["position"], found["begins_after"], found["pages"]) == (18, 0, 3)
    assert found["lag_s"] > 0 and found["log_id"] == IDENTITY.log_id
    assert invoke(monkeypatch, "feed", "list", shipped.url) == 0
    assert "positions 1 to 18 in 3 pages" in capsys.readouterr().out
    assert invoke(monkeypatch, "feed", "verify", shipped.url) == 0
    assert "positions 1 to 18 in 3 pages, from the beginning of the log" in capsys.readouterr().out
    _spoil(shipped, _key_of(shipped, log, 1), b"torn")
    assert invoke(monkeypatch, "feed", "verify", shipped.url, "--json") == 1
    (damage,) = json.loads(capsys.readouterr().out)["damaged"]
    assert damage["position"] == 7
    nowhere = f"{shipped.url}-nowhere"
    assert invoke(monkeypatch, "feed", "verify", nowhere) == 1
    assert "there is no feed" in capsys.readouterr().err


# -- what is removed -------------------------------------------------------------------------------


#: All of `shipped` was ordered within six seconds, and this is a day after.
_NOW_US = ORDERED_US + 6_000_000 + 86_400_000_000


def _pruned(feed: FeedStore, retention: Retention, *, dry_run: bool = False) -> FeedPruned:
    if dry_run:
        return prune(feed, None, retention, _NOW_US)
    with feed.writing() as writer:
        return prune(feed, writer, retention, _NOW_US)


def _base(feed: FeedStore, tmp_path: Path, log: SmallLog, page: int, name: str) -> None:
    """Back up a replica whose history is that of the log, from which the feed leads on."""
    _image(feed, tmp_path, log, page, name, chain_hash=log.pages[page].to_hash)


@pytest.mark.parametrize(
    "retention",
    [
        Retention(days=1 + 1 / 86_400),  # to the last second but one
        Retention(size_bytes=2_500),
        Retention(days=0.5, size_bytes=2_500),
    ],
)
def test_what_nobody_wants_goes_and_the_rest_leads_on_from_an_image(
    shipped: FeedStore, log: SmallLog, tmp_path: Path, retention: Retention
) -> None:
    _base(shipped, tmp_path, log, 0, "old")
    _base(shipped, tmp_path, log, 1, "middle")
    shipped.store.create("contents/notes of somebody", b"else")
    planned = _pruned(shipped, retention, dry_run=True)
    assert shipped.firsts() == [1, 7, 13]
    done = _pruned(shipped, retention)
    assert done == planned and (done.image, done.position, done.pages) == ("middle", 12, 2)
    assert done.files == 4 and done.size_bytes > 0
    assert shipped.firsts() == [13]
    assert check_feed(shipped).damaged == []
    route = route_to(shipped, target_of(shipped, None))
    assert route.image is not None and route.image.name == "middle"
    assert [page.first for page in shipped.pages(route.begins_after)] == [13]
    assert len(shipped.store.names("contents")) == 2 + 1
    again = _pruned(shipped, retention)
    assert (again.pages, again.files) == (0, 0)
    with shipped.writing() as writer:  # it goes on
        log.ship(writer, log.page())
    assert check_feed(shipped).damaged == []


def test_nothing_goes_without_an_image_that_is_whole_and_leads_on(
    shipped: FeedStore, log: SmallLog, tmp_path: Path
) -> None:
    retention = Retention(days=0.5)
    before = sorted(found.key for found in shipped.store.list())
    assert "no image of all tables" in _pruned(shipped, retention).reason
    # Of another history, of a set of tables.
    _image(shipped, tmp_path, log, 1, "other")
    _image(shipped, tmp_path, log, 1, "set", only=("default.t",))
    assert "no image of all tables" in _pruned(shipped, retention).reason
    _base(shipped, tmp_path, log, 1, "torn")
    image = shipped.images.image("torn")
    key = shipped.images.file_key("torn", *next(iter(image.all_files)))
    _spoil(shipped, f"images/{key}", b"torn")
    done = _pruned(shipped, retention)
    assert not done.image and "image torn is damaged" in done.reason
    # An older one is whole: more stays than was asked for.
    _base(shipped, tmp_path, log, 0, "whole")
    done = _pruned(shipped, retention)
    assert (done.image, done.pages) == ("whole", 1) and "image torn is damaged" in done.reason
    assert shipped.firsts() == [7, 13]
    kept = {found.key for found in shipped.store.list() if not found.key.startswith("images")}
    assert len(kept & set(before)) == len(before) - 3 and check_feed(shipped).damaged == []


def test_a_removal_that_is_killed_leaves_a_feed_and_is_done_again(
    shipped: FeedStore, log: SmallLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _base(shipped, tmp_path, log, 1, "one")
    for step in ("note_pruned", "remove_pages"):
        work = getattr(FeedWriter, step)

        def killed(writer: FeedWriter, what: Any, work: Any = work) -> None:
            work(writer, what[:1] if isinstance(what, list) else what)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(FeedWriter, step, killed)
            with pytest.raises(KeyboardInterrupt):
                _pruned(shipped, Retention(days=0.5))
        assert check_feed(shipped).damaged == []
        assert route_to(shipped, target_of(shipped, None)).begins_after == 12
    assert shipped.firsts() == [7, 13]
    assert _pruned(shipped, Retention(days=0.5)).files == 4
    assert shipped.firsts() == [13]


def test_the_last_page_stays_and_a_lost_image_is_found(
    shipped: FeedStore, log: SmallLog, tmp_path: Path
) -> None:
    """The feed goes on after its last page, whatever the images have."""
    _base(shipped, tmp_path, log, 2, "end")
    assert _pruned(shipped, Retention(days=0.5)).image == "end"
    assert shipped.firsts() == [13]
    with shipped.images.writing() as images:
        images.remove(["end"])
    (damage,) = check_feed(shipped).damaged
    assert "image end, which is missing" in str(damage["problem"])


def test_a_retention_says_something(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for given in ({}, {"days": 0}, {"days": math.inf}, {"days": math.nan}, {"size_bytes": -1}):
        with pytest.raises(InvalidRequestError):
            Retention(**given)
    assert invoke(monkeypatch, "feed", "prune", place, "--keep-days", "1", "--json") == 1


def test_the_command_says_what_it_removes(
    shipped: FeedStore,
    log: SmallLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _base(shipped, tmp_path, log, 1, "one")
    asked = ("feed", "prune", shipped.url, "--keep-bytes", "2500")
    capsys.readouterr()
    assert invoke(monkeypatch, *asked, "--dry-run") == 0
    assert "would begin with image one, position 12: 2 pages" in capsys.readouterr().out
    assert invoke(monkeypatch, *asked, "--json") == 0
    assert json.loads(capsys.readouterr().out)["pages"] == 2
    assert invoke(monkeypatch, *asked) == 0
    assert "0 pages and 0 files" in capsys.readouterr().out
