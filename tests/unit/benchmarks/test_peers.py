"""What the client of the peer etcd writes and reads, and what a turn of a peer is said to cost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from benchmarks.peers import protobuf
from benchmarks.peers.jars import pinned
from benchmarks.peers.peer import Peer, WayMissingError
from benchmarks.peers.processes import (
    Servers,
    Spent,
    cpu_seconds,
    private_bytes,
    tree_cpu_seconds,
    written_bytes,
)
from benchmarks.peers.suite import UNITS, Sizes, Suite


class _Scripted(Peer):
    """A peer whose counters grow by one with each look."""

    name = "scripted"

    def __init__(self) -> None:
        self._looks = count()
        self.acts: list[str] = []

    @property
    def pids(self) -> Sequence[int]:
        return [os.getpid()]

    @property
    def client_pid(self) -> int:
        return os.getpid()

    def spent(self) -> Spent:
        n = next(self._looks)
        return Spent(seconds=10.0 * n, servers=n, client=100.0 * n, written=1_000 * n)

    def batches(self, total: int, batch: int) -> None:
        self.acts.append(f"{total} by {batch}")

    def settle(self) -> None:
        self.acts.append("settled")

    def close(self) -> None:
        self.acts.append("closed")


class _Whole(_Scripted):
    """A peer that does everything, until it is to fail."""

    def __init__(self, name: str, fails_after: int = 1_000) -> None:
        super().__init__()
        self.name, self._left = name, fails_after

    @property
    def pids(self) -> Sequence[int]:
        return [os.getpid()] * 3

    def batches(self, total: int, batch: int) -> None:
        super().batches(total, batch)
        self._left -= 1
        if self._left < 0:
            raise ConnectionError("it is gone")

    def singles(self, total: int) -> None:
        self.acts.append(f"{total} alone")

    def lone(self, total: int, pause_s: float) -> list[float]:
        return [0.002] * total


def _measured(*peers: Peer) -> tuple[Suite, dict[str, float]]:
    suite = Suite(Sizes(turns=3, batches={"slow": 6_000}, singles=10, lone=4, spaced=2, rest_s=0))
    for peer in peers:
        suite.add([peer])
    suite.warm(12_000)
    suite.measure(12_000)
    return suite, {figure.name: figure.value for figure in suite.figures()}


def test_all_peers_do_the_same_in_turn_and_slow_ones_less_of_it() -> None:
    fast, slow = _Whole("fast"), _Whole("slow")
    _, values = _measured(fast, slow)
    assert fast.acts[:3] == ["3000 by 1000", "1000 alone", "settled"]
    assert fast.acts.count("12000 by 1000") == slow.acts.count("6000 by 1000") == 3
    # Each look at the counters of a scripted peer comes 10 s and a CPU second after the one before.
    assert values["batches of 1,000, three nodes: fast"] == 1_200
    assert values["batches of 1,000, bytes written for a transaction of 200 B: slow"] == (
        pytest.approx(2_000 / 6_000 / 3, abs=0.001)
    )
    assert values["lone, back to back, p50: fast"] == 2
    quantities = [name.rpartition(": ")[0] for name in values]
    assert list(dict.fromkeys(quantities)) == list(UNITS)


def test_a_peer_that_fails_is_left_out_from_then_on(capsys: pytest.CaptureFixture[str]) -> None:
    suite, values = _measured(_Whole("broken", fails_after=2), _Whole("fast"))
    assert suite.missing == {"broken": "it is gone"}
    assert "broken is left out: it is gone" in capsys.readouterr().err
    assert suite.turns["broken"].values["single, 64 at once"]
    assert values["single, 64 at once: fast"] == 1
    assert len(suite.turns["fast"].values["lone, every 250 ms, p50"]) == 3


def test_a_peer_without_a_way_has_no_figures_of_it() -> None:
    suite, values = _measured(_Scripted(), _Whole("fast"))
    assert suite.missing == {}
    assert not any(name.endswith(": scripted") for name in values if "single" in name)


def test_servers_count_until_they_have_settled_and_the_clock_until_all_is_acknowledged() -> None:
    peer = _Scripted()
    spent = peer.measured(lambda: peer.batches(5, 2))
    assert peer.acts == ["5 by 2", "settled"]
    assert spent == Spent(seconds=10.0, servers=2, client=100.0, written=2_000)


def test_a_way_that_a_peer_lacks_is_named() -> None:
    with pytest.raises(WayMissingError, match="scripted"):
        _Scripted().singles(1)


def test_what_this_process_costs_is_read_from_proc(tmp_path: Path) -> None:
    before, written = cpu_seconds(os.getpid()), written_bytes(os.getpid())
    while cpu_seconds(os.getpid()) == before:
        sum(range(10_000))
    assert private_bytes(os.getpid()) > 1 << 20
    assert written_bytes(os.getpid()) >= written


def test_a_server_that_ends_at_its_start_says_why_and_the_others_are_ended(tmp_path: Path) -> None:
    servers = Servers(tmp_path)
    servers.start("lasting", ["sleep", "600"])
    lasting = servers.running["lasting"]
    servers.start("broken", ["sh", "-c", "echo no such port; exit 3"])
    with pytest.raises(RuntimeError, match="broken ended:\nno such port"):
        servers.wait(lambda: False, "the peer")
    assert lasting.poll() is not None
    assert servers.pids == []


def test_messages_of_etcd_have_the_bytes_of_protobuf() -> None:
    # As etcd's own encoder writes them: tags 0x0a and 0x12 are fields 1 and 2 of bytes.
    assert protobuf.put(b"k", b"v") == bytes.fromhex("0a016b 120176")
    long = protobuf.put(b"k", bytes(300))
    assert long[:6] == bytes.fromhex("0a016b 12ac02")
    both = protobuf.transaction(iter([protobuf.put(b"k", b"v")] * 2))
    assert both == bytes.fromhex("1208 1206 0a016b 120176") * 2


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**63, 2**64 - 1])
def test_numbers_of_an_answer_are_read_by_field(number: int) -> None:
    header = protobuf.varint(2 << 3) + protobuf.varint(number)
    answer = protobuf.field(1, header) + protobuf.field(2, b"3.5.1") + b"\x20" + b"\x07"
    assert protobuf.numbers(answer) == {4: 7}
    assert protobuf.numbers(protobuf.first_message(answer)) == {2: number}


def test_each_jar_of_kafka_is_pinned_once() -> None:
    found = pinned()
    assert len(found) > 40
    assert all(len(digest) == 64 for digest in found.values())
    assert sum(name.startswith("org.apache.kafka_kafka") for name in found) > 10


def test_cpu_of_a_tree_has_that_of_children_and_of_those_that_ended() -> None:
    work = "import time\nwhile time.process_time() < 0.3: pass"
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work!r}])"
    before = tree_cpu_seconds()
    subprocess.run([sys.executable, "-c", nested], check=True)
    assert tree_cpu_seconds() - before >= 0.29
    assert tree_cpu_seconds(os.getpid()) >= tree_cpu_seconds(2**22) == 0
