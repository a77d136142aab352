"""Verifies staged files of this node, and fetches damaged ones again from peers.

Every node that holds a run has its files, so another node may supply a file that this disk lost.
Files are checked against this node's own manifest or segment, never against a peer's request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

import structlog

from sparktxlog.codec.containers.payload import read_manifest, verify_payload
from sparktxlog.errors import (
    STORE_AWAY,
    InvalidNameError,
    ManifestMismatchError,
    NotFoundError,
    TxLogError,
)
from sparktxlog.files.sending import Outgoing
from sparktxlog.model.answers import LostFile, RepairedFiles
from sparktxlog.model.ids import transaction_id_from_text
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.protocol.messages.events import FilesHeld, FilesLost
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.protocol.messages.view import View
from sparktxlog.runtime.commit.cycle import CoreLoop
from sparktxlog.runtime.commit.damage import Damage
from sparktxlog.runtime.commit.run_fetching import NO_DATA, OWN_PLACE_FAILS, RunFetcher
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.storage.interfaces import TableEffect
from sparktxlog.supervision import KeyedTasks

_log = structlog.get_logger("sparktxlog.files")

#: Most segments of one range; workers take no more at once.
_MOST_SEGMENTS = 500
_Work = Callable[[], Coroutine[Any, Any, None]]


class FileRepair:
    """Verifies staged files of this node and has them repaired; belongs to the event loop."""

    def __init__(
        self, base: Foundation, core: CoreLoop, fetcher: RunFetcher, damage: Damage
    ) -> None:
        self._base = base
        self._core = core
        self._fetcher = fetcher
        self._damage = damage
        #: Checks under way: by the transaction of a wanted file, or by the digest of a run.
        self._tasks = KeyedTasks[bytes]()
        #: Digest of a run that may become void → its staged files.
        self._looked_at: dict[bytes, list[StagedFile]] = {}

    # -- what peers want -------------------------------------------------------------------------

    async def outgoing(self, file: StagedFile) -> Outgoing:
        """Return a file that a peer asks for; errors as `check_file`."""
        await self.check_file(file)
        found = self._base.payloads.sendable(file)
        return Outgoing(file=found, size_bytes=file.size_bytes, run=self._on_files)

    async def check_file(self, file: StagedFile) -> None:
        """Compare a file with what a peer was promised, before a byte of it is sent.

        The origin of the run then has it fetched again, while the peer asks the next node.

        Raises:
            ManifestMismatchError, PayloadStoreError: It is damaged or gone (definite).
            InvalidNameError: The path leaves the payload store (definite).
            StorageError: The disk failed.
        """
        try:
            await self._verify(file)
        except (InvalidNameError, *OWN_PLACE_FAILS):
            raise
        except TxLogError as error:
            self._look_at_transaction(file, str(error))
            raise
        self._damage.readable(file.path)

    def _look_at_transaction(self, wanted: StagedFile, reason: str) -> None:
        try:
            transaction_id = transaction_id_from_text(wanted.path.partition("/")[0])
        except InvalidNameError:
            return
        self._start(
            transaction_id,
            partial(self._repair_transaction, transaction_id, wanted.path, reason),
        )

    async def _repair_transaction(self, transaction_id: bytes, path: str, reason: str) -> None:
        """Repair the files of an own run, or reject the run if it has no stamp yet (P1a)."""
        digest = self._base.master.unstamped(transaction_id)
        if digest is not None:
            await self._repair_unstamped(digest)
            return
        origin, files = await self._base.run_blocking(self._held_files, transaction_id)
        if origin == self._base.config.node_id:
            await self.repaired(files)
        elif any(file.path == path for file in files):
            # Two nodes that repair each other's requests would never end.
            self._damage.unreadable(path, reason)

    def _held_files(self, transaction_id: bytes) -> tuple[str, list[StagedFile]]:
        """Return origin and files of a stamped run that this node holds; blocks."""
        journal, position = self._base.journal, self._base.master.locate(transaction_id)
        found = journal.find_transaction(transaction_id)
        header = None if found is None else found[0]
        if header is None and position is not None:
            stored = journal.read_entry_at(position)
            header = None if stored is None else stored.entry.header
        if header is None:
            return "", []
        payload = journal.read_payload(header.origin, header.incarnation, header.seq)
        payload = payload or journal.read_prepared(transaction_id)
        if payload is not None:
            return header.origin, read_manifest(payload).files_at(self._base.config.node_id)
        commits = [] if position is None else journal.read_commits_at(position)
        if commits:
            return header.origin, [file for commit in commits for file in commit.files]
        # Published: its segment names the files; of a prepared one, that of its decision (P35).
        if (verdict := journal.find_verdict(transaction_id)) is not None:
            position = verdict[0] + verdict[1].index
        effects = [] if position is None else self._effects(position, position)
        staged = [one for one in effects if not one.inline and (one.run or one.first) == position]
        return header.origin, [file for effect in staged for file in effect.files]

    async def fetch_prepared(self, payloads: Iterable[bytes]) -> None:
        """Fetch the files of prepared transactions that a summary brings (P35).

        What no node can supply is shown as damage; it is looked for again when it is needed.
        """
        for payload in payloads:
            try:
                await self.repaired(read_manifest(payload).files_at(self._base.config.node_id))
            except OWN_PLACE_FAILS as error:
                _log.warning("files of a summary wait", reason=str(error))
                return

    # -- own runs without a stamp ------------------------------------------------------------------

    def check_unstamped(self, digest: bytes) -> None:
        """Check the files of an own unstamped run, and tell the core (P1a)."""
        self._start(digest, partial(self._repair_unstamped, digest))

    async def _repair_unstamped(self, digest: bytes) -> None:
        try:
            payload = await self.announced_payload(digest)
        except NotFoundError:
            return  # not durable yet, or stamped meanwhile
        lost = await self._repair(read_manifest(payload).staged_files)
        if not lost:
            self._core.cycle.tell_always(FilesHeld(digest=digest))
            return
        # No damage to report: the run is rejected, so nobody wants its files any more.
        why, asked = next(iter(lost.values()))
        text = f"a staged file was lost before the transaction was ordered: {why}{_told(asked)}"
        self._core.cycle.tell_always(FilesLost(digest=digest, text=text))

    async def announced_payload(self, digest: bytes) -> bytes:
        """Return an own unstamped run's container.

        Raises:
            NotFoundError: Not held here, or stamped meanwhile (definite).
        """
        payload: bytes | None = self._core.holdings.find(digest)
        if payload is None:
            payload = await self._base.run_blocking(self._base.journal.read_announced, digest)
        if payload is None:
            raise NotFoundError(f"no announced run {digest.hex()[:12]} is held here")
        return payload

    # -- runs that may become void -----------------------------------------------------------------

    def check_run(self, header: RunHeader) -> None:
        """Check whether a stamped run is complete here, and tell the core (P32)."""
        self._start(b"run " + header.digest, partial(self._check_run, header))

    async def _check_run(self, header: RunHeader) -> None:
        digest, lost = header.digest, ""
        try:
            manifest = verify_payload(await self.run_payload(header), digest)
            # Without those of groups: nobody waits for them to order a run (P41).
            files = self._looked_at[digest] = manifest.other_files
            for file in files:
                await self._verify(file)
        except OWN_PLACE_FAILS:
            raise
        except TxLogError as error:
            lost = str(error)
            _log.warning("a run is lost here", run=digest.hex()[:12], reason=lost)
        event = FilesLost(digest=digest, text=lost) if lost else FilesHeld(digest=digest)
        self._core.cycle.tell_always(event)

    async def run_payload(self, header: RunHeader) -> bytes:
        """Return the container of a stamped run.

        Raises:
            ManifestMismatchError: It is not held here (definite).
        """
        run = (header.origin, header.incarnation, header.seq)
        payload: bytes | None = await self._base.run_blocking(self._base.journal.read_payload, *run)
        if payload is None:
            raise ManifestMismatchError(f"run {header.origin}/{header.seq} is not held here")
        return payload

    def on_view(self, view: View) -> None:
        """Forget reports about runs that are void."""
        for voided in view.voided:
            self._damage.arrived(voided.digest)
            for file in self._looked_at.get(voided.digest, ()):
                self._damage.readable(file.path)
        self._looked_at.clear()

    # -- what a worker could not read --------------------------------------------------------------

    async def repair_segments(self, first: int, last: int) -> RepairedFiles:
        """Read all files of a range of positions, and fetch damaged ones again from peers.

        Files of inline rows cannot be fetched: each node writes its own.

        Raises:
            ExpiredError: The log no longer holds the range (definite).
        """
        fetched: list[str] = []
        found: list[LostFile] = []
        for effect in await self._base.run_blocking(self._effects, first, last):
            for file in effect.files:
                self._base.payloads.forget_verified(file.path)
            lost = await self._repair(effect.files, fetched, ask=not effect.inline)
            for path, (why, asked) in lost.items():
                self._damage.unreadable(path, why + _told(asked))
                run = await self._base.run_blocking(self._run_at, effect.first)
                found.append(
                    {
                        "path": path,
                        "table": effect.table,
                        "position": effect.first,
                        "run": run,
                        "reason": why,
                        "asked": asked,
                    }
                )
        return {"fetched": fetched, "lost": found}

    def _effects(self, first: int, last: int) -> list[TableEffect]:
        segments = self._base.journal.read_segments(first - 1, _MOST_SEGMENTS)
        found = [effect for one in segments if one.first <= last for effect in one.effects]
        return [effect for effect in found if self._base.holds(effect.table)]

    def _run_at(self, position: int) -> str:
        stored = self._base.journal.read_entry_at(position)
        if stored is None:
            return ""
        header = stored.entry.header
        return f"{header.origin}/{header.incarnation}/{header.seq}"

    # -- what commit tables need -------------------------------------------------------------------

    async def repaired(self, files: Iterable[StagedFile]) -> dict[str, str]:
        """Check files, and fetch damaged ones again; return why some could not be, by path."""
        found = await self._repair(files)
        lost = {path: why + _told(asked) for path, (why, asked) in found.items()}
        for path, why in lost.items():
            self._damage.unreadable(path, why)
        return lost

    # -- both ----------------------------------------------------------------------------------

    async def _repair(
        self,
        files: Iterable[StagedFile],
        fetched: list[str] | None = None,
        *,
        ask: bool = True,
    ) -> dict[str, tuple[str, dict[str, str]]]:
        """Fetch damaged files again; return those that no node could supply.

        Args:
            fetched: Gets the paths of those that a node supplied.
            ask: Whether peers are asked.

        Returns:
            Path → what is wrong with the file, and for each asked node why it could not help.

        Raises:
            StorageError: The store is full, away or does not answer: it says nothing of the files.
        """
        lost: dict[str, tuple[str, dict[str, str]]] = {}
        files = tuple(files)
        damaged: dict[str, TxLogError] = await self._on_files(self._damaged, files)
        for file in files:
            if (error := damaged.get(file.path)) is not None:
                asked = await self._ask_all(file) if ask else {}
                if asked is None:
                    _log.warning("missing or damaged file was fetched", path=file.path)
                    if fetched is not None:
                        fetched.append(file.path)
                else:
                    lost[file.path] = (error.message, asked)
                    continue
            self._damage.readable(file.path)
        return lost

    async def _ask_all(self, file: StagedFile) -> dict[str, str] | None:
        """Ask one peer after the other for a file; return why none gave it, None if one did."""
        asked: dict[str, str] = {}
        for link in self._base.sources():
            if not link.up:
                asked[link.node_id] = f"not linked: {link.reason}"
                continue
            try:
                await self._fetcher.get_file(link, file)
            except STORE_AWAY:  # the own one: what a peer answers is a TransportError
                raise
            except TxLogError as error:
                lacks = error.fields.get("status") in NO_DATA
                asked[link.node_id] = "it does not have a good copy" if lacks else error.message
            else:
                return None
        return asked

    def _damaged(self, files: Iterable[StagedFile]) -> dict[str, TxLogError]:
        """Return what is wrong with files, by path; blocks."""
        found: dict[str, TxLogError] = {}
        for file in files:
            try:
                self._base.payloads.verify(file)
            except OWN_PLACE_FAILS:
                raise
            except TxLogError as error:
                found[file.path] = error
        return found

    async def _verify(self, file: StagedFile) -> None:
        await self._on_files(self._base.payloads.verify, file)

    def _on_files(self, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return self._base.run_on_files(self._base.payloads.place, work, *args)

    def _start(self, key: bytes, work: _Work) -> None:
        self._tasks.start(key, partial(self._guarded, work))

    async def _guarded(self, work: _Work) -> None:
        try:
            await work()
        except OWN_PLACE_FAILS as error:
            _log.warning("files are checked later", reason=str(error))
        except Exception:  # noqa: BLE001
            # The peer that wants the file asks again, and so does the core.
            _log.exception("checking files failed unexpectedly")

    async def close(self) -> None:
        """Stop all checks."""
        await self._tasks.close()


def _told(asked: dict[str, str]) -> str:
    """Return why other nodes could not help, as the end of a sentence."""
    return "".join(f"; {node}: {why}" for node, why in asked.items())
