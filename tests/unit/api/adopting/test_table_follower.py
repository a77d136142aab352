"""What a follower says where its note cannot be written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparktxlog.api.adopting.table_follower import FollowState, TableFollower
from sparktxlog.errors import StorageError, StoreForbiddenError, StoreUnavailableError
from sparktxlog.files.stores.disk import DiskStore


class Refusing(DiskStore):
    """A store that this process may only read, or that is away."""

    def __init__(self, root: Path, error: StorageError) -> None:
        super().__init__(root)
        self._error = error

    def replace(self, key: str, content: bytes | Path) -> None:
        raise self._error


def follower_of(notes: DiskStore) -> TableFollower:
    """Return a follower that has just brought a version."""
    made: Any = TableFollower.__new__(TableFollower)
    made._notes, made._name = (notes, "_sparktxlog/t.json"), "t"
    made._table = lambda: SimpleNamespace(last_write=7)
    made._made = lambda version, table: FollowState(
        log_id="l", table_id="i", version=version, log_version=2
    )
    return cast("TableFollower", made)


def test_a_version_whose_note_is_refused_is_in_the_log_nevertheless(tmp_path: Path) -> None:
    follower = follower_of(Refusing(tmp_path, StoreForbiddenError("not allowed")))
    with pytest.raises(StorageError, match=r"version 3 .* is in the log") as caught:
        follower._reach(3, 7)
    assert not caught.value.definite
    assert "--state" in caught.value.hint
    assert follower.version == 3


def test_a_store_that_is_away_is_asked_again(tmp_path: Path) -> None:
    follower = follower_of(Refusing(tmp_path, StoreUnavailableError("away")))
    with pytest.raises(StoreUnavailableError):
        follower._reach(3, 7)
    assert follower.version == 3
