"""Values of a request's query, checked."""

from __future__ import annotations

import re

from starlette.requests import Request

from sparktxlog.errors import InvalidRequestError

#: Longest wait a request may ask for, seconds.
MAX_TIMEOUT_S = 300.0


def seconds(request: Request, name: str, default: float) -> float:
    """Return a duration, 0 to `MAX_TIMEOUT_S` seconds.

    Raises:
        InvalidRequestError: It is no such number (definite).
    """
    text = request.query_params.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_TIMEOUT_S:
        raise InvalidRequestError(
            f"{name} is {str(text if text is not None else default)[:40]!r}, 0 to "
            f"{MAX_TIMEOUT_S:g} seconds are allowed",
            field=name,
        )
    return value


def whole(request: Request, name: str, default: int, low: int, high: int) -> int:
    """Return a whole number between two bounds.

    Raises:
        InvalidRequestError: It is no such number (definite).
    """
    text = request.query_params.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or not low <= int(text) <= high:
        raise InvalidRequestError(
            f"{name} is {text[:40]!r}, a whole number from {max(low, 0)} to {high} is wanted",
            field=name,
        )
    return int(text)
