"""The log of a node, applied again to lakes of its own: in other batches, with upkeep between."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from tests.spark.worker.test_repair import Site, worker

from sparktxlog.storage.interfaces import Segment
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.backup.imaging import back_up_replica
from sparktxlog.worker.backup.restoring import restore_replica
from sparktxlog.worker.replica.applier import Applier
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaState, read_state
from sparktxlog.worker.tables.row_upkeep import maintain_replica
from sparktxlog.worker.tables.table_upkeep import Upkeep


@dataclass(frozen=True)
class TakenLog:
    """What a node publishes, as `Site` wants it."""

    log_id: str
    payloads: Path
    interval: int
    segments: list[Segment]

    @classmethod
    def of(cls, url: str) -> TakenLog:
        """Take all that is published."""
        with closing(HttpLogSource(url)) as source:
            info, tail = source.info(), source.segments(0, wait_s=0)
            return cls(
                log_id=info.log_id,
                payloads=Path(info.payload_root),
                interval=info.signature_interval,
                segments=list(tail.segments),
            )


class Replay:
    """A replica that no node knows.

    Args:
        root: Where its lakes lie.
        seed: Decides where the log is cut, and what is done there.
    """

    def __init__(self, spark: SparkSession, log: TakenLog, root: Path, seed: int) -> None:
        self._spark, self._log, self._root = spark, log, root
        self._chance = random.Random(seed)
        self.lake = root / "0"
        #: What was done, for messages.
        self.life: list[str] = []

    def run(self) -> ReplicaState:
        """Apply the whole log; return the state."""
        many = len(self._log.segments)
        ends = self._chance.sample(range(1, many), self._chance.randint(1, min(3, many - 1)))
        for end in [*sorted(ends), many]:
            self._with_applier(end, lambda applier: applier.run_once())
            self.life.append(f"applied {end} of {many}")
            act = self._chance.choice((self._compact, self._restore, self._rebuild))
            act(end)
        state = read_state(self.lake)
        assert state is not None
        return state

    def _with_applier(self, end: int, act: Callable[[Applier], Any]) -> None:
        log: Any = replace(self._log, segments=self._log.segments[:end])
        with worker(self._spark, Site(log, self.lake)) as applier:
            act(applier)

    def _compact(self, _: int) -> None:
        for done in maintain_replica(self._spark, self.lake, Upkeep(many_files=2)):
            assert not done.failed, done
        self.life.append("compacted")

    def _restore(self, end: int) -> None:
        store = DiskImages(self._root / "images")
        image = back_up_replica(self.lake, store, name=f"image-{end}").image
        shutil.rmtree(self.lake)
        self.lake = self._root / str(end)
        restore_replica(store, image, self.lake)
        self.life.append("restored")

    def _rebuild(self, end: int) -> None:
        """Let somebody put another table in the place of one, and repair it."""
        state = read_state(self.lake)
        assert state is not None
        if not state.tables:
            return
        name = self._chance.choice(sorted(state.tables))
        shutil.rmtree(self.lake / name)
        write_deltalake(self.lake / name, pa.table({"x": [1]}))
        self._with_applier(end, lambda applier: applier.repair(name, local=True))
        self.life.append(f"repaired {name}")
