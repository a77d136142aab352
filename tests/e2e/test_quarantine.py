"""A node of another history gives way: `sparktxlog peer quarantine` (protocol P23, P28)."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.support.epoch_views import QUICK, shows
from tests.support.forked_nodes import run_command
from tests.support.node_processes import (
    TABLE,
    Cluster,
    HttpProblem,
    NodeProcess,
    append,
    call,
    restart_unheard,
    run_payload,
    wait_until,
)

from sparktxlog import Client
from sparktxlog.model.transactions.operation import OP_COLUMN, POSITION_COLUMN
from sparktxlog.runtime.membership.join_orders import JoinOrder, keep_order
from sparktxlog.storage.journal.journal import Journal

pytestmark = [pytest.mark.e2e, pytest.mark.faults]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Cluster]:
    """Two masters: each waits for the other until it is forced."""
    cluster = Cluster(tmp_path, "AB", settings=QUICK)
    try:
        cluster.start()
        cluster.nodes["A"].commit(TABLE)
        for number in range(5):
            cluster.nodes["AB"[number % 2]].commit(append(number))
        cluster.settle()
        yield cluster
    finally:
        cluster.stop()


def quarantine(node: NodeProcess, followed: NodeProcess) -> subprocess.CompletedProcess[str]:
    """Let a node give way."""
    return run_command(
        "peer", "quarantine", "--config", str(node.config), "--from", followed.url, "--json"
    )


def force(node: NodeProcess) -> str:
    """Let a node go on alone; return its log id."""
    wait_until(lambda: not call(f"{node.url}/v1/epochs")["force"]["linked_voters"])
    return str(call(f"{node.url}/v1/force", {"confirm": f"{node.name} 1"})["log_id"])


def kept(node: NodeProcess) -> list[dict[str, Any]]:
    """Return what a node keeps in quarantine, ascending by position."""
    table = DeltaTable(node.directory / node.name / "log" / "quarantine")
    rows = pa.table(table.to_pyarrow_table()).to_pylist()
    return sorted(rows, key=lambda row: row["position"])


def rows_of(transaction: dict[str, Any]) -> pa.Table:
    """Return the inline rows of a quarantined transaction, as docs/losing-sites.md reads them."""
    (name,) = transaction["inline"]
    mine = [(POSITION_COLUMN, "=", transaction["position"])]
    rows = pq.read_table(f"{transaction['files_root']}/{name}", filters=mine)
    return rows.drop_columns([POSITION_COLUMN, OP_COLUMN])


def take_image(node: NodeProcess) -> None:
    """Copy what a stopped node keeps."""
    shutil.copytree(node.directory / node.name, node.directory / "image")


def put_image_back(node: NodeProcess) -> None:
    """Let a stopped node have what it kept at its image, and nothing newer."""
    shutil.rmtree(node.directory / node.name)
    (node.directory / "image").rename(node.directory / node.name)


def hook(node: NodeProcess) -> Path:
    """Configure a program that keeps what it gets; return the file where it does."""
    program, got = node.directory / "reconcile", node.directory / "both-branches.json"
    program.write_text(f"#!/bin/sh\ncat > {got}.new && mv {got}.new {got}\n")
    program.chmod(0o755)
    node.config.write_text(f'fork-hook = "{program}"\n{node.config.read_text()}')
    return got


def gave_way(node: NodeProcess, followed: NodeProcess) -> dict[str, Any]:
    """Let a node give way; return what the command says, checked against the directory."""
    before = {path.name for path in (node.directory / node.name).iterdir()}
    done = quarantine(node, followed)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    directory = Path(told["directory"])
    assert (directory / "journal.sqlite").is_file()
    assert (directory / "synchronized_queue" / "_delta_log").is_dir()
    assert before <= {path.name for path in (node.directory / node.name).iterdir()}
    again = quarantine(node, followed)
    assert again.returncode == 1
    assert "nothing" in json.loads(again.stdout)["detail"]
    return told


def judged(node: NodeProcess, position: int, chain_hash: str) -> tuple[str, str]:
    """Report a worker's state as of before; return verdict and plan."""
    info = call(f"{node.url}/v1/info")
    report = {
        "worker_id": "w",
        "node_id": node.name,
        "log_id": info["log_id"],
        "epoch": 2,
        "position": position,
        "chain_hash": chain_hash,
    }
    answer = call(f"{node.url}/v1/worker/reports", report)
    return answer["verdict"], answer["plan"]


