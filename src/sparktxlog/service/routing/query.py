"""Parameters in the query of a request: how they are read, and how OpenAPI describes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.answers import LONGEST_WAIT_S
from sparktxlog.model.ids import LARGEST


@dataclass(frozen=True, slots=True)
class Query:
    """A parameter of a query; a text, unless `type` says otherwise.

    Args:
        name: Its name in the query.
        text: Its description.
        default: The value if it is missing.
        required: Whether it must be there.
        low, high: Bounds of a number; None = the value is a text.
        type: `string`, `integer`, or `number` for a duration in seconds.
    """

    name: str
    text: str
    default: Any = None
    required: bool = False
    low: int | None = None
    high: float | None = None
    type: str = "string"

    def read(self, given: str | None) -> Any:
        """Return the checked value; `given` None = the query does not have it.

        Raises:
            InvalidRequestError: Wrong or missing value; fields `field`, `value` (definite).
        """
        if not given and not self.required and (given is None or self.type == "string"):
            return self.default
        found = self._parse(given or "")
        if found is None:
            shown = None if given is None else given[:40]
            raise InvalidRequestError(
                f"{self.name} is {shown!r}, expected {self._wanted()}",
                field=self.name,
                value=shown,
            )
        return found

    def _parse(self, given: str) -> Any:
        """Return the value, None if it is wrong."""
        if self.low is None or self.high is None:
            return given or None
        value: float
        if self.type == "integer":
            if not re.fullmatch(r"-?[0-9]{1,19}", given):
                return None
            value = int(given)
        else:
            try:
                value = float(given)
            except ValueError:
                return None
        return value if self.low <= value <= self.high else None

    def _wanted(self) -> str:
        if self.type == "integer":
            return f"a whole number from {self.low} to {self.high}"
        return "a text" if self.high is None else f"{self.low} to {self.high:g} seconds"

    @property
    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the value."""
        bounds = {"minimum": self.low, "maximum": self.high, "default": self.default}
        return {"type": self.type} | {k: v for k, v in bounds.items() if v is not None}


def whole(
    name: str,
    text: str,
    default: int | None = None,
    *,
    low: int = 0,
    high: int = LARGEST,
    required: bool = False,
) -> Query:
    """Return a whole number between two bounds."""
    return Query(name, text, default, required, low, high, "integer")


def seconds(name: str, text: str, default: float) -> Query:
    """Return a duration, 0 to `LONGEST_WAIT_S` seconds."""
    return Query(name, text, default, False, 0, LONGEST_WAIT_S, "number")
