"""Leases, chunks and tickets between real nodes on loopback."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sqlite3
import uuid
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import urlencode

import aiohttp
import msgspec
import pyarrow as pa
import pytest
from structlog.testing import capture_logs
from tests.service.local_nodes import cluster, until
from tests.support.replica_lakes import (
    DEFINITION,
    append_rows,
    as_json,
    chunk_digests,
    contents,
    report_of,
)

from sparktxlog import Client
from sparktxlog.codec.report_changes import ReportReceiver
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import (
    DivergedError,
    ForeignLogError,
    InvalidRequestError,
    LeaseGoneError,
    LocalProtocolError,
    TransportError,
)
from sparktxlog.files.donor_link import DonorLink
from sparktxlog.files.tasks import FileTask
from sparktxlog.health.verdicts import ClusterState, judge
from sparktxlog.model.copying import (
    CHUNK_DIGEST_HEADER,
    CopyTicket,
    Decision,
    Lease,
)
from sparktxlog.model.report import OwnReport, WorkerReport
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import Level, Receipt
from sparktxlog.runtime.node import Node
from sparktxlog.worker.replica.reports import Reporter
from sparktxlog.worker.replica.source import HttpLogSource

CHUNK = 65_536
SETTINGS: dict[str, Any] = {"replication.chunk-bytes": CHUNK}
DECISION = Decision(worker_id="w", plan="copy", reason="the test says so")


async def create(node: Node) -> None:
    """Create the table at all sites."""
    operation = PreparedOperation(table="t", kind=OperationKind.CREATE_TABLE, definition=DEFINITION)
    await node.submit(
        PreparedTransaction(transaction_id=uuid.uuid4().bytes, operations=(operation,)),
        level=Level.ORDERED,
        timeout=30,
    )


async def give_replica(node: Node, rows: int = 10_000) -> Path:
    """Make a replica of the table at a node, as if a worker had; return its directory."""
    directory = node.config.lake_dir / "t"
    await until(lambda: "t" in node.tables())
    version = await asyncio.to_thread(append_rows, directory, rows, seed=1)
    worker = f"worker of {node.config.node_id}"
    answer = node.accept_report(report_of(node.status(), version, worker))
    assert answer["verdict"] == "IN_SYNC"
    return directory


class Holder:
    """Uses a lease over HTTP."""

    def __init__(self, session: aiohttp.ClientSession, lease: Lease) -> None:
        self._session = session
        self.lease = lease
        self.base = f"{lease.url}/replica/v1/leases/{lease.lease_id}"

    async def call(
        self, method: str, path: str = "", *, token: str | None = None, body: Any = None
    ) -> tuple[int, Any, Any]:
        """Return status, headers, and JSON or bytes."""
        shown = self.lease.token if token is None else token
        headers = {"Authorization": f"Bearer {shown}"} if shown else {}
        headers["Accept-Encoding"] = "identity"
        async with self._session.request(
            method, self.base + path, headers=headers, json=body
        ) as response:
            data = await response.read()
            kind = response.headers.get("content-type", "")
            return (
                response.status,
                response.headers,
                (msgspec.json.decode(data) if "json" in kind else data),
            )

    async def chunk(self, **query: Any) -> tuple[int, Any, Any]:
        """Ask for a chunk; values of None are left out."""
        wanted: dict[str, Any] = {"table": "t", "offset": 0, "length": 1} | query
        text = urlencode({k: v for k, v in wanted.items() if v is not None})
        return await self.call("GET", f"/chunks?{text}")

    async def file(self, path: str, size: int) -> bytes:
        """Fetch a whole file, checking each chunk."""
        parts = []
        for offset in range(0, size, CHUNK):
            status, headers, data = await self.chunk(path=path, offset=offset, length=CHUNK)
            assert status == 200, data
            assert headers[CHUNK_DIGEST_HEADER] == hashlib.sha256(data).hexdigest()
            parts.append(data)
        return b"".join(parts)


def test_a_peer_gets_a_lease_and_its_worker_reads_every_file(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", **SETTINGS) as nodes, aiohttp.ClientSession() as session:
            a, b = nodes["A"], nodes["B"]
            link = b.base.links["A"]
            await create(a)
            with pytest.raises(TransportError, match="no applied replica"):
                await link.request_lease("w")
            with pytest.raises(TransportError, match="no applied replica"):
                await link.replica_size()
            directory = await give_replica(a)
            (directory / "p=a%20b+ü&x").mkdir()
            (directory / "p=a%20b+ü&x" / "y z.parquet").write_bytes(b"z" * (CHUNK + 1))
            before = contents(directory)
            size = await link.replica_size()
            lease = await link.request_lease("w")
            assert link.posts.round_trip_s is not None
            assert 0 < link.posts.round_trip_s < 10
            assert size.position == lease.position == a.base.ordered.value
            assert [path for path, _ in size.files["t"]] == [
                path for path in before if path.startswith("part-")
            ]
            holder = Holder(session, lease)
            status, _, document = await holder.call("GET")
            assert (status, msgspec.convert(document, Lease)) == (200, lease)
            got = {f.path: await holder.file(f.path, f.size_bytes) for f in lease.tables[0].files}
            assert got == before
            names = [["t", path] for path in before]
            status, _, document = await holder.call("POST", "/digests", body={"files": names})
            assert document == {"digests": [chunk_digests(d, CHUNK) for d in before.values()]}
            assert (await holder.call("POST", "/renew"))[0] == 204
            text = a.base.metrics.text().decode()
            assert "sparktxlog_donor_leases 1.0" in text
            assert (await holder.call("DELETE"))[0] == 204
            status, _, document = await holder.call("GET")
            assert (status, document["title"]) == (410, "lease-gone")

    asyncio.run(main())


async def _refusals(holder: Holder, path: str, size: int) -> None:
    last = (size - 1) // CHUNK * CHUNK
    for query, status, field, value in (
        ({"path": None}, 400, "path", None),
        ({"path": path, "table": "u"}, 404, "table", "u"),
        ({"path": "../t/" + path}, 404, "path", "../t/" + path),
        ({"path": "/etc/passwd"}, 404, "path", "/etc/passwd"),
        ({"path": path, "offset": 1}, 400, "offset", 1),
        ({"path": path, "offset": last + CHUNK}, 400, "offset", last + CHUNK),
        ({"path": path, "offset": "-1"}, 400, "offset", "-1"),
        ({"path": path, "offset": "9" * 40}, 400, "offset", "9" * 40),
        ({"path": path, "length": CHUNK + 1}, 400, "length", CHUNK + 1),
        ({"path": path, "length": 0}, 400, "length", 0),
        ({"path": path, "length": None}, 400, "length", None),
    ):
        answer = await holder.chunk(**query)
        assert answer[0] == status, (query, answer)
        fields = answer[2]["fields"]
        assert (fields["field"], fields["value"]) == (field, value), query
    for body, status in (
        ({"files": [["t", "nope"]]}, 404),
        ({"files": [["t"]]}, 400),
        ({"file": []}, 400),
        ({"files": [["t", path]] * 1_001}, 400),
        (None, 400),
    ):
        assert (await holder.call("POST", "/digests", body=body))[0] == status, body
    for token in ("", "wrong", "ünder"):
        for method, target in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/renew"),
            ("GET", "/chunks?table=t"),
            ("POST", "/digests"),
        ):
            status, _, document = await holder.call(method, target, token=token)
            assert (status, document["title"]) == (401, "unauthorized")


def test_what_the_contract_does_not_allow_is_refused_with_field_and_value(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", **SETTINGS) as nodes, aiohttp.ClientSession() as session:
            a, b = nodes["A"], nodes["B"]
            await create(a)
            directory = await give_replica(a)
            lease = await b.base.links["A"].request_lease("w")
            holder = Holder(session, lease)
            file = lease.tables[0].files[-1]
            await _refusals(holder, file.path, file.size_bytes)
            with (directory / file.path).open("ab") as out:
                out.write(b"!")
            status, _, document = await holder.chunk(path=file.path)
            assert (status, document["title"]) == (410, "file-changed")
            gone = Holder(session, replace(lease, lease_id="0" * 32))
            assert (await gone.call("GET"))[0] == 410

    asyncio.run(main())


def test_strangers_get_no_lease_and_no_size(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes, aiohttp.ClientSession() as session:
            a = nodes["A"]
            await create(a)
            await give_replica(a, 10)
            url = a.config.master_url
            for method, path in (("POST", "/peer/v1/leases"), ("GET", "/peer/v1/replica/size")):
                for headers in ({}, {"x-txlog-node": "X"}, {"x-txlog-node": "B"}):
                    async with session.request(method, url + path, headers=headers) as answer:
                        assert answer.status in (401, 403)
            assert not (a.config.lake_dir / "_sparktxlog" / "leases").exists()

    asyncio.run(main())


def test_a_ticket_has_the_lease_of_the_first_donor_that_gives_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "ABC", **SETTINGS) as nodes:
            a, b, c = nodes.values()
            await create(a)
            await give_replica(a)
            await give_replica(b)
            copies = c.all_replicas.copy_orders
            ticket = await copies.ticket(DECISION, ["A", "B"])
            assert ticket.lease.node_id == "A"
            assert ticket.decision == DECISION
            # A donor that gives no lease is passed over.
            c.base.links["A"].request_lease = _no_lease  # type: ignore[method-assign]
            again = await copies.ticket(DECISION, ["X", "A", "B"])
            assert again.lease.node_id == "B"
            assert again.copy_id != ticket.copy_id
            with pytest.raises(LocalProtocolError, match=r"X: .*no peer.*; A: it burns") as caught:
                await copies.ticket(DECISION, ["X", "A"])
            assert (caught.value.http_status, caught.value.definite) == (409, True)

    asyncio.run(main())


async def _no_lease(worker_id: str, **of: Any) -> Lease:
    raise TransportError("it burns")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"log_id": "other"}, "log_id 'other'"),
        ({"chain_hash": "00" * 32}, "another history"),
        ({"position": 2}, "the queue here ends at 1"),
        ({"chunk_bytes": 1}, "replication.chunk-bytes"),
        ({"node_id": "B"}, "node 'B'"),
        ({"url": "http://127.0.0.1:1"}, "URL"),
    ],
)
def test_what_does_not_fit_the_own_log_is_refused_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], text: str
) -> None:
    monkeypatch.setattr("sparktxlog.runtime.donors.copy_orders._REACH_S", 0.05)

    async def main() -> None:
        async with cluster(tmp_path, "AB", **SETTINGS) as nodes:
            a, b = nodes["A"], nodes["B"]
            await create(a)
            await give_replica(a, 10)
            link = b.base.links["A"]
            ask = link.request_lease

            async def lie(worker_id: str, **of: Any) -> Lease:
                return replace(await ask(worker_id, **of), **changes)

            link.request_lease = lie  # type: ignore[method-assign]
            with pytest.raises(LocalProtocolError, match=text):
                await b.all_replicas.copy_orders.ticket(DECISION, ["A"])
            leases = a.config.lake_dir / "_sparktxlog" / "leases"
            await until(lambda: not list(leases.iterdir()))

    asyncio.run(main())


def test_who_is_further_back_than_the_id_window_is_behind_and_not_diverged(tmp_path: Path) -> None:
    """Only ends of published segments keep their hash there; the log itself is all there."""

    async def main() -> None:
        async with cluster(tmp_path, "AB", id_window=1_000, **SETTINGS) as nodes:
            a, b = nodes["A"], nodes["B"]
            await create(a)
            await until(lambda: b.base.published.value == 1)  # a segment of its own
            await give_replica(a, 10)
            rows = pa.table({"id": range(3_000), "v": ["x"] * 3_000})
            client = Client(a.config.master_url)
            await asyncio.to_thread(
                client.submit_many, "t", rows, run_transactions=10, level="ordered"
            )
            await until(lambda: b.base.published.value == 3_001)
            await until(lambda: b.base.journal.read_entry_at(1) is None)
            # The end of the first segment says its hash; what its worker reported stays IN_SYNC.
            assert (await b.all_replicas.copy_orders.ticket(DECISION, ["A"])).lease.position == 1
            kept = b.base.journal.read_segments(1, 100)
            inside = next(s.first + 9 for s in kept if s.last - s.first >= 10)  # a run's end
            report = replace(
                report_of(b.status(), 0, "far back"), position=inside, chain_hash="ab" * 32
            )
            answer = b.accept_report(report)
            assert (answer["verdict"], answer["plan"]) == ("IN_SYNC", "replay")
            ask = b.base.links["A"].request_lease

            async def lend(worker_id: str, **of: Any) -> Lease:
                return replace(await ask(worker_id, **of), position=inside)

            b.base.links["A"].request_lease = lend  # type: ignore[method-assign]
            with pytest.raises(LocalProtocolError, match="too old to be compared"):
                await b.all_replicas.copy_orders.ticket(DECISION, ["A"])

    asyncio.run(main())


def test_a_copy_goes_to_the_address_that_is_in_use(tmp_path: Path) -> None:
    """The donor names its first address, which may be the one that fails."""

    async def main() -> None:
        async with cluster(tmp_path, "AB", **SETTINGS) as nodes:
            a, b = nodes["A"], nodes["B"]
            await create(a)
            await give_replica(a)
            link = b.base.links["A"]
            first = link.url
            second = first.replace("127.0.0.1", "localhost")
            link.move((first, second))
            link.url = second
            link.greet_again()
            await until(lambda: link.up)
            lease = (await b.all_replicas.copy_orders.ticket(DECISION, ["A"])).lease
            assert (lease.url, link.url) == (second, second)
            where = f"{lease.url}/replica/v1/leases/{lease.lease_id}"
            token = {"Authorization": f"Bearer {lease.token}"}
            async with aiohttp.ClientSession() as session, session.get(where, headers=token) as got:
                assert got.status == 200

    asyncio.run(main())


def test_a_donor_ahead_of_the_own_queue_is_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", **SETTINGS) as nodes:
            a, b = nodes["A"], nodes["B"]
            await create(a)
            await give_replica(a, 10)
            ordered = b.base.ordered
            await until(lambda: ordered.value == 1)
            ordered.value = 0
            task = asyncio.create_task(b.all_replicas.copy_orders.ticket(DECISION, ["A"]))
            await until(lambda: ordered._waiting)
            ordered.advance(1)
            assert (await task).lease.position == 1

    asyncio.run(main())


class _Planner:
    def __init__(self, decision: Decision, donors: list[str]) -> None:
        self.answer = (decision, donors)
        self.asked: list[tuple[str, bool, str]] = []

    async def decide(self, worker_id: str, forced: bool, donor: str) -> tuple[Decision, list[str]]:
        self.asked.append((worker_id, forced, donor))
        return self.answer


def test_a_worker_orders_a_copy_at_its_own_node(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", **SETTINGS) as nodes, aiohttp.ClientSession() as session:
            a, b = nodes["A"], nodes["B"]
            await create(a)
            await give_replica(a, 10)
            planner = b.all_replicas.copy_orders.planner = _Planner(DECISION, ["X", "A"])
            url = f"{b.config.master_url}/v1/worker/copies"
            # A donor that failed the worker is asked last, and X is no peer.
            asked = {"worker_id": "w", "forced": True, "failed": ["X"]}
            async with session.post(url, json=asked) as answer:
                ticket = msgspec.json.decode(await answer.read(), type=CopyTicket)
            assert planner.asked == [("w", True, "")]
            assert ticket.decision == DECISION
            assert ticket.lease.node_id == "A"
            refusal = replace(DECISION, plan="stop", reason="the last healthy replica")
            for decision, donors in ((refusal, ["A"]), (DECISION, [])):
                planner.answer = (decision, donors)
                async with session.post(url, json={"worker_id": "w"}) as answer:
                    document = await answer.json(content_type=None)
                assert (answer.status, document["definite"]) == (409, True)
                assert decision.reason in document["detail"]
            for body in ({}, {"worker_id": 1}, {"worker_id": "w", "force": True}):
                async with session.post(url, json=body) as answer:
                    assert answer.status == 400

    asyncio.run(main())


def _as_a_target_does(lease: Lease) -> dict[str, bytes]:
    """Fetch all files through the target's own connection; blocks."""
    link = DonorLink(lease, silence_s=10)
    got = {}
    try:
        for file in lease.tables[0].files:
            data = memoryview(bytearray(file.size_bytes))
            for offset in range(0, file.size_bytes, CHUNK):
                link.fetch("t", file.path, offset, data[offset : offset + CHUNK])
            got[file.path] = bytes(data)
        digests = link.digests([FileTask.of("t", file) for file in lease.tables[0].files])
        found = ["".join(chunks) for chunks in digests.values()]
        assert found == [chunk_digests(data, CHUNK) for data in got.values()]
        link.renew()
        link.release()
        with pytest.raises(LeaseGoneError):
            link.renew()
    finally:
        link.close()
    return got