def fork(two: Cluster, lost: list[str]) -> tuple[str, list[dict[str, Any]]]:
    """Force A, which commits three transactions, then B, which commits the lost ones.

    Returns:
        Log id of A, and the receipts of its transactions.
    """
    a, b = two.nodes.values()
    b.stop()
    survivor = force(a)
    acknowledged = [a.commit(append(number)) for number in (100, 101, 102)]
    a.stop()
    b.start()
    b.wait_ready()
    # The first one is accepted before: it is ordered in the fork.
    b.commit(append(200, lost[0]), "accepted")
    force(b)
    for number, identity in enumerate(lost[1:], start=201):
        b.commit(append(number, identity))
    a.start()
    a.wait_ready()
    return survivor, acknowledged


def test_of_two_forced_masters_one_gives_way(two: Cluster) -> None:
    a, b = two.nodes.values()
    common = two.settle()
    lost = [str(uuid.uuid4()) for _ in range(5)]
    survivor, acknowledged = fork(two, lost)
    # Neither follows the other, and both say what to do.
    wait_until(lambda: "peer quarantine" in link_of(a, b)["reason"])
    wait_until(lambda: "peer quarantine" in link_of(b, a)["reason"])
    running = quarantine(b, a)
    assert (running.returncode, json.loads(running.stdout)["title"]) == (1, "locked")
    ended = b.status()
    log = call(f"{b.url}/v1/info")["log_id"]
    b.stop()
    a.stop()
    assert quarantine(b, a).returncode == 5
    a.start()
    a.wait_ready()

    got = hook(b)
    told = gave_way(b, a)
    assert not got.exists(), "the node is not there yet"
    assert (told["common"], told["exact"], told["log_id"]) == (common, True, survivor)
    assert (told["ordered"], told["accepted"], told["surviving"]) == (5, 0, 0)
    assert (told["incomplete"], told["incarnation"]) == (0, 2)
    transactions = kept(b)
    assert [row["transaction_id"] for row in transactions] == lost
    assert {row["why"] for row in transactions} == {"ordered"}
    assert [rows_of(row).to_pylist() for row in transactions] == [
        [{"id": number, "v": "x"}] for number in range(200, 205)
    ]

    b.start()
    wait_until(lambda: shows(a, "AB") and shows(b, "AB"), what="B joins what A went on with")
    assert (b.status()["log_id"], call(f"{b.url}/v1/info")["log_id"]) == (survivor, log)
    two.agree(common + 3)
    # A program gets both branches (V74).
    wait_until(got.exists, what="the program ran")
    note = json.loads(got.read_text())
    assert (note["common"]["position"], note["left"]["end"]) == (common, common + 5)
    assert [one["id"] for one in note["left"]["transactions"]] == lost
    assert (note["kept"]["log_id"], note["kept"]["end"]) == (survivor, common + 3)
    # What its worker had applied is never replayed upon.
    assert judged(b, ended["position"], ended["chain_hash"]) == ("AHEAD", "stop")
    assert judged(b, common + 3, ended["chain_hash"])[0] == "DIVERGED"
    for receipt in acknowledged:
        found = [call(f"{n.url}/v1/transactions/{receipt['transaction_id']}") for n in (a, b)]
        assert {item["position"] for item in found} == {receipt["position"]}
        assert found[0]["outcome"] == receipt["outcome"] == "committed"
    with Client(b.url) as client:
        for transaction in transactions:
            identity = transaction["transaction_id"]
            again = client.append("t", rows_of(transaction), transaction_id=identity)
            assert again.outcome == "committed"
    two.agree(common + 3 + len(lost))
    assert judged(b, ended["position"], ended["chain_hash"])[0] == "DIVERGED"
    # A restart finds the same, and what was given up stays given up.
    b.kill()
    b.start()
    wait_until(lambda: shows(a, "AB") and shows(b, "AB"), what="B is back")
    b.commit(append(300))
    two.agree(common + 4 + len(lost))


