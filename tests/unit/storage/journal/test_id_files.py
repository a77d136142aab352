"""Ids of old positions in sorted files, against a dictionary."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sparktxlog.errors import CorruptLogError
from sparktxlog.storage.journal.id_files import IdFiles


def _id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def _filed(directory: Path, pieces: list[list[bytes]], rejected: set[int]) -> IdFiles:
    files = IdFiles(directory, end=1 << 40)
    first = 1
    for ts, piece in enumerate(pieces):
        here = [at for at in range(first, first + len(piece)) if at in rejected]
        files.put(first, b"".join(piece), here, ts, _digests(first, len(piece)))
        first += len(piece)
    return files


def _digests(first: int, n: int) -> bytes:
    return b"".join((1 << 40 | at).to_bytes(8, "little") for at in range(first, first + n))


def _known(files: IdFiles, first: int, n: int) -> bytes:
    found = bytearray(8 * n)
    files.put_digests(found, first)
    return bytes(found)


@pytest.mark.parametrize("seed", range(6))
def test_same_answers_as_a_dictionary(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    # Counters share their first eight bytes, random ids do not.
    pool = [_id(n) if seed % 2 else chance.randbytes(16) for n in range(600)]
    pieces = [[chance.choice(pool) for _ in range(chance.randrange(1, 40))] for _ in range(40)]
    flat = [one for piece in pieces for one in piece]
    rejected = {at for at in range(1, len(flat) + 1) if chance.random() < 0.1}
    files = _filed(tmp_path, pieces, rejected)
    for after in (0, len(flat) // 2):
        expected: dict[bytes, tuple[int, bool]] = {}
        for at, one in enumerate(flat, start=1):
            if at > after:
                expected.setdefault(one, (at, at in rejected))
        asked = [*pool, _id(1 << 90)]
        found = files.first_of(b"".join(asked), after)
        assert found == {i: expected[one] for i, one in enumerate(asked) if one in expected}
    files.close()
    again = IdFiles(tmp_path, end=len(flat))
    assert (again.start, again.end) == (1, len(flat))
    for position, most in ((len(flat) + 1, 7), (len(flat) // 2, 10_000)):
        read = again.before(position, most)
        for _ in range(2):
            found_pieces = list(read())
            assert b"".join(ids for _, ids in found_pieces) == b"".join(flat[: position - 1])
            assert all(len(ids) <= 16 * most for _, ids in found_pieces)
            assert all(flat[first - 1] == ids[:16] for first, ids in found_pieces)
    assert list(again.before(len(flat) + 2, 7)()) == [], "there is a gap"
    for _ in range(20):
        low, high = sorted(chance.choices(range(1, len(flat) + 1), k=2))
        assert _known(again, low, high - low + 1) == _digests(low, high - low + 1)
    assert _known(again, len(flat), 3) == _digests(len(flat), 1) + bytes(16)
    assert len(list(tmp_path.glob("*.ids"))) < 40  # merged


def test_what_a_kill_leaves_of_a_merge_is_put_right(tmp_path: Path) -> None:
    files = _filed(tmp_path, [[_id(n)] for n in range(7)], set())
    files.close()
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    files = IdFiles(tmp_path, end=7)
    files.put(8, _id(7), [], 7, _digests(8, 1))
    files.close()
    for name, data in kept.items():  # the merged file is there, and those it was made of
        (tmp_path / name).write_bytes(data)
    (tmp_path / "x.part").write_bytes(b"torn")
    again = IdFiles(tmp_path, end=8)
    assert len(list(tmp_path.iterdir())) == 1
    assert again.first_of(_id(0) + _id(7)) == {0: (1, False), 1: (8, False)}


def test_files_beyond_the_queue_go(tmp_path: Path) -> None:
    _filed(tmp_path, [[_id(1)] * 5, [_id(2)] * 5], set()).close()
    assert IdFiles(tmp_path, end=7).end == 5
    assert IdFiles(tmp_path, end=3).end == 0


def test_only_what_is_old_and_far_is_removed(tmp_path: Path) -> None:
    files = _filed(tmp_path, [[_id(n)] * 4 for n in range(4)], set())
    files.expire(ts=2, position=7)
    assert files.start == 5
    files.expire(ts=1, position=100)
    assert files.start == 5
    files.cut(0)
    assert (files.end, files.size_bytes, list(tmp_path.iterdir())) == (0, 0, [])


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    _filed(tmp_path, [[_id(1)] * 5], set()).close()
    path = next(tmp_path.glob("*.ids"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptLogError, match=path.name):
        IdFiles(tmp_path, end=5)
