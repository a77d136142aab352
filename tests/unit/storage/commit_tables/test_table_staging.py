"""Files of a version that are here already, and what is in their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.storage_samples import staged_of

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.errors import StorageError
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.commit_tables.table_places import TablePlaces
from sparktxlog.storage.commit_tables.table_staging import TableStaging

T = "00000000-0000-4000-8000-000000000001"
COMMIT = staged_of(commit_file_name(0), b"the commit", rows=0)
FILE = staged_of("p=1/x.parquet", b"rows", rows=0)


@pytest.fixture
def staging(tmp_path: Path) -> TableStaging:
    """Staging of tables below `tmp_path`."""
    return TableStaging(tmp_path, TablePlaces(tmp_path))


def put(path: Path, content: bytes) -> Path:
    """Write a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_what_is_here_is_used(tmp_path: Path, staging: TableStaging) -> None:
    assert staging.missing_commit(T, COMMIT)
    assert staging.missing_file(T, FILE)
    put(tmp_path / T / COMMIT.path, b"the commit")
    put(tmp_path / T / FILE.path, b"rows")
    assert staging.missing_commit(T, COMMIT) is None
    assert staging.missing_file(T, FILE) is None
    assert not (tmp_path / ".attic").exists()


@pytest.mark.parametrize("content", [b"rows", b"swor", b"longer rows"])
def test_what_was_set_aside_is_used_if_it_agrees(
    tmp_path: Path, staging: TableStaging, content: bytes
) -> None:
    aside = put(tmp_path / ".attic" / f"fork-{T}-act-2" / "content" / FILE.path, content)
    found = staging.missing_file(T, FILE) is None
    assert found == (content == b"rows")
    place = tmp_path / T / FILE.path
    assert place.exists() == found
    assert not found or place.samefile(aside)


@pytest.mark.parametrize("file", [COMMIT, FILE])
def test_what_is_in_the_place_of_another_is_set_aside(
    tmp_path: Path, staging: TableStaging, file: StagedFile
) -> None:
    foreign = put(tmp_path / T / file.path, b"foreign")
    put(staging.commit_file(T, COMMIT), b"the commit")
    if file is FILE:
        assert staging.missing_file(T, FILE)
        assert not foreign.exists()
    else:
        staging.publish(T, [(0, COMMIT)])
        assert foreign.read_bytes() == b"the commit"
    (entry,) = Attic.of_commit_tables(tmp_path).entries(Kind.FILES, T)
    assert (entry.path / file.path).read_bytes() == b"foreign" and entry.at > 0


def test_versions_are_published_in_their_order(tmp_path: Path, staging: TableStaging) -> None:
    second = staged_of(commit_file_name(1), b"another", rows=0)
    put(staging.commit_file(T, COMMIT), b"the commit")
    with pytest.raises(StorageError):
        staging.publish(T, [(0, COMMIT), (1, second)])
    put(staging.commit_file(T, second), b"another")
    staging.publish(T, [(0, COMMIT), (1, second)])
    assert (tmp_path / T / second.path).read_bytes() == b"another"
    assert not staging.commit_file(T, COMMIT).exists()
