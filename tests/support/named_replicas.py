"""What a node knows of several replicas of a site, with what its journal keeps of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from tests.support.known_replicas import base_of, hash_at, report

from sparktxlog.model.report import ReplicaVerdict, WorkerReport
from sparktxlog.model.tables.table import Tables
from sparktxlog.runtime.replicas.judged_replicas import Replicas
from sparktxlog.storage.interfaces import PutValue

BRONZE, GOLD = ("bronze.*",), ("gold.*",)


def table(name: str) -> Any:
    return SimpleNamespace(name=name, is_dropped=False, properties=())


def tables(*names: str) -> Any:
    return Tables({name.lower(): table(name) for name in names})


class Known:
    """The replicas that node A knows, with what its journal keeps of them."""

    def __init__(self, *names: str, saved: dict[str, bytes] | None = None) -> None:
        self.saved = dict(saved or {})
        self.base = base_of("A", hash_at, position=100_000, saved=self.saved)
        self.base.master.tables = tables(*names)
        self.replicas = Replicas(self.base)

    def take(self, found: WorkerReport, now: int = 1) -> ReplicaVerdict:
        comparison, _, writes = self.replicas.accept(found, now)
        self.keep(writes)
        return comparison.verdict

    def keep(self, writes: Iterable[Any]) -> None:
        for write in writes:
            assert isinstance(write, PutValue)
            self.saved[write.name] = write.value


def named(
    position: int, name: str, only: tuple[str, ...] = (), node: str = "A", **more: Any
) -> WorkerReport:
    return replace(
        report(position, node, **more), name=name, only=only, worker_id=f"{name} of {node}"
    )
