"""Commit tables in a bucket: what is placed, compared, set aside, and read only once."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable
from functools import partial
from pathlib import Path

import pytest

from sparktxlog.attic.attic import OF_COMMIT_TABLES, Kind
from sparktxlog.attic.bucket_attic import BucketAttic
from sparktxlog.delta.commit_contents import NeededFile
from sparktxlog.errors import (
    ConfigError,
    CorruptLogError,
    StagedCommitError,
    StoreNotReadyError,
    StoreUnavailableError,
)
from sparktxlog.files.foreign_files import ForeignFile
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.store import Created, OpenContent
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.commit_tables.bucket_places import BucketPlaces

TABLE = "0b5d7e3c-94a0-4cf2-8f5b-9c44e5d3a111"
PART, ROWS = "part-0.parquet", b"rows" * 1000


class Watched(DiskStore):
    """Notes which keys are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opened: list[str] = []
        #: What the next open gives, once.
        self.answer: OpenContent | None = None

    def open(self, key: str, *, offset: int = 0) -> OpenContent:
        self.opened.append(key)
        if self.answer is not None:
            answer, self.answer = self.answer, None
            return answer
        return super().open(key, offset=offset)


@pytest.fixture
def store(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "bucket")


@pytest.fixture
def places(store: Watched, tmp_path: Path) -> BucketPlaces:
    return BucketPlaces(store, tmp_path / "local", lambda: None)


def staged(content: bytes, path: str = PART) -> StagedFile:
    digest = hashlib.sha256(content).hexdigest()
    return StagedFile(path=path, size_bytes=len(content), rows=0, digest=digest)


def test_a_place_is_given_once_and_taken_back_while_nothing_is_there(
    places: BucketPlaces, store: Watched
) -> None:
    assert not places.has(TABLE)
    places.make(TABLE)
    assert places.has(TABLE)
    assert places.uuid_at(places.location(TABLE)) == TABLE
    assert places.uuid_at(f"s3://elsewhere/{TABLE}") is None
    places.drop_unused(TABLE)
    assert not places.has(TABLE)
    places.make(TABLE)
    store.create(f"{TABLE}/{PART}", ROWS)
    places.drop_unused(TABLE)
    assert places.has(TABLE), "somebody wrote there"


def test_a_bucket_that_did_not_answer_is_not_changed_until_it_is_proved(
    store: Watched, tmp_path: Path
) -> None:
    answers = False

    def proof() -> None:
        if not answers:
            raise StoreUnavailableError("down")

    places = BucketPlaces(store, tmp_path / "local", proof)
    store.create(f"{TABLE}/{PART}", b"others")
    with pytest.raises(StoreUnavailableError, match="down"):
        places.take("log/A")
    for change in (
        partial(places.make, TABLE),
        partial(places.place, TABLE, {"part-1.parquet": ROWS}),
        partial(places.publish, TABLE, 0, b"{}"),
        partial(places.holds, TABLE, staged(ROWS)),
        partial(places.forget_kept, TABLE, 0),
        partial(places.keep_commits, TABLE, range(1)),
    ):
        with pytest.raises(StoreNotReadyError, match="not known whether it keeps its promises"):
            change()
    assert [found.key for found in store.list()] == [f"{TABLE}/{PART}"]
    answers = True
    store.create(".owner", b"log/B")
    with pytest.raises(ConfigError, match="has the commit tables of site 'log/B'"):
        places.take("log/A")
    with pytest.raises(StoreNotReadyError):
        places.check_ready()
    store.remove([".owner"])
    places.take("log/A")
    places.make(TABLE)
    assert places.has(TABLE)


def test_what_its_writer_staged_is_read_once_and_stays_where_it_is(
    places: BucketPlaces, store: Watched, tmp_path: Path
) -> None:
    store.create(f"{TABLE}/{PART}", ROWS)
    payload = ForeignFile(str(tmp_path), f"payloads/{PART}")
    places.file(TABLE, PART).link_as(payload)
    assert Path(payload.path).read_bytes() == ROWS
    places.place(TABLE, {PART: payload.path})
    assert places.holds(TABLE, staged(ROWS))
    assert store.opened == [f"{TABLE}/{PART}"]
    places.doubt(TABLE, staged(ROWS))
    assert places.holds(TABLE, staged(ROWS))
    assert len(store.opened) == 2, "a doubt has it read again"


