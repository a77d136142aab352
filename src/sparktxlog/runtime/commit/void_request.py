"""Voiding a run that no node can deliver, on an operator's request (P32)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sparktxlog.codec.containers.payload import read_manifest, voided_run
from sparktxlog.errors import LocalProtocolError, NotFoundError
from sparktxlog.model.answers import RunWithoutEffect, VoidAnswer
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.runtime.commit.file_repair import FileRepair
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.membership.epochs import Epochs

#: Waiting runs that are searched: a run that blocks the others is among the first.
_MOST_RUNS = 10_000


class Voiding:
    """Asks for an epoch that voids a run; belongs to the event loop."""

    def __init__(self, base: Foundation, epochs: Epochs, files: FileRepair) -> None:
        self._base = base
        self._epochs = epochs
        self._files = files

    async def void(self, name: str, without: Iterable[str], timeout: float) -> VoidAnswer:
        """Declare a waiting run void; return the view in which it is.

        Args:
            name: Digest of the run, hexadecimal, or its beginning.
            without: Members that may hold it, and are not waited for.

        Raises:
            NotFoundError: No such run waits here (definite).
            LocalProtocolError: It has no staged files, only another node has its manifest, or the
                core refused it, for example because a member holds it (definite).
            CommitStateUnknownError: Not decided in time; it may still be (not definite).
        """
        header = self._find(name)
        payload = await self._files.run_payload(header)
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
            run
            for run in self._base.master.incoming(_MOST_RUNS)
            if run.header.digest.hex().startswith(name.lower())
        ]
        if len(found) != 1:
            raise NotFoundError(
                f"{len(found) or 'no'} runs {name[:64]!r} wait to be ordered here",
                hint="`sparktxlog status` names the runs that cannot be delivered.",
            )
        (run,) = found
        header = run.header
        if not header.staged_bytes:
            raise LocalProtocolError("nothing was changed: the run has no staged files")
        if not run.acquired:
            raise LocalProtocolError(
                "nothing was changed: this node does not have the run's manifest",
                hint=f"Ask {header.origin}, which accepted it.",
            )
        return header
