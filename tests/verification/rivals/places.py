"""Where rivals' tables lie: on the disks of nodes, or in a bucket behind a way with faults."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.support.delta_writer import StagedTable
from tests.support.faulty_way import Fault, FaultyWay, by_chance, faulty_way
from tests.support.node_processes import NodeProcess
from tests.support.store_servers import BUCKET, StoreServer, seaweedfs

from sparktxlog.api.spark_jars import store_settings
from sparktxlog.errors import ObjectMissingError
from sparktxlog.files.stores.opening import store_at
from sparktxlog.files.stores.store import Store


class Place(Protocol):
    """The tables of one site as its writers reach them; names are relative to all tables.

    Methods block.
    """

    def location(self, table_id: str) -> str:
        """Return what a request calls the place of a table."""

    def write(self, name: str, content: bytes) -> None:
        """Write what is not there yet."""

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes; None: it is not there."""

    def names(self, directory: str) -> Sequence[str]:
        """Return the names of the files in a directory, not below it; no order."""


@dataclass(frozen=True)
class DiskPlace:
    """A directory of the node's machine."""

    root: Path

    def location(self, table_id: str) -> str:
        return f"file:{self.root / table_id}"

    def write(self, name: str, content: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def read(self, name: str) -> bytes | None:
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self, directory: str) -> Sequence[str]:
        return [path.name for path in (self.root / directory).iterdir() if path.is_file()]


@dataclass(frozen=True)
class BucketPlace:
    """A prefix of a bucket."""

    store: Store

    def location(self, table_id: str) -> str:
        return self.store.url_of(table_id)

    def write(self, name: str, content: bytes) -> None:
        self.store.create(name, content)

    def read(self, name: str) -> bytes | None:
        try:
            return self.store.read(name)
        except ObjectMissingError:
            return None

    def names(self, directory: str) -> Sequence[str]:
        return self.store.names(directory)


class Places:
    """On disks: each node has its tables in its own directory."""

    #: Connectors that a JVM needs, as `spark_jars.STORES`.
    stores: tuple[str, ...] = ()

    def settings(self, node: str) -> tuple[str, ...]:
        """Return lines of a node's configuration."""
        return ()

    def of(self, node: NodeProcess) -> Place:
        """Return the place of a site."""
        return DiskPlace(node.directory / node.name / "commit_tables")

    def judged(self, node: NodeProcess) -> Place:
        """Return the place of a site, reached without faults."""
        return self.of(node)

    def hadoop(self) -> dict[str, str]:
        """Return settings of Hadoop's file systems; none has a secret."""
        return {}

    def environment(self) -> dict[str, str]:
        """Return what a process needs to reach them."""
        return {}

    def faults(self) -> dict[str, int]:
        """Return how often requests met which fault."""
        return {}


@dataclass
class BucketPlaces(Places):
    """In one bucket; nodes and writers reach it by the same way."""

    server: StoreServer
    way: FaultyWay
    stores: tuple[str, ...] = ("s3",)
    _open: dict[str, Place] = field(default_factory=dict)

    def settings(self, node: str) -> tuple[str, ...]:
        return (
            f'commit-table-url = "s3://{BUCKET}/{node}"',
            f'store-endpoint = "{self.way.url}"',
            'store-region = "us-east-1"',
            "store-allow-http = true",
            f'store-credentials-file = "{self.server.credentials_file}"',
        )

    def of(self, node: NodeProcess) -> Place:
        if node.name not in self._open:
            settings = self.server.settings(self.way.url)
            self._open[node.name] = BucketPlace(store_at(f"s3://{BUCKET}/{node.name}", settings))
        return self._open[node.name]

    def judged(self, node: NodeProcess) -> Place:
        return BucketPlace(self.server.store(node.name))

    def hadoop(self) -> dict[str, str]:
        settings = store_settings(self.stores, self.environment())
        return {name.removeprefix("spark.hadoop."): value for name, value in settings.items()}

    def environment(self) -> dict[str, str]:
        return self.server.environment() | {"AWS_ENDPOINT_URL": self.way.url}

    def faults(self) -> dict[str, int]:
        names = (
            "requests" if f is Fault.NONE else f.value
            for f in self.way.happened
            if isinstance(f, Fault)
        )
        return dict(zip(names, self.way.happened.values(), strict=True))


@contextmanager
def places_in(directory: Path, store: str, faulty: float, seed: int) -> Iterator[Places]:
    """Give the places of a run.

    Args:
        store: `disk` or `s3`, which starts SeaweedFS below the directory.
        faulty: Share of the requests to the bucket that meet a fault, 0 to 1.
    """
    if store == "disk":
        yield Places()
        return
    with ExitStack() as running:
        server = running.enter_context(seaweedfs(directory / "bucket"))
        way = running.enter_context(
            faulty_way(server.endpoint, by_chance(faulty, seed, stale=True))
        )
        yield BucketPlaces(server, way)


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
