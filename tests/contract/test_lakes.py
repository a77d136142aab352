"""What a worker's lake promises: in a directory, and in a bucket under a lock.

What Spark does with one: `tests/spark/test_bucket_lakes.py`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import pytest
from tests.support.faulty_way import Fault, faulty_way
from tests.support.replica_lakes import contents
from tests.support.store_servers import BUCKET, StoreServer
from tests.support.worker_log import LogBuilder, own_commit, table

from sparktxlog.attic.attic import OF_LAKE, Attic, Kind
from sparktxlog.delta.live_files import live_files
from sparktxlog.delta.log_files import newest_version, store_of
from sparktxlog.errors import (
    ApplyError,
    LockedError,
)
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.counting import RequestKind
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.opening import store_at
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.store import Created
from sparktxlog.worker.apply.placing import Placer, placed_path
from sparktxlog.worker.apply.tables import create_table
from sparktxlog.worker.lakes.bucket_lake import BucketLake, attic_key
from sparktxlog.worker.lakes.disk_lake import DiskLake
from sparktxlog.worker.lakes.lake import Lake
from sparktxlog.worker.lakes.lake_places import (
    lake_at,
)
from sparktxlog.worker.lakes.payload_files import StagedInBucket, StagedOnDisk

ORDERS = table("t", "id bigint, p string", partition_by=["p"])
FILES = 100


@pytest.fixture
def store(seaweedfs: StoreServer) -> BucketStore:
    return seaweedfs.store(f"lakes/{os.urandom(8).hex()}")


@pytest.fixture(params=["disk", "bucket"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "disk":
        (tmp_path / "lake").mkdir()
        return DiskLake(tmp_path / "lake")
    return BucketLake(request.getfixturevalue("store"), lambda: None)


@pytest.fixture
def log(tmp_path: Path, lake: Lake) -> LogBuilder:
    """A log with a table, which the lake has, and an append of staged files."""
    made = LogBuilder(tmp_path)
    made.transaction().create(ORDERS)
    create_table(lake.table("t"), ORDERS, "{}", {"appId": "a", "version": 0})
    return made


def place(log: LogBuilder, lake: Lake, examined: int = 0) -> int:
    files = [file for effect in log.segments[-1].effects for file in effect.files]
    return Placer(lake, StagedOnDisk(log.payloads)).place(ORDERS, files, own_commit(1), examined)


# -- both ------------------------------------------------------------------------------------------


def test_staged_files_become_live_as_they_are(log: LogBuilder, lake: Lake) -> None:
    log.staged("append", "t", [(1, "x"), (2, None), (3, "a b/%")])
    log.publish()
    before = lake.identity("t", 0)
    assert place(log, lake) == 1
    sizes = live_files(lake.table("t")).sizes
    assert len(sizes) == 3 and any(path.startswith("p=a b%2F%25/") for path in sizes)
    store = store_of(lake.table("t"))
    found = [store.find(path) for path in sizes]
    assert {one.key: one.size_bytes for one in found if one is not None} == sizes
    assert lake.identity("t", 0) == before != lake.identity("t", 1)
    lake.settle("t", 1, 1)
    assert not lake.undo_torn("t", 0, "l", None) or newest_version(lake.table("t"), 0) == 1


def test_a_damaged_payload_is_not_placed(log: LogBuilder, lake: Lake) -> None:
    log.staged("append", "t", [(1, "x")])
    log.publish()
    (file,) = log.segments[-1].effects[1].files
    path = log.payloads / file.path
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ApplyError, match="payload file"):
        place(log, lake)
    path.unlink()
    with pytest.raises(ApplyError, match="missing"):
        place(log, lake)
    assert newest_version(lake.table("t"), 0) == 0


def test_a_dropped_table_is_in_the_attic(log: LogBuilder, lake: Lake) -> None:
    log.staged("append", "t", [(1, "x")])
    log.publish()
    place(log, lake)
    assert lake.has("t") and lake.drops_of("t") == set()
    where = lake.set_aside("t", "7", "the log drops it")
    assert not lake.has("t") and lake.drops_of("t") == {"dropped-t-7"}
    assert where.startswith(lake.url) and where.endswith("dropped-t-7/content")
    assert lake.drops_of("other") == set()
    create_table(lake.table("t"), ORDERS, "{}", {"appId": "a", "version": 9})
    assert lake.has("t") and newest_version(lake.table("t"), -1) == 0


# -- payloads in a bucket --------------------------------------------------------------------------


def payloads_in(server: StoreServer, store: BucketStore, log: LogBuilder) -> StagedInBucket:
    """Put the payloads of a log beside the store's prefix."""
    prefix = f"{store.url.removeprefix(f's3://{BUCKET}/')}-payloads"
    found = server.store(prefix)
    for path in log.payloads.rglob("*.parquet"):
        found.create(str(path.relative_to(log.payloads)), path)
    whole = store_at(f"s3://{BUCKET}", server.settings())
    return StagedInBucket(found, whole)


