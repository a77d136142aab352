"""Tokens of predicates; every token has its place, so that errors can point at it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sparktxlog.errors import InvalidRequestError

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<string>'(?:[^'\\]|\\.|'')*')
      | (?P<symbol><=>|<=|>=|<>|!=|==|[=<>(),.+-])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)

_ESCAPES = {
    "0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a",
    "'": "'", '"': '"', "\\": "\\", "%": "\\%", "_": "\\_",
}  # fmt: skip
#: A doubled quote, a character by its number, or another escape.
_ESCAPE = re.compile(r"('')|\\u([0-9a-fA-F]{4})|\\(.)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a predicate."""

    #: `number`, `word`, `quoted`, `string`, `symbol`, `end`.
    kind: str
    #: Words in their own case, quoted names and strings decoded.
    text: str
    #: 0-based place of the first character.
    at: int

    @property
    def upper(self) -> str:
        """The word as a keyword, empty for other tokens."""
        return self.text.upper() if self.kind == "word" else ""


def fault(text: str, at: int, message: str, hint: str = "", **fields: Any) -> InvalidRequestError:
    """Return the error that points at a character of the predicate.

    Args:
        text: The whole predicate.
        at: 0-based place of the character.
        message: What is wrong there.
        hint: What to write instead.
        fields: More fields of the error.
    """
    start = max(0, at - 30)
    window = text[start : at + 30].replace("\n", " ").replace("\t", " ")
    pointer = f"\n  {window}\n  {' ' * (at - start)}^"
    return InvalidRequestError(
        f"predicate, character {at + 1}: {message}{pointer}", hint=hint, at=at, **fields
    )


def tokens_of(text: str) -> list[Token]:
    """Split a predicate into tokens, an `end` token last.

    Raises:
        InvalidRequestError: A character that belongs to no token; it points at it (definite).
    """
    tokens = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _stray(text, at)
        kind = match.lastgroup or ""
        if kind == "quoted":
            tokens.append(Token(kind, match[0][1:-1].replace("``", "`"), at))
        elif kind == "string":
            tokens.append(Token(kind, _decoded(text, match[0][1:-1], at + 1), at))
        elif kind != "space":
            tokens.append(Token(kind, match[0], at))
        at = match.end()
    tokens.append(Token("end", "", len(text)))
    return tokens


def _stray(text: str, at: int) -> InvalidRequestError:
    char = text[at]
    if char == "'":
        return fault(text, at, "this text is not closed", "Close it with '.")
    if char == "`":
        return fault(text, at, "this name is not closed", "Close it with `.")
    if char == '"':
        return fault(text, at, 'a " is ambiguous', "Write 'text' and `column`.")
    if char in "*/%|&^~":
        return fault(text, at, "arithmetic is not allowed", "It may fail at some rows; see docs.")
    return fault(text, at, f"{char!r} is not understood")


def _decoded(text: str, body: str, at: int) -> str:
    """Return the value of a string literal, as Spark's parser reads it."""

    def value_of(match: re.Match[str]) -> str:
        doubled, digits, char = match.groups()
        if doubled:
            return "'"
        if digits and not 0xD800 <= int(digits, 16) < 0xE000:
            return chr(int(digits, 16))
        if char in _ESCAPES:
            return _ESCAPES[char]
        if digits:
            raise fault(text, at + match.start(), "half a surrogate pair is not a character")
        raise fault(text, at + match.start(), "unknown escape", "Write \\\\ for a backslash.")

    return _ESCAPE.sub(value_of, body)


def string_literal(value: str) -> str:
    """Return text as a string literal that Spark SQL reads back exactly."""
    quoted = re.sub(r"['\\]", r"\\\g<0>", value)
    return "'" + _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted) + "'"


def quoted_name(name: str) -> str:
    """Return a name in backticks, which SQL parsers accept whatever it contains."""
    return "`" + name.replace("`", "``") + "`"
