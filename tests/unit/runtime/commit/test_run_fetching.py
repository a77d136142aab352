"""Transfers of staged files that a kill interrupted, and faults nobody foresaw."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.storage_samples import parquet_bytes, staged_of

from sparktxlog.codec.containers.payload import digest_of, encode_payload
from sparktxlog.errors import (
    BusyError,
    DiskFullError,
    ManifestMismatchError,
    PeerTimeoutError,
    StoreNotReadyError,
    StoreUnavailableError,
    TransportError,
    TxLogError,
)
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import Block, OperationKind, RunManifest, StagedFile
from sparktxlog.protocol.messages.events import Event, FetchFailed, FilesHeld, PayloadArrived
from sparktxlog.protocol.messages.posts import Announcement, RunHeader
from sparktxlog.runtime.commit.damage import Damage
from sparktxlog.runtime.commit.holdings import Holdings
from sparktxlog.runtime.commit.run_fetching import RunFetcher
from sparktxlog.runtime.loop_threads import FileThreads
from sparktxlog.storage.payloads.local_store import LocalPayloadStore
from sparktxlog.supervision import Supervisor

CONTENT = parquet_bytes()
FILE = staged_of("0a0a/orders/part-0.parquet", CONTENT)


class Origin:
    """A peer that serves one run and its file."""

    node_id = "B"

    def __init__(self, payload: bytes, failure: Exception | None = None) -> None:
        self.payload, self.failure = payload, failure
        self.offsets: list[int] = []

    async def get_announced(self, digest: bytes) -> bytes:
        if self.failure is not None:
            raise self.failure
        return self.payload

    def stream(self, file: StagedFile, offset: int, source: str = "") -> Iterator[bytes]:
        if offset >= len(CONTENT):
            raise TransportError("answered 416")  # as a real peer does
        self.offsets.append(offset)
        yield CONTENT[offset:]


def staged_run() -> bytes:
    block = Block(table="orders", kind=OperationKind.APPEND, txs=(0,), files=(FILE,))
    manifest = RunManifest(n=1, ids=bytes(16), submitted_at=1, blocks=(block,))
    return encode_payload(manifest, [])


def fetcher_of(
    links: Mapping[str, object],
    store: LocalPayloadStore,
    told: asyncio.Queue[Event],
    missed: list[RunHeader],
) -> RunFetcher:
    base: Any = SimpleNamespace(
        links=links,
        payloads=store,
        fetchers=FileThreads(2, "fetching"),
        supervisor=Supervisor(),
    )
    listener: Any = SimpleNamespace(tell_fetched=told.put_nowait, missed=missed.append)
    holdings = Holdings(foreign_limit_bytes=1 << 20, cache_limit_bytes=1 << 20)
    return RunFetcher(base, holdings, listener, Damage())


class FailingPlace(LocalPayloadStore):
    """A place for files that takes none."""

    failure: Exception

    def fetch(
        self, file: StagedFile, sent: Callable[[int], Iterable[bytes]], *, named: bool = True
    ) -> None:
        raise self.failure


@pytest.mark.parametrize(
    ("failure", "is_damage"),
    [
        (StoreUnavailableError("the bucket is away"), False),
        (StoreNotReadyError("the bucket is not proved"), False),
        (DiskFullError("no space"), False),
        (BusyError("it is being received already"), False),
        (ManifestMismatchError("another file"), True),
    ],
)
def test_an_own_place_that_fails_is_no_damage_of_a_run(
    tmp_path: Path, failure: TxLogError, is_damage: bool
) -> None:
    store, origin = FailingPlace(tmp_path), Origin(staged_run())
    store.failure = failure
    digest = digest_of(origin.payload)

    async def main() -> None:
        told: asyncio.Queue[Event] = asyncio.Queue()
        fetcher = fetcher_of({"B": origin}, store, told, [])
        fetcher.prefetch(announced(origin))
        assert isinstance(await asyncio.wait_for(told.get(), 10), FetchFailed)
        await fetcher.close()
        assert fetcher._damage.concerns(digest) == is_damage
        failing = [one.error for one in fetcher._supervisor.failing()]
        assert failing == ([] if is_damage or isinstance(failure, BusyError) else [failure])

    asyncio.run(main())


def announced(origin: Origin) -> Announcement:
    """Return what announces the run of an origin."""
    return Announcement(
        log_id="l",
        epoch=1,
        origin=NodeId("B"),
        digest=digest_of(origin.payload),
        size_bytes=len(origin.payload),
        staged_bytes=FILE.size_bytes,
    )


def prefetch(store: LocalPayloadStore, origin: Origin) -> Event:
    """Prefetch the run; return what the core is told."""

    async def main() -> Event:
        told: asyncio.Queue[Event] = asyncio.Queue()
        fetcher = fetcher_of({"B": origin}, store, told, [])
        fetcher.prefetch(announced(origin))
        try:
            return await asyncio.wait_for(told.get(), 10)
        finally:
            await fetcher.close()

    return asyncio.run(main())


def broken_off(store: LocalPayloadStore, file: StagedFile, content: bytes) -> None:
    """Leave what a node leaves that dies after it received `content`."""

    def chunks() -> Iterator[bytes]:
        yield content
        raise TransportError("the node dies here")

    with pytest.raises(TransportError):
        store.fetch(file, lambda offset: chunks())


@pytest.mark.parametrize("held", [0, 7, len(CONTENT)])
def test_a_broken_off_transfer_goes_on_where_it_stood(tmp_path: Path, held: int) -> None:
    store = LocalPayloadStore(tmp_path)
    broken_off(store, FILE, CONTENT[:held])
    origin = Origin(staged_run())
    assert isinstance(prefetch(store, origin), FilesHeld)
    assert origin.offsets == ([] if held == len(CONTENT) else [held])
    store.verify(FILE)


def test_a_whole_but_torn_transfer_is_fetched_again(tmp_path: Path) -> None:
    store = LocalPayloadStore(tmp_path)
    broken_off(store, FILE, bytes(len(CONTENT)))
    origin = Origin(staged_run())
    assert isinstance(prefetch(store, origin), FilesHeld)
    assert origin.offsets == [0]
    store.verify(FILE)


def test_a_fault_nobody_foresaw_is_told_too(tmp_path: Path) -> None:
    told = prefetch(LocalPayloadStore(tmp_path), Origin(staged_run(), RuntimeError("a mistake")))
    assert isinstance(told, FetchFailed)
    assert "a mistake" in told.reason


class Source:
    """A peer that answers a question for a run with a failure, or with the run."""

    def __init__(self, node_id: str, answer: Exception | bytes) -> None:
        self.node_id, self.answer = node_id, answer

    async def get_run(self, header: RunHeader) -> bytes:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


PLAIN = encode_payload(RunManifest(n=1, ids=bytes(16), submitted_at=1, blocks=()), [])
GONE = TransportError("not held there", status=404)
SILENT = PeerTimeoutError("no answer")


@pytest.mark.parametrize(
    ("answers", "is_missed"),
    [
        ([GONE, GONE], True),
        ([GONE, SILENT], False),
        ([SILENT, GONE], False),
        ([TransportError("busy", status=503), GONE], False),
        ([GONE, PLAIN], False),
        ([], False),
    ],
)
def test_a_run_is_missed_when_all_sources_say_that_they_have_it_not(
    tmp_path: Path, answers: list[Exception | bytes], is_missed: bool
) -> None:
    header = RunHeader(
        epoch=1,
        ts=1,
        origin=NodeId("B"),
        incarnation=1,
        seq=1,
        n=1,
        digest=digest_of(PLAIN),
        size_bytes=len(PLAIN),
    )

    async def main() -> list[RunHeader]:
        missed: list[RunHeader] = []
        told: asyncio.Queue[Event] = asyncio.Queue()
        sources = {str(n): Source(str(n), answer) for n, answer in enumerate(answers)}
        fetcher = fetcher_of(sources, LocalPayloadStore(tmp_path), told, missed)
        fetcher.fetch(header, [*sources, "no link to it"])
        event = await asyncio.wait_for(told.get(), 10)
        assert isinstance(event, PayloadArrived if PLAIN in answers else FetchFailed)
        await fetcher.close()
        return missed

    assert asyncio.run(main()) == [header] * is_missed