def test_files_of_a_bucket_get_into_a_lake_of_either_kind(
    seaweedfs: StoreServer, store: BucketStore, log: LogBuilder, lake: Lake
) -> None:
    log.staged("append", "t", [(1, "x"), (2, None), (3, "a b/%")])
    log.publish()
    files = [file for effect in log.segments[-1].effects for file in effect.files]
    payloads = payloads_in(seaweedfs, store, log)
    counts = payloads.store.counts
    before = counts.now()[RequestKind.GET].requests
    for _ in range(2):  # again after a kill before the commit
        for file in files:
            payloads.check(file)
            lake.bring("t", placed_path(file), file, payloads)
    assert Placer(lake, payloads).place(ORDERS, files, own_commit(1), 0) == 1
    placed = store_of(lake.table("t"))
    for file in files:
        assert placed.read(placed_path(file)) == (log.payloads / file.path).read_bytes()
    gets = counts.now()[RequestKind.GET].requests - before
    # Within the bucket no byte travels.
    assert gets == (0 if isinstance(lake, BucketLake) else len(files))


def test_a_payload_that_somebody_changed_or_removed_is_not_placed(
    seaweedfs: StoreServer, store: BucketStore, log: LogBuilder, lake: Lake
) -> None:
    log.staged("append", "t", [(1, "x")])
    log.publish()
    (file,) = log.segments[-1].effects[1].files
    payloads = payloads_in(seaweedfs, store, log)
    payloads.store.replace(file.path, b"other rows")
    with pytest.raises(ApplyError, match="payload file"):
        Placer(lake, payloads).place(ORDERS, [file], own_commit(1), 0)
    payloads.store.remove([file.path])
    assert not payloads.has(file)
    with pytest.raises(ApplyError, match="missing"):
        Placer(lake, payloads).place(ORDERS, [file], own_commit(1), 0)
    assert newest_version(lake.table("t"), 0) == 0
    assert not payloads.is_there()  # no node took it


def test_a_payload_of_another_bucket_is_sent_once(
    seaweedfs: StoreServer, store: BucketStore, log: LogBuilder
) -> None:
    """Another server stands for one of another provider."""
    log.staged("append", "t", [(1, "x")])
    log.publish()
    (file,) = log.segments[-1].effects[1].files
    found = payloads_in(seaweedfs, store, log)
    elsewhere = replace(found, bucket=DiskStore(log.payloads))
    table = BucketLake(store, lambda: None).table("t")
    assert elsewhere.put(file, table, "part") is Created.NEW
    assert table.read("part") == (log.payloads / file.path).read_bytes()


def test_a_bucket_may_be_a_payload_store_as_a_whole(
    seaweedfs: StoreServer, store: BucketStore, log: LogBuilder
) -> None:
    log.staged("append", "t", [(1, "x")])
    log.publish()
    (file,) = log.segments[-1].effects[1].files
    found = payloads_in(seaweedfs, store, log)
    below = replace(file, path=f"{found.url}/{file.path}".removeprefix(f"s3://{BUCKET}/"))
    whole = StagedInBucket(found.bucket, found.bucket)
    table = BucketLake(store, lambda: None).table("t")
    assert whole.put(below, table, "part") is Created.NEW
    assert table.read("part") == (log.payloads / file.path).read_bytes()


