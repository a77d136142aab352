"""Errors as RFC 9457 documents: code, text, hint and whether anything happened."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from sparktxlog.codec.problems import encode_problem
from sparktxlog.errors import InternalError, TxLogError

_log = logging.getLogger("sparktxlog.service")

_encode = msgspec.json.Encoder().encode

Handler = Callable[[Request], Awaitable[Response]]


def json_response(value: object, status: int = 200) -> Response:
    """Return a value as JSON; dataclasses and enums too."""
    return Response(_encode(value), status, media_type="application/json")


def problem_response(error: TxLogError, status: int | None = None) -> Response:
    """Return an error as a problem document, by default with the status of its class."""
    headers = {}
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    if error.retryable and error.http_status == 503:
        headers["retry-after"] = "1"
    return Response(
        encode_problem(error, status),
        error.http_status if status is None else status,
        headers=headers,
        media_type="application/problem+json",
    )


def guarded(handler: Handler) -> Handler:
    """Return the handler with errors turned into problem documents.

    An error that is none of ours is a bug: it is logged with its trace, and the client learns that
    the outcome is unknown, for the handler may have got far.
    """

    async def guard(request: Request) -> Response:
        try:
            return await handler(request)
        except TxLogError as error:
            return problem_response(error)
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:  # noqa: BLE001 - the last one; it is logged and answered
            _log.exception("a request failed: %s %s", request.method, request.url.path)
            return problem_response(
                InternalError(
                    "the node failed at this request; its log has the details",
                    hint="It may have happened: ask for the transaction id.",
                )
            )

    return guard
