"""Runs that nobody can deliver: a look at their files, and the wish to void one (P32)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import structlog

from sparktxlog.codec.payload import read_manifest, verify_payload, voided_run
from sparktxlog.errors import LocalProtocolError, ManifestMismatchError, NotFoundError, TxLogError
from sparktxlog.model.answers import RunWithoutEffect, VoidAnswer
from sparktxlog.model.ids import NodeId
from sparktxlog.model.operation import StagedFile
from sparktxlog.protocol.words.events import FilesHeld, FilesLost
from sparktxlog.protocol.words.messages import RunHeader
from sparktxlog.protocol.words.view import View
from sparktxlog.runtime.commit.cycle import Cycle
from sparktxlog.runtime.commit.damage import Damage
from sparktxlog.runtime.commit.fetching import staged_files
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.membership.epochs import Epochs

_log = structlog.get_logger("sparktxlog.voiding")

#: Waiting runs that are looked through: one that stands in the way is among the first.
_MOST_RUNS = 10_000


class Voiding:
    """Looks at files of runs, and asks for an epoch that voids one; belongs to the event loop."""

    def __init__(self, base: Foundation, core: Cycle, epochs: Epochs, damage: Damage) -> None:
        self._base = base
        self._core = core
        self._epochs = epochs
        self._damage = damage
        self._tasks: set[asyncio.Task[None]] = set()
        #: Digest of a run → its staged files.
        self._files: dict[bytes, list[StagedFile]] = {}

    async def void(self, name: str, without: Iterable[str], timeout: float) -> VoidAnswer:
        """Let a run that waits take no effect; return the view that has it so.

        Args:
            name: Digest of the run, hexadecimal, or the beginning of it.
            without: Members that may hold it, and are given up.

        Raises:
            NotFoundError: No such run waits here (definite).
            LocalProtocolError: It has no staged files, another node has its manifest, or the core
                refused it: a member holds it, say (definite).
            CommitStateUnknownError: Not decided in time; it may still be (not definite).
        """
        header = self._find(name)
        payload = await self._base.run_blocking(self._payload, header)
        given_up = tuple(NodeId(node) for node in without)
        voided = replace(voided_run(header, read_manifest(payload)), without=given_up)
        view = await self._epochs.void(voided, timeout)
        voided_now: RunWithoutEffect = {
            "digest": header.digest.hex(),
            "origin": header.origin,
            "seq": header.seq,
            "transactions": header.n,
        }
        return {**view, "voided": voided_now}

    def _find(self, name: str) -> RunHeader:
        found = [
            (header, held)
            for header, held in self._base.master.incoming(_MOST_RUNS)
            if header.digest.hex().startswith(name.lower())
        ]
        if len(found) != 1:
            raise NotFoundError(
                f"{len(found) or 'no'} runs {name[:64]!r} wait to be ordered here",
                hint="`sparktxlog status` names the runs that cannot be delivered.",
            )
        ((header, held),) = found
        if not header.staged_bytes:
            raise LocalProtocolError("nothing was changed: the run has no staged files")
        if not held:
            raise LocalProtocolError(
                "nothing was changed: this node does not have the run's manifest",
                hint=f"Ask {header.origin}, which stamped it.",
            )
        return header

    # -- looking at files --------------------------------------------------------------------------

    def check(self, header: RunHeader) -> None:
        """Look whether a run's payload is whole here, and tell the core."""
        task = asyncio.create_task(self._check(header))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check(self, header: RunHeader) -> None:
        digest = header.digest
        try:
            await self._base.run_blocking(self._verify, header)
        except TxLogError as error:
            _log.warning("a run is lost here", run=digest.hex()[:12], reason=str(error))
            self._core.tell_always(FilesLost(digest=digest, text=str(error)))
        else:
            self._core.tell_always(FilesHeld(digest=digest))

    def _verify(self, header: RunHeader) -> None:
        manifest = verify_payload(self._payload(header), header.digest)
        files = self._files[header.digest] = staged_files(manifest)
        for file in files:
            self._base.payloads.verify(file)

    def _payload(self, header: RunHeader) -> bytes:
        payload = self._base.front.read_payload(header.origin, header.incarnation, header.seq)
        if payload is None:
            raise ManifestMismatchError(f"run {header.origin}/{header.seq} is not held here")
        return payload

    def on_view(self, view: View) -> None:
        """Alarm nobody any more because of a run that is void."""
        for voided in view.voided:
            self._damage.arrived(voided.digest)
            for file in self._files.get(voided.digest, ()):
                self._damage.readable(file.path)
        self._files.clear()

    async def close(self) -> None:
        """Look at nothing more."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
