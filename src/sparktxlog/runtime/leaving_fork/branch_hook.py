"""Passes both branches to a program of the operator, after this node gave way (P28, V74).

What the sides of a fork wrote is reconciled by what knows the data, and that is not this program.
`peer quarantine` leaves a note of both branches in `branches/` of the data directory, durable
before the journal is set aside.  Once the node is a member again and has the other branch, it runs
the program with the note as its input, again after growing pauses until it ends with 0.  What the
program decides it submits as any other client; the node does not wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Any

import msgspec
import structlog

from sparktxlog.errors import StorageError
from sparktxlog.files.durability import move_durably, storing, sync_parents, write_durably
from sparktxlog.protocol.messages.view import TAKES_SUBMITS
from sparktxlog.runtime.foundation import Foundation

_log = structlog.get_logger("sparktxlog.branches")

_DIRECTORY, _PENDING, _TOLD = "branches", ".json", ".told"
_NAME = "reconciling branches"
#: Seconds between two looks whether the node has the kept branch.
_LOOK_S = 1.0
#: A program that takes longer is ended, and started again later.
_PATIENCE_S = 3_600.0
#: Characters of what it said that are shown.
_SHOWN = 400


def note_branches(data_dir: Path, quarantine_id: str, note: dict[str, Any]) -> None:
    """Keep a note for the program, durable; a repeat replaces it.

    Raises:
        StorageError: It cannot be written; nothing was set aside.
    """
    path = data_dir / _DIRECTORY / f"{quarantine_id}{_PENDING}"
    with storing(path):
        path.parent.mkdir(exist_ok=True)
        write_durably(path, msgspec.json.format(msgspec.json.encode(note)))
        sync_parents([path], data_dir)


class BranchHook:
    """Runs the program; belongs to the event loop.

    Args:
        program: `fork-hook`.
    """

    def __init__(self, base: Foundation, program: Path) -> None:
        self._base = base
        self._program = program
        self._directory = base.config.data_dir / _DIRECTORY

    async def watch(self) -> None:
        """Run the program for each note, one after the other, until all are taken; then rest."""
        await self._base.supervisor.keep(_NAME, self._reconcile)
        await asyncio.Event().wait()

    async def _reconcile(self) -> None:
        for note in sorted(self._directory.glob(f"*{_PENDING}")):
            content = await asyncio.to_thread(note.read_bytes)
            end = int(msgspec.json.decode(content)["kept"]["end"])
            while True:
                pause_s = _LOOK_S
                if self._has_reached(end):
                    if (error := await self._run(content)) is None:
                        break
                    pause_s = self._base.supervisor.note(_NAME, error)
                await asyncio.sleep(pause_s)
            await asyncio.to_thread(move_durably, note, note.with_suffix(_TOLD))
            self._base.supervisor.clear(_NAME)
            _log.info("both branches are reconciled", program=str(self._program), note=note.name)

    def _has_reached(self, end: int) -> bool:
        """Return whether this node has the kept branch, and takes what the program submits."""
        return self._base.master.phase in TAKES_SUBMITS and self._base.ordered.value >= end

    async def _run(self, note: bytes) -> StorageError | None:
        """Run the program once; return why it has to run again, None = it is done."""
        try:
            process = await asyncio.create_subprocess_exec(
                self._program, stdin=PIPE, stdout=DEVNULL, stderr=PIPE
            )
        except OSError as error:
            return StorageError(f"{self._program} cannot be run: {error.strerror}")
        try:
            async with asyncio.timeout(_PATIENCE_S):
                _, said = await process.communicate(note)
        except TimeoutError:
            return StorageError(f"{self._program} did not end within {_PATIENCE_S:g} s")
        finally:
            await _ended(process)
        if not process.returncode:
            return None
        text = said.decode(errors="replace").strip()[-_SHOWN:]
        return StorageError(f"{self._program} ended with {process.returncode}: {text}")


async def _ended(process: Process) -> None:
    """End a program that still runs: the node stops, or it took too long."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
