"""Repeats functions whose transactions lost to others; `Commits.retry` explains it to users."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

from sparktxlog.codec.submits.arguments import is_whole, seconds_given
from sparktxlog.errors import ConflictError, InvalidRequestError, TxLogError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: A pause is drawn between 0 and so many times what the lost attempt took, and a longest one.
_PAUSE, _LONGEST_PAUSE_S = 4.0, 0.5


def longest_pause_s(took_s: float) -> float:
    """Return the bound of a pause after a lost attempt, seconds.

    It does not grow with the number of attempts.  One of all writers of a table always wins, so
    pauses need not grow for that.  A writer that lost often would otherwise wait while winners go
    on, and starve (`test_nobody_starves_at_one_hot_row`).
    """
    return min(_PAUSE * took_s, _LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Decorates functions; safe to share between threads."""

    attempts: int
    #: Seconds after which no further attempt begins.
    timeout_s: float
    #: Waits, at most for some seconds, until what a transaction lost to can be read here.
    catch_up: Callable[[ConflictError, float], None]
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = time.sleep
    draw: Callable[[float, float], float] = random.uniform

    def __post_init__(self) -> None:
        for field, value, is_good in (
            ("attempts", self.attempts, is_whole(self.attempts)),
            ("timeout", self.timeout_s, seconds_given(self.timeout_s) > 0),
        ):
            if not is_good:
                raise InvalidRequestError(
                    f"{field}={value!r} is out of range",
                    hint="attempts is a whole number from 1, timeout is more than 0 seconds.",
                    field=field,
                    value=value,
                )

    def __call__(self, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        """Return the function that is repeated."""
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise InvalidRequestError(
                f"{function.__qualname__} only begins when it is called, so it cannot be repeated",
                hint="Decorate a plain function that runs the whole transaction.",
                field="function",
                value=function.__qualname__,
            )

        @wraps(function)
        def repeated(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            deadline = self.clock() + self.timeout_s
            last_id, attempt = None, 0
            while True:
                attempt += 1
                began = self.clock()
                try:
                    return function(*args, **kwargs)
                except ConflictError as error:
                    lost = error
                last_id = self._check_new(lost, last_id, attempt)
                if attempt == self.attempts:
                    raise _given_up(lost, attempt) from lost
                ended = self.clock()
                pause_s = self.draw(0.0, longest_pause_s(ended - began))
                self.pause(min(pause_s, max(0.0, deadline - ended)))
                left = deadline - self.clock()
                if left <= 0:
                    raise _given_up(lost, attempt, f" within {self.timeout_s:g} s") from lost
                try:
                    self.catch_up(lost, left)
                except TxLogError as error:
                    raise _given_up(lost, attempt, f": {error.message}") from error

        return repeated

    def _check_new(self, lost: ConflictError, last_id: object, attempt: int) -> object:
        """Return the id of what lost; the same one twice would lose for ever."""
        found = lost.fields.get("transaction_id")
        if found is not None and found == last_id:
            raise _given_up(
                lost, attempt, ": each had the same transaction id, and so the same outcome"
            ) from lost
        return found


def _given_up(lost: ConflictError, attempts: int, why: str = "") -> ConflictError:
    """Return the last conflict with what was tried."""
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    return type(lost)(
        f"{lost.message} (given up after {times}{why})",
        hint="Nothing of it took effect.  Others write to this table all the time: allow more "
        "attempts or a longer timeout, or make the transaction shorter.",
        **lost.fields | {"attempts": attempts},
    )
