"""What the client of the peer etcd writes and reads, and what a turn of a peer is said to cost."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
from benchmarks.peers import protobuf
from benchmarks.peers.jars import pinned
from benchmarks.peers.peer import Peer, WayMissingError
from benchmarks.peers.processes import Servers, Spent, cpu_seconds, private_bytes, written_bytes


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