@pytest.mark.parametrize("compressed", [True, False])
def test_donor_and_target_understand_each_other(tmp_path: Path, compressed: bool) -> None:
    """Without compression the bytes on the wire are those of the files."""
    settings = SETTINGS | {"replication.compression": compressed}

    async def main() -> None:
        async with cluster(tmp_path, "AB", **settings) as nodes:
            a, b = nodes["A"], nodes["B"]
            await create(a)
            directory = await give_replica(a)
            (directory / "zeros").write_bytes(bytes(3 * CHUNK + 1))
            (directory / "empty").write_bytes(b"")
            ticket = await b.all_replicas.copy_orders.ticket(DECISION, ["A"])
            got = await asyncio.to_thread(_as_a_target_does, ticket.lease)
            assert got == contents(directory)
            sent, plain = a.base.metrics.donor_sent_bytes._value.get(), sum(map(len, got.values()))
            assert (sent < plain - 2 * CHUNK) if compressed else sent == plain

    asyncio.run(main())


def test_reports_come_over_http_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "A", **SETTINGS) as nodes, aiohttp.ClientSession() as session:
            a = nodes["A"]
            await create(a)
            version = append_rows(a.config.lake_dir / "t", 10)
            url = f"{a.config.master_url}/v1/worker/reports"
            body = as_json(report_of(a.status(), version))
            async with session.post(url, json=body) as answer:
                assert (await answer.json(content_type=None))["verdict"] == "IN_SYNC"
            assert (await a.donor.size()).position == 1

    asyncio.run(main())


