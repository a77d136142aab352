"""Commit tables of rivals: their files, put into a place and read there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.delta_writer import StagedTable
from tests.verification.places import Place


class PlacedTable(StagedTable):
    """A table whose files a writer puts into a place."""

    place: Place

    @classmethod
    def at(cls, place: Place, table: StagedTable) -> PlacedTable:
        """Return a table in a place, with the definition of another value of it."""
        found = cls(
            table.table_id, Path(), place.location(table.table_id), table.metadata, table.protocol
        )
        found.place = place
        return found

    def put(self, name: str, content: bytes) -> None:
        self.place.write(f"{self.table_id}/{name}", content)

    def staged_commit(self, name: str) -> bytes:
        """Return a staged commit."""
        found = self.place.read(f"{self.table_id}/_delta_log/_staged_commits/{name}")
        assert found is not None, name
        return found

    def version(self, version: int) -> bytes | None:
        """Return a published version; None: there is none."""
        return self.place.read(f"{self.table_id}/_delta_log/{version:020}.json")


def newest_version(place: Place, table_id: str) -> int:
    """Return the newest version of a table that a site has published."""
    return max(versions(place, table_id))


def read(place: Place, name: str) -> bytes:
    """Return the bytes of a file that must be there."""
    content = place.read(name)
    assert content is not None, f"{name} is not there"
    return content


def versions(place: Place, table_id: str) -> list[int]:
    """Return the versions of a table that a site has published, sorted."""
    names = place.names(f"{table_id}/_delta_log")
    return sorted(
        int(name.removesuffix(".json"))
        for name in names
        if name.endswith(".json") and name.removesuffix(".json").isdigit()
    )


def added(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield the actions of a commit file that add a file."""
    for line in content.splitlines():
        if add := json.loads(line).get("add"):
            yield add
