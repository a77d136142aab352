"""Where the files of sites lie: on the disks of nodes, or in a bucket behind ways with faults.

Each node reaches the bucket by a way of its own, which may be cut.  What is no node has one, too.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from tests.support.faulty_way import Fault, FaultyWay, by_chance, faulty_way
from tests.support.node_processes import NodeProcess
from tests.support.store_servers import BUCKET, StoreServer, seaweedfs

from sparktxlog.api.spark_jars import store_settings
from sparktxlog.errors import ObjectMissingError
from sparktxlog.files.stores.store import Store

#: What a site has: its commit tables, or what it staged and published.
Part = Literal["tables", "payloads"]
_DIRECTORIES: Mapping[Part, str] = {"tables": "commit_tables", "payloads": "payloads"}


class Place(Protocol):
    """A part of one site's files; names are relative to it.

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
    """On disks: each node has its files in its own directory."""

    #: Connectors that a JVM needs, as `spark_jars.STORES`.
    stores: tuple[str, ...] = ()
    #: Node → its way to its files; none on disks.
    ways: Mapping[str, FaultyWay] = {}

    def settings(self, node: str) -> tuple[str, ...]:
        """Return lines of a node's configuration."""
        return ()

    def of(self, node: NodeProcess, part: Part = "tables") -> Place:
        """Return a part of a site as its clients reach it."""
        return DiskPlace(node.directory / node.name / _DIRECTORIES[part])

    def judged(self, node: NodeProcess, part: Part = "tables") -> Place:
        """Return a part of a site, reached without faults."""
        return self.of(node, part)

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
    """In one bucket.

    Args:
        ways: As in `Places`.
        way: That of all who are no node.
    """

    server: StoreServer
    ways: Mapping[str, FaultyWay] = field()
    way: FaultyWay
    stores: tuple[str, ...] = ("s3",)
    _open: dict[str, Place] = field(default_factory=dict)

    def settings(self, node: str) -> tuple[str, ...]:
        prefix = f"s3://{BUCKET}/{node}"
        return (
            f'commit-table-url = "{prefix}/tables"',
            f'lake-url = "{prefix}/rows"',
            f'payload-url = "{prefix}/payloads"',
            *self.server.node_settings(self.ways[node].url),
        )

    def of(self, node: NodeProcess, part: Part = "tables") -> Place:
        prefix = f"{node.name}/{part}"
        if prefix not in self._open:
            self._open[prefix] = BucketPlace(self.server.store(prefix, endpoint=self.way.url))
        return self._open[prefix]

    def judged(self, node: NodeProcess, part: Part = "tables") -> Place:
        return BucketPlace(self.server.store(f"{node.name}/{part}"))

    def hadoop(self) -> dict[str, str]:
        settings = store_settings(self.stores, self.environment())
        return {name.removeprefix("spark.hadoop."): value for name, value in settings.items()}

    def environment(self) -> dict[str, str]:
        return self.server.environment() | {"AWS_ENDPOINT_URL": self.way.url}

    def faults(self) -> dict[str, int]:
        found = Counter[str]()
        for way in (*self.ways.values(), self.way):
            for fault, count in way.happened.items():
                if isinstance(fault, Fault):
                    found["requests" if fault is Fault.NONE else fault.value] += count
        return dict(found)


@contextmanager
def places_in(
    directory: Path, store: str, faulty: float, seed: int, nodes: str = "ABC"
) -> Iterator[Places]:
    """Give the places of a run.

    Args:
        store: `disk` or `s3`, which starts SeaweedFS below the directory.
        faulty: Share of the requests to the bucket that meet a fault, 0 to 1.
        nodes: Their names.
    """
    if store == "disk":
        yield Places()
        return
    with ExitStack() as running:
        server = running.enter_context(seaweedfs(directory / "bucket"))
        way, *ways = (
            running.enter_context(
                faulty_way(server.endpoint, by_chance(faulty, seed + number, stale=True))
            )
            for number in range(len(nodes) + 1)
        )
        yield BucketPlaces(server, dict(zip(nodes, ways, strict=True)), way)


def store_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where files lie, `store` and `faulty`."""
    parser.add_argument("--store", choices=("disk", "s3"), default="disk")
    parser.add_argument("--faulty", type=float, default=0.0, help="share of requests to a bucket")