def test_a_client_reads_its_own_write_at_another_site(tmp_path: Path) -> None:
    """The receipt says what to wait for, and of which log."""

    async def main() -> None:
        async with cluster(tmp_path, "AB", **SETTINGS) as nodes:
            a, b = nodes.values()
            await create(a)
            with Client(a.config.master_url) as here, Client(b.config.master_url) as there:
                receipt = await asyncio.to_thread(here.append, "t", [{"id": 1, "v": "x"}])
                for wrong, error in (
                    (replace(receipt, log_id="other"), ForeignLogError),
                    (replace(receipt, position=None), LocalProtocolError),
                ):
                    with pytest.raises(error):
                        await asyncio.to_thread(there.snapshot, at_least=wrong, timeout=60)
                    with pytest.raises(error):
                        await asyncio.to_thread(there.after, wrong)
                await asyncio.to_thread(there.after, receipt)
                assert (await asyncio.to_thread(there.table, "t")).position >= receipt.position
                reading = asyncio.create_task(
                    asyncio.to_thread(there.snapshot, at_least=receipt, timeout=60)
                )
                await until(lambda: b.info()["position"] == receipt.position)
                assert not reading.done()
                await give_replica(b)
                assert (await reading)["position"] == receipt.position

    asyncio.run(main())


