"""Identifiers and names, and how they are checked."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from typing import Annotated, NewType

import msgspec

from sparktxlog.errors import InvalidNameError, InvalidRequestError

#: A number that messages carry and tables keep; a larger one is refused when it is read.
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
#: Greatest position, timestamp, sequence number or version.  Nodes keep 63 bits, and count on from
#: received numbers.
LARGEST = (1 << 62) - 1
#: A position, sequence number or version that another process sends.
JournalNumber = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]

#: Unique name of a master across all sites.
NodeId = NewType("NodeId", str)
#: 16 bytes of a UUID, given at submit; names staged files, and identifies a repeated submit.
TransactionId = NewType("TransactionId", bytes)

_PART = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
#: Delta's MERGE asks each row for the file that it is in, by this name.
_FILE_METADATA = "_metadata"
#: Schema of names without one; it always exists.
DEFAULT_SCHEMA = "default"
#: Characters of a table's name, with schema and dot: it names directories and files.
LONGEST_NAME = 128
#: Where a path begins that is a URL.
_PLACE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_COLUMN_FORBIDDEN = re.compile(r"[ ,;{}()\n\t=\x00]")
#: Names of devices on Windows, in any case and directory.
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", *(f"{name}{n}" for name in ("com", "lpt") for n in range(10))]
)
#: Columns with this prefix belong to sparktxlog.
RESERVED_PREFIX = "__txlog_"


def transaction_id_from_text(text: str) -> TransactionId:
    """Parse a UUID in its usual form, with or without hyphens.

    Raises:
        InvalidNameError: It is not a UUID (definite).
    """
    digits = text.replace("-", "") if isinstance(text, str) else ""
    if len(digits) != 32 or not re.fullmatch(r"[0-9a-fA-F]{32}", digits):
        raise InvalidNameError(
            f"{ascii(text)[:80]} is not a transaction id",
            hint="A transaction id is a UUID of 32 hexadecimal digits, a string.",
            value=ascii(text)[:80],
        )
    return TransactionId(bytes.fromhex(digits))


def transaction_id_to_text(transaction_id: bytes) -> str:
    """Return the UUID text of 16 bytes."""
    h = transaction_id.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def table_name(text: str) -> str:
    """Return the name of a table as the log has it, of what a user wrote: the only place for that.

    `orders` and `default.orders` are one table, `orders`; a table of another schema has both parts,
    `bronze.orders`.  The case stays as it is written, and is ignored where a table is looked for.

    Raises:
        InvalidNameError: No table can have this name; the hint says what can be done (definite).
    """
    shown = str(text)[:280]
    parts = text.split(".") if isinstance(text, str) else []
    if len(parts) > 2:
        raise _no_table(shown, f"it has {len(parts)} parts", "Write schema.table, no catalog.")
    if len(parts) == 2 and not all(parts):
        raise _no_table(shown, "a part of it is empty", "Write schema.table, or table alone.")
    if not parts or not all(map(_PART.fullmatch, parts)):
        raise _no_table(
            shown,
            "it has other characters, or too many",
            "Use a letter, then letters, digits and underscores, 128 at most; write schema.table "
            "for one that is not in schema default.",
        )
    name = log_name(*parts) if len(parts) == 2 else parts[0]
    if len(name) > LONGEST_NAME:
        raise _no_table(
            shown, f"it has {len(name)} characters", f"Schema and table together: {LONGEST_NAME}."
        )
    return name


def check_table_name(name: str) -> str:
    """Return `name` if it is that of a table as the log has it, else raise InvalidNameError."""
    found = table_name(name)
    if found != name:
        raise _no_table(name, f"the log calls it {found!r}", f"Write {found}.")
    return name


def check_name_part(name: str) -> str:
    """Return `name` if it may name a schema, or a table in one, else raise InvalidNameError."""
    if not isinstance(name, str) or not _PART.fullmatch(name):
        raise InvalidNameError(
            f"{str(name)[:140]!r} cannot name a table or a schema",
            hint="Use a letter, then letters, digits and underscores, 128 at most.",
            value=str(name)[:140],
        )
    return name


def find_table(text: str, names: Iterable[str]) -> str | None:
    """Return which of the log's tables a user names, None = none of them; case is ignored."""
    wanted = text.lower().removeprefix(f"{DEFAULT_SCHEMA}.")
    return next((name for name in names if name.lower() == wanted), None)


def log_name(schema: str, table: str) -> str:
    """Return the name that the log has for a table of a schema."""
    return table if schema.lower() == DEFAULT_SCHEMA else f"{schema}.{table}"


