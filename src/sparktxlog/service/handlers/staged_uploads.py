"""Takes staged files from executors that do not share a disk with the node.

A file comes in parts of at most `PART_BYTES`, each with its offset, so a broken upload goes on
where it was.  Few parts are read at once: the body of a request that waits stays at its sender,
because nobody reads its connection.  So uploads of any number and size need a fixed amount of
memory.  Turns, and bytes that no transaction names yet, are shared by token (`budgets`).
"""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request

from sparktxlog.errors import InvalidNameError, ManifestMismatchError, SlowRequestError
from sparktxlog.model.answers import ReceivedBytes
from sparktxlog.model.ids import check_relative_path, transaction_id_from_text
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.runtime.node import Node
from sparktxlog.runtime.tokens.budgets import upload_of
from sparktxlog.service.connections.bodies import Bodies
from sparktxlog.service.granted import check_writes
from sparktxlog.service.routing.endpoints import RouteHandlers
from sparktxlog.service.routing.routes import PART_BYTES

#: Seconds that a request waits for its turn, and seconds that the bytes of a part may take.
_TURN_S, _BODY_S = 20.0, 60.0


class StagedUploads(RouteHandlers):
    """One method per route.

    Args:
        node: Has the store to which the files go, and knows the owner of each directory.
    """

    def __init__(self, node: Node) -> None:
        self._payloads, self._budgets = node.payloads, node.base.budgets
        self._owners = node.core.owners
        self._run = partial(node.base.stagers.run, node.payloads.place)
        self._bodies = Bodies(PART_BYTES, self._budgets.memory)

    async def upload_part(
        self,
        request: Request,
        path: str,
        table: str,
        digest: str,
        size: int,
        rows: int,
        offset: int,
    ) -> ReceivedBytes:
        check_writes(lambda: (table,))
        _check_place(path)
        place = path.partition("/")[0]
        self._owners.check(place)
        file = StagedFile(path=path, size_bytes=size, rows=rows, digest=digest)
        async with self._budgets.upload_parts.turn(_TURN_S):
            if offset or not await self._run(self._payloads.has, file):
                self._budgets.uploads.take(*upload_of(file), size)
            part = await self._part_of(request)
            received: int
            try:
                received = await self._run(self._payloads.receive_part, file, part, offset)
            except ManifestMismatchError:
                self._budgets.uploads.give(*upload_of(file))
                raise
        await self._owners.take(place)
        return {"received": received}

    async def _part_of(self, request: Request) -> list[bytes]:
        try:
            async with (
                asyncio.timeout(_BODY_S),
                self._bodies.pieces_of(request, PART_BYTES) as pieces,
            ):
                return pieces
        except TimeoutError:
            raise SlowRequestError(
                f"a part of a staged file did not arrive within {_BODY_S:g} s",
                hint="Send smaller parts.",
            ) from None


def _check_place(path: str) -> None:
    """Check that a file goes into a directory of a transaction.

    Raises:
        InvalidNameError: It does not (definite).
    """
    first, *others = check_relative_path(path).split("/")
    if len(others) < 2:
        raise InvalidNameError(
            f"{path[:140]!r} is not <transaction id>/<directory>/<file>", value=path[:140]
        )
    transaction_id_from_text(first)
