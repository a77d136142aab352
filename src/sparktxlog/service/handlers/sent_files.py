"""Routes by which files of this site go to peers, and to a feed that does not see its disk.

Each asks by digest and size, and may go on where a transfer broke.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from sparktxlog.errors import NotFoundError
from sparktxlog.files.sending import Outgoing
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.runtime.commit.file_repair import FileRepair
from sparktxlog.runtime.commit_tables.table_giver import TableGiver
from sparktxlog.runtime.membership.queue_summaries import SummaryGiver
from sparktxlog.service.routing.declared_route import BINARY
from sparktxlog.service.routing.endpoints import RouteHandlers

#: The header of a receiver that has the first bytes of a file.
_RESUMED = re.compile(r"bytes=([0-9]{1,18})-")
_Sender = Callable[[StagedFile], Awaitable[Outgoing]]


class SentFiles(RouteHandlers):
    """One method per route.

    Args:
        files: Checks staged and published files before they are sent.
        giver: Gives files of commit tables.
        summaries: Gives summaries of the queue.
    """

    def __init__(self, files: FileRepair, giver: TableGiver, summaries: SummaryGiver) -> None:
        self._giver = giver
        #: Place → what finds a file there.
        self._of_workers: Mapping[str, _Sender] = {
            "payloads": files.outgoing,
            "versions": self._of_version,
        }
        self._of_peers: Mapping[str, _Sender] = {
            "payloads": files.outgoing,
            "versions": giver.outgoing,
            "summaries": summaries.outgoing,
        }

    async def file(
        self, request: Request, where: str, path: str, digest: str, size: int, rows: int
    ) -> Response:
        """Send a file to a peer, from the offset on that it asks for.

        Raises:
            NotFoundError: There is none, or it has another size (definite).
        """
        wanted = StagedFile(path=path, size_bytes=size, rows=rows, digest=digest)
        return await _sent(request, self._of_peers, where, wanted)

    async def worker_file(
        self, request: Request, where: str, path: str, digest: str, size: int, rows: int
    ) -> Response:
        """Send a file to a worker or a feed on another machine; as `file`."""
        wanted = StagedFile(path=path, size_bytes=size, rows=rows, digest=digest)
        return await _sent(request, self._of_workers, where, wanted)

    async def _of_version(self, wanted: StagedFile) -> Outgoing:
        """Return a file of a commit table, also where no peer asked what its version has."""
        uuid, _, rest = wanted.path.partition("/")
        number = rest.partition("/")[0]
        if number.isascii() and number.isdigit() and len(number) <= 18:
            await self._giver.versions(uuid, int(number) - 1, int(number))
        return await self._giver.outgoing(wanted)


async def _sent(
    request: Request, senders: Mapping[str, _Sender], where: str, wanted: StagedFile
) -> Response:
    if (sender := senders.get(where)) is None:
        raise NotFoundError(f"{where[:40]!r} is no place of files: {', '.join(senders)} are")
    # After the first check of a staged file this costs only a look at the inode.
    found = await sender(wanted)
    if (content := await found.opened()) is None:
        raise NotFoundError("no such file, or it is damaged", path=wanted.path)
    resumed = _RESUMED.fullmatch(request.headers.get("range", ""))
    offset = min(int(resumed[1]), found.size_bytes) if resumed else 0
    headers = {"content-length": str(found.size_bytes - offset)}
    return StreamingResponse(
        found.pieces(content, offset), 206 if offset else 200, headers=headers, media_type=BINARY
    )