def test_a_name_in_the_payload_store_never_has_a_part_of_a_file(
    places: BucketPlaces, store: Watched, tmp_path: Path
) -> None:
    store.create(f"{TABLE}/{PART}", ROWS)
    payload = ForeignFile(str(tmp_path), f"payloads/{PART}")
    places.file(TABLE, PART).link_as(payload)

    def breaks_off() -> Generator[bytes, None, None]:
        yield ROWS[:10]
        # A request that is repeated meanwhile reads the name that it made itself.
        assert Path(payload.path).read_bytes() == ROWS
        raise ConnectionError

    found = store.find(f"{TABLE}/{PART}")
    assert found is not None
    store.answer = OpenContent(found, breaks_off())
    with pytest.raises(ConnectionError):
        places.file(TABLE, PART).link_as(payload)
    assert Path(payload.path).read_bytes() == ROWS
    assert [path.name for path in Path(payload.path).parent.iterdir()] == [PART]


def test_bytes_that_differ_go_to_the_attic_and_the_log_s_are_placed(
    places: BucketPlaces, store: Watched
) -> None:
    store.create(f"{TABLE}/{PART}", b"others")
    places.place(TABLE, {PART: ROWS})
    assert store.read(f"{TABLE}/{PART}") == ROWS
    (entry,) = BucketAttic(store, OF_COMMIT_TABLES).entries(Kind.FILES, TABLE)
    assert entry.at and store.read(f".attic/{entry.id}/content/{PART}") == b"others"
    store.replace(f"{TABLE}/{PART}", b"other ones")
    places.set_aside(TABLE, PART)
    places.set_aside(TABLE, PART)  # there is none any more
    assert store.find(f"{TABLE}/{PART}") is None
    assert store.read(f".attic/{entry.id}/content/{PART}.2") == b"other ones"


