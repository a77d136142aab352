"""Files that a log names: their paths in the log, their paths below the table, and their kinds.

A path in the log is quoted once more than the file's own: the file `p=a%20b/x.parquet`, in the
directory of the partition value `a b`, is `p=a%2520b/x.parquet` there.  Writers differ in what
they quote: one log has `ü` where another one has `%C3%BC`.  So only paths of files are compared.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote

from sparktxlog.errors import CorruptLogError

#: Digits of Z85, in which Delta writes UUIDs of deletion vectors, and of Python's Base85.
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_FROM_Z85, _TO_Z85 = bytes.maketrans(_Z85, _B85), bytes.maketrans(_B85, _Z85)
_VECTOR_FILE = re.compile(r"(?:(.*)/)?deletion_vector_([0-9a-f-]{36})\.bin")
#: Length of a UUID as Z85.
_Z85_UUID = 20


def path_in_log(path: str) -> str:
    """Return the path of a file, relative to its table, as Spark's logs name it."""
    # Some readers compare paths as texts.
    return quote(path, safe="/=!$&'()*+,;@~")


def path_of_file(logged: str) -> str:
    """Return the path of the file that a log names; for a file elsewhere, the path in its URL.

    Raises:
        CorruptLogError: No file of a table can have that name (definite).
    """
    try:
        return unquote(logged, errors="strict")
    except UnicodeDecodeError as error:
        raise CorruptLogError(f"the log names no file: {logged[:120]!r}", path=logged) from error


def from_z85(coded: str) -> bytes:
    """Return the bytes of a text as Delta writes them in its log.

    Raises:
        ValueError: It has other characters.
    """
    return base64.b85decode(coded.encode("ascii").translate(_FROM_Z85))


def vector_path(coded: str) -> str:
    """Return the path of the file that has a deletion vector, as its action codes it.

    Raises:
        CorruptLogError: It names no file (definite).
    """
    prefix, digits = coded[:-_Z85_UUID], coded[-_Z85_UUID:]
    try:
        name = from_z85(digits).hex()
    except ValueError as error:
        raise CorruptLogError(f"the log names no file: {coded[:120]!r}", path=coded) from error
    if len(digits) != _Z85_UUID:
        raise CorruptLogError(f"the log names no file: {coded[:120]!r}", path=coded)
    text = "-".join((name[:8], name[8:12], name[12:16], name[16:20], name[20:]))
    return f"{prefix}/deletion_vector_{text}.bin" if prefix else f"deletion_vector_{text}.bin"


def vector_code(path: str) -> str:
    """Return what codes the path of a deletion vector's file, as `vector_path` decodes it.

    Raises:
        CorruptLogError: Delta gives no such file that name (definite).
    """
    match = _VECTOR_FILE.fullmatch(path)
    try:
        name = uuid.UUID(match[2] if match else "").bytes
    except ValueError as error:
        raise CorruptLogError(f"no deletion vector is in {path[:120]!r}", path=path) from error
    assert match is not None
    return f"{match[1] or ''}{base64.b85encode(name).translate(_TO_Z85).decode()}"


def files_of(add: dict[str, Any]) -> list[str]:
    """Return the data file of an add action, and its deletion vector where it has a file.

    Paths are those of the files, relative to the table.

    Raises:
        CorruptLogError: It names no file (definite).
    """
    vector = add.get("deletionVector") or {}
    vectors = [vector_path(vector["pathOrInlineDv"])] if vector.get("storageType") == "u" else []
    return [path_of_file(add["path"]), *vectors]


def live_paths(adds: Iterable[dict[str, Any]]) -> set[str]:
    """Return the files of `add` actions and of their deletion vectors; errors as `files_of`."""
    return {path for add in adds for path in files_of(add)}


def may_be_data(path: str, *, changes: bool = False) -> bool:
    """Return whether a file may belong to a version, as Delta's own VACUUM decides.

    Args:
        changes: Include change data.
    """
    *folders, name = path.split("/")
    hidden = [folder for folder in folders if folder[:1] in "._" and "=" not in folder]
    return name[:1] not in "._" and (not hidden or (changes and hidden == ["_change_data"]))