@pytest.fixture
def donated(tmp_path: Path) -> Path:
    """A whole table of another site in a directory: two versions, a checkpoint and a data file."""
    made, lake = LogBuilder(tmp_path / "donor"), DiskLake(tmp_path / "donor" / "lake")
    made.transaction().create(ORDERS)
    create_table(lake.table("t"), ORDERS, "{}", {"appId": "b", "version": 0})
    made.staged("append", "t", [(7, "of the donor")])
    made.publish()
    place(made, lake)
    (lake.table("t") / "_delta_log" / f"{1:020}.checkpoint.parquet").write_bytes(b"checkpoint")
    return lake.table("t")


def files_of(lake: Lake, name: str) -> dict[str, bytes]:
    store = store_of(lake.table(name))
    return {one.key: store.read(one.key) for one in store.list()}


def test_a_directory_becomes_a_table(tmp_path: Path, lake: Lake, donated: Path) -> None:
    given = contents(donated)
    lake.take_over("t", donated, "copy 1")
    assert files_of(lake, "t") == given
    assert not lake.is_begun("t", "copy 1")
    kept = tmp_path / "kept"
    lake.back_up("t", "c", "a copy replaces its files", kept)
    store_of(lake.table("t")).replace("later", b"after the first attempt")
    lake.back_up("t", "c", "a copy replaces its files", kept)
    if isinstance(lake, DiskLake):
        (entry,) = Attic(kept).entries(Kind.BACKUP, "t")
        assert contents(entry.path) == given
        return
    (entry,) = lake.kept("t")
    content = f"{OF_LAKE}/{entry.id}/content"
    assert entry.kind is Kind.BACKUP and files_of(lake, content) == given
    assert not kept.exists(), "nothing is downloaded to be kept"


def test_a_replaced_table_and_its_rows_are_kept(
    tmp_path: Path, log: LogBuilder, lake: Lake, donated: Path
) -> None:
    log.staged("append", "t", [(1, "x")])
    log.publish()
    place(log, lake)
    before = files_of(lake, "t")
    drafts = Attic.of_lake(tmp_path / "lake")
    with drafts.draft("copy 1") as draft:
        draft.mkdir()
        (draft / "rows").write_bytes(b"of others")
        rows = lake.put_rows("t", draft, "copy 1", "written by others", {"rows": 1})
    kept = lake.keep("t", "copy 1", "unreadable", {"note": "?"})
    assert files_of(lake, "t") == before
    where = lake.set_aside("t", "copy 1", "replaced", Kind.TABLE, {"version": 1})
    assert not lake.has("t") and where.startswith(f"{lake.url}/_sparktxlog/attic/")
    lake.take_over("t", donated, "copy 1")
    found = lake.kept("t")
    assert [(one.kind, one.mark, one.why) for one in found] == [
        (Kind.ROWS, "copy 1", "written by others"),
        (Kind.TABLE, "copy 1", "unreadable"),
        (Kind.TABLE, "copy 1", "replaced"),
    ]
    assert [one.id for one in found[1:]] == ["table-t-copy 1", "table-t-copy 1-2"]
    assert found[0].facts == {"rows": 1} and found[0].place == rows.place
    assert found[2].place == where and lake.kept("other") == []
    attic = (
        store_of(lake.table("_sparktxlog")) if isinstance(lake, DiskLake) else lake.table(OF_LAKE)
    )
    root = "attic/" if isinstance(lake, DiskLake) else ""
    for entry in found[1:]:
        top = f"{root}{entry.id}/content/"
        assert {one.key.removeprefix(top) for one in attic.list(f"{root}{entry.id}/content")} == {
            *before
        }
    lake.forget(kept)
    assert [one.kind for one in lake.kept("t")] == [Kind.ROWS, Kind.TABLE]