@pytest.mark.parametrize("longer", [True, pytest.param(False, marks=pytest.mark.repeated)])
def test_a_node_with_more_than_a_restored_and_forced_one_stops_and_gives_way(
    two: Cluster, longer: bool
) -> None:
    a, b = two.nodes.values()
    common = two.settle()
    two.stop()
    take_image(a)
    two.start()
    ordered = [a.commit(append(number))["transaction_id"] for number in range(10, 14)]
    assert two.settle() == common + 4
    restart_unheard(two, b)
    accepted = str(uuid.uuid4())
    assert b.commit(append(20, accepted), "accepted")["level"] == "accepted"
    two.stop()

    # An old image of A goes on alone: what came after it is at B only.
    put_image_back(a)
    a.start()
    a.wait_ready()
    survivor = force(a)
    for number in range(30, 36 if longer else 31):
        position = a.commit(append(number))["position"]
    b.write_config(two.ports["B"], b.peers)
    b.start()
    wait_until(lambda: b.status()["halted"], what="B stops")
    assert a.status()["members"] == ["A"]
    assert "sparktxlog peer quarantine" in b.status()["halted"]
    assert b.status()["phase"] == "FAULT"
    assert "sparktxlog peer quarantine" in b.log_text()
    with pytest.raises(HttpProblem):
        b.commit(append(40), "accepted", 5)
    b.stop()
    assert a.status()["epoch"] == 2
    position = a.commit(append(50))["position"]

    told = gave_way(b, a)
    assert (told["common"], told["ordered"], told["accepted"]) == (common, 4, 1)
    transactions = kept(b)
    assert [row["transaction_id"] for row in transactions] == [*ordered, accepted]
    assert [row["why"] for row in transactions] == ["ordered"] * 4 + ["accepted"]
    assert rows_of(transactions[-1]).to_pylist() == [{"id": 20, "v": "x"}]
    b.start()
    wait_until(lambda: shows(a, "AB") and shows(b, "AB"), what="B joins what A went on with")
    assert b.status()["log_id"] == survivor
    two.agree(position)
    with Client(b.url) as client:
        assert client.append("t", rows_of(transactions[-1]), transaction_id=accepted).outcome
    two.agree(position + 1)


@pytest.mark.repeated
def test_two_that_give_way_found_no_log_of_their_own(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, "ABC", settings=QUICK)
    a, b, c = cluster.nodes.values()
    try:
        cluster.start()
        a.commit(TABLE)
        common = cluster.settle()
        b.stop()
        c.stop()
        survivor = force(a)
        for number in range(3):
            a.commit(append(number))
        a.stop()
        # The majority lived: it evicts A and goes on, too.
        b.start()
        c.start()
        b.wait_ready()
        lost = [b.commit(append(10), timeout=60)["transaction_id"]]
        lost += [c.commit(append(11), timeout=60)["transaction_id"]]
        wait_until(lambda: shows(b, "BC") and b.status()["position"] == common + 2)
        a.start()
        a.wait_ready()
        ways = ((a, b), (b, a), (c, a))
        wait_until(
            lambda: all("peer quarantine" in link_of(one, other)["reason"] for one, other in ways),
            what="both sides say that the log has forked",
        )
        b.stop()
        c.stop()
        for node in (b, c):
            assert gave_way(node, a)["ordered"] == 2
            assert [row["transaction_id"] for row in kept(node)] == lost
        a.stop()

        b.start()
        c.start()
        wait_until(lambda: all(link_of(x, y)["linked"] for x, y in ((b, c), (c, b))))
        for node in (b, c):
            with pytest.raises(HttpProblem) as problem:
                node.commit(TABLE, "accepted", 5)
            assert problem.value.document["title"] == "not-a-member"
            assert node.status()["position"] == 0
        a.start()
        wait_until(lambda: all(shows(node, "ABC") for node in cluster.nodes.values()), 150)
        assert {node.status()["log_id"] for node in cluster.nodes.values()} == {survivor}
        cluster.agree(common + 3)
        cluster.agree(c.commit(append(30))["position"])
    finally:
        cluster.stop()