def test_a_diverged_replica_is_named_with_version_and_user(tmp_path: Path) -> None:
    """Whoever asks for a table is not sent to run a worker, which would change nothing."""

    async def main() -> None:
        async with cluster(tmp_path, "A", **SETTINGS) as nodes:
            a = nodes["A"]
            await create(a)
            sound = report_of(a.status(), 0)
            assert a.accept_report(sound)["verdict"] == "IN_SYNC"
            why = "table 't': version 1 was written by user eve with Spark (WRITE), not by this log"
            table = replace(sound.tables["t"], diverged=why)
            answer = a.accept_report(replace(sound, tables={"t": table}))
            assert (answer["plan"], answer["of_tables"]) == ("replay", True)
            for asked in [dict[str, Any](), {"at_least": 1, "timeout": 9.0}]:
                wanted = {"at_least": 0, "timeout": 0.0, **asked}
                shown = await asyncio.wait_for(a.snapshot(None, **wanted), 5)
                assert (shown["position"], shown["tables"]["t"]["diverged"]) == (1, why)
            (line,) = a.status()["replicas"]
            assert line["verdict"] == "DIVERGED" and "version 1 was written by" in line["reason"]
            decision = await a.plan(None)
            assert decision.plan == "replay" and "the other tables go on" in decision.reason
            # A replica that followed another history shows nothing.
            assert "of_tables" not in a.accept_report(replace(sound, chain_hash="ab" * 32))
            with pytest.raises(DivergedError, match="another history"):
                await a.snapshot(None, 0, 0.0)
            # What it was before can be read still.
            assert (await a.snapshot(1, 0, 0.0))["tables"]["t"]["diverged"] == ""

    asyncio.run(main())


