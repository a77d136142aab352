"""A node at work: its start, what it serves, and its end."""

from __future__ import annotations

import asyncio

import aiohttp
import structlog

from sparktxlog.errors import BusyError, CommitStateUnknownError, StorageError, TxLogError
from sparktxlog.runtime.node import Node
from sparktxlog.runtime.parts import Parts
from sparktxlog.runtime.peering import Peering
from sparktxlog.transport.exchange import OpenSession, open_session

_log = structlog.get_logger("sparktxlog.node")


#: The core begins when all peers were greeted once, or after so long.
_TRIED_S = 1.0


class RunningNode:
    """A started node: its face for the service, and its end.

    **After calling** `start`: await `failed`, and `stop` in any case.
    """

    def __init__(self, parts: Parts, session: OpenSession = open_session) -> None:
        self.parts = parts
        self._open_session = session
        self.node = Node(parts)
        self.peering = Peering(parts)
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None
        self._loop = asyncio.get_running_loop()
        #: Set to the error after which the node must stop.
        self.failed: asyncio.Future[TxLogError] = self._loop.create_future()

    async def start(self) -> None:
        """Start the core, the links and the publisher.

        Raises:
            FrontLostError: The front lacks what the queue table holds.
        """
        parts = self.parts
        if not parts.config.is_witness:
            if not parts.joining.only_joins:
                await asyncio.to_thread(parts.publisher.open)
            await parts.donor.start()
        for work in (parts.executor.run, self._run_core, self._watch_workers):
            task = asyncio.create_task(work(), name=work.__qualname__)
            task.add_done_callback(self._ended)
            self._tasks.append(task)
        self._session = self._open_session()
        parts.membership.start(self._session)
        if not parts.config.is_witness and not parts.joining.only_joins:
            parts.publisher.start(parts.ordered.value)
        config, view = parts.config, parts.master.view
        _log.info(
            "started", node=config.node_id, url=config.master_url, lineage=view.lineage,
            position=parts.ordered.value, published=parts.published.value,
            phase=parts.master.phase.value, epoch=view.epoch, members=list(view.members),
            quorum=view.quorum,
        )  # fmt: skip

        for warning in parts.epochs.warnings():
            _log.warning(warning["text"], code=warning["code"])

    async def _run_core(self) -> None:
        await self.parts.joining.settled.wait()
        await self.parts.membership.tried(_TRIED_S)
        await self.parts.cycle.run()

    async def _watch_workers(self) -> None:
        """Notice a worker's silence soon after it is one."""
        pause_s = min(max(self.parts.config.worker_dead_after / 4, 0.05), 5.0)

        async def watch() -> None:
            while True:
                await asyncio.sleep(pause_s)
                self.parts.watch_workers()

        await self.parts.supervisor.keep("watching workers", watch)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self.failed.done():
            return
        error = task.exception()
        if not isinstance(error, TxLogError):
            _log.critical("unexpected end of a task", task=task.get_name(), exc_info=error)
            error = StorageError(f"{task.get_name()} ended: {error!r}")
        else:
            _log.critical("the node must stop", error=str(error))
        self.failed.set_result(error)

    def start_again(self, error: TxLogError) -> None:
        """Ask for the end; with `StartAgainError` for a new start in this process."""
        if not self.failed.done():
            self.failed.set_result(error)

    def begin_stop(self) -> None:
        """Take no more submits; who waits learns that the outcome is open."""
        parts = self.parts
        parts.ending.set()
        parts.cycle.fail_waiting(BusyError("the node is stopping"))
        parts.receipts.close(
            CommitStateUnknownError(
                "the node is stopping", hint="Ask for the transaction's id when it is back."
            )
        )
        parts.published.release()
        parts.ordered.release()

    async def stop(self) -> None:
        """Stop cleanly; nothing accepted is lost."""
        parts = self.parts
        self.begin_stop()
        await parts.joining.close()
        await parts.membership.close()
        await parts.fetcher.close()
        await parts.voiding.close()
        await parts.planning.close()
        await parts.donor.close()
        if not parts.config.is_witness:
            await asyncio.to_thread(parts.publisher.stop)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        parts.executor.close()
        parts.readers.shutdown(wait=True)
        parts.front.close()
        _log.info("stopped", node=parts.config.node_id)
