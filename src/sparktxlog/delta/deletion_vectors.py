"""Deletion vectors: which rows of a live file a version does not have.

A vector is a set of row numbers, as Roaring bitmaps in their portable form: one bitmap for each
2³² numbers, and in it a container for each 2¹⁶, which lists numbers, runs of them, or bits.  It is
in the log itself, or in a file with its length before it and its CRC-32 after it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparktxlog.delta.file_paths import from_z85, vector_path
from sparktxlog.delta.log_files import TablePlace, store_of
from sparktxlog.errors import CorruptLogError, ObjectMissingError

_MAGIC = 1_681_511_377
_WITH_RUNS, _WITHOUT_RUNS = 12_347, 12_346
#: With runs, fewer containers than these have no list of their places.
_PLACES_FROM = 4
#: A container of more numbers has bits, so many bytes of them.
_LISTED, _BITS_BYTES = 4096, 8192


def deleted_rows(table: TablePlace, add: dict[str, Any]) -> NDArray[np.int64]:
    """Return the numbers of the rows of a file that a version does not have, ascending.

    Args:
        add: The file's `add` action.

    Raises:
        CorruptLogError: The vector is missing, or is damaged (definite).
        StorageError: As `Store`.
    """
    vector = add.get("deletionVector")
    if not vector:
        return np.empty(0, np.int64)
    try:
        found = np.concatenate([np.empty(0, np.int64), *_numbers(_bytes_of(table, vector))])
        if len(found) != vector["cardinality"]:
            raise ValueError(f"it has {len(found):,} rows, the log says {vector['cardinality']:,}")
    except (ValueError, LookupError, struct.error, ObjectMissingError) as error:
        url = store_of(table).url
        raise CorruptLogError(
            f"the deletion vector of {add['path']!r} in {url} cannot be read: {error}",
            hint="Repair the table: sparktxlog repair, with its name.",
            path=str(add["path"]),
        ) from error
    return found


def _bytes_of(table: TablePlace, vector: dict[str, Any]) -> bytes:
    size, coded = int(vector["sizeInBytes"]), str(vector["pathOrInlineDv"])
    if vector["storageType"] == "i":
        return from_z85(coded)[:size]
    if vector["storageType"] != "u":
        raise ValueError(f"it lies elsewhere, at {coded}")
    store, path = store_of(table), vector_path(coded)
    raw = store.read(path, offset=int(vector.get("offset") or 0), size=size + 8)
    content, said = raw[4:-4], (raw[:4], raw[-4:])
    if said != (struct.pack(">I", size), struct.pack(">I", zlib.crc32(content))):
        raise ValueError(f"{store.url_of(path)} has other bytes at {vector.get('offset')}")
    return content


def _numbers(raw: bytes) -> Iterator[NDArray[np.int64]]:
    magic, bitmaps = struct.unpack_from("<iq", raw)
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic}")
    at = 12
    for _ in range(bitmaps):
        (high,) = struct.unpack_from("<I", raw, at)
        at += 4
        (cookie,) = struct.unpack_from("<I", raw, at)
        at += 4
        if cookie & 0xFFFF == _WITH_RUNS:
            count = (cookie >> 16) + 1
            flags = np.frombuffer(raw, np.uint8, (count + 7) // 8, at)
            has_runs = np.unpackbits(flags, bitorder="little")[:count].tolist()
            at += len(flags)
        elif cookie == _WITHOUT_RUNS:
            (count,) = struct.unpack_from("<I", raw, at)
            has_runs = [0] * count
            at += 4
        else:
            raise ValueError(f"a bitmap begins with {cookie}")
        heads = np.frombuffer(raw, "<u2", 2 * count, at).reshape(-1, 2).tolist()
        at += 4 * count
        if cookie == _WITHOUT_RUNS or count >= _PLACES_FROM:
            at += 4 * count
        for (middle, less), runs in zip(heads, has_runs, strict=True):
            low, size = _container(raw, at, less + 1, runs=bool(runs))
            at += size
            yield low + (high << 32 | middle << 16)


def _container(raw: bytes, at: int, count: int, *, runs: bool) -> tuple[NDArray[np.int64], int]:
    """Return the numbers of a container, and its bytes."""
    if runs:
        (parts,) = struct.unpack_from("<H", raw, at)
        found = np.frombuffer(raw, "<u2", 2 * parts, at + 2).reshape(-1, 2).tolist()
        ranges = [np.arange(first, first + more + 1) for first, more in found]
        return np.concatenate([np.empty(0, np.int64), *ranges]), 2 + 4 * parts
    if count <= _LISTED:
        return np.frombuffer(raw, "<u2", count, at).astype(np.int64), 2 * count
    bits = np.frombuffer(raw, np.uint8, _BITS_BYTES, at)
    return np.flatnonzero(np.unpackbits(bits, bitorder="little")), _BITS_BYTES
