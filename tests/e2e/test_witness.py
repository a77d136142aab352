"""A witness that gets its place at run time: it votes, also after a restart of all, without data.

Protocol P12, P21; docs/losing-sites.md.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.epoch_views import QUICK, all_show, operate, told
from tests.support.node_processes import (
    Cluster,
    HttpProblem,
    NodeProcess,
    append,
    call,
    free_ports,
    run_payload,
    running,
    wait_until,
)

from sparktxlog import Client
from sparktxlog.errors import NotFoundError
from sparktxlog.model.transactions.receipt import Receipt

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

#: Tables of the journal in which a master keeps the log and its data.
LOG_TABLES = (
    "incoming",
    "payloads",
    "queue",
    "announcements",
    "segments",
    "definitions",
    "recent_ids",
    "table_writes",
)
#: Stands in rows that the masters take.
MARK = "a-row-that-no-witness-sees"


def add_witness(cluster: Cluster) -> NodeProcess:
    """Start a witness that nobody knows, and give it a place as an operator does."""
    first = cluster.masters()[0]
    port = free_ports(1)[0]
    witness = NodeProcess(
        cluster.directory, "W", port, dict(cluster.ports), settings=QUICK, witnesses="W"
    )
    cluster.nodes["W"], cluster.witnesses = witness, "W"
    witness.start()
    witness.wait_ready()
    said = operate(first, "peer", "add", "W", witness.url, "--witness")
    assert witness.url in said
    # Who keeps nothing comes back under the next incarnation, and votes once that is decided.
    wait_until(lambda: first.status()["roster"][-1]["incarnation"] == 2, what="its vote")
    wait_until(cluster.all_linked, what="the witness is linked")
    return witness


def seats(node: NodeProcess) -> list[tuple[str, int, bool, bool]]:
    """Return id, votes, whether witness and whether member of each place, in precedence order."""
    roster = node.status()["roster"]
    return [(seat["id"], seat["weight"], seat["witness"], seat["member"]) for seat in roster]


def test_a_witness_added_at_run_time_decides_also_after_a_restart_of_all(tmp_path: Path) -> None:
    with running(Cluster(tmp_path, "AB", settings=QUICK)) as cluster:
        a, b = cluster.nodes.values()
        a.commit(append(1))
        witness = add_witness(cluster)
        assert "W" not in a.config.read_text() + b.config.read_text()
        all_show(cluster, "AB")
        places = [("A", 1, False, True), ("B", 1, False, True), ("W", 1, True, False)]
        assert [seats(node) for node in (a, b)] == [places] * 2

        a.kill()
        position = b.commit(append(2), timeout=60)["position"]
        all_show(cluster, "B")
        assert seats(b) == [("A", 1, False, False), *places[1:]]
        assert b.commit(append(3))["position"] == position + 1
        a.start()
        all_show(cluster, "AB")
        cluster.agree(position + 1)

        for node in (a, b, witness):
            node.kill()
        cluster.start()
        all_show(cluster, "AB")
        assert witness.status()["phase"] == "WITNESS"
        assert [seats(node) for node in (a, b, witness)] == [places] * 3
        assert b.commit(append(4))["position"] == position + 2

        b.kill()
        assert a.commit(append(5), timeout=60)["position"] == position + 3
        all_show(cluster, "A")
        b.start()
        all_show(cluster, "AB")
        cluster.agree(position + 3)


def configured(directory: Path) -> Cluster:
    """Return two masters and a witness that know each other from the beginning."""
    return Cluster(directory, "ABW", settings=QUICK, witnesses="W")


@contextmanager
def with_witness(directory: Path, since: str) -> Iterator[tuple[Cluster, NodeProcess]]:
    """Run two masters and a witness that has its place since the start, or since later."""
    if since == "start":
        with running(configured(directory)) as cluster:
            yield cluster, cluster.nodes["W"]
    else:
        with running(Cluster(directory, "AB", settings=QUICK)) as cluster:
            yield cluster, add_witness(cluster)


def holds_mark(directory: Path) -> list[str]:
    """Return the files in which rows of the masters can be read."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [str(path) for path in files if MARK.encode() in path.read_bytes()]


