"""Tokens of predicates; every token knows its place, so that errors can point at it."""

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
_UNICODE = re.compile(r"u([0-9a-fA-F]{4})")


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
        return fault(text, at, "this text has no end", "Close it with '.")
    if char == "`":
        return fault(text, at, "this name has no end", "Close it with `.")
    if char == '"':
        return fault(text, at, 'a " is ambiguous', "Write 'text' and `column`.")
    if char in "*/%|&^~":
        return fault(text, at, "arithmetic is not allowed", "It may fail at some rows; see docs.")
    return fault(text, at, f"{char!r} is not understood")


def _decoded(text: str, body: str, at: int) -> str:
    """Return the value of a string literal, as Spark's parser reads it."""
    if "\\" not in body and "'" not in body:
        return body
    parts = []
    index = 0
    while index < len(body):
        char = body[index]
        if char == "'":  # doubled
            parts.append("'")
            index += 2
        elif char != "\\":
            parts.append(char)
            index += 1
        elif (unicode := _UNICODE.match(body, index + 1)) is not None:
            code = int(unicode[1], 16)
            if 0xD800 <= code < 0xE000:
                raise fault(text, at + index, "half a surrogate pair is no character")
            parts.append(chr(code))
            index += 6
        elif body[index + 1] in _ESCAPES:
            parts.append(_ESCAPES[body[index + 1]])
            index += 2
        else:
            raise fault(text, at + index, "this escape is not known", "Write \\\\ for a backslash.")
    return "".join(parts)


def string_literal(value: str) -> str:
    """Return text as a string literal that Spark SQL reads back exactly."""
    out = []
    for char in value:
        if char in "'\\":
            out.append("\\" + char)
        elif char < " " or char == "\x7f":
            out.append(f"\\u{ord(char):04x}")
        else:
            out.append(char)
    return f"'{''.join(out)}'"


def quoted_name(name: str) -> str:
    """Return a name in backticks, as parsers of SQL take it whatever it holds."""
    return "`" + name.replace("`", "``") + "`"