def full_table_name(name: str) -> str:
    """Return `schema.table` of a name as the log has it, or of a pattern for such names."""
    return name if "." in name else f"{DEFAULT_SCHEMA}.{name}"


def _no_table(shown: str, why: str, hint: str) -> InvalidNameError:
    return InvalidNameError(f"{shown!r} cannot name a table: {why}", hint=hint, value=shown)


def check_node_id(name: str) -> NodeId:
    """Return `name` if it may name a node, else raise InvalidNameError."""
    if not isinstance(name, str) or not _NODE.fullmatch(name):
        raise InvalidNameError(
            f"{str(name)[:80]!r} cannot name a node",
            hint="Use letters, digits, '-' and '_', 64 at most.",
            value=str(name)[:80],
        )
    return NodeId(name)


def without_case(name: str) -> str:
    """Return a name as Spark compares names: it takes two for one if these are equal.

    More are than by lower case alone: Java compares both cases of each character, so that `ı`, `İ`
    and `i` are one, and `ſ` and `s`.
    """
    return name.lower() if name.isascii() else "".join(map(_without_case, name))


@lru_cache(maxsize=1 << 14)
def _without_case(character: str) -> str:
    # What becomes several characters, as ß does, stays as it is in Java.
    forms = (character.upper(), character.title(), character)
    return next(form for form in forms if len(form) == 1).lower()[0]


def check_column_name(name: str) -> str:
    """Return `name` if Delta and sparktxlog accept it for a column, else raise InvalidNameError."""
    if not name or len(name) > 255 or _COLUMN_FORBIDDEN.search(name):
        raise InvalidNameError(
            f"{name[:80]!r} cannot name a column",
            hint="Column names have 1 to 255 characters and none of ' ,;{}()=', tab, newline, NUL.",
            value=name[:80],
        )
    if name.lower().startswith(RESERVED_PREFIX):
        raise InvalidNameError(f"column {name!r}: the prefix {RESERVED_PREFIX!r} is reserved")
    return name


def check_new_name(name: str) -> str:
    """Return `name` if every file system and SQL engine accepts it, else raise InvalidNameError.

    For new names only; existing names stay.  Control characters, names of devices (`CON`, `LPT1`),
    also with a file extension, names of dots only, and `_metadata` are refused.
    """
    if name.lower() == _FILE_METADATA:
        raise InvalidNameError(
            f"{name!r} is what Spark calls a file's name and size: Delta could not merge",
            hint="Choose another name.",
            value=name,
        )
    bad = next((c for c in name if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")), "")
    if bad or not name.strip(".") or name.partition(".")[0].lower() in _DEVICES:
        raise InvalidNameError(
            f"{name[:80]!r} is a name that some file systems or SQL engines do not accept",
            hint="Avoid control characters, names of devices such as CON or LPT1, and names of "
            "dots only.",
            value=name[:80],
        )
    return name


def check_relative_path(path: str) -> str:
    """Return `path` if it names a file below a root, else raise InvalidNameError.

    Absolute paths, empty parts, `.`, `..`, backslashes and NUL are refused.
    """
    parts = path.split("/")
    bad = not path or len(path) > 1024 or "\x00" in path or "\\" in path
    if bad or any(part in ("", ".", "..") for part in parts):
        raise InvalidNameError(
            f"{path[:140]!r} is not a path below the payload store",
            hint="Give a relative path without '.', '..', '\\' or NUL.",
            value=path[:140],
        )
    return path


def local_path(path: str, field: str = "path") -> str:
    """Return a path of this machine; Spark writes it as `file:///…` in places.

    Args:
        path: Perhaps normalised, so that one slash follows the scheme.
        field: Name of the setting, option or argument.

    Raises:
        InvalidRequestError: It is empty, or elsewhere, such as in an object store (definite).
    """
    if not path:
        raise InvalidRequestError(
            f"{field} is empty",
            hint="Give a path; . is the present directory.  Is a variable of the shell not set?",
            field=field,
            value=path,
        )
    match = _PLACE.match(path)
    if match is None:
        return path
    rest = path[match.end() :]
    # `file://host/…` is a place of another machine.
    if match[1].lower() != "file" or (rest.startswith("//") and rest[2:3] != "/"):
        raise InvalidRequestError(
            f"{field} is {path[:200]!r}, a place of {match[1]!r}: object stores and other machines "
            "are not supported yet",
            hint="Give a path of a file system that is mounted here, such as /data/lake.",
            field=field,
            value=path[:200],
        )
    return "/" + rest.lstrip("/")
