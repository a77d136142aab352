"""Bits of rows: any slice of them says of each row whether it was added."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparktxlog.worker.apply.row_copying import RowPlaces, are_marked

PART = 32_768


def bits_of(rows: set[int]) -> RowPlaces:
    """Make places as Spark does: the lowest bit of a byte is the first row."""
    found, parts = RowPlaces(), dict[int, bytearray]()
    for row in rows:
        part = parts.setdefault(row // PART, bytearray(PART // 8))
        part[row % PART // 8] |= 1 << row % 8
    for number, bits in parts.items():
        found.add(number, sum(byte.bit_count() for byte in bits), bytes(bits))
    return found


@given(
    st.sets(st.integers(0, 2 * PART + 20) | st.integers(0, 40), max_size=30),
    st.integers(0, 3 * PART),
    st.integers(0, 100),
)
def test_a_slice_has_the_bits_of_its_rows(rows: set[int], first: int, count: int) -> None:
    places = bits_of(rows)
    assert places.rows == len(rows)
    marked = are_marked(places.to_bytes(), first, count)
    assert len(marked) == count
    assert {first + int(row) for row in marked.nonzero()[0]} == {
        row for row in rows if first <= row < first + count
    }
