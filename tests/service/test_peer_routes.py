"""What peers may and may not say."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest
from tests.service.local_nodes import SECRET, cluster, until
from tests.support.storage_samples import run_of

from sparktxlog.codec import wire
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import ExpiredError, TransportError
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind, StagedFile
from sparktxlog.model.transactions.receipt import Level
from sparktxlog.protocol.messages.posts import MergeBase, Post
from sparktxlog.runtime.node import Node
from sparktxlog.service.handlers import peer as peer_routes
from sparktxlog.storage.interfaces import PutRun
from sparktxlog.transport.signing import BOOT, Signer

DEFINITION = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))


def create() -> PreparedTransaction:
    return PreparedTransaction(
        transaction_id=uuid.uuid4().bytes,
        operations=(
            PreparedOperation(table="t", kind=OperationKind.CREATE_TABLE, definition=DEFINITION),
        ),
    )


def delete(text: str = "id = 1") -> PreparedTransaction:
    return PreparedTransaction(
        transaction_id=uuid.uuid4().bytes,
        operations=(PreparedOperation(table="t", kind=OperationKind.DELETE_WHERE, predicate=text),),
    )


class Stranger:
    """Speaks to a node over a raw socket as some node would."""

    def __init__(self, target: Node, node_id: str, secret: str = SECRET) -> None:
        self.target = target
        self.signer = Signer(secret, node_id, str(uuid.uuid4()))
        self.to = ""
        self.session = aiohttp.ClientSession()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *args: object) -> None:
        await self.session.close()

    def headers(self, path: str, body: bytes = b"", method: str = "POST") -> dict[str, str]:
        return self.signer.headers(method, path, body, self.to)

    async def send(
        self,
        path: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        method: str = "POST",
    ) -> tuple[int, dict[str, Any]]:
        if headers is None:
            headers = self.headers(path, body, method)
        url = self.target.config.master_url + path
        data = io.BytesIO(body) if len(body) > 1 << 20 else body
        async with self.session.request(method, url, data=data, headers=headers) as response:
            text = await response.read()
            self.to = response.headers.get(BOOT, self.to)
            document = (
                json.loads(text)
                if response.status >= 400 and "json" in response.headers.get("content-type", "")
                else {}
            )
            return response.status, document

    async def greet(self, hello: wire.Hello) -> tuple[int, dict[str, Any]]:
        body = wire.encode(hello)
        await self.send("/peer/v1/hello", body)  # learns the boot id
        return await self.send("/peer/v1/hello", body)


def state_of(node: Node) -> object:
    """Return what a refused request must not change: of the peer B, in whose name it is sent.

    Others greet each other and post at the start, and nobody knows when the last one has done so.
    """
    status = node.base.master.status()
    return (
        status.position,
        status.incoming_runs,
        [p.last_post_at for p in status.peers if p.peer == "B"],
        dict(node.membership.greeter._shown),
    )


async def settled(look: Callable[[], Any]) -> Any:
    """Return what is seen once it stays: what links say to each other at the start is said."""
    found = look()
    while True:
        await asyncio.sleep(0.3)
        if (seen := look()) == found:
            return found
        found = seen


def test_strangers_wrong_secrets_and_replays_change_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", idle_round_min=30, idle_round_max=30) as nodes:
            a, b = nodes["A"], nodes["B"]
            await until(lambda: a.base.master.status().peers[0].last_post_at is not None)
            await until(lambda: all(node.sites_data._sent for node in nodes.values()))
            before = await settled(lambda: state_of(a))
            hello = b.membership.greeter.own
            post = wire.encode(wire.Envelope())
            async with Stranger(a, "X") as stranger:
                for path in (
                    "/peer/v1/hello",
                    "/peer/v1/posts",
                    "/peer/v1/tails",
                    "/peer/v1/pushes",
                    "/peer/v1/announcements",
                ):
                    status, document = await stranger.send(path, post)
                    assert (status, document["title"]) == (403, "forbidden-peer")
                for path in (
                    "/peer/v1/runs/A/1/1",
                    "/peer/v1/files/payloads/x",
                    "/peer/v1/announced/00",
                    "/peer/v1/queue/0",
                ):
                    assert (await stranger.send(path, method="GET"))[0] == 403
            async with Stranger(a, "B", "not the secret of it") as liar:
                assert (await liar.greet(hello))[0] == 401
                assert (await liar.send("/peer/v1/posts", post))[0] == 401
            async with Stranger(a, "B") as unsigned:
                status, _ = await unsigned.send(
                    "/peer/v1/posts", post, headers={"x-txlog-node": "B"}
                )
                assert status == 401
            assert state_of(a) == before
            text = a.base.metrics.text().decode()
            assert 'sparktxlog_refused_peer_requests_total{code="forbidden-peer"} 9.0' in text

    asyncio.run(main())


def test_greetings_of_the_wrong_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = nodes["A"], nodes["B"]
            hello = b.membership.greeter.own
            for changed, part in (
                (replace(hello, oldest=9, newest=9), "none in common"),
                (replace(hello, url="http://127.0.0.1:1"), "URL"),
                (replace(hello, node_id="X"), "is configured"),
                (replace(hello, log_id="x"), "log_id"),
                (replace(hello, config_hash="x"), "configuration"),
                (replace(hello, instance="x"), "two nodes with one id"),
            ):
                async with Stranger(a, "B") as other:
                    status, document = await other.greet(changed)
                    code = "wire-version" if changed.oldest == 9 else "forbidden-peer"
                    assert (status, document["title"]) == (403, code)
                    assert part in document["detail"]
            async with Stranger(a, "A") as twin:
                status, document = await twin.greet(
                    replace(a.membership.greeter.own, instance="another")
                )
                assert status == 403
                assert "two nodes with one id" in document["detail"]
            # The right one greets again by itself and goes on.
            await a.submit(create(), level=Level.ORDERED, timeout=20)

    asyncio.run(main())


def test_a_file_that_becomes_a_link_after_it_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark sessions write into the payload store, and the node may read more than they."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"of the node")

    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = nodes["A"], nodes["B"]
            await b.base.links["A"].close()  # the test speaks for B now
            staged = a.payloads.root / "x" / "part"
            staged.parent.mkdir()
            check = a.files.check_file

            async def check_then_planted(file: StagedFile) -> None:
                await check(file)
                staged.unlink()
                staged.symlink_to(secret)

            async with Stranger(a, "B") as peer:
                assert (await peer.greet(b.membership.greeter.own))[0] == 200
                for offset in (0, 2):
                    staged.unlink(missing_ok=True)
                    staged.write_bytes(b"rows")
                    digest = hashlib.sha256(b"rows").hexdigest()
                    target = f"/peer/v1/files/payloads/x/part?digest={digest}&size=4&rows=0"
                    headers = peer.headers(target, method="GET") | {"range": f"bytes={offset}-"}
                    found = await peer.send(target, b"", headers, "GET")
                    assert found[0] in ((206,) if offset else (200, 206))
                monkeypatch.setattr(a.files, "check_file", check_then_planted)
                status, document = await peer.send(target, method="GET")
                assert (status, document.get("title")) in (
                    (400, "invalid-name"),
                    (404, "not-found"),
                )

    asyncio.run(main())


def test_replayed_stale_and_forged_messages(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = nodes["A"], nodes["B"]
            await b.base.links["A"].close()  # the test speaks for B now
            async with Stranger(a, "B") as peer:
                assert (await peer.greet(b.membership.greeter.own))[0] == 200
                post = wire.encode(wire.Envelope())
                headers = peer.headers("/peer/v1/posts", post)
                assert (await peer.send("/peer/v1/posts", post, headers))[0] == 204
                status, document = await peer.send("/peer/v1/posts", post, headers)
                assert status == 401
                assert "replayed" in document["detail"]
                right, peer.to = peer.to, str(uuid.uuid4())
                assert (await peer.send("/peer/v1/posts", post))[0] == 409
                assert peer.to == right
                forged = Post(
                    log_id="l",
                    epoch=1,
                    sender=a.config.node_id,
                    round=1,
                    base=MergeBase(),
                    counter=1,
                    last_seq=0,
                )
                body = wire.encode(wire.Envelope(post=forged))
                status, document = await peer.send("/peer/v1/posts", body)
                assert (status, document["title"]) == (400, "protocol-remote")
                assert (await peer.send("/peer/v1/posts", b"\xc1 no msgpack"))[0] == 400
                assert (await peer.send("/peer/v1/pushes", b"\xff" * 9))[0] == 400
                for path in ("../A/journal.sqlite", "%2e%2e/journal.sqlite", "a/../../x", "a%00b"):
                    target = f"/peer/v1/files/payloads/{path}?digest=d&size=1&rows=0"
                    status, _ = await peer.send(target, method="GET")
                    assert status in (400, 401, 404), path
                big = b"x" * (peer_routes._LEAST_LIMIT + 1)
                assert (await peer.send("/peer/v1/pushes", big))[0] == 413

    asyncio.run(main())


def test_who_pushes_another_ones_runs_is_refused(tmp_path: Path) -> None:
    """A node replicates what was written at it; nobody makes it, or does it in its name."""

    async def main() -> None:
        async with cluster(tmp_path, "ABC", idle_round_min=30, idle_round_max=30) as nodes:
            a, b = nodes["A"], nodes["B"]
            await b.base.links["A"].close()  # the test speaks for B now
            async with Stranger(a, "B") as peer:
                assert (await peer.greet(b.membership.greeter.own))[0] == 200
                before = state_of(a)

                async def push(*runs: PutRun) -> tuple[int, str]:
                    body = wire.encode_pushes((run.header, run.payload) for run in runs)
                    status, document = await peer.send("/peer/v1/pushes", body)
                    return status, document.get("detail", "")

                # B may have promised before its link was closed: what it stamps comes after (P10).
                stamp = b.base.master.next_stamp + 1
                own, other = run_of(origin="B", ts=stamp), run_of(origin="B", seq=2, n=2)
                for origin in "AC":
                    of_another = run_of(origin=origin)
                    assert await push(of_another) == (400, f"node 'B' pushes a run of {origin!r}")
                status, _ = await push(replace(own, payload=other.payload))
                assert status == 422
                assert state_of(a) == before
                for header in (run_of(origin="A").header, run_of(origin="C").header, own.header):
                    key = (header.origin, header.incarnation, header.seq)
                    assert await a.peering.run_payloads([key]) == (None,)
                # What is its own arrives, also in front of what is not.
                assert (await push(own, run_of(origin="C")))[0] == 400
                await until(lambda: a.base.master.status().incoming_runs == 1)
                assert a.base.ordered.value == 0

    asyncio.run(main())


def test_a_slow_payload_endpoint_leaves_rounds_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as nodes:
            a, b, c = nodes.values()
            await a.submit(create(), level=Level.ORDERED, timeout=20)
            gate = asyncio.Event()
            read = a.peering.run_payloads

            async def slow(runs: Sequence[tuple[str, int, int]]) -> tuple[bytes | None, ...]:
                await gate.wait()
                return await read(runs)

            monkeypatch.setattr(a.peering, "run_payloads", slow)
            for link in a.base.links.values():  # nothing is pushed: peers must fetch
                monkeypatch.setattr(link, "push", lambda header, payload: None)
            slow_one = asyncio.create_task(
                a.submit(delete("id = 5"), level=Level.ORDERED, timeout=30)
            )
            await until(lambda: len(b.fetcher) > 0)
            rounds = [node.base.master.status().round for node in (a, b, c)]
            # Others' transactions are still accepted, posted and acquired meanwhile.
            receipt = await b.submit(delete("id = 6"), level=Level.ACQUIRED, timeout=20)
            assert receipt.level is Level.ACQUIRED
            await until(
                lambda: all(
                    node.base.master.status().round >= before + 3
                    for node, before in zip((a, b, c), rounds, strict=True)
                )
            )
            assert not slow_one.done()
            awaited = a.status()["waiting_for"]
            assert {(item["peer"], item["why"]) for item in awaited} == {
                ("B", "acquired"),
                ("C", "acquired"),
            }
            gate.set()
            assert (await slow_one).outcome == "committed"
            await until(lambda: len({n.base.ordered.value for n in (a, b, c)}) == 1)
            assert sum(link.traffic.fetched_bytes for link in b.base.links.values()) > 0

    asyncio.run(main())


def test_posts_stay_small_whatever_transactions_hold(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as nodes:
            a = nodes["A"]
            await a.submit(create(), level=Level.ORDERED, timeout=20)
            big = delete("id in (" + ",".join(str(i) for i in range(30_000)) + ")")
            await a.submit(big, level=Level.ORDERED, timeout=20)
            await until(lambda: all(n.base.ordered.value == 2 for n in nodes.values()))
            for node in nodes.values():
                for link in node.base.links.values():
                    assert 0 < link.traffic.post_bytes_max < 1_024

    asyncio.run(main())


def test_reports_travel_with_or_without_posts(tmp_path: Path) -> None:
    from sparktxlog.model.report import TableState, WorkerReport
    from sparktxlog.model.signature import TableSignature

    async def main() -> None:
        async with cluster(tmp_path, idle_round_min=30, idle_round_max=30) as nodes:
            a, b, c = nodes.values()
            await a.submit(create(), level=Level.ORDERED, timeout=20)
            await until(lambda: all(n.base.published.value == 1 for n in (a, b, c)))
            waiting = asyncio.create_task(
                a.submit(create(), level=Level.APPLIED, sites=2, timeout=20)
            )
            await until(lambda: all(n.base.published.value == 2 for n in (a, b, c)))
            base = WorkerReport(
                worker_id="w",
                node_id="A",
                log_id=a.config.log_id,
                epoch=1,
                position=2,
                chain_hash=a.base.journal.read_hash_at(2).hex(),
                tables={"t": TableState(version=0, signature=TableSignature(), schema="s")},
            )
            assert a.accept_report(base)["plan"] == "up-to-date"
            assert a.accept_report(replace(base, node_id="B"))["verdict"] == "FOREIGN"
            await until(lambda: b.status()["replicas"])
            assert b.status()["replicas"][0]["verdict"] == "IN_SYNC"
            assert not waiting.done()
            of_b = replace(base, worker_id="wb", node_id="B")
            assert b.accept_report(of_b)["verdict"] == "IN_SYNC"
            receipt = await waiting
            assert (receipt.level, receipt.position) == (Level.APPLIED, 2)
            wrong = replace(
                base,
                worker_id="wc",
                node_id="C",
                tables={"t": TableState(version=0, signature=TableSignature(rows=1), schema="s")},
            )
            await until(lambda: len(c.status()["replicas"]) == 2)
            assert c.accept_report(wrong)["verdict"] == "DIVERGED"
            snapshot = await a.snapshot(None, 2, 1)
            assert snapshot["tables"]["t"]["version"] == 0

    asyncio.run(main())


def test_the_run_behind_a_position_tells_whether_a_queue_is_its_beginning(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = nodes["A"], nodes["B"]
            for transaction in (create(), delete(), delete("id = 2")):
                await a.submit(transaction, level=Level.ORDERED, timeout=20)
            await until(lambda: b.base.ordered.value == a.base.ordered.value == 3)
            link = b.base.links["A"]
            stored = a.base.journal.read_queue(0, 10, payloads=False)
            for item in stored:
                tail = await link.get_run_after(item.entry.position - 1)
                assert tail.entries == (item.entry,)
                assert (tail.sender, tail.previous_hash) == ("A", item.entry.previous_hash)
            # Behind the end there is nothing; of what is pruned nothing is known any more.
            for position in (3, 10**17):
                assert (await link.get_run_after(position)).entries == ()
            a.base.journal.read_entry_at = lambda position: None  # type: ignore[method-assign]
            with pytest.raises(TransportError) as caught:
                await link.get_run_after(1)
            assert caught.value.fields["status"] == ExpiredError.http_status

    asyncio.run(main())


def test_who_takes_a_run_says_so_with_its_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", idle_round_min=30, idle_round_max=30) as nodes:
            a, b = nodes["A"], nodes["B"]
            sent = await settled(lambda: b.base.links["A"].traffic.posts)
            receipt = await a._submits.submit(create(), level=Level.ORDERED, timeout=10)
            assert receipt.position
            assert b.base.links["A"].traffic.posts == sent
            await until(lambda: b.base.ordered.value == receipt.position)

    asyncio.run(main())
