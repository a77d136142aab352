"""Space that a node keeps for itself: it is given away at once, and taken when there is more."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from sparktxlog.storage import reserve
from sparktxlog.storage.reserve import Reserve


def _bytes_of(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir())


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reserve:
    monkeypatch.setattr(reserve, "_AGAIN_S", 0.0)
    kept = Reserve(tmp_path)
    kept.make()
    return kept


def test_the_space_is_really_taken_and_given_once(kept: Reserve, tmp_path: Path) -> None:
    assert kept.is_whole() and _bytes_of(tmp_path) >= 1 << 20
    assert kept.take() and not kept.take()
    assert _bytes_of(tmp_path) == 0


def test_it_is_taken_again_when_there_is_twice_as_much(
    kept: Reserve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept.take()
    monkeypatch.setattr(kept, "free_bytes", lambda: 2 * kept.size - 1)
    assert not kept.is_whole() and _bytes_of(tmp_path) == 0
    monkeypatch.setattr(kept, "free_bytes", lambda: 2 * kept.size)
    assert kept.is_whole() and _bytes_of(tmp_path) >= 1 << 20


def test_a_start_finds_it(kept: Reserve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = Reserve(tmp_path)
    monkeypatch.setattr(again, "free_bytes", lambda: 0)
    assert again.is_whole(), "it was there; a full disk needs no more"


def test_a_start_on_a_disk_that_shrank_finds_it(
    kept: Reserve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ZFS and quotas show as a disk is what is used and what is left."""
    small = SimpleNamespace(total=8 * (kept.size - 1))
    monkeypatch.setattr("shutil.disk_usage", lambda directory: small)
    again = Reserve(tmp_path)
    monkeypatch.setattr(again, "free_bytes", lambda: 0)
    assert again.size < kept.size and again.is_whole()
