"""Bytes of this machine compared with those of a store."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from sparktxlog.files.stores.store import same_bytes


@pytest.mark.parametrize(
    ("theirs", "same"),
    [
        ([b"abc", b"de"], True),
        ([b"a", b"bcde"], True),
        ([b"abcd"], False),
        ([b"abc", b"def"], False),
        ([b"abc", b"dx"], False),
        ([], False),
    ],
)
def test_bytes_are_compared_whatever_their_pieces(
    theirs: list[bytes], same: bool, tmp_path: Path
) -> None:
    closed = list[bool]()

    def pieces() -> Generator[bytes, None, None]:
        try:
            yield from theirs
        finally:
            closed.append(True)

    file = tmp_path / "file"
    file.write_bytes(b"abcde")
    assert same_bytes(b"abcde", pieces()) is same
    assert same_bytes(file, pieces()) is same
    assert closed == [True, True]
