"""How many holders a synchronous transaction needs: a count, or an expression as `N/2+1` (P34).

    expression = term { ("+" | "-") term }
    term       = factor { ("*" | "/") factor }
    factor     = number | "N" | "(" expression ")"

N is how many places of the log carry data; `/` divides whole numbers.  The text is parsed here and
never run as code.
"""

from __future__ import annotations

import re
from functools import lru_cache

from sparktxlog.errors import InvalidRequestError

DEFAULT_EXPRESSION = "N/2+1"
_LONGEST = 64
#: An expression must have a value for logs of so many places.
_MOST_PLACES = 64
_WORDS = re.compile(r"[0-9]{1,6}|[N+\-*/()]")


class _Parser:
    """Reads one text; `at` is the place of the next word, from 0."""

    def __init__(self, text: str, places: int) -> None:
        self._text, self._places = text, places
        self.at = 0

    def value(self) -> int:
        """Return the value of the whole text; errors as `holders_of`."""
        if not self._text.strip():
            raise self._wrong("is empty")
        value = self._expression()
        if self._peek():
            raise self._wrong("an operator, or the end, is expected")
        return value

    def _peek(self) -> str:
        while self._text[self.at : self.at + 1] == " ":
            self.at += 1
        found = _WORDS.match(self._text, self.at)
        if found is None and self.at < len(self._text):
            raise self._wrong("only numbers, N, + - * / and ( ) may stand")
        return "" if found is None else found[0]

    def _take(self) -> None:
        self.at += len(self._peek())

    def _expression(self) -> int:
        value = self._term()
        while (word := self._peek()) and word in "+-":
            self._take()
            other = self._term()
            value = value + other if word == "+" else value - other
        return value

    def _term(self) -> int:
        value = self._factor()
        while (word := self._peek()) and word in "*/":
            self._take()
            start = self.at
            other = self._factor()
            if word == "*":
                value *= other
            elif other == 0:
                self.at = start
                raise self._wrong(f"this is 0 for N = {self._places}, and divides")
            else:
                value //= other
        return value

    def _factor(self) -> int:
        word = self._peek()
        if word == "N":
            self._take()
            return self._places
        if word.isdigit():
            self._take()
            return int(word)
        if word != "(":
            raise self._wrong("a number, N or '(' is expected")
        self._take()
        value = self._expression()
        if self._peek() != ")":
            raise self._wrong("')' is expected")
        self._take()
        return value

    def _wrong(self, what: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"synchro-quorum {self._text[:_LONGEST]!r}, character {self.at + 1}: {what}",
            hint="Write a count, or an expression such as N/2+1.",
            field="synchro-quorum",
            value=self._text[:_LONGEST],
            place=self.at + 1,
        )


@lru_cache(maxsize=256)
def holders_of(text: str, places: int) -> int:
    """Return how many holders an expression asks for, at least 1 and at most `places`.

    Args:
        places: N.

    Raises:
        InvalidRequestError: It is no expression, or divides by 0; it says where (definite).
    """
    if len(text) > _LONGEST:
        raise InvalidRequestError(
            f"synchro-quorum has {len(text):,} characters, {_LONGEST} are allowed",
            field="synchro-quorum",
            value=text[:_LONGEST],
            place=_LONGEST + 1,
        )
    return max(1, min(_Parser(text, places).value(), places))


def check_expression(text: str) -> str:
    """Return an expression that has a value for every log; errors as `holders_of`."""
    for places in range(1, _MOST_PLACES + 1):
        holders_of(text, places)
    return text.strip()
