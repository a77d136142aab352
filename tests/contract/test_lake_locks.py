"""Who may write a lake in a bucket, and its state: as workers on several machines see it."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import msgspec
import pytest
from tests.support.faulty_way import Fault, faulty_way
from tests.support.node_processes import wait_until
from tests.support.store_servers import BUCKET, StoreServer
from tests.support.worker_log import table

from sparktxlog.delta.log_files import store_of
from sparktxlog.errors import (
    CorruptLogError,
    InvalidRequestError,
    LockedError,
    StorageError,
    StoreUnavailableError,
)
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.object_pins import ObjectPins
from sparktxlog.worker.apply.tables import create_table
from sparktxlog.worker.lakes import lake_lease, lake_places
from sparktxlog.worker.lakes.disk_lake import DiskLake
from sparktxlog.worker.lakes.lake_lease import LakeLease
from sparktxlog.worker.lakes.lake_places import (
    is_in_bucket,
    lake_at,
    lock_store_at,
)
from sparktxlog.worker.replica.bucket_replica import (
    STATE,
    BucketReplica,
    open_replica,
    place_of_locks,
)
from sparktxlog.worker.replica.source import NodeInfo
from sparktxlog.worker.replica.state import ReplicaDirectory, ReplicaTable, read_state
from sparktxlog.worker.tables import bucket_row_upkeep
from sparktxlog.worker.tables.bucket_row_upkeep import maintain_bucket
from sparktxlog.worker.tables.table_upkeep import Upkeep

ORDERS = table("t", "id bigint, p string", partition_by=["p"])


@pytest.fixture
def store(seaweedfs: StoreServer) -> BucketStore:
    return seaweedfs.store(f"lakes/{os.urandom(8).hex()}")


# -- the lock --------------------------------------------------------------------------------------


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def lease(store: BucketStore, holder: str, clock: Clock, **times: float) -> LakeLease:
    return LakeLease(store, "lock", holder, clock=clock, **times)


def test_one_holds_the_lock_until_it_is_released(store: BucketStore) -> None:
    clock = Clock()
    first, second = lease(store, "one", clock), lease(store, "two", clock)
    first.take()
    first.check()
    with pytest.raises(LockedError, match="owned by another worker") as caught:
        second.take()
    assert caught.value.definite and caught.value.fields["pid"] == os.getpid()
    first.release()
    first.release()
    second.take()
    second.check()
    assert second.fence == first.fence + 1
    second.release()


def test_a_worker_that_comes_back_takes_its_own_lock_over(store: BucketStore) -> None:
    clock = Clock()
    killed, back = lease(store, "one", clock), lease(store, "one", clock)
    killed.take()
    back.take()
    assert back.fence == killed.fence + 1
    back.check()
    killed._ended.set()  # it was killed: nothing of it runs any more
    back.release()


def test_the_lock_of_a_killed_worker_expires(store: BucketStore) -> None:
    clock = Clock()
    killed, other = lease(store, "one", clock), lease(store, "two", clock, expiry_s=0.5)
    killed.take()
    killed._ended.set()
    content = store.find("lock")
    assert content is not None
    wait_until(lambda: _now_of(store) > content.changed_s + 2)
    other.take()
    assert other.fence == killed.fence + 1
    with pytest.raises(LockedError, match="taken over"):
        overtaken = lease(store, "one", clock)
        overtaken._mark, overtaken._lost = killed._mark, killed._taken_by()
        overtaken.check()
    other.release()


def _now_of(store: BucketStore) -> float:
    store.replace("now", b"")
    found = store.find("now")
    assert found is not None
    return found.changed_s


def test_a_holder_learns_that_it_was_overtaken(store: BucketStore) -> None:
    clock = Clock()
    first = lease(store, "one", clock, renew_s=0.05)
    first.take()
    second = lease(store, "one", clock)
    second.take()
    assert first._renewing is not None
    first._renewing.join(20)
    with pytest.raises(LockedError, match=f"with number {second.fence}"):
        first.check()
    first.release()
    second.check()
    second.release()


def test_a_lock_expires_while_its_machine_is_suspended(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = [0.0]

    def read(clock: int) -> float:
        return 1000.0 + (slept[0] if clock == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr("time.clock_gettime", read)
    held = LakeLease(store, "lock", "one", renew_s=1000.0)
    held.take()
    held.check()
    slept[0] = 3600.0
    with pytest.raises(StoreUnavailableError, match="not renewed"):
        held.check()
    held._ended.set()


class LosingStore(BucketStore):
    """Carries an exchange out, and then nobody can say so: once, whenever it is asked to."""

    loses = False

    def exchange(self, key: str, content: bytes, mark: str) -> str | None:
        made = super().exchange(key, content, mark)
        if self.loses:
            self.loses = False
            raise StoreUnavailableError("the answer was lost")
        return made


def test_a_holder_whose_answer_was_lost_still_holds_the_lock(store: BucketStore) -> None:
    """The next exchange finds a mark that it does not know, and its own number."""
    losing = LosingStore(store._client, store.url)
    held = lease(losing, "one", Clock(), renew_s=0.05)
    held.take()
    for _ in range(2):
        losing.loses = True
        wait_until(lambda: not losing.loses)
        beats = held._said.beat
        wait_until(lambda beats=beats: held._said.beat > beats + 2 or bool(held._lost))
        held.check()
    with pytest.raises(LockedError, match="owned by another worker"):
        lease(store, "two", Clock()).take()
    held.release()


def test_a_lock_whose_release_follows_a_lost_answer_is_free(store: BucketStore) -> None:
    losing = LosingStore(store._client, store.url)
    held = lease(losing, "one", Clock(), renew_s=0.05)
    held.take()
    losing.loses = True
    wait_until(lambda: not losing.loses)
    held.release()
    other = lease(store, "two", Clock())
    other.take()
    other.release()


def test_a_lock_that_is_not_renewed_in_time_is_not_used(store: BucketStore) -> None:
    clock = Clock()
    held = lease(store, "one", clock, expiry_s=60.0, margin_s=20.0, renew_s=1000.0)
    held.take()
    clock.now += 39
    held.check()
    clock.now += 2
    with pytest.raises(StoreUnavailableError, match="not renewed for 40 s"):
        held.check()
    held.release()


def test_an_exchange_that_hangs_ends_before_the_lock_does(
    tmp_path: Path, reached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes a connection and never answers costs one renewal, not the lock."""
    monkeypatch.setattr("sparktxlog.worker.lakes.lake_places._ANSWER_OF_LOCK_S", 1.0)
    with closing(BucketReplica(reached, tmp_path / "here")) as replica:
        assert replica._lease._store is not replica._store
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        store, began = lock_store_at(reached), monotonic()
        with pytest.raises(StoreUnavailableError, match="no answer in time"):
            store.exchange("lock", b"", "mark")
    # The request, and the look whether it was carried out.
    assert monotonic() - began < 2 * (1.0 + lake_places._PATIENCE_OF_LOCK_S)
    each = lake_places._ANSWER_OF_LOCK_S + lake_places._PATIENCE_OF_LOCK_S
    assert lake_lease.RENEW_S + 2 * each < lake_lease.EXPIRY_S - lake_lease.MARGIN_S


