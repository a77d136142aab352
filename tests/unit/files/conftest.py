"""Donors with a small replica, and workspaces to copy it into."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.stand_in_donor import StandInDonor

from sparktxlog.files.fetch import fetch_files
from sparktxlog.files.selection import Wanted, select_files
from sparktxlog.files.tasks import Fetched, FileTask
from sparktxlog.files.workspace import CopyWorkspace
from sparktxlog.model.copying import Lease

CHUNK = 65_536

#: Path → (size, compressible).
FILES = {
    "_delta_log/00000000000000000001.json": (700, True),
    "a/empty.parquet": (0, False),
    "a/exact.parquet": (2 * CHUNK, False),
    "big.parquet": (20 * CHUNK + 17, False),
    "b=1/text.parquet": (3 * CHUNK + 1, True),
    "b=1/with space & ü.parquet": (10, False),
}


def write_table(directory: Path, seed: int = 1) -> None:
    chance = random.Random(seed)
    for path, (size, compressible) in FILES.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"x" * size if compressible else chance.randbytes(size))


def tasks_of(lease: Lease) -> list[FileTask]:
    return [
        FileTask.of(table.definition.name, file) for table in lease.tables for file in table.files
    ]


def select_all(workspace: CopyWorkspace, lease: Lease) -> Wanted:
    """Select all files of a lease."""
    return select_files(workspace, lease, tasks_of(lease))


def fetch_all(workspace: CopyWorkspace, lease: Lease, **options: Any) -> Fetched:
    """Fetch all files of a lease."""
    return fetch_files(workspace, lease, select_all(workspace, lease), **options)


def assert_staged(workspace: CopyWorkspace, lake: Path) -> None:
    found = {
        path.relative_to(workspace.table_dir("t")).as_posix(): path
        for path in workspace.table_dir("t").rglob("*")
        if path.is_file()
    }
    assert sorted(found) == sorted(FILES)
    for name, path in found.items():
        assert path.read_bytes() == (lake / "t" / name).read_bytes(), name


@pytest.fixture
def new_donor(tmp_path: Path) -> Iterator[Callable[..., StandInDonor]]:
    made: list[StandInDonor] = []

    def make(node_id: str = "A", **options: object) -> StandInDonor:
        lake = tmp_path / f"lake{node_id}"
        if not lake.exists():
            write_table(lake / "t")
        made.append(StandInDonor(lake, node_id=node_id, **options).start())  # type: ignore[arg-type]
        return made[-1]

    yield make
    for donor in made:
        donor.die()


@pytest.fixture
def donor(new_donor: Callable[..., StandInDonor]) -> StandInDonor:
    return new_donor()


@pytest.fixture
def workspace(tmp_path: Path) -> CopyWorkspace:
    (tmp_path / "lake").mkdir()
    return CopyWorkspace(tmp_path / "lake", "copy1")
