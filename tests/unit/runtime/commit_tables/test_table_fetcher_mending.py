"""A file that a recount found damaged is mended, whatever was known of it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.storage_samples import staged_of

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.errors import NotFoundError
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.runtime.commit_tables.table_fetcher import TableFetcher
from sparktxlog.storage.commit_tables.table_places import TablePlaces

T = "00000000-0000-4000-8000-000000000001"
COMMIT = staged_of(commit_file_name(0), b"the commit", rows=0)
FILE = staged_of("p=1/x.parquet", b"rows", rows=0)


def mend(root: Path, file: StagedFile) -> None:
    """Let bytes of a verified file decay, and have it mended where no peer is linked."""
    unused: Any = None
    places = TablePlaces(root)
    base: Any = SimpleNamespace(
        config=SimpleNamespace(commit_table_dir=root),
        links={},
        sources=list,
        run_on_files=lambda place, work, *args: asyncio.to_thread(work, *args),
    )

    async def scenario() -> None:
        fetcher = TableFetcher(base, unused, unused, unused, places)
        waiting, place = fetcher.staging.commit_file(T, COMMIT), root / T / file.path
        for path, content in (
            (waiting, b"the commit"),
            (place, b"the commit" if file is COMMIT else b"rows"),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        assert places.arrivals.holds(staged_of(f"{T}/{file.path}", place.read_bytes(), rows=0))
        status = place.stat()
        place.write_bytes(bytes(status.st_size))
        os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))
        await fetcher.mend(T, 0, file)

    asyncio.run(scenario())


@pytest.mark.parametrize("file", [COMMIT, FILE])
def test_bytes_that_decayed_after_they_were_verified_are_found(
    tmp_path: Path, file: StagedFile
) -> None:
    if file is COMMIT:
        mend(tmp_path, file)
        assert (tmp_path / T / file.path).read_bytes() == b"the commit"
    else:
        with pytest.raises(NotFoundError, match="no peer has file"):
            mend(tmp_path, file)
    (entry,) = Attic.of_commit_tables(tmp_path).entries(Kind.FILES, T)
    assert not any((entry.path / file.path).read_bytes())