def test_a_renewal_that_fails_in_an_unforeseen_way_is_tried_again(
    store: BucketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, failed, renewed = Clock(), threading.Event(), threading.Event()
    held = lease(store, "one", clock, renew_s=0.01)
    held.take()
    exchange = store.exchange

    def unforeseen(key: str, content: bytes, mark: str) -> str | None:
        failed.set()
        raise ValueError("no such thing was foreseen")

    def as_ever(key: str, content: bytes, mark: str) -> str | None:
        made = exchange(key, content, mark)
        renewed.set()
        return made

    monkeypatch.setattr(store, "exchange", unforeseen)
    assert failed.wait(20)
    clock.now += lake_lease.EXPIRY_S
    with pytest.raises(StoreUnavailableError, match="no such thing was foreseen"):
        held.check()
    monkeypatch.setattr(store, "exchange", as_ever)
    assert renewed.wait(20)
    held.release()


def test_an_object_that_is_no_lock_is_named(store: BucketStore) -> None:
    store.create("lock", b"{")
    with pytest.raises(CorruptLogError, match="cannot be read"):
        lease(store, "one", Clock()).take()


# -- the state -------------------------------------------------------------------------------------


@pytest.fixture
def reached(seaweedfs: StoreServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL of a lake, which the environment says how to reach."""
    for name, value in seaweedfs.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/lakes/{os.urandom(8).hex()}"


def test_a_state_is_kept_from_worker_to_worker(reached: str, tmp_path: Path) -> None:
    assert read_state(reached) is None
    with closing(open_replica(reached, tmp_path / "here")) as replica:
        assert isinstance(replica, BucketReplica) and replica.place.url == reached
        fresh = replica.load()
        replica.save(replace(fresh, position=7, log_id="l"))
        with pytest.raises(LockedError, match="owned by another worker"):
            open_replica(reached, tmp_path / "here")
        with pytest.raises(LockedError, match="owned by another worker"):
            open_replica(reached, tmp_path / "another machine")
    found = read_state(reached)
    assert found is not None and (found.position, found.worker_id) == (7, fresh.worker_id)
    with closing(open_replica(reached, tmp_path / "another machine")) as replica:
        assert replica.load() == found


def test_maintain_has_the_lock_while_it_removes_and_is_refused_else(
    reached: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = bucket_row_upkeep.earlier_clock
    in_two_weeks = 14 * 24 * 3_600
    monkeypatch.setattr(
        bucket_row_upkeep, "earlier_clock", lambda store, key: clock(store, key) + in_two_weeks
    )
    here, wanted = tmp_path / "here", Upkeep(wait_s=0.0)
    with pytest.raises(InvalidRequestError, match="is not on this machine"):
        maintain_bucket(reached, here, wanted)
    with closing(BucketReplica(reached, here)) as replica:
        replica.load()
        table = replica.place.table("t")
        create_table(table, ORDERS, "{}", {"appId": "a", "version": 0})
        table.replace("attempt.parquet", b"of an attempt that failed")
        tables = {"t": ReplicaTable(definition=ORDERS, version=0)}
        replica.save(replace(replica.load(), position=9, tables=tables))
        # A worker makes its directory, also on a machine of its own.
        with pytest.raises(InvalidRequestError, match="is not on this machine"):
            maintain_bucket(reached, here, wanted)
        assert table.find("attempt.parquet") is not None
        ObjectPins(replica.place.store, here).release_others()  # the node starts
        (refused,) = maintain_bucket(reached, here, wanted)
        assert "VACUUM, for the replica in" in refused.skipped and not refused.vacuumed
        assert "stop it, run maintain, and start it again" in refused.skipped
        assert table.find("attempt.parquet") is not None
    (dry,) = maintain_bucket(reached, here, replace(wanted, dry_run=True))
    assert "would remove 1 objects" in dry.skipped
    (done,) = maintain_bucket(reached, here, wanted)
    assert (done.vacuumed_files, done.vacuumed) == (1, "full")
    store = lake_at(reached).table("t")
    assert [one.key for one in store_of(store).list()] == ["_delta_log/00000000000000000000.json"]
    with closing(BucketReplica(reached, here)) as replica:
        assert replica.load().position == 9


def test_the_state_refuses_a_worker_that_was_overtaken(reached: str, tmp_path: Path) -> None:
    """Even if the worker does not know yet that it lost the lock."""
    first = BucketReplica(reached, tmp_path / "here")
    state = first.load()
    first.save(replace(state, position=1))
    first._lock.release()  # its machine is cut off; another one has the same name by mistake
    (tmp_path / "there" / "_sparktxlog").mkdir(parents=True)
    name = (tmp_path / "here" / "_sparktxlog" / "holder").read_bytes()
    (tmp_path / "there" / "_sparktxlog" / "holder").write_bytes(name)
    second = BucketReplica(reached, tmp_path / "there")
    assert second.load().position == 1
    second.save(replace(state, position=2))
    with pytest.raises(LockedError, match="another worker"):
        first.save(replace(state, position=1, epoch=9))
    second.save(replace(state, position=3))
    found = read_state(reached)
    assert found is not None and found.position == 3
    for replica in (first, second):
        replica.close()


def test_a_state_whose_answer_is_lost_is_saved(
    seaweedfs: StoreServer, reached: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [False]

    def lose(method: str) -> Fault:
        if method != "PUT" or not left[0]:
            return Fault.NONE
        left[0] = False
        return Fault.LOST

    with faulty_way(seaweedfs.endpoint, lose) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)
        with closing(BucketReplica(reached, tmp_path / "here")) as replica:
            state = replica.load()
            for position in range(1, 4):
                left[0] = True
                replica.save(replace(state, position=position))
                found = read_state(reached)
                assert found is not None and found.position == position


def test_a_state_that_is_damaged_is_named(
    reached: str, tmp_path: Path, seaweedfs: StoreServer
) -> None:
    store = seaweedfs.store(reached.removeprefix(f"s3://{BUCKET}/"))
    with closing(BucketReplica(reached, tmp_path / "here")) as replica:
        replica.load()
    content = msgspec.json.decode(store.read(STATE), type=dict)
    assert content["fence"] == 1
    store.replace(STATE, b"{")
    with pytest.raises(CorruptLogError, match=r"state\.json"):
        read_state(reached)
    damaged = pytest.raises(CorruptLogError, match=r"state\.json")
    with closing(BucketReplica(reached, tmp_path / "here")) as replica, damaged:
        replica.load()


def test_a_lake_is_in_a_bucket_if_its_url_is(tmp_path: Path) -> None:
    url = "s3://bucket/lake"
    assert is_in_bucket(url) and not is_in_bucket(str(tmp_path)) and not is_in_bucket(tmp_path)
    with closing(open_replica(tmp_path / "lake", tmp_path)) as replica:
        assert isinstance(replica, ReplicaDirectory)
        assert isinstance(replica.place, DiskLake)


def test_a_worker_on_another_machine_names_a_directory_for_its_locks(
    store: BucketStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = NodeInfo(
        node_id="A", log_id="l", payload_root="/p", lake_root="/of the node", signature_interval=1
    )
    other = place_of_locks(info, store.url)
    assert other.is_relative_to("/of the node/_sparktxlog/lakes"), "the main one's are in lake-dir"
    main = replace(info, lake_url=store.url)
    assert place_of_locks(main, store.url) == Path("/of the node")
    assert other == place_of_locks(replace(info, lake_url=f"{store.url}/main"), f"{store.url}/")
    monkeypatch.setenv("SPARKTXLOG_WORK_DIR", str(tmp_path / "said"))
    assert place_of_locks(info, store.url) == tmp_path / "said"
    assert place_of_locks(info, store.url, str(tmp_path / "given")) == tmp_path / "given"
    assert place_of_locks(info, "/lake") == tmp_path / "said", "nobody looks at it"
    with pytest.raises(InvalidRequestError, match="is the directory /lake"):
        place_of_locks(info, "/lake", str(tmp_path / "given"))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError) as caught:
        open_replica(store.url, tmp_path / "file" / "below")
    assert "--work-dir" in caught.value.hint
    assert not list(store.list())
