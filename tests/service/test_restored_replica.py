"""What a real node makes of a restored replica: IN_SYNC at the image's position, then replay."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.image_lake import Lake
from tests.support.node_processes import TABLE, NodeProcess, append, free_ports, wait_until

from sparktxlog.worker.backup.image_store import ImageStore
from sparktxlog.worker.backup.imaging import back_up_replica
from sparktxlog.worker.backup.restoring import restore_replica
from sparktxlog.worker.replica.reports import report_of
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory, ReplicaState, read_state


def at_end(lake: Path, node: NodeProcess) -> ReplicaState:
    """Save and return the state of a replica that applied all that is published."""
    status = node.status()
    with closing(ReplicaDirectory(lake)) as directory:
        state = replace(
            directory.load(),
            lineage=status["lineage"],
            position=status["chain_position"],
            chain_hash=status["chain_hash"],
        )
        directory.save(state)
    return state


@pytest.mark.e2e
def test_the_node_knows_the_image_and_has_the_rest_replayed(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path, "A", free_ports(1)[0], {})
    node.start()
    try:
        node.wait_ready()
        with closing(HttpLogSource(node.url)) as source:
            node.commit(TABLE)
            node.commit(append(1))
            wait_until(lambda: node.status()["published"] == 2)
            lake = Lake(tmp_path / "lake")
            lake.append((1, "x"))
            first = at_end(lake.path, node)
            assert source.report(report_of(first, "A")).plan == "up-to-date"
            store = ImageStore(tmp_path / "backups")
            image = back_up_replica(lake.path, store, name="one", site="A").image

            node.commit(append(2))
            wait_until(lambda: node.status()["published"] == 3)
            lake.append((2, "x"))
            assert source.report(report_of(at_end(lake.path, node), "A")).verdict == "IN_SYNC"
            shutil.rmtree(lake.path)

            restore_replica(store, image, lake.path)
            state = read_state(lake.path)
            assert state is not None and state.worker_id != first.worker_id
            answer = source.report(report_of(state, "A"))
            assert (answer.verdict, answer.plan) == ("IN_SYNC", "replay")
            (rest,) = source.segments(state.position, wait_s=0.0).segments
            assert (rest.first, rest.from_hash) == (3, state.chain_hash)
    finally:
        node.stop()
