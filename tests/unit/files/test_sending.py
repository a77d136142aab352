"""A file on its way to a peer is opened before the answer begins, so it may go at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparktxlog.files.foreign_files import ForeignFile
from sparktxlog.files.sending import Outgoing

CONTENT = b"rows" * 1000


async def at_once(work: Callable[..., Any], *args: object) -> Any:
    return work(*args)


def outgoing(directory: Path, *, size: int = len(CONTENT)) -> Outgoing:
    return Outgoing(
        file=ForeignFile(str(directory), "t/part-0.parquet"),
        otherwise=ForeignFile(str(directory), "kept/part-0.parquet"),
        size_bytes=size,
        run=at_once,
    )


@pytest.fixture
def there(tmp_path: Path) -> Path:
    path = tmp_path / "t" / "part-0.parquet"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


def test_a_file_whose_name_goes_after_it_was_found_is_sent_whole(
    there: Path, tmp_path: Path
) -> None:
    async def main() -> bytes:
        file = outgoing(tmp_path)
        content = await file.opened()
        assert content is not None
        there.unlink()
        return b"".join([piece async for piece in file.pieces(content, 10)])

    assert asyncio.run(main()) == CONTENT[10:]


def test_its_other_name_is_tried(there: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    there.rename(tmp_path / "kept" / there.name)

    async def main() -> bytes:
        file = outgoing(tmp_path)
        content = await file.opened()
        assert content is not None
        return b"".join([piece async for piece in file.pieces(content, 0)])

    assert asyncio.run(main()) == CONTENT


@pytest.mark.parametrize("state", ["gone", "another size", "a link", "a directory"])
def test_what_is_no_such_file_is_refused_before_the_answer(
    there: Path, tmp_path: Path, state: str
) -> None:
    size = len(CONTENT)
    if state == "another size":
        size += 1
    else:
        moved = there.rename(tmp_path / "elsewhere")
        if state == "a link":
            there.symlink_to(moved)
        elif state == "a directory":
            there.mkdir()
    assert asyncio.run(outgoing(tmp_path, size=size).opened()) is None
