"""A copy's donor as a process: chunks for a target, kill -9 under a lease, files deleted.

The test is worker and target at once: it makes the donor's tables with delta-rs, reports them,
orders a copy at the other node and fetches it.
"""

from __future__ import annotations

import hashlib
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from deltalake import DeltaTable
from tests.support.node_processes import TABLE, Cluster, HttpProblem, call, wait_until
from tests.support.replica_lakes import (
    SIGNATURE,
    append_rows,
    as_json,
    contents,
    report_of,
    write_state,
)

from sparktxlog.model.copying import CHUNK_DIGEST_HEADER, CopyTicket, Lease
from sparktxlog.model.report import WorkerReport

pytestmark = pytest.mark.e2e

CHUNK = 65_536


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes with the table, small chunks; A has a replica, B an empty one."""
    cluster = Cluster(tmp_path, "AB")
    for node in cluster.nodes.values():
        with node.config.open("r") as file:
            text = file.read()
        settings = f'"replication.chunk-bytes" = {CHUNK}\n"worker-dead-after" = 3600\n'
        node.config.write_text(settings + text)
    try:
        cluster.start()
        cluster.nodes["A"].commit(TABLE)
        cluster.settle()
        for seed in range(3):
            append_rows(lake_of(cluster, "A") / "t", 3_000, seed=seed)
        write_state(lake_of(cluster, "A"), "worker-a", 1)
        report(cluster, "A")
        yield cluster
    finally:
        cluster.stop()


def lake_of(cluster: Cluster, name: str) -> Path:
    return cluster.directory / name / "lake"


def report(cluster: Cluster, name: str) -> dict[str, str]:
    """Report a node's replica at the end of its queue."""
    node = cluster.nodes[name]
    version = DeltaTable(lake_of(cluster, name) / "t").version()
    found = report_of(node.status(), version, f"worker-{name.lower()}")
    answer: dict[str, str] = call(f"{node.url}/v1/worker/reports", as_json(found))
    return answer


def report_empty(cluster: Cluster, name: str) -> None:
    """Report a replica without a table at position 0."""
    node = cluster.nodes[name]
    status = node.status()
    empty = WorkerReport(
        worker_id=f"worker-{name.lower()}",
        node_id=name,
        log_id=status["log_id"],
        epoch=status["epoch"],
        position=0,
        chain_hash="00" * 32,
    )
    call(f"{node.url}/v1/worker/reports", as_json(empty))


def order(cluster: Cluster) -> CopyTicket:
    """Order a copy for B's worker as soon as its node knows a donor."""
    url = f"{cluster.nodes['B'].url}/v1/worker/copies"
    report_empty(cluster, "B")
    body = {"worker_id": "worker-b", "forced": True}
    found = wait_until(lambda: call(url, body), what="a ticket")
    return msgspec.convert(found, CopyTicket)


def ask(lease: Lease, path: str) -> tuple[Any, bytes]:
    """Return headers and bytes of a donor's answer."""
    request = urllib.request.Request(
        f"{lease.url}/replica/v1/leases/{lease.lease_id}{path}",
        headers={"Authorization": f"Bearer {lease.token}"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.headers, response.read()


def fetch(lease: Lease, path: str, size: int) -> bytes:
    """Fetch a file in chunks."""
    parts = []
    for offset in range(0, size, CHUNK):
        query = urlencode({"table": "t", "path": path, "offset": offset, "length": CHUNK})
        headers, data = ask(lease, f"/chunks?{query}")
        assert headers[CHUNK_DIGEST_HEADER] == hashlib.sha256(data).hexdigest()
        parts.append(data)
    return b"".join(parts)


def fetch_all(lease: Lease, target: Path) -> None:
    """Fetch all files of a lease's table."""
    for file in lease.tables[0].files:
        path = target / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(fetch(lease, file.path, file.size_bytes))


def test_a_target_gets_the_donors_bytes_though_they_are_deleted_meanwhile(
    cluster: Cluster, tmp_path: Path
) -> None:
    source = lake_of(cluster, "A") / "t"
    before = contents(source)
    ticket = order(cluster)
    lease = ticket.lease
    assert (lease.node_id, lease.url) == ("A", cluster.nodes["A"].url)
    assert lease.tables[0].signature == SIGNATURE
    first, *_ = lease.tables[0].files
    assert fetch(lease, first.path, first.size_bytes) == before[first.path]
    # The donor stays in service: it takes commits, its tables move on, then all of it is deleted.
    receipt = cluster.nodes["A"].commit(
        {"operations": [{"kind": "append", "table": "t", "rows": [{"id": 1, "v": "x"}]}]}
    )
    assert receipt["level"] == "ordered"
    table = DeltaTable(source)
    table.delete()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    shutil.rmtree(source)
    target = tmp_path / "copy"
    fetch_all(lease, target)
    assert contents(target) == before
    copied = DeltaTable(target, version=lease.tables[0].version)
    assert copied.to_pyarrow_table().num_rows == 9_000


def test_a_lease_ends_with_its_donor_and_a_new_one_goes_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    leases = lake_of(cluster, "A") / "_sparktxlog" / "leases"
    before = contents(lake_of(cluster, "A") / "t")
    old = order(cluster).lease
    donor = cluster.nodes["A"]
    donor.kill()
    assert [path.name for path in leases.iterdir()] == [old.lease_id]
    with pytest.raises(OSError, match="refused"):
        ask(old, "")
    donor.start()
    donor.wait_ready()
    assert list(leases.iterdir()) == []
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(old, "")
    with caught.value as answer:
        assert (answer.code, msgspec.json.decode(answer.read())["title"]) == (410, "lease-gone")
    # It saved what its worker had reported; the heartbeat tells the other node that it lives.
    wait_until(cluster.all_linked)
    assert report(cluster, "A")["verdict"] == "IN_SYNC"
    fresh = order(cluster).lease
    assert fresh.lease_id != old.lease_id
    fetch_all(fresh, tmp_path / "copy")
    assert contents(tmp_path / "copy") == before


def test_without_a_donor_the_reason_is_told(cluster: Cluster) -> None:
    cluster.nodes["A"].kill()
    report_empty(cluster, "B")
    wait_until(lambda: not cluster.nodes["B"].status()["peers"][0]["linked"])
    with pytest.raises(HttpProblem) as caught:
        call(f"{cluster.nodes['B'].url}/v1/worker/copies", {"worker_id": "worker-b"})
    assert caught.value.status == 409
    assert caught.value.document["detail"]
    cluster.nodes["A"].start()
    cluster.nodes["A"].wait_ready()
