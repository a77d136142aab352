"""A replica in a bucket: its state is replaced only by who read it last, under the lake's lock.

    <lake>/_sparktxlog/lock        who may write (`worker.lakes.lake_lease`)
    <lake>/_sparktxlog/state.json  as on a disk, with the number of the lock that wrote it

A directory of the machine has the locks of this process and of its JVM, as for a lake on a disk.
So a worker that comes back knows that the former one of that directory is gone, and takes the lake
over at once; one on another machine waits until the lock expires.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sparktxlog.errors import (
    InvalidRequestError,
    LockedError,
    ObjectMissingError,
    StorageError,
)
from sparktxlog.files.durability import storing, write_durably
from sparktxlog.files.stores.proof import prove
from sparktxlog.files.stores.store import Created
from sparktxlog.storage.lock import DirectoryLock
from sparktxlog.worker.lakes.bucket_lake import OWN, BucketLake
from sparktxlog.worker.lakes.lake_lease import LakeLease
from sparktxlog.worker.lakes.lake_places import bucket_at, is_in_bucket, lock_store_at
from sparktxlog.worker.replica.source import NodeInfo
from sparktxlog.worker.replica.state import (
    RESTORING,
    STATE_DIRECTORY,
    ReplicaDirectory,
    ReplicaHome,
    ReplicaState,
    broken_off,
    decoded_state,
    lock_of_worker,
    new_worker,
)

STATE, LOCK = f"{OWN}/state.json", f"{OWN}/lock"
#: Where a worker has its locks, if not below the node's lake-dir.
WORK_DIR_VARIABLE = "SPARKTXLOG_WORK_DIR"
#: There while an image is restored.
MARKER = f"{OWN}/{RESTORING}"
#: A worker waits for the proof of a bucket that is new to it.
_PROOF: dict[str, Any] = {"racers": 4, "races": 1}


class _Fenced(msgspec.Struct):
    #: Number of the lock under which the state was written.
    fence: int = 0


class BucketReplica:
    """The lake of a replica in a bucket, which this process alone writes while it is open.

    Args:
        url: Of the lake.
        here: Directory of this machine for locks and what is of no use to others; made if missing.

    Raises:
        ConfigError: The URL names no bucket (definite).
        LockedError: Another worker owns the replica (definite).
        LyingStoreError: The bucket is new to the lake, and does not keep its promises (definite).
        StorageError: As `Store`.
    """

    def __init__(self, url: str, here: str | Path) -> None:
        store = bucket_at(url)
        self.disk = Path(here).absolute()
        self.own = self.disk / STATE_DIRECTORY
        self._lock = _lock_of(self.own, store.url)
        self._releases: list[Callable[[], None]] = []
        #: Mark of the state; empty = there is none yet.
        self._mark = ""
        try:
            if store.find(LOCK) is None:
                prove(store, **_PROOF)
            self._lease = LakeLease(lock_store_at(url), LOCK, _name_of(self.own))
            self._lease.take()
        except BaseException:
            self._lock.release()
            raise
        self._store = store
        self.place = BucketLake(store, self._lease.check)

    def load(self) -> ReplicaState:
        """Read the state; a fresh replica gets an id and stands at position 0.

        It is written again with this worker's number, so that a worker that was overtaken can no
        longer replace it.

        Raises:
            CorruptLogError: It cannot be read, or a restore here was not finished (definite).
            LockedError: Another worker has the lake by now (definite).
        """
        if self._store.find(MARKER) is not None:
            raise broken_off(self._store.url, self._store.url_of(MARKER))
        found = self._read()
        state = ReplicaState(worker_id=new_worker()) if found is None else decoded_state(*found)
        self.save(state)
        return state

    def save(self, state: ReplicaState) -> None:
        """Replace the state durably, unless another worker did.

        Raises:
            LockedError: Another worker has the lake by now; the state is its (definite).
            StorageError: As `Store`; it is one of both.
        """
        self._lease.check()
        said = msgspec.to_builtins(state) | {"fence": self._lease.fence}
        content = msgspec.json.encode(said)
        for _ in range(2):
            if not self._mark and self._store.create(STATE, content) is not Created.OTHER:
                self._note(content)
                return
            mark = self._store.exchange(STATE, content, self._mark) if self._mark else None
            if mark is not None:
                self._mark = mark
                return
            # An attempt whose outcome was unknown may have written it: only we have our number.
            there = self._read()
            if there is None or _fence_of(there[0]) != self._lease.fence:
                break
        raise LockedError(
            f"the state of {self._store.url} was replaced by another worker",
            hint="One worker writes a replica; the other one goes on.",
            path=self._store.url_of(STATE),
        )

    def _note(self, content: bytes) -> None:
        found = self._read()
        if found is not None and found[0] != content:
            self._mark = ""

    def _read(self) -> tuple[bytes, str] | None:
        """Return the state's bytes and where they are, and note their mark."""
        try:
            content = self._store.open(STATE)
        except ObjectMissingError:
            self._mark = ""
            return None
        self._mark = content.found.mark
        return b"".join(content.pieces), self._store.url_of(STATE)

    def check_owner(self) -> None:
        """As `ReplicaHome.check_owner`."""
        self._lease.check_owner()

    def on_close(self, release: Callable[[], None]) -> None:
        """Call `release` in `close`, before the replica's lock is released."""
        self._releases.append(release)

    def close(self) -> None:
        """Release the replica."""
        while self._releases:
            self._releases.pop()()
        self._lease.release()
        self._lock.release()


def place_of_locks(info: NodeInfo, lake: str, given: str | None = None) -> Path:
    """Return where a worker of this machine has its locks, and what is of no use to others.

    Args:
        given: What its option says; None = what the environment says, else the node.

    Raises:
        InvalidRequestError: The lake is a directory, which has the locks itself (definite).
    """
    if given is not None and not is_in_bucket(lake):
        raise InvalidRequestError(
            f"--work-dir is for lakes in a bucket, and this one is the directory {lake}",
            hint="Leave it out: the locks are in the lake.",
            value=given,
        )
    return Path(given or os.environ.get(WORK_DIR_VARIABLE) or info.disk_of(lake)).absolute()


def open_replica(lake: str | Path, here: str | Path) -> ReplicaHome:
    """Open the replica of a lake, in a directory or a bucket, for this process alone.

    Args:
        here: As in `BucketReplica`.

    Raises:
        LockedError: Another worker owns the replica (definite).
        TxLogError: As `ReplicaDirectory`, `BucketReplica`.
    """
    return BucketReplica(str(lake), here) if is_in_bucket(lake) else ReplicaDirectory(lake)


def _lock_of(own: Path, url: str) -> DirectoryLock:
    try:
        return lock_of_worker(own, url)
    except LockedError:
        raise
    except StorageError as error:
        raise type(error)(
            error.message,
            hint=f"Name a directory of this machine with --work-dir or {WORK_DIR_VARIABLE}: the "
            "node's own is not here, perhaps.  Nothing was applied.",
            **error.fields,
        ) from error


def _fence_of(content: bytes) -> int:
    try:
        return msgspec.json.decode(content, type=_Fenced).fence
    except msgspec.MsgspecError:
        return 0


def _name_of(own: Path) -> str:
    """Return what names this directory's worker to others; one process has it at a time."""
    path = own / "holder"
    with storing(path):
        if not path.exists():
            write_durably(path, uuid.uuid4().hex.encode())
        return path.read_text().strip()
