"""Fetches the payloads of peers' runs: manifest and inline rows first, then staged files.

Fetching never delays the rounds.  Several runs, and several files of a run, are fetched in
parallel; a transfer that a broken link interrupted is resumed.  Everything is verified against the
digest in the header before the core learns of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

import structlog

from sparktxlog.codec.containers.payload import verify_payload
from sparktxlog.errors import (
    STORE_AWAY,
    BusyError,
    DiskFullError,
    ManifestMismatchError,
    NotFoundError,
    StorageError,
    StuckFilesError,
    TransportError,
    TxLogError,
)
from sparktxlog.files.arrivals import Arrivals
from sparktxlog.model.transactions.operation import RunFacts, RunManifest, StagedFile
from sparktxlog.protocol.messages.events import FetchFailed, FilesHeld, PayloadArrived
from sparktxlog.protocol.messages.posts import Announcement, RunHeader
from sparktxlog.runtime.commit.damage import Damage
from sparktxlog.runtime.commit.holdings import Holdings
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.membership.membership import Membership
from sparktxlog.supervision import KeyedTasks
from sparktxlog.transport.peer_link import PeerLink
from sparktxlog.transport.run_requests import SMALL_BYTES
from sparktxlog.transport.signing import StaleSessionError

_log = structlog.get_logger("sparktxlog.fetching")

#: Large runs that are fetched at once.
_PARALLEL_RUNS = 16
#: Attempts at one source before the next source is asked.
_ATTEMPTS = 2
#: Containers up to this size are verified on the event loop, which takes half a millisecond; larger
#: ones in a thread.
_SMALL_BYTES = 512 << 10
#: The place of the own files fails: that says nothing of a file, which is looked at later.
OWN_PLACE_FAILS = (DiskFullError, StuckFilesError, *STORE_AWAY)
#: Files of groups are asked for so often, with pauses that double; then a worker that needs one
#: has it fetched.
_GROUPED_ATTEMPTS, _GROUPED_RETRY_S, _GROUPED_LONGEST_S = 64, 0.5, 60.0
#: Names this work in messages about failures of the own place.
_FETCHING = "fetching staged files"
#: Answers of a node that does not have the data, or only damaged.
NO_DATA = frozenset(
    {NotFoundError.http_status, ManifestMismatchError.http_status, StorageError.http_status}
)
_Wanted = RunHeader | Announcement
_Turns = AbstractAsyncContextManager[None]
_Work = Callable[[], Coroutine[Any, Any, None]]
#: Small runs need no turn: they are fetched together.
_AT_ONCE: _Turns = nullcontext()


def check_run(header: RunHeader, payload: bytes) -> RunManifest:
    """Verify a container against the header that announced it.

    Raises:
        ManifestMismatchError: Digest, count or size differ (definite).
    """
    manifest = verify_payload(payload, header.digest)
    if manifest.n != header.n or len(payload) != header.size_bytes:
        raise ManifestMismatchError(
            f"run {header.origin}/{header.seq} is not what its header says", n=manifest.n
        )
    if manifest.staged_bytes != header.staged_bytes:
        raise ManifestMismatchError(
            f"run {header.origin}/{header.seq} names {manifest.staged_bytes} staged bytes, its "
            f"header {header.staged_bytes}"
        )
    return manifest


class RunFetcher:
    """Carries out `FetchPayload` and `PrefetchFiles`.

    Args:
        damage: Notes runs whose data no node can supply.
    """

    def __init__(
        self, base: Foundation, holdings: Holdings, membership: Membership, damage: Damage
    ) -> None:
        self._links = base.links
        self._payloads, self._supervisor = base.payloads, base.supervisor
        self._holdings = holdings
        self._membership = membership
        self._damage = damage
        self._threads = base.fetchers
        self._base = base
        self._turns: _Turns = asyncio.Semaphore(_PARALLEL_RUNS)
        #: By kind of fetch and digest: a run may be prefetched and fetched at the same time.
        self._tasks = KeyedTasks[tuple[str, bytes]]()
        #: Files of groups that are fetched though their run may be ordered already.
        self._later = KeyedTasks[bytes]()

    def fetch(self, header: RunHeader, sources: Iterable[str]) -> None:
        """Get a run's payload and files; `PayloadArrived` or `FetchFailed` follows."""
        turns = _AT_ONCE
        if header.size_bytes > SMALL_BYTES or header.staged_bytes:
            turns = self._turns
        self._start("fetch", header, partial(self._fetch, header, tuple(sources)), turns)

    def prefetch(self, announcement: Announcement) -> None:
        """Get manifest and files of an unstamped run; `FilesHeld` or `FetchFailed` follows."""
        self._start("prefetch", announcement, partial(self._prefetch, announcement), self._turns)

    async def close(self) -> None:
        """Stop all transfers; received bytes are kept, to resume there."""
        await self._tasks.close()
        await self._later.close()

    def __len__(self) -> int:
        return len(self._tasks)

    def _start(self, kind: str, run: _Wanted, work: _Work, turns: _Turns) -> None:
        self._tasks.start((kind, run.digest), partial(self._guarded, run, work, turns))

    async def _guarded(self, run: _Wanted, work: _Work, turns: _Turns) -> None:
        try:
            async with turns:
                await work()
            self._damage.arrived(run.digest)
        except TxLogError as error:
            _log.info("fetch failed", run=run.digest.hex()[:12], reason=str(error))
            if isinstance(error, OWN_PLACE_FAILS):
                self._supervisor.note(_FETCHING, error, lasting=False)
            elif isinstance(run, Announcement) and _is_missing(error):
                self._damage.arrived(run.digest)  # its origin no longer announces it
            elif not _says_nothing(error):
                self._damage.failed(run, str(error))
            self._membership.tell_fetched(FetchFailed(digest=run.digest, reason=str(error)))
        except Exception as error:  # noqa: BLE001
            # Even after a bug in this code the core must get its answer.
            _log.exception("fetch failed unexpectedly", run=run.digest.hex()[:12])
            self._membership.tell_fetched(FetchFailed(digest=run.digest, reason=repr(error)))

    async def _fetch(self, header: RunHeader, sources: tuple[str, ...]) -> None:
        failures: list[TxLogError] = []
        for source in sources:
            link = self._links.get(source)
            if link is None:
                continue
            try:
                payload = self._holdings.find(header.digest) or await link.get_run(header)
                manifest = await self._check(header, payload)
                await self._get_files(link, manifest.other_files)
            except TxLogError as error:
                failures.append(error)
                continue
            self._fetch_grouped(manifest, header.digest, source)
            if not self._holdings.put_foreign(header, payload):
                raise TransportError("too many payloads wait for the core")
            self._membership.tell_fetched(
                PayloadArrived(header=header, facts=RunFacts.of(manifest))
            )
            return
        if not failures:
            raise TransportError("there is no source to fetch from")
        if all(map(_is_missing, failures)):
            self._membership.missed(header)
        # A node that could not be asked, or whose file could not be kept here, may have it.
        raise next(filter(_says_nothing, failures), failures[-1])

    async def _prefetch(self, announcement: Announcement) -> None:
        link = self._links.get(announcement.origin)
        if link is None:
            raise TransportError(f"no link to {announcement.origin!r}")
        digest = announcement.digest
        # After a failure the origin is asked whether it still announces the run.
        known = None if self._damage.concerns(digest) else self._holdings.find(digest)
        payload = known or await link.get_announced(digest)
        manifest = await asyncio.to_thread(verify_payload, payload, digest)
        self._holdings.cache(digest, payload)
        files = manifest.staged_files
        if manifest.copies:
            files = manifest.files_at(self._base.config.node_id)
        await self._get_files(link, files)
        self._membership.tell_fetched(FilesHeld(digest=digest))

    async def _check(self, header: RunHeader, payload: bytes) -> RunManifest:
        if len(payload) <= _SMALL_BYTES:
            return check_run(header, payload)
        return await asyncio.to_thread(check_run, header, payload)

    def _fetch_grouped(self, manifest: RunManifest, digest: bytes, first: str) -> None:
        """Fetch the files of groups that this site holds, from any site, until they are here.

        As many sites as the groups need have them, so the run waits for none more (P41).
        """
        if not manifest.copies:
            return
        files = manifest.grouped_files_at(self._base.config.node_id)
        if files:
            self._later.start(digest, partial(self._get_grouped, files, first))

    async def _get_grouped(self, files: Sequence[StagedFile], first: str) -> None:
        pause = _GROUPED_RETRY_S
        for _ in range(_GROUPED_ATTEMPTS):
            links = sorted(self._base.sources(), key=lambda link: link.node_id != first)
            for link in links:
                if not link.up:
                    continue
                try:
                    await self._get_files(link, files)
                except TxLogError as error:
                    _log.info("files of a group wait", peer=link.node_id, reason=str(error))
                else:
                    return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _GROUPED_LONGEST_S)

    async def _get_files(self, link: PeerLink, files: Sequence[StagedFile]) -> None:
        if not files:
            return
        transfers = [
            asyncio.ensure_future(self.get_file(link, file, named=False)) for file in files
        ]
        try:
            await asyncio.gather(*transfers)
        finally:
            for transfer in transfers:
                transfer.cancel()
        # Before the core learns that the run is held: the files' bytes are durable already.
        names = [file.path for file in files]
        await self._threads.run(self._payloads.place, self._payloads.sync_names, names)

    async def get_file(
        self,
        link: PeerLink,
        file: StagedFile,
        *,
        into: Arrivals | None = None,
        source: str = "",
        named: bool = True,
    ) -> None:
        """Get one file from a peer, unless a good copy is here.

        Args:
            into: Where it is kept; default: the payload store.
            source: Where the peer has it; default: in its payload store.
            named: False: its name is not durable yet; the bytes are.

        Raises:
            TransportError: The peer cannot be reached, or has no good copy.
            ManifestMismatchError: The received bytes are another file (definite).
            StorageError: The own disk failed.
        """
        where = self._payloads.place if into is None else into.root
        fetch = partial(
            (into or self._payloads).fetch,
            file,
            partial(link.stream, file, source=source),
            named=named,
        )
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._threads.run(where, fetch)
            except StaleSessionError:
                link.greet_again()
            except (TransportError, ManifestMismatchError):
                if attempt == _ATTEMPTS:
                    raise
            else:
                return
        raise TransportError(f"file {file.path!r} could not be fetched from {link.node_id}")


def _is_missing(error: TxLogError) -> bool:
    """Return whether a node answered that it does not have the data."""
    return error.fields.get("status") == NotFoundError.http_status


def _says_nothing(error: TxLogError) -> bool:
    """Return whether an attempt says nothing of the data, which may be good.

    `BusyError`: another transfer of the file is under way, that of a prefetch or of an attempt that
    was given up.
    """
    return isinstance(error, (BusyError, *OWN_PLACE_FAILS)) or _is_of_the_link(error)


def _is_of_the_link(error: TxLogError) -> bool:
    """Return whether the link failed, so the data may be good."""
    return isinstance(error, TransportError) and error.fields.get("status") not in NO_DATA
