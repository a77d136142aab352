"""Routes about catching up: plan, transfers, signatures of the replica, settings at run time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.copying import Transfer
from sparktxlog.model.report import Recount
from sparktxlog.runtime.node import Node
from sparktxlog.service.problems import Handler, json_response
from sparktxlog.service.queries import whole

_recount_decoder = msgspec.json.Decoder(Recount)
_transfer_decoder = msgspec.json.Decoder(Transfer)
_settings_decoder = msgspec.json.Decoder(dict[str, Any])
_LAST = 1 << 62


def catch_up_handlers(
    node: Node, read_body: Callable[[Request], Awaitable[bytes]]
) -> list[tuple[str, str, Handler]]:
    """Return (method, path, handler); the caller checks tokens and turns errors into problems.

    Args:
        node: What is asked.
        read_body: Reads a request's body up to the limit.
    """
    api = _CatchUpApi(node, read_body)
    return [
        ("GET", "/v1/worker/plan", api.plan),
        ("POST", "/v1/worker/recounts", api.take_recount),
        ("POST", "/v1/worker/transfers", api.take_transfer),
        ("GET", "/v1/transfers", api.transfers),
        ("GET", "/v1/signatures", api.signatures),
        ("GET", "/v1/settings", api.settings),
        ("PATCH", "/v1/settings", api.change_settings),
        ("POST", "/v1/maintenance", api.maintain),
    ]


class _CatchUpApi:
    def __init__(self, node: Node, read_body: Callable[[Request], Awaitable[bytes]]) -> None:
        self._node = node
        self._read_body = read_body

    async def plan(self, request: Request) -> Response:
        return json_response(await self._node.plan(request.query_params.get("worker")))

    async def take_transfer(self, request: Request) -> Response:
        try:
            transfer = _transfer_decoder.decode(await self._read_body(request))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequestError(f"the transfer cannot be read: {error}") from error
        await self._node.take_transfer(transfer)
        return Response(status_code=204)

    async def take_recount(self, request: Request) -> Response:
        try:
            recount = _recount_decoder.decode(await self._read_body(request))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequestError(f"the recount cannot be read: {error}") from error
        return json_response(await self._node.take_recount(recount))

    async def transfers(self, request: Request) -> Response:
        return json_response(self._node.transfers(whole(request, "limit", 100, 1, 1000)))

    async def signatures(self, request: Request) -> Response:
        return json_response(
            self._node.signatures(
                whole(request, "after", 0, 0, _LAST), whole(request, "limit", 100, 1, 1000)
            )
        )

    async def maintain(self, _: Request) -> Response:
        return json_response(await self._node.maintain())

    async def settings(self, _: Request) -> Response:
        return json_response(self._node.settings())

    async def change_settings(self, request: Request) -> Response:
        try:
            changes = _settings_decoder.decode(await self._read_body(request))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequestError(
                f"the settings cannot be read: {error}",
                hint='Send one object such as {"NetSpeedBitsPerSec": 1000000000}.',
            ) from error
        return json_response(await self._node.change_settings(changes))