def test_only_the_worker_of_the_node_s_lake_is_believed(tmp_path: Path) -> None:
    """Else /v1/snapshot would pair the node's lake with the versions of another one."""

    def worker_in(lake: Path, worker_id: str) -> str:
        (lake / "_sparktxlog").mkdir(parents=True)
        (lake / "_sparktxlog/state.json").write_text(json.dumps({"worker_id": worker_id}))
        return str(lake)

    def own_report(report: WorkerReport) -> OwnReport:
        return OwnReport(**{one.name: getattr(report, one.name) for one in fields(report)})

    async def main() -> None:
        async with cluster(tmp_path, "A", **SETTINGS) as nodes:
            a = nodes["A"]
            await create(a)
            own = a.config.lake_dir
            report = own_report(report_of(a.status(), 0))
            other = worker_in(tmp_path / "other", "other")
            # Nobody has a lake here yet: the one elsewhere is not that of this site all the same.
            for lake in (other, "/not/seen/from/here"):
                with pytest.raises(
                    InvalidRequestError, match="this node shows and lends"
                ) as caught:
                    await a.all_replicas.take_report(replace(report, worker_id="other", lake=lake))
                assert caught.value.definite and caught.value.fields["field"] == "lake"
                assert "lake-dir" in caught.value.hint
            worker_in(own, "w")
            link = tmp_path / "link"
            link.symlink_to(own)
            # The worker's machine may see it at another place, or not say where.
            for lake in (str(own), str(link), "/mnt/of/another/machine", ""):
                assert (await a.all_replicas.take_report(replace(report, lake=lake)))[
                    "verdict"
                ] == "IN_SYNC", lake
            copied = worker_in(tmp_path / "copied", "w")
            for worker_id, lake in (("other", other), ("other", "/mnt/lake"), ("w", copied)):
                with pytest.raises(InvalidRequestError):
                    await a.all_replicas.take_report(
                        replace(report, worker_id=worker_id, lake=lake)
                    )
            (line,) = a.status()["replicas"]
            assert line["worker_id"] == "w"

    asyncio.run(main())