def test_files_of_a_donor_are_added_and_damaged_ones_replaced(
    tmp_path: Path, log: LogBuilder, lake: Lake
) -> None:
    log.staged("append", "t", [(1, "x")])
    log.publish()
    place(log, lake)
    (path,) = live_files(lake.table("t")).sizes
    store = store_of(lake.table("t"))
    whole = store.read(path)
    store.replace(path, b"damaged")
    source = tmp_path / "source"
    source.mkdir()
    (source / "same").write_bytes(whole)
    (source / "new").write_bytes(b"another")
    for _ in range(2):
        lake.add_files("t", {path: source / "same", "p=1/new": source / "new"})
    assert (store.read(path), store.read("p=1/new")) == (whole, b"another")


# -- in a bucket -----------------------------------------------------------------------------------


@dataclass
class Holder:
    """Says whether the lock is held, and how often it was asked."""

    holds: bool = True
    asked: int = 0
    refusal: LockedError = field(default_factory=lambda: LockedError("lost"))

    def check(self) -> None:
        self.asked += 1
        if not self.holds:
            raise self.refusal


def in_bucket(tmp_path: Path, store: BucketStore, holder: Holder) -> tuple[LogBuilder, BucketLake]:
    lake, log = BucketLake(store, holder.check), LogBuilder(tmp_path)
    log.transaction().create(ORDERS)
    create_table(lake.table("t"), ORDERS, "{}", {"appId": "a", "version": 0})
    return log, lake


def test_staged_files_are_sent_once_and_never_read(tmp_path: Path, store: BucketStore) -> None:
    log, lake = in_bucket(tmp_path, store, Holder())
    for number in range(FILES):
        log.staged("append", "t", [(number, "x")])
    log.publish()
    before = store.counts.now()
    place(log, lake)
    after = store.counts.now()
    asked = {kind: after[kind].requests - before[kind].requests for kind in RequestKind}
    assert asked[RequestKind.GET] == 0 and asked[RequestKind.HEAD] == 0
    assert asked[RequestKind.PUT] == FILES + 1
    assert len(live_files(lake.table("t")).sizes) == FILES


def test_a_worker_that_was_overtaken_adds_nothing(tmp_path: Path, store: BucketStore) -> None:
    """It examined version 0; the other one made version 1 with the same files."""
    log, lake = in_bucket(tmp_path, store, Holder())
    log.staged("append", "t", [(1, "x")])
    log.publish()
    assert place(log, lake) == 1
    with pytest.raises(FileExistsError):
        place(log, lake)
    assert newest_version(lake.table("t"), 0) == 1


def test_nothing_is_written_without_the_lock(tmp_path: Path, store: BucketStore) -> None:
    holder = Holder()
    log, lake = in_bucket(tmp_path, store, holder)
    log.staged("append", "t", [(1, "x")])
    log.publish()
    holder.holds, before = False, [*store.list()]
    with pytest.raises(LockedError, match="lost"):
        place(log, lake)
    with pytest.raises(LockedError, match="lost"):
        lake.set_aside("t", "7", "why")
    assert [*store.list()] == before
    reading = lake_at_store(store)
    with pytest.raises(LockedError, match="only reads"):
        reading.table("t").create("x", b"")


def lake_at_store(store: BucketStore) -> BucketLake:
    """Return the lake as a process that only reads has it."""
    made = lake_at(store.url)
    assert isinstance(made, BucketLake)
    made.store = store
    return made


def test_an_object_in_the_way_of_a_file_is_named(tmp_path: Path, store: BucketStore) -> None:
    log, lake = in_bucket(tmp_path, store, Holder())
    log.staged("append", "t", [(1, "x")])
    log.publish()
    place(log, lake)
    (path,) = live_files(lake.table("t")).sizes
    lake.table("t").replace(path, b"of somebody else")
    with pytest.raises(ApplyError, match="is not the file") as caught:
        place(log, lake, 1)
    assert caught.value.definite and path in str(caught.value)


