"""Takes what a site has in a bucket: at the start, or once the bucket answers.

Until then nothing is changed there, the status says so, and the node does all else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sparktxlog.errors import StorageError, StoreUnavailableError
from sparktxlog.runtime.commit_tables.site_places import owner_in_buckets
from sparktxlog.runtime.foundation import Foundation

#: Seconds that a start waits for a bucket; then between two further attempts.
START_S, RETRY_S = 30.0, 10.0


class StoreTaking:
    """Proves that a store is this site's and keeps its promises; belongs to the event loop.

    Args:
        name: Of the work, where it fails.
        place: Where the store is.
        take: Takes it for an owner, and raises as `SiteTables.take`; blocks.
    """

    def __init__(
        self, base: Foundation, name: str, place: str, take: Callable[[str], None]
    ) -> None:
        self._base, self._name, self._place, self._take = base, name, place, take
        #: Whether it is taken since the start.
        self.is_taken = False

    async def start(self) -> None:
        """Take the store; if it does not answer, `watch` goes on.

        Raises:
            ConfigError: It cannot be used (definite).
        """
        try:
            async with asyncio.timeout(START_S):
                await self._attempt()
        except StorageError as error:
            self._base.supervisor.note(self._name, error)
        except TimeoutError:
            waited = StoreUnavailableError(f"the bucket has not answered for {START_S:g} s")
            self._base.supervisor.note(self._name, waited)

    async def watch(self) -> None:
        """Take the store that did not answer at the start, once it does; until cancelled.

        Raises:
            ConfigError: It cannot be used, and nothing was changed there (definite).
        """
        while not self.is_taken:
            await asyncio.sleep(RETRY_S)
            try:
                await self._attempt()
            except StorageError as error:
                self._base.supervisor.note(self._name, error)
        await self._base.loop.create_future()

    async def _attempt(self) -> None:
        owner = owner_in_buckets(self._base.config)
        await self._base.run_on_files(self._place, self._take, owner)
        self.is_taken = True
        self._base.supervisor.clear(self._name)
