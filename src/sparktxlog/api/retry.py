"""Repeats functions whose transactions lost to others; `Commits.retry` explains it to users."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

from sparktxlog.errors import ConflictError, InvalidRequestError, TxLogError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: Bounds of a pause before the second attempt, and of any.  A pause is drawn between 0 and its
#: bound: who lost often must not wait much longer than those who come new.
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5


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
            ("attempts", self.attempts, type(self.attempts) is int and self.attempts >= 1),
            ("timeout_s", self.timeout_s, self.timeout_s > 0),
        ):
            if not is_good:
                raise InvalidRequestError(
                    f"{field}={value!r} is out of range",
                    hint="attempts is a whole number from 1, timeout_s is more than 0 seconds.",
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
            deadline, bound_s = self.clock() + self.timeout_s, _FIRST_PAUSE_S
            last_id, attempt = None, 0
            while True:
                attempt += 1
                try:
                    return function(*args, **kwargs)
                except ConflictError as error:
                    lost = error
                last_id = self._check_new(lost, last_id, attempt)
                if attempt == self.attempts:
                    raise _given_up(lost, attempt) from lost
                left = max(0.0, deadline - self.clock())
                self.pause(min(self.draw(0.0, bound_s), left))
                bound_s = min(2 * bound_s, _LONGEST_PAUSE_S)
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
    return ConflictError(
        f"{lost.message} (given up after {times}{why})",
        hint="Nothing of it took effect.  Others write to this table all the time: allow more "
        "attempts or a longer timeout_s, or make the transaction shorter.",
        **lost.fields | {"attempts": attempts},
    )