@pytest.mark.parametrize("done", [0, 1, 2])
def test_a_drop_that_is_broken_off_goes_on(
    tmp_path: Path, seaweedfs: StoreServer, store: BucketStore, done: int
) -> None:
    """While its log is there, the table is; what is in the attic already is not copied again."""
    log, _ = in_bucket(tmp_path, store, Holder())
    left = [done]

    def may_write() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise LockedError("killed here")

    with pytest.raises(LockedError, match="killed here"):
        BucketLake(store, may_write).set_aside("t", "7", "why")
    lake = BucketLake(store, lambda: None)
    if lake.has("t"):
        lake.set_aside("t", "7", "why")
    assert not lake.has("t")
    kept = {one.key.removeprefix(f"{attic_key('t', '7')}/") for one in store.list("_sparktxlog")}
    assert "_delta_log/00000000000000000000.json" in kept
    assert log.tables


class RemovingStore(BucketStore):
    """Notes what is removed; after the first request somebody else has the lock."""

    def __init__(self, store: BucketStore, holder: Holder) -> None:
        super().__init__(store._client, store.url)
        self.holder, self.removed = holder, list[str]()

    def remove(self, keys: Iterable[str]) -> None:
        gone = [*keys]
        super().remove(gone)
        self.removed += gone
        self.holder.holds = False


