"""Deletion vectors as Delta 4.4 writes them, and those that are damaged."""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparktxlog.delta.deletion_vectors import deleted_rows
from sparktxlog.errors import CorruptLogError

_FROM_B85 = bytes.maketrans(
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~",
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#",
)
#: What Spark wrote for DELETE, without length and checksum: compressed, as Base85; and the rows.
OF_SPARK = {
    "a list": (
        b"c-p&o*)oNZ0RgNG7#JXYCI$fp5Sx|ZIWquX9s{r",
        [np.array([1, 5, 999])],
    ),
    "runs, over two containers": (
        b"c-p&o*)oNZ0RgNH7#Wxu7+QoG8CV#Y7`Pbfgn#{KWdJE*VE_P^Kn3m",
        [np.arange(10, 5001), np.arange(65_530, 65_541)],
    ),
    "bits, runs and lists": (
        (
            b"c-rmAu?;{_7)9axc(q^x-K&H|M8pIJuz^ycF^J8GMU3F@6ef_IFFCo%J+FRtdJVN#E>)XT8X`Ml%PR?`ZCOZ"
            b"-)moi30RR91000000000!1pJKCnx)|$_rvL2lJEc-uEgK"
        ),
        [
            np.arange(0, 60_000, 2),
            np.arange(70_000, 80_001),
            np.array([150_000, 250_001]),
            np.arange(290_001, 300_000),
        ],
    ),
    "only runs": (
        b"c-p&o*)oNZ0RgNHSQz9P82<lf1Y#y2W(HywhI^BBfs)2RYzf5nK<o;{AdMiE*vNa60pA}M&j",
        [np.arange(299_999)],
    ),
}
_HEAD = struct.pack("<iq", 1_681_511_377, 1) + struct.pack("<I", 0)


def z85(content: bytes) -> str:
    return base64.b85encode(content).translate(_FROM_B85).decode()


def in_file(table: Path, content: bytes, rows: int, before: bytes = b"\x01") -> dict[str, Any]:
    """Write a vector into a file of its own; return the `add` action of its data file."""
    name = uuid.uuid4()
    size, check = struct.pack(">I", len(content)), struct.pack(">I", zlib.crc32(content))
    path = table / "ab" / f"deletion_vector_{name}.bin"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(before + size + content + check + b"that of another file")
    vector = {
        "storageType": "u",
        "pathOrInlineDv": f"ab{z85(name.bytes)}",
        "offset": len(before),
        "sizeInBytes": len(content),
        "cardinality": rows,
    }
    return {"path": "part%201.parquet", "deletionVector": vector}


@pytest.mark.parametrize("kind", OF_SPARK)
def test_rows_that_spark_deleted(tmp_path: Path, kind: str) -> None:
    coded, wanted = OF_SPARK[kind]
    content, rows = zlib.decompress(base64.b85decode(coded)), np.concatenate(wanted)
    found = deleted_rows(tmp_path, in_file(tmp_path, content, len(rows), b"\x01 others"))
    np.testing.assert_array_equal(found, rows)


def test_without_a_vector_all_rows_are_there(tmp_path: Path) -> None:
    assert deleted_rows(tmp_path, {"path": "x"}).tolist() == []
    assert deleted_rows(tmp_path, {"path": "x", "deletionVector": None}).tolist() == []


def test_containers_of_every_kind_without_runs(tmp_path: Path) -> None:
    """A file of more than 2³² rows has several bitmaps; the longest list has 4,096 numbers."""
    odd, most = np.arange(1, 10_000, 2), np.arange(4096)
    bits = np.zeros(65_536, np.uint8)
    bits[odd] = 1
    containers = [
        most.astype("<u2").tobytes(),
        np.packbits(bits, bitorder="little").tobytes(),
    ]
    heads = struct.pack("<HHHH", 3, len(most) - 1, 7, len(odd) - 1)
    bitmap = struct.pack("<II", 12_346, 2) + heads + bytes(8) + b"".join(containers)
    several = struct.pack("<iq", 1_681_511_377, 2)
    several += struct.pack("<I", 0) + bitmap + struct.pack("<I", 2) + bitmap
    one = np.concatenate([most + 3 * 65_536, odd + 7 * 65_536])
    found = deleted_rows(tmp_path, in_file(tmp_path, several, 2 * len(one)))
    np.testing.assert_array_equal(found, np.concatenate([one, one + 2 * 2**32]))


def test_a_vector_in_the_log_itself(tmp_path: Path) -> None:
    content = _HEAD + struct.pack("<IIHHIHH", 12_346, 1, 0, 1, 16, 4, 9)
    coded = z85(content + bytes(-len(content) % 4))
    vector = {"storageType": "i", "pathOrInlineDv": coded, "cardinality": 2}
    add = {"path": "x", "deletionVector": vector | {"sizeInBytes": len(content)}}
    assert deleted_rows(tmp_path, add).tolist() == [4, 9]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "requires a buffer"),
        (struct.pack("<iqI", 7, 1, 0), "it begins with 7"),
        (_HEAD + struct.pack("<II", 99, 1), "a bitmap begins with 99"),
        (_HEAD + struct.pack("<IIHHI", 12_346, 1, 0, 8, 16), "buffer"),
        (_HEAD + struct.pack("<IIHHIH", 12_346, 1, 0, 0, 16, 4), "has 1 rows, the log says 2"),
    ],
)
def test_a_damaged_vector_is_told(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(CorruptLogError, match=said) as refused:
        deleted_rows(tmp_path, in_file(tmp_path, content, 2))
    assert refused.value.fields["path"] == "part%201.parquet"


@pytest.mark.parametrize("at", [1, 7, 30])
def test_a_changed_byte_is_found(tmp_path: Path, at: int) -> None:
    add = in_file(tmp_path, zlib.decompress(base64.b85decode(OF_SPARK["a list"][0])), 3)
    (path,) = (tmp_path / "ab").iterdir()
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptLogError, match="has other bytes at 1"):
        deleted_rows(tmp_path, add)
    path.unlink()
    with pytest.raises(CorruptLogError, match="nothing is at"):
        deleted_rows(tmp_path, add)
    add["deletionVector"]["storageType"] = "p"
    with pytest.raises(CorruptLogError, match="it lies elsewhere"):
        deleted_rows(tmp_path, add)