def test_what_is_set_aside_is_in_the_attic_before_it_leaves_its_place(
    places: BucketPlaces, store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create(f"{TABLE}/{PART}", b"others")
    aside, remove = f".attic/files-{TABLE}/content/{PART}", store.remove

    def looks(keys: Iterable[str]) -> None:
        assert store.read(aside) == b"others"
        remove(keys)

    monkeypatch.setattr(store, "remove", looks)
    places.set_aside(TABLE, PART)
    assert store.find(f"{TABLE}/{PART}") is None


def test_a_version_is_published_once(places: BucketPlaces, store: Watched) -> None:
    places.publish(TABLE, 1, b"{}\n")
    places.publish(TABLE, 1, b"{}\n")
    assert places.published(TABLE, 1) == b"{}\n" and places.published(TABLE, 2) is None
    assert places.is_published(TABLE, 1) and not places.is_published(TABLE, 2)
    with pytest.raises(CorruptLogError, match="is not the commit that the log has as version 1"):
        places.publish(TABLE, 1, b"{ }\n")
    assert places.versions(TABLE) == [1]


def test_commits_have_second_copies_until_they_are_forgotten(
    places: BucketPlaces, store: Watched
) -> None:
    for version in (0, 1, 2):
        places.publish(TABLE, version, b"%d" % version)
    places.keep_commits(TABLE, range(1))
    places.keep_commits(TABLE, None)
    store.remove([f"{TABLE}/{commit_file_name(1)}"])
    places.keep_commits(TABLE, range(3))
    assert [places.kept_commit(TABLE, version).read() for version in range(3)] == [b"0", b"1", b"2"]
    places.forget_kept(TABLE, 1)
    with pytest.raises(FileNotFoundError):
        places.kept_commit(TABLE, 1).read()


def test_a_file_of_a_peer_appears_once_it_is_whole(places: BucketPlaces, store: Watched) -> None:
    file = staged(ROWS)
    arriving = staged(ROWS, f"{TABLE}/{PART}")
    with pytest.raises(ConnectionError):
        places.arrivals.fetch(arriving, broken)
    places.arrived(TABLE, file)
    assert store.find(f"{TABLE}/{PART}") is None
    places.arrivals.fetch(arriving, lambda offset: [ROWS[offset:]])
    places.arrived(TABLE, file)
    assert store.read(f"{TABLE}/{PART}") == ROWS
    assert not Path(places.arrivals.path(arriving.path)).exists()


def broken(offset: int) -> list[bytes]:
    raise ConnectionError


def test_a_staged_commit_and_its_files_are_checked(places: BucketPlaces, store: Watched) -> None:
    store.create(f"{TABLE}/_delta_log/_staged_commits/x.json", b"{}")
    with places.staged(TABLE, "x.json", 2) as content:
        assert content == b"{}"
    with pytest.raises(StagedCommitError, match="there is no file"), places.staged(TABLE, "y", 2):
        pass
    with pytest.raises(StagedCommitError, match="has 2 bytes"), places.staged(TABLE, "x.json", 3):
        pass
    store.create(f"{TABLE}/{PART}", ROWS)
    needed = NeededFile(path=PART, size=len(ROWS) + 1, is_exact=True, is_new=True)
    with pytest.raises(StagedCommitError, match=r"which has 4,000 bytes"):
        places.check(TABLE, [needed])


def test_a_node_that_leaves_its_history_moves_all_tables(
    places: BucketPlaces, store: Watched, tmp_path: Path
) -> None:
    places.publish(TABLE, 0, b"{}")
    places.keep_commits(TABLE, None)
    places.set_all_aside("act-7")
    places.set_all_aside("act-7")
    keys = {found.key for found in store.list() if "/content/" in found.key}
    commit = commit_file_name(0)
    assert keys == {
        f".attic/fork-act-7/content/{TABLE}/{commit.rpartition('/')[2]}",
        f".attic/fork-{TABLE}-act-7/content/{commit}",
    }
    entries = BucketAttic(store, OF_COMMIT_TABLES).entries(Kind.FORK)
    assert {entry.table for entry in entries} == {"", TABLE}
    assert not (tmp_path / "local" / ".attic").exists()
    assert store.opened == [], "nothing is downloaded to be set aside"


def test_what_changed_between_two_attempts_to_leave_is_kept_twice(
    places: BucketPlaces, store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, aside = f"{TABLE}/{PART}", f".attic/fork-{TABLE}-act-7"
    store.create(key, b"first")
    remove, removed = DiskStore.remove, list[str]()

    def killed(self: DiskStore, keys: Iterable[str]) -> None:
        removed.extend(keys)
        raise StoreUnavailableError("killed here")

    monkeypatch.setattr(DiskStore, "remove", killed)
    with pytest.raises(StoreUnavailableError):
        places.set_all_aside("act-7")
    monkeypatch.setattr(DiskStore, "remove", remove)
    assert removed == [key]
    store.replace(key, b"another")
    places.set_all_aside("act-7")
    assert store.find(key) is None
    found = [store.read(f"{one}/content/{PART}") for one in (aside, f"{aside}-2")]
    assert found == [b"first", b"another"]


def test_what_comes_while_a_table_is_copied_aside_is_not_removed(
    places: BucketPlaces, store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions with keys of their own write to the bucket at any time."""
    late = f"{TABLE}/late.parquet"
    store.create(f"{TABLE}/{PART}", ROWS)
    copy = DiskStore.copy

    def copied(self: DiskStore, source: str, target: str) -> Created:
        self.replace(late, b"written meanwhile")
        return copy(self, source, target)

    monkeypatch.setattr(DiskStore, "copy", copied)
    places.set_all_aside("act-7")
    monkeypatch.setattr(DiskStore, "copy", copy)
    assert store.find(f"{TABLE}/{PART}") is None
    assert store.read(late) == b"written meanwhile"
    places.set_all_aside("act-7")
    assert store.find(late) is None
    assert store.read(f".attic/fork-{TABLE}-act-7-2/content/late.parquet") == b"written meanwhile"


def test_the_newest_checkpoint_can_be_read_here(places: BucketPlaces, store: Watched) -> None:
    places.publish(TABLE, 0, b"{}")
    checkpoint = f"_delta_log/{0:020}.checkpoint.parquet"
    store.create(f"{TABLE}/{checkpoint}", b"PAR1")
    assert (places.log_directory(TABLE) / checkpoint).read_bytes() == b"PAR1"


def test_of_many_checkpoints_the_newest_are_read_once(places: BucketPlaces, store: Watched) -> None:
    def put(version: int) -> str:
        name = f"_delta_log/{version:020}.checkpoint.parquet"
        store.create(f"{TABLE}/{name}", b"PAR1 %d" % version)
        return name

    def here() -> set[str]:
        directory = places.log_directory(TABLE)
        files = [path for path in directory.rglob("*") if path.is_file()]
        return {path.relative_to(directory).as_posix() for path in files}

    left = places.arrivals.root / ".logs" / TABLE / "_delta_log" / ".of-a-killed-node.new"
    left.parent.mkdir(parents=True)
    left.touch()
    first, second, third = put(10), put(20), put(30)
    assert here() == {second, third}
    assert here() == {second, third}
    assert sorted(store.opened) == [f"{TABLE}/{second}", f"{TABLE}/{third}"]
    fourth = put(40)
    store.remove([f"{TABLE}/{first}", f"{TABLE}/{second}"])
    assert here() == {third, fourth}
    store.replace(f"{TABLE}/{fourth}", b"PAR1 again")
    assert (places.log_directory(TABLE) / fourth).read_bytes() == b"PAR1 again"
