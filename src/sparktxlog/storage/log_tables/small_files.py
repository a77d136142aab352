"""Which small files of a table in `log/` are merged, and which of them at once.

Each row is read and written again at every merge, and each small file costs some milliseconds,
however few rows it has.  So a file is merged with newer ones only if those have at least as many
rows together: then a row is merged as often as its file doubles.  What is done at once is bounded,
for publishing waits meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

#: A file with so many rows is not merged, and a piece ends that has them.
_LARGE_ROWS = 131_072
#: Fewer files are merged only if they have so many rows.
_WORTH_FILES = 32
#: With more small files a table is late: what a checkpoint costs, and a reader, grows with them.
MOST_SMALL = 1_000


def pieces_of(files: Sequence[tuple[str, int]], *, all_of_them: bool = False) -> list[list[str]]:
    """Return neighbours that are to be merged, the newest piece first; files in their order.

    Args:
        files: Path and rows of each, in the order of their rows.
        all_of_them: Any two neighbours that are small; else only what is worth it.
    """
    found, piece, rows = list[list[str]](), list[str](), 0

    def end() -> None:
        is_worth_it = rows >= _LARGE_ROWS or len(piece) >= _WORTH_FILES or all_of_them
        if len(piece) > 1 and is_worth_it:
            found.append(piece[::-1])

    for path, count in reversed(files):
        # A large file may have rows between those of small ones: only neighbours are merged.
        if count >= _LARGE_ROWS or (count > rows and piece and not all_of_them):
            end()
            piece, rows = [], 0
        if count < _LARGE_ROWS:
            piece.append(path)
            rows += count
            if rows >= _LARGE_ROWS:
                end()
                piece, rows = [], 0
    end()
    return found