def test_a_node_of_another_history_stops_before_a_summary_replaces_it(two: Cluster) -> None:
    a, b = two.nodes.values()
    common = two.settle()
    two.stop()
    take_image(a)
    two.start()
    # All of A: under the numbers that B has of them, A has others by then.
    ordered = [a.commit(append(number))["transaction_id"] for number in range(10, 13)]
    assert two.settle() == common + 3
    ended, log = b.status(), call(f"{b.url}/v1/info")["log_id"]
    two.stop()
    # B was told that it is too far behind, and then A lost what B has.
    told_to = JoinOrder(log_id=ended["log_id"], incarnation=1, behind=True, log=log)
    journal = Journal(b.directory / "B")
    journal.write([keep_order(told_to)])
    journal.close()
    put_image_back(a)
    a.start()
    a.wait_ready()
    survivor = force(a)
    for number in range(30, 36):
        position = a.commit(append(number))["position"]
    call(f"{a.url}/v1/published?at_least={position}&timeout=20")

    for restart in (False, True):
        if restart:
            b.stop()
        b.start()
        stopped = wait_until(lambda: halted(b), what="B stops")
        assert "A has another queue up to position" in stopped["halted"]
        assert "sparktxlog peer quarantine" in stopped["halted"]
        assert (stopped["phase"], stopped["position"]) == ("FAULT", common + 3)
        assert stopped["chain_hash"] == ended["chain_hash"]
    assert "summary taken over" not in b.log_text()
    b.stop()
    told = gave_way(b, a)
    assert (told["common"], told["exact"], told["ordered"]) == (common, True, 3)
    assert [row["transaction_id"] for row in kept(b)] == ordered
    b.start()
    wait_until(lambda: shows(a, "AB") and shows(b, "AB"), what="B joins what A went on with")
    assert b.status()["log_id"] == survivor
    two.agree(position)


def test_a_node_that_nobody_can_compare_any_more_keeps_its_own_and_says_so(tmp_path: Path) -> None:
    settings = (*QUICK, "rejoin-keep-bytes = 0", "id-window = 1000")
    cluster = Cluster(tmp_path, "ABC", settings=settings)
    a, b, c = cluster.nodes.values()
    try:
        cluster.start()
        a.commit(TABLE)
        end = cluster.settle()
        c.stop()
        take_image(c)
        c.start()
        # On a slow machine it was missed: an epoch that ends here would tell its hash.
        wait_until(
            lambda: all(shows(node, "ABC") for node in cluster.nodes.values()), what="C is there"
        )
        a.commit(append(0))
        cluster.settle()
        c.stop()
        # C comes back as it was: nobody keeps the hash at the end of this queue.
        put_image_back(c)
        c.write_config(cluster.ports["C"], c.peers, secret="another secret of 16+")
        c.start()
        c.wait_ready()
        accepted = str(uuid.uuid4())
        assert c.commit(append(20, accepted), "accepted")["level"] == "accepted"
        c.stop()
        wait_until(lambda: shows(a, "AB") and shows(b, "AB"), what="C is missed")
        for seed in range(1, 5):
            a.commit_run(run_payload(1_000, seed))
            position = a.commit(append(seed))["position"]
            for node in (a, b):
                call(f"{node.url}/v1/published?at_least={position}&timeout=20")
        c.write_config(cluster.ports["C"], c.peers)
        c.start()
        wait_until(
            lambda: all(shows(node, "ABC") for node in cluster.nodes.values()), 150, "C is back"
        )
        told = c.status()["uncompared"]
        assert (told["position"], told["kept"]) == (end, 0)
        assert told["summary_position"] >= position and told["peer"] in "AB"
        assert "could not be compared" in c.log_text()
        assert f"not compared: the history up to position {end}" in run_command(
            "status", "--url", c.url
        ).stdout.replace("\n", " ")
        # Its own transaction stayed, and takes effect now.
        cluster.agree(cluster.settle())
        found = call(f"{a.url}/v1/transactions/{accepted}")
        assert found["position"] > position and found["outcome"] == "committed"
        assert a.status()["uncompared"] is None
    finally:
        cluster.stop()


def halted(node: NodeProcess) -> dict[str, Any]:
    """Return a node's status once it takes no more part."""
    status = node.status()
    return status if status["halted"] else {}


def link_of(node: NodeProcess, peer: NodeProcess) -> dict[str, Any]:
    """Return what a node shows of a peer."""
    found: dict[str, Any]
    (found,) = [item for item in node.status()["peers"] if item["id"] == peer.name]
    return found
