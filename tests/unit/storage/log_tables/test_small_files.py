"""Which small files are merged: neighbours, a bounded piece, and no row again and again."""

from __future__ import annotations

import pytest

from sparktxlog.storage.log_tables.small_files import pieces_of


def rows_of(counts: list[int], **how: bool) -> list[list[int]]:
    """Return the pieces as the rows of their files; checks that files are neighbours in order."""
    files = [(f"{number:05}", count) for number, count in enumerate(counts)]
    pieces = pieces_of(files, **how)
    for piece in pieces:
        first = int(piece[0])
        assert [int(path) for path in piece] == [*range(first, first + len(piece))]
    return [[counts[int(path)] for path in piece] for piece in pieces]


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ([], []),
        ([1] * 31, []),
        ([1] * 32, [[1] * 32]),
        ([32, *[1] * 32], [[32, *[1] * 32]]),  # not more rows than the newer ones
        ([33, *[1] * 32], [[1] * 32]),
        ([60_000] * 2, []),
        ([60_000] * 3, [[60_000] * 3]),  # a whole piece
        ([60_000] * 7, [[60_000] * 3] * 2),
        ([131_072] * 40, []),
        ([*[1] * 40, 131_072, *[2] * 40], [[2] * 40, [1] * 40]),
        ([*[1] * 40, 131_072, *[2] * 4], [[1] * 40]),
    ],
)
def test_what_is_worth_it(counts: list[int], found: list[list[int]]) -> None:
    assert rows_of(counts) == found


def test_all_of_them_leaves_no_two_small_neighbours() -> None:
    assert rows_of([9, 1, 131_072, 5, 1, 2], all_of_them=True) == [[5, 1, 2], [9, 1]]
    assert rows_of([9], all_of_them=True) == []


def test_a_row_is_merged_as_often_as_its_file_doubles() -> None:
    files, written = list[int](), 0
    for _ in range(32_000):
        files.append(1)
        if len(files) % 32 == 0:
            while pieces := rows_of(files):
                piece = pieces[0]
                end = len(files) - files[::-1].index(piece[-1])  # the newest piece
                assert files[end - len(piece) : end] == piece
                files[end - len(piece) : end] = [sum(piece)]
                written += sum(piece)
    assert sum(files) == 32_000 and len(files) < 64
    assert written < 12 * 32_000
