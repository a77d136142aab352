"""Own files before a run gets its stamp: looked at, fetched again, or the run is rejected (P1a)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from tests.unit.runtime.commit.test_run_fetching import CONTENT, FILE, Origin, staged_run

from sparktxlog.codec.containers.payload import digest_of
from sparktxlog.errors import (
    BucketMissingError,
    DiskFullError,
    StorageError,
    StoreForbiddenError,
    StoreNotReadyError,
    StoreUnavailableError,
    StuckFilesError,
)
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.protocol.messages.events import Event, FilesHeld, FilesLost
from sparktxlog.runtime.commit.damage import Damage
from sparktxlog.runtime.commit.file_repair import FileRepair
from sparktxlog.runtime.commit.holdings import Holdings
from sparktxlog.runtime.commit.run_fetching import RunFetcher
from sparktxlog.runtime.loop_threads import FileThreads
from sparktxlog.storage.payloads.local_store import LocalPayloadStore
from sparktxlog.supervision import Supervisor

RUN = staged_run()
T = TypeVar("T")


def look(
    store: LocalPayloadStore, links: Mapping[str, object], *, before: int = 0
) -> tuple[Event, Damage]:
    """Let a node look at the files of its unstamped run; return what the core is told.

    Args:
        before: So often it looks before, and tells nothing.
    """

    async def use(files: FileRepair, told: asyncio.Queue[Event]) -> Event:
        for _ in range(before):
            files.check_unstamped(digest_of(RUN))
            await asyncio.gather(*files._tasks._tasks.values())
            assert told.empty()
        files.check_unstamped(digest_of(RUN))
        return await asyncio.wait_for(told.get(), 30)

    return with_repair(store, links, use)


def with_repair(
    store: LocalPayloadStore,
    links: Mapping[str, object],
    use: Callable[[FileRepair, asyncio.Queue[Event]], Awaitable[T]],
) -> tuple[T, Damage]:
    """Use the repair of a node that has an unstamped run; what the core is told is in the queue."""

    async def main() -> tuple[T, Damage]:
        told: asyncio.Queue[Event] = asyncio.Queue()
        base: Any = SimpleNamespace(
            links=links,
            sources=lambda: list(links.values()),
            payloads=store,
            run_blocking=lambda work, *args: asyncio.ensure_future(asyncio.to_thread(work, *args)),
            run_on_files=FileThreads(2, "files").run,
            fetchers=FileThreads(2, "fetching"),
            supervisor=Supervisor(),
        )
        holdings = Holdings(foreign_limit_bytes=1 << 20, cache_limit_bytes=1 << 20)
        holdings.cache(digest_of(RUN), RUN)
        core: Any = SimpleNamespace(
            cycle=SimpleNamespace(tell_always=told.put_nowait), holdings=holdings
        )
        damage, nobody = Damage(), Any
        listener: Any = nobody
        fetcher = RunFetcher(base, holdings, listener, damage)
        files = FileRepair(base, core, fetcher, damage)
        try:
            return await use(files, told), damage
        finally:
            await files.close()
            await fetcher.close()

    return asyncio.run(main())


def put(store: LocalPayloadStore, content: bytes) -> None:
    path = Path(store.path(FILE.path))
    path.parent.mkdir(parents=True)
    path.write_bytes(content)


def peer(name: str, *, up: bool = True, holds: bool = True) -> Origin:
    found = Origin(RUN)
    vars(found).update(node_id=name, up=up, reason="silent")
    if not holds:
        vars(found)["stream"] = lambda file, offset, source: iter([bytes(len(CONTENT))])
    return found


def test_what_is_whole_is_stamped(tmp_path: Path) -> None:
    store = LocalPayloadStore(tmp_path)
    put(store, CONTENT)
    assert look(store, {})[0] == FilesHeld(digest=digest_of(RUN))


@pytest.mark.parametrize("content", [b"", CONTENT[:-1] + b"?", None])
def test_what_is_damaged_is_fetched_from_a_peer(tmp_path: Path, content: bytes | None) -> None:
    store = LocalPayloadStore(tmp_path)
    if content is not None:
        put(store, content)
    links = {"B": peer("B", up=False), "C": peer("C", holds=False), "D": peer("D")}
    told, damage = look(store, links)
    assert told == FilesHeld(digest=digest_of(RUN)) and not damage.files()
    store.verify(FILE)


def test_what_nobody_has_is_rejected_and_told(tmp_path: Path) -> None:
    store = LocalPayloadStore(tmp_path)
    told, damage = look(store, {"B": peer("B", up=False), "C": peer("C", holds=False)})
    assert isinstance(told, FilesLost) and told.digest == digest_of(RUN)
    assert "lost before the transaction was ordered" in told.text
    assert "not linked: silent" in told.text and "has the digest" in told.text
    assert damage.files() == [], "its transaction is rejected: nobody wants the file"


@pytest.mark.parametrize(
    "away",
    [
        BucketMissingError,
        DiskFullError,
        StoreForbiddenError,
        StoreNotReadyError,
        StoreUnavailableError,
        StuckFilesError,
    ],
)
def test_a_store_that_is_full_or_away_says_nothing_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: type[StorageError]
) -> None:
    """Its run is not rejected, and one that may become void is not reported as lost."""
    store, verify = LocalPayloadStore(tmp_path), LocalPayloadStore.verify
    put(store, CONTENT)
    fails = iter([True, False])

    def verify_later(self: LocalPayloadStore, file: StagedFile) -> None:
        if next(fails):
            raise away("not now")
        verify(self, file)

    monkeypatch.setattr(LocalPayloadStore, "verify", verify_later)
    told, damage = look(store, {"C": peer("C", holds=False)}, before=1)
    assert told == FilesHeld(digest=digest_of(RUN)) and not damage.files()


def test_a_stamped_run_is_not_lost_while_its_store_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two sites with buckets of one provider make it void, although it was acknowledged."""
    store, verify = LocalPayloadStore(tmp_path), LocalPayloadStore.verify
    put(store, CONTENT)
    fails = iter([True, False])

    def verify_later(self: LocalPayloadStore, file: StagedFile) -> None:
        if next(fails):
            raise StoreUnavailableError("not now")
        verify(self, file)

    monkeypatch.setattr(LocalPayloadStore, "verify", verify_later)
    header: Any = SimpleNamespace(digest=digest_of(RUN), origin="A", incarnation=1, seq=1)

    async def use(files: FileRepair, told: asyncio.Queue[Event]) -> Event:
        async def payload(_: object) -> bytes:
            return RUN

        monkeypatch.setattr(files, "run_payload", payload)
        for _ in range(2):
            files.check_run(header)
            await asyncio.gather(*files._tasks._tasks.values())
        return told.get_nowait()

    assert with_repair(store, {}, use)[0] == FilesHeld(digest=digest_of(RUN))


@pytest.mark.parametrize("names", ["", "C"])
def test_files_of_a_commit_are_read_once_before_a_peer_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    store, verify = LocalPayloadStore(tmp_path), LocalPayloadStore.verify
    put(store, CONTENT[:-1] + b"?")
    read: list[str] = []

    def counted(self: LocalPayloadStore, file: StagedFile) -> None:
        read.append(file.path)
        verify(self, file)

    async def use(files: FileRepair, told: object) -> dict[str, str]:
        return await files.repaired([FILE])

    monkeypatch.setattr(LocalPayloadStore, "verify", counted)
    lost, damage = with_repair(store, {name: peer(name) for name in names}, use)
    assert len(read) == 1 + len(names)  # who asks a peer reads the file once more
    assert list(lost) == [file["path"] for file in damage.files()] == [FILE.path][len(names) :]