def test_a_worker_that_goes_silent_is_told_of(tmp_path: Path) -> None:
    """Log, metric and exit code; and a worker beats as often as its node wants it."""

    async def main() -> None:
        settings = {"worker-heartbeat": 0.1, "worker-dead-after": 0.3}
        async with cluster(tmp_path, "A", **settings) as nodes:
            a = nodes["A"]
            await create(a)
            with closing(HttpLogSource(a.config.master_url)) as source:
                info = await asyncio.to_thread(source.info)
            assert info.worker_heartbeat == 0.1
            report = replace(report_of(a.status(), 0), follows=True, error="no such file")
            with capture_logs() as said:
                a.accept_report(report)
                assert judge(a.status()).state is ClusterState.LAGGING
                await until(lambda: a.status()["replicas"][0]["silent"])
                await until(lambda: [entry for entry in said if entry["event"] == "worker silent"])
            assert judge(a.status()).state is ClusterState.LAGGING
            (warning,) = a.status()["warnings"]
            assert "has been silent for" in warning["text"] and "no such file" in warning["text"]
            text = a.base.metrics.text().decode()
            assert re.search(r"sparktxlog_replica_silent{[^}]*} 1.0", text)
            assert re.search(r"sparktxlog_replica_error{[^}]*} 1.0", text)
            assert "sparktxlog_worker_silences_total 1.0" in text
            # It is heard again, and ends as it should: nobody waits for it any more.
            for left in (replace(report, error=""), replace(report, follows=False, error="")):
                a.accept_report(left)
                assert not a.status()["replicas"][0]["silent"]
            await until(lambda: not a.status()["replicas"][0]["alive"])
            assert judge(a.status()).state is ClusterState.IN_SYNC

    asyncio.run(main())


