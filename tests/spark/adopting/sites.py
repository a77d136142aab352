"""Two nodes, each the other's peer, and a log at each that applies what it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from tests.support.node_processes import NodeProcess, free_ports

from sparktxlog.api.connect import TxLog, connect


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSites:
    """Both sites."""

    nodes: dict[str, NodeProcess]
    a: TxLog
    b: TxLog

    def signatures(self, table: str) -> list[str]:
        """Return the signatures of a table at both sites, once both have applied all of the log."""
        position = max(log.position() for log in (self.a, self.b))
        found = []
        for log in (self.a, self.b):
            log.after(position)
            found.append(log.snapshot(at_least=position).signatures.get(table, "none"))
        return found


@contextmanager
def two_sites(spark: SparkSession, directory: Path) -> Iterator[TwoSites]:
    """Start both sites; stop them at the end."""
    ports = dict(zip("AB", free_ports(2), strict=True))
    nodes = {
        name: NodeProcess(directory, name, port, {n: p for n, p in ports.items() if n != name})
        for name, port in ports.items()
    }
    try:
        for node in nodes.values():
            node.start()
        for node in nodes.values():
            node.wait_ready()
        with (
            connect(spark, nodes["A"].url, apply="inline") as a,
            connect(spark, nodes["B"].url, apply="inline") as b,
        ):
            yield TwoSites(nodes=nodes, a=a, b=b)
    finally:
        for node in nodes.values():
            node.stop()
