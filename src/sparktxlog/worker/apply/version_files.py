"""Which files of a table's directory make one version of it, by their paths.

These are the log up to the version, the live data files and the files of their deletion vectors.
Of the log a reader needs the newest complete checkpoint and later files; a table that takes over a
log gets all of it.

Paths in the log have one level of quoting more than file names (`a%20b`); partition values are
quoted in the file names themselves (`x%2Fy`).
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

LOG = "_delta_log/"
_SIDECARS = f"{LOG}_sidecars/"
#: Commits and checksums; the version is the first group.
_COMMIT = re.compile(r"(\d{20})\.(json|crc)")
_COMPACTED = re.compile(r"\d{20}\.(\d{20})\.compacted\.json")
#: Checkpoints: of one file, of one of several parts, and of version 2.
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})\.parquet|\.parquet|\.[0-9a-f-]{36}\.(?:json|parquet))"
)
_DIGITS_AND_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: Delta names the files of deletion vectors in Z85, an alphabet that Python 3.11 lacks.
_Z85_TO_B85 = str.maketrans(
    _DIGITS_AND_LETTERS + ".-:+=^!/*?&<>()[]{}@%$#",
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
)


def log_paths(paths: Iterable[str], version: int, *, whole: bool = True) -> list[str]:
    """Return the files of the log that a version needs, in the order of `paths`.

    Args:
        whole: Everything up to the version; else from the newest complete checkpoint on.
    """
    found = list(paths)
    start = -1 if whole else newest_checkpoint(found, version)
    return [path for path in found if path.startswith(LOG) and _is_wanted(path, start, version)]


def _is_wanted(path: str, start: int, version: int) -> bool:
    if path.startswith(_SIDECARS):
        return not path.startswith(f"{_SIDECARS}.")
    name = path.removeprefix(LOG)
    if match := _COMMIT.fullmatch(name):
        return start <= int(match[1]) <= version
    if match := _COMPACTED.fullmatch(name):
        return start < 0 and int(match[1]) <= version
    match = _CHECKPOINT.fullmatch(name)
    return match is not None and int(match[1]) <= version and start in (-1, int(match[1]))


def missing_commit(paths: Iterable[str], version: int) -> int | None:
    """Return the first version after the newest checkpoint whose commit is missing, None = none."""
    there = set(paths)
    start = newest_checkpoint(there, version)
    numbers = range(start + 1, version + 1)
    return next((number for number in numbers if f"{LOG}{number:020}.json" not in there), None)


def newest_checkpoint(paths: Iterable[str], version: int) -> int:
    """Return the newest version ≤ a version that has all parts of a checkpoint, -1 = none."""
    parts: dict[tuple[int, int], int] = {}
    for path in paths:
        match = _CHECKPOINT.fullmatch(path.removeprefix(LOG))
        if match and int(match[1]) <= version:
            key = (int(match[1]), int(match[3] or 1))
            parts[key] = parts.get(key, 0) + 1
    return max((at for (at, total), found in parts.items() if found >= total), default=-1)


def may_be_data(path: str, *, changes: bool = False) -> bool:
    """Return whether a file may belong to a version, as Delta's own VACUUM decides.

    Args:
        changes: Include change data.
    """
    *folders, name = path.split("/")
    hidden = [folder for folder in folders if folder[:1] in "._" and "=" not in folder]
    return name[:1] not in "._" and (not hidden or (changes and hidden == ["_change_data"]))


def live_paths(adds: Iterable[dict[str, Any]]) -> set[str]:
    """Return the files of `add` actions, deletion vectors included, by relative path."""
    return {path for add in adds for path in files_of(add)}


def path_in_log(path: str) -> str:
    """Return the path of a file, relative to its table, as Spark's logs name it."""
    # Some readers compare paths as texts.
    return quote(path, safe="/=!$&'()*+,;@~")


def files_of(add: dict[str, Any]) -> list[str]:
    """Return the data file of an add action, and its deletion vector where it has a file.

    Paths are those of the files, relative to the table.
    """
    files = [unquote(add["path"])]
    vector = add.get("deletionVector") or {}
    if vector.get("storageType") == "u":
        prefix, encoded = vector["pathOrInlineDv"][:-20], vector["pathOrInlineDv"][-20:]
        name = uuid.UUID(bytes=base64.b85decode(encoded.translate(_Z85_TO_B85)))
        files.append(str(Path(prefix) / f"deletion_vector_{name}.bin"))
    return files