def test_a_report_of_many_tables_travels_once(tmp_path: Path) -> None:
    """From the worker to its node, and on to the peers: then only what changed, and heartbeats."""

    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = nodes["A"], nodes["B"]
            await create(a)
            status = a.status()
            one = report_of(status, 1).tables["t"]
            tables = {f"t{number}": one for number in range(2_000)}
            report = replace(report_of(status, 1), tables=tables)
            source = HttpLogSource(a.config.master_url)
            reporter, sizes = Reporter(source, "A"), []
            call, link = source.report, a.base.links["B"]

            def counted(sent: Any) -> Any:
                sizes.append(len(sent.tables))
                return call(sent)

            source.report = counted  # type: ignore[method-assign]

            async def tell(report: Any) -> int:
                """Let the worker report; return the bytes of the largest post since."""
                link.traffic.post_bytes_max = 0
                reporter._waiting.append(report)
                await asyncio.to_thread(reporter.beat)
                await until(lambda: _heard(b) == (report.reported_at, report.tables))
                return link.traffic.post_bytes_max

            whole = await tell(replace(report, reported_at=1))
            beat = await tell(replace(report, reported_at=2))
            changed = {**tables, "t7": replace(one, version=2)}
            some = await tell(replace(report, reported_at=3, tables=changed))
            b.all_replicas.reports = ReportReceiver()  # as after a restart that nobody noticed
            await tell(replace(report, reported_at=4, tables=changed))
            assert sizes == [2_000, 0, 1, 0]
            assert beat < whole // 50 and some < whole // 50
            await _tables_cost_who_asks_for_them(source, 2_000)
            source.close()

    asyncio.run(main())


