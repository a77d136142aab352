"""Arguments of calls in Python, checked where they come in: a typed error names each.

Users' programs are not always type-checked, and a text from a configuration file or a variable is
easily given for a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from numbers import Integral, Real
from typing import TypeVar

from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.transactions.operation import ROW_KINDS, OperationKind

Given = TypeVar("Given")
#: 46 days: a thread can wait so long on every system.
_LONGEST_S = 4e6
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def seconds_given(given: float, field: str = "timeout") -> float:
    """Return seconds, no more than a thread can wait; negative ones are a deadline that has passed.

    Raises:
        InvalidRequestError: It is no number (definite).
    """
    if isinstance(given, Real) and not isinstance(given, bool) and given == given:
        try:
            return min(float(given), _LONGEST_S)
        except OverflowError:
            pass
    raise InvalidRequestError(
        f"{field}={_shown(given)} is no number of seconds",
        hint="Give a number, such as 30.0.",
        field=field,
        value=_shown(given),
    )


def is_whole(given: object, least: int = 1) -> bool:
    """Whether it is a whole number from `least`, of NumPy too, and no bool."""
    return isinstance(given, Integral) and not isinstance(given, bool) and int(given) >= least


def whole_given(given: int, field: str) -> int:
    """Return a whole number from 1.

    Raises:
        InvalidRequestError: It is another value (definite).
    """
    if is_whole(given):
        return int(given)
    raise InvalidRequestError(
        f"{field}={_shown(given)} is no whole number from 1",
        hint="Give a number, such as 2.",
        field=field,
        value=_shown(given),
    )


def flag_given(given: bool, field: str) -> bool:
    """Return True or False: a text such as "no" would be true.

    Raises:
        InvalidRequestError: It is another value (definite).
    """
    if isinstance(given, bool):
        return given
    raise InvalidRequestError(
        f"{field}={_shown(given)} is neither True nor False",
        hint=f"Write {field}=True, or leave it out.",
        field=field,
        value=_shown(given),
    )


def text_given(given: str, field: str) -> str:
    """Return a text that can be sent.

    Raises:
        InvalidRequestError: It is no text, or has half a surrogate pair (definite).
    """
    if isinstance(given, str) and given.encode(errors="ignore").decode() == given:
        return given
    raise InvalidRequestError(
        f"{field}={_shown(given)} is no text",
        hint="Give a string, whose characters are decoded with errors='strict'.",
        field=field,
        value=_shown(given),
    )


def texts_given(given: Iterable[str], field: str) -> tuple[str, ...]:
    """Return several texts: one alone would be taken for its characters.

    Raises:
        InvalidRequestError: It is a string, or holds something else (definite).
    """
    if isinstance(given, str):
        raise InvalidRequestError(
            f"{field}={_shown(given)} is a string",
            hint=f"Write {[given[:80]]}.",
            field=field,
            value=_shown(given),
        )
    if isinstance(given, Iterable) and not isinstance(given, bytes):
        return tuple(text_given(one, field) for one in given)
    raise InvalidRequestError(
        f"{field}={_shown(given)} is no list of strings",
        hint="Write ['one', 'other'].",
        field=field,
        value=_shown(given),
    )


def mapping_given(given: Mapping[str, Given] | None, field: str) -> dict[str, Given]:
    """Return a mapping of texts to something; None: it is empty.

    Raises:
        InvalidRequestError: It is another value (definite).
    """
    if given is None or isinstance(given, Mapping):
        return {text_given(name, field): value for name, value in (given or {}).items()}
    raise InvalidRequestError(
        f"{field}={_shown(given)} is no dict",
        hint=f"Write {field}={{'name': …}}.",
        field=field,
        value=_shown(given),
    )


def kind_given(given: str | OperationKind) -> OperationKind:
    """Return a kind of operation that carries rows.

    Raises:
        InvalidRequestError: It is none (definite).
    """
    known = {kind.value: kind for kind in ROW_KINDS}
    found = known.get(given) if isinstance(given, str) else None
    if found is not None:
        return found
    raise InvalidRequestError(
        f"kind={_shown(given)} is no kind of operation with rows",
        hint=f"Known: {', '.join(sorted(known))}.",
        field="kind",
        value=_shown(given),
    )


def microseconds(time: datetime | None) -> int | None:
    """Return a time as microseconds since 1970 UTC, None for None.

    Raises:
        InvalidRequestError: It has no zone, or is no time (definite).
    """
    if time is None:
        return None
    is_time = isinstance(time, datetime)
    if not is_time or time.tzinfo is None:
        raise InvalidRequestError(
            f"valid_until={_shown(time)} {'has no time zone' if is_time else 'is no datetime'}",
            hint="Use datetime.now(UTC) + timedelta(…).",
            field="valid_until",
            value=_shown(time),
        )
    return (time - _EPOCH) // timedelta(microseconds=1)


def _shown(given: object) -> str:
    try:
        return ascii(given)[:80]
    except ValueError:  # a number with more digits than Python shows
        return f"a number of type {type(given).__name__}"