@pytest.mark.parametrize("at_once", [1, 1000])
def test_a_removal_asks_for_the_lock_before_each_request(
    tmp_path: Path, store: BucketStore, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Objects of a new table of that name may be there when the next request is sent."""
    holder = Holder()
    removing = RemovingStore(store, holder)
    log, lake = in_bucket(tmp_path, removing, holder)
    lake.table("t").replace("_delta_log/_last_checkpoint", b"{}")
    log.staged("append", "t", [(1, "x"), (2, "y")])
    log.publish()
    place(log, lake)
    data = live_files(lake.table("t")).sizes
    monkeypatch.setattr("sparktxlog.files.stores.part._REMOVED_AT_ONCE", at_once)
    with pytest.raises(LockedError, match="lost"):
        lake.set_aside("t", "7", "why")
    assert {key.removeprefix("t/") for key in removing.removed} <= set(data)
    assert len(removing.removed) == min(at_once, len(data)) and lake.has("t")
    taken = BucketLake(store, lambda: None)
    taken.set_aside("t", "7", "why")
    assert not taken.has("t")


class KilledAtAWrite:
    """Lets some writes happen, and ends the process then."""

    def __init__(self, writes: int) -> None:
        self.left = writes

    def __call__(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise LockedError("killed here")


def test_a_table_that_is_replaced_goes_on_after_each_kill(
    tmp_path: Path, store: BucketStore, donated: Path
) -> None:
    """One write more each time: the old table is whole in the attic, the new one in its place."""
    given, kills = contents(donated), 0
    log, lake = in_bucket(tmp_path, store, Holder())
    log.staged("append", "t", [(1, "x")])
    log.publish()
    place(log, lake)
    before = files_of(lake, "t")

    def replaced(one: BucketLake) -> None:
        if not one.is_begun("t", "c"):
            if one.has("t") and not files_of(one, "t").items() >= given.items():
                one.set_aside("t", "c", "replaced", Kind.TABLE)
            one.take_over("t", donated, "c")
        else:
            one.take_over("t", donated, "c")

    for writes in range(60):
        try:
            replaced(BucketLake(store, KilledAtAWrite(writes)))
            break
        except LockedError:
            kills += 1
    assert 5 < kills < 60
    assert files_of(lake, "t") == given and not lake.is_begun("t", "c")
    (kept,) = lake.kept("t")
    part = PartOfStore(store, f"{OF_LAKE}/{kept.id}")
    assert {one.key.removeprefix("content/") for one in part.list("content")} == {*before}
    assert not [one for one in part.list() if one.key == "moving"]


def test_a_table_that_came_after_a_broken_move_is_kept_as_well(
    tmp_path: Path, store: BucketStore, donated: Path
) -> None:
    """Everything was moved, and the process ended before it noted that."""
    _, lake = in_bucket(tmp_path, store, Holder())
    before = files_of(lake, "t")
    lake.set_aside("t", "c", "replaced", Kind.TABLE)
    lake.table(f"{OF_LAKE}/table-t-c").replace("moving", b"")
    given = contents(donated)
    lake.take_over("t", donated, "c")
    lake.set_aside("t", "c", "replaced again", Kind.TABLE)
    found = [PartOfStore(store, f"{OF_LAKE}/{one.id}") for one in lake.kept("t")]
    kept = [{one.key.removeprefix("content/") for one in part.list("content")} for part in found]
    assert kept == [{*before}, {*given}]


def test_a_table_that_is_whole_is_begun_no_more(
    store: BucketStore, donated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ended before it removed its mark: what others wrote since is rows of theirs."""
    lake, remove = BucketLake(store, lambda: None), BucketStore.remove

    def killed(part: BucketStore, keys: list[str]) -> None:
        if keys == ["_sparktxlog/placing/t"]:
            raise LockedError("killed here")
        remove(part, keys)

    monkeypatch.setattr(BucketStore, "remove", killed)
    with pytest.raises(LockedError):
        lake.take_over("t", donated, "c")
    assert files_of(lake, "t") == contents(donated) and not lake.is_begun("t", "c")
    newest = max(key for key in contents(donated) if key.endswith(".json"))
    lake.table("t").replace(newest, b"of another donor")
    assert lake.is_begun("t", "c")


def test_what_another_donor_left_goes_before_the_table_is_there(
    tmp_path: Path, store: BucketStore, donated: Path
) -> None:
    lake, given = BucketLake(store, lambda: None), contents(donated)
    other = tmp_path / "other"
    lake.take_over("t", donated, "c")
    shutil.copytree(donated, other)
    (other / "_delta_log" / f"{1:020}.json").write_bytes(b"{}")
    (other / "_delta_log" / f"{2:020}.json").write_bytes(b"{}")
    (other / "more").write_bytes(b"more")
    killed = BucketLake(store, KilledAtAWrite(7))
    with pytest.raises(LockedError):
        killed.take_over("t", other, "c")
    assert lake.is_begun("t", "c") and not lake.is_begun("t", "d")
    lake.take_over("t", donated, "c")
    assert files_of(lake, "t") == given


def test_own_objects_are_brought_where_a_copy_looks(
    tmp_path: Path, store: BucketStore, donated: Path
) -> None:
    lake, given = BucketLake(store, lambda: None), contents(donated)
    lake.take_over("t", donated, "c")
    wanted = {path: len(content) for path, content in given.items()}
    (first, second, *_) = wanted
    wanted[first] += 1
    staged = tmp_path / "staged"
    (staged / second).parent.mkdir(parents=True)
    (staged / second).write_bytes(b"is there")
    assert lake.bring_own("t", wanted | {"elsewhere": 5}, staged)
    del given[first]
    assert contents(staged) == given | {second: b"is there"}
    assert not lake.bring_own("t", {"elsewhere": 5}, staged)


def test_lost_answers_replace_a_table_once(
    tmp_path: Path, seaweedfs: StoreServer, store: BucketStore, donated: Path
) -> None:
    """Every third answer is lost after the store took the request."""
    given, asked = contents(donated), count()

    def choose(method: str) -> Fault:
        return Fault.LOST if method != "GET" and next(asked) % 3 == 0 else Fault.NONE

    log, lake = in_bucket(tmp_path, store, Holder())
    log.staged("append", "t", [(1, "x")])
    log.publish()
    place(log, lake)
    before = files_of(lake, "t")
    prefix = store.url.removeprefix(f"s3://{BUCKET}/")
    with faulty_way(seaweedfs.endpoint, choose) as way:
        far = BucketLake(seaweedfs.store(prefix, endpoint=way.url), lambda: None)
        far.set_aside("t", "c", "replaced", Kind.TABLE)
        far.take_over("t", donated, "c")
        assert way.happened[Fault.LOST] > 5
    assert files_of(lake, "t") == given
    (kept,) = lake.kept("t")
    part = PartOfStore(store, f"{OF_LAKE}/{kept.id}/content")
    assert {one.key for one in part.list()} == {*before}