class _FailingReads:
    """A reader's connection to the journal whose disk gives EIO for what was published."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.close, self._connection = connection.close, connection

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if "FROM segments" in sql:
            raise sqlite3.OperationalError("disk I/O error")
        return self._connection.execute(sql, *values)


def test_a_disk_that_cannot_read_the_queue_is_asked_again(tmp_path: Path) -> None:
    """The worker is told so, gets no part of the queue, and all of it when the disk reads again."""

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            a = nodes["A"]
            await create(a)
            await until(lambda: a.base.published.value == 1)
            journal: Any = a.base.journal
            with journal._reading() as connection:
                pass
            journal._readers = Queue()
            journal._readers.put(_FailingReads(connection))
            with closing(HttpLogSource(a.config.master_url)) as source:

                def segments() -> Any:
                    return source.segments(0, wait_s=0).segments

                with pytest.raises(TransportError, match=r"cannot be read: disk I/O error") as said:
                    await asyncio.to_thread(segments)
                assert said.value.retryable
                assert [segment.last for segment in await asyncio.to_thread(segments)] == [1]

    asyncio.run(main())


async def _tables_cost_who_asks_for_them(source: HttpLogSource, count: int) -> None:
    """The status that everybody asks for again and again counts the tables of a replica."""
    (line,) = (await asyncio.to_thread(source.document, "/v1/status"))["replicas"]
    assert line["table_count"] == count and "tables" not in line
    (line,) = (await asyncio.to_thread(source.document, "/v1/status", tables=1))["replicas"]
    assert line["table_count"] == len(line["tables"]) == count
    (replica,) = await asyncio.to_thread(source.replicas)
    assert len(replica["tables"]) == count


def _heard(node: Node) -> tuple[int, dict[str, Any]]:
    found = [s.report for s in node.replicas.states() if s.report.node_id == "A"]
    return (found[0].reported_at, found[0].tables) if found else (0, {})


def test_a_table_that_stands_still_holds_up_nobody_who_waits_for_another_one(
    tmp_path: Path,
) -> None:
    """Level applied of that table says at once which one it is, also to who asks later."""

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            a, client = nodes["A"], Client(nodes["A"].config.master_url, level="applied")
            await create(a)
            await asyncio.to_thread(
                client.create_table,
                "u",
                {"id": "bigint", "v": "string"},
                level="ordered",
                timeout=300,
            )
            asked = partial(
                asyncio.to_thread, client.append, rows=[{"id": 1, "v": "x"}], timeout=300
            )
            of_t, of_u = [await passed(a, asyncio.create_task(asked(table))) for table in "tu"]
            assert (of_u.level, of_u.late, of_u.held_up) == (Level.APPLIED, False, None)
            assert (of_t.level, of_t.late) == (Level.ORDERED, True)
            assert of_t.held_up == "table t of site A stands still: version 9 is of another writer"
            assert "held up table t" in str(of_t)
            for receipt in (of_t, of_u):
                again = await asyncio.to_thread(client.wait, receipt, "applied", 300)
                assert (again.level, again.held_up) == (receipt.level, receipt.held_up)
            client.close()

    async def passed(node: Node, asked: asyncio.Task[Receipt]) -> Receipt:
        """Return what a client gets once the worker has passed it; `t` stands still there."""
        end = node.base.ordered.value
        await until(lambda: node.base.published.value > end)
        assert not asked.done()
        report = report_of(node.status(), 9)
        still = replace(report.tables["t"], diverged="version 9 is of another writer")
        node.accept_report(replace(report, tables={"t": still}))
        async with asyncio.timeout(60):
            return await asked

    asyncio.run(main())
