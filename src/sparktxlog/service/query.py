"""Values in the query of a request: how they are read, and how OpenAPI describes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from sparktxlog.errors import InvalidRequestError

#: Longest wait a request may ask for, seconds.
MAX_TIMEOUT_S = 300.0
#: No position is larger.
MAX_POSITION = 1 << 62


@dataclass(frozen=True, slots=True)
class Text:
    """A text.

    Args:
        name: Its name in the query.
        text: What it says, for people.
        default: The value if it is missing.
        required: Whether it must be there.
    """

    name: str
    text: str
    default: Any = None
    required: bool = False
    type: ClassVar[str] = "string"

    def read(self, given: str | None) -> Any:
        """Return the value of what the query has, None = nothing.

        Raises:
            InvalidRequestError: It is not one, or is missing; fields `field`, `value` (definite).
        """
        if not given and not self.required and (given is None or self.type == "string"):
            return self.default
        found = self._parse(given or "")
        if found is None:
            shown = None if given is None else given[:40]
            raise InvalidRequestError(
                f"{self.name} is {shown!r}, {self._wanted} is wanted", field=self.name, value=shown
            )
        return found

    @property
    def _wanted(self) -> str:
        return "a text"

    def _parse(self, given: str) -> Any:
        """Return the value, None if it is not one."""
        return given or None

    @property
    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the value."""
        default = {} if self.default is None else {"default": self.default}
        return {"type": self.type, **self._bounds, **default}

    @property
    def _bounds(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class Whole(Text):
    """A whole number between two bounds."""

    low: int = 0
    high: int = MAX_POSITION
    type: ClassVar[str] = "integer"

    @property
    def _wanted(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def _parse(self, given: str) -> int | None:
        good = re.fullmatch(r"-?[0-9]{1,19}", given) and self.low <= int(given) <= self.high
        return int(given) if good else None

    @property
    def _bounds(self) -> dict[str, Any]:
        return {"minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Seconds(Text):
    """A duration, 0 to `MAX_TIMEOUT_S` seconds."""

    type: ClassVar[str] = "number"

    @property
    def _wanted(self) -> str:
        return f"0 to {MAX_TIMEOUT_S:g} seconds"

    def _parse(self, given: str) -> float | None:
        try:
            value = float(given)
        except ValueError:
            return None
        return value if 0 <= value <= MAX_TIMEOUT_S else None

    @property
    def _bounds(self) -> dict[str, Any]:
        return {"minimum": 0, "maximum": MAX_TIMEOUT_S}