def counted(journal: Path) -> dict[str, int]:
    """Return how many rows a stopped node's journal has in each table of the log."""
    with closing(sqlite3.connect(journal)) as opened:
        return {
            name: opened.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for name in LOG_TABLES
        }


@pytest.mark.parametrize("since", ["start", "later"])
def test_a_witness_keeps_nothing_of_what_is_committed(tmp_path: Path, since: str) -> None:
    with with_witness(tmp_path, since) as (cluster, witness):
        a, b = cluster.masters()
        for number in range(5):
            row = {"id": number, "v": MARK}
            operations = [{"kind": "append", "table": "t", "rows": [row]}]
            (a, b)[number % 2].commit({"operations": operations})
            a.commit_run(run_payload(500, number + 1))
        # It takes part in two decisions, whose values name what is not ordered yet.
        a.kill()
        b.commit(append(10), timeout=60)
        a.start()
        all_show(cluster, "AB")
        position = cluster.publish()
        status = witness.status()
        assert (status["phase"], status["epoch"]) == ("WITNESS", a.status()["epoch"])
        assert (status["position"], status["published"], status["incoming_bytes"]) == (0, 0, 0)

        for node in (a, b, witness):
            node.stop()
        directory = tmp_path / "W"
        assert not (directory / "log").exists() and not (directory / "lake").exists()
        assert [path for path in (directory / "payloads").rglob("*") if path.is_file()] == []
        assert holds_mark(directory) == []
        assert counted(directory / "journal.sqlite") == dict.fromkeys(LOG_TABLES, 0)
        # The reserve is space that the node keeps free for itself.
        kept = [path for path in directory.rglob("*") if path.name != "reserve"]
        assert sum(path.stat().st_size for path in kept) < 1_000_000
        # So it would have been seen.
        assert holds_mark(tmp_path / "A") and (tmp_path / "A" / "log").is_dir()
        assert counted(tmp_path / "A" / "journal.sqlite")["queue"] > 0
        assert position > 2_500


def refused(node: NodeProcess, path: str, body: Any = None, raw: bytes | None = None) -> None:
    """Send something that is a master's, and see that it certainly did not happen, and why."""
    with pytest.raises(HttpProblem) as problem:
        call(node.url + path, body, raw=raw)
    document = problem.value.document
    assert (problem.value.status, document["title"]) == (404, "not-found")
    assert (document["definite"], document["retryable"]) == (True, False)
    assert document["detail"].startswith("node 'W' is a witness, which only votes")
    assert "peer list" in document["hint"]
    assert document["fields"]["witness"] == "W"


def test_a_commit_at_a_witness_is_refused_and_goes_to_a_master(tmp_path: Path) -> None:
    with running(configured(tmp_path)) as cluster:
        a, b, witness = cluster.nodes.values()
        position = a.status()["position"]
        refused(witness, "/v1/transactions", append(1))
        refused(witness, "/v1/transactions?level=accepted", append(1))
        refused(witness, "/v1/runs", raw=run_payload(10, 1))
        refused(witness, "/v1/tables/t/rows", raw=b"anything")
        refused(witness, "/v1/tables")
        code, said = told(witness, "peer", "pause")
        assert code == 1 and "node 'W' is a witness" in said
        with Client(witness.url) as client, pytest.raises(NotFoundError, match="is a witness"):
            client.append("t", [{"id": 1, "v": "x"}])
        assert cluster.settle() == position

        rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": ["x"] * 3})
        with Client([witness.url, b.url, a.url], timeout=60) as client:
            receipt = client.append("t", rows)
            assert (receipt.outcome, receipt.position) == ("committed", position + 1)
            assert at_a_master(client.receipt(str(receipt.transaction_id)))
        # Each begins anew with the witness, whatever is asked first.
        with Client([witness.url, a.url], timeout=60) as client:
            batch = client.submit_many("t", rows)
            assert [found.position for found in batch.receipts] == [position + 2]
        with Client([witness.url, a.url], timeout=60) as client:
            assert [table.name for table in client.tables()] == ["t"]
        with Client([witness.url, a.url], timeout=60) as client:
            assert client.queue(after=position)[0]["position"] == position + 1
        cluster.agree(position + 4)


def at_a_master(receipt: Receipt) -> bool:
    """Return whether a receipt names the run of a master."""
    return receipt.run is not None and receipt.run.origin in "AB"
