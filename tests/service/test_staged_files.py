"""Staged files between nodes: prefetch, late stamping, resumption, damaged copies (P1a)."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.service.local_nodes import cluster, config_of, serving, until

from sparktxlog.codec.submits.mark_requests import MarkRequest, marking
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.errors import (
    LocalProtocolError,
    NotFoundError,
    PayloadStoreError,
    TransportError,
)
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import OperationKind, StagedFile
from sparktxlog.model.transactions.receipt import Level
from sparktxlog.runtime.clock import wall_us
from sparktxlog.runtime.node import Node
from sparktxlog.storage.payloads.payload_expiry import named_files

DEFINITION = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))
ROWS = 400_000


def create(name: str = "t") -> PreparedTransaction:
    definition = replace(DEFINITION, name=name)
    operation = PreparedOperation(
        table=name, kind=OperationKind.CREATE_TABLE, definition=definition
    )
    return PreparedTransaction(transaction_id=uuid.uuid4().bytes, operations=(operation,))


def stage(
    node: Node, files: int = 2, rows: int = ROWS
) -> tuple[PreparedTransaction, list[StagedFile]]:
    """Write files into a node's payload store as a submitter does."""
    identity = uuid.uuid4()
    staged = []
    for number in range(files):
        path = f"{identity}/t/part-{number}.parquet"
        full = Path(node.payloads.path(path))
        full.parent.mkdir(parents=True, exist_ok=True)
        ids = pa.array(range(number * rows, (number + 1) * rows), pa.int64())
        pq.write_table(pa.table({"id": ids}), full, compression="none", use_dictionary=False)
        data = full.read_bytes()
        staged.append(
            StagedFile(
                path=path, size_bytes=len(data), rows=rows, digest=hashlib.sha256(data).hexdigest()
            )
        )
        node.payloads.verify(staged[-1])
    operation = PreparedOperation(table="t", kind=OperationKind.APPEND, files=tuple(staged))
    return PreparedTransaction(transaction_id=identity.bytes, operations=(operation,)), staged


def test_files_stand_at_all_sites_before_the_transaction_is_ordered(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, acquisition_quorum="all") as nodes:
            a, b, c = nodes.values()
            await a.submit(create(), level=Level.ORDERED, timeout=20)
            transaction, staged = stage(a)
            size = sum(file.size_bytes for file in staged)
            assert size > a.config.inline_limit
            receipt = await a.submit(transaction, level=Level.ORDERED, timeout=60)
            assert (receipt.outcome, receipt.position) == ("committed", 2)
            for node in (b, c):
                for file in staged:
                    node.payloads.verify(file)
                    ours = Path(node.payloads.path(file.path))
                    assert ours.stat().st_ino != Path(a.payloads.path(file.path)).stat().st_ino
                fetched = sum(p["fetched_bytes"] for p in node.status()["peers"])
                assert size <= fetched < size + 100_000
                assert all(link.traffic.post_bytes_max < 1_024 for link in node.base.links.values())

    asyncio.run(main())


def test_files_of_a_prepared_transaction_are_kept_and_come_back(tmp_path: Path) -> None:
    """P35: also when the queue's containers are forgotten, and after it took effect."""

    async def main() -> None:
        async with cluster(tmp_path, "AB", acquisition_quorum="all") as nodes:
            a, b = nodes.values()
            await a.submit(create(), level=Level.ORDERED, timeout=20)
            transaction, staged = stage(a)
            until_us = wall_us() + 600_000_000
            prepared = replace(transaction, participants=("p",), valid_until=until_us)
            receipt = await a.submit(prepared, level=Level.ORDERED, timeout=60)
            assert (receipt.outcome, receipt.position) == ("prepared", 2)
            await until(lambda: b.base.published.value == 2)
            payload = b.base.journal.read_prepared(transaction.transaction_id)
            assert payload is not None
            named = named_files(b.base.journal, 0)
            assert {file.path for file in staged} <= named, "nobody removes them"
            for file in staged:
                Path(b.payloads.path(file.path)).unlink()
                b.payloads.forget_verified(file.path)
            await b.files.fetch_prepared([payload])
            for file in staged:
                b.payloads.verify(file)
            mark = marking(transaction.transaction_id, MarkRequest(participant="p", yes=True))
            await b.submit(mark, level=Level.ORDERED, timeout=60)
            for node in (a, b):
                await until(lambda node=node: node.base.published.value == 3)
                _, segments = await node.segments(2, 0, 9)
                (effect,) = segments[0].effects
                assert (effect.first, [file.path for file in effect.files]) == (
                    3,
                    [file.path for file in staged],
                )
            assert b.base.journal.read_prepared(transaction.transaction_id) is None
            held = a.files._held_files(transaction.transaction_id)
            assert [file.path for file in held[1]] == [file.path for file in staged]

    asyncio.run(main())


def test_a_broken_transfer_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", idle_round_max=0.3) as nodes:
            a, b = nodes.values()
            await a.submit(create(), level=Level.ORDERED, timeout=20)
            link = b.base.links["A"]
            stream, offsets = link.stream, []

            def torn(file: StagedFile, offset: int, source: str = "") -> Any:
                offsets.append(offset)
                for number, block in enumerate(stream(file, offset)):
                    if number == 1 and len(offsets) == 1:
                        raise TransportError("the line is cut")
                    yield block

            monkeypatch.setattr(link, "stream", torn)
            transaction, staged = stage(a, files=1)
            await a.submit(transaction, level=Level.ORDERED, timeout=60)
            assert offsets[0] == 0
            assert 0 < offsets[1] < staged[0].size_bytes
            b.payloads.verify(staged[0])

    asyncio.run(main())


def test_an_altered_file_is_never_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", idle_round_max=0.3, stage_timeout=0.5) as nodes:
            a, b = nodes.values()
            await a.submit(create(), level=Level.ORDERED, timeout=20)
            link = b.base.links["A"]
            stream, tries = link.stream, []

            def altered(file: StagedFile, offset: int, source: str = "") -> Any:
                tries.append(offset)
                for block in stream(file, offset):
                    yield block if len(tries) > 3 else bytes(len(block))

            monkeypatch.setattr(link, "stream", altered)
            transaction, staged = stage(a, files=1)
            await a.submit(transaction, level=Level.ORDERED, timeout=60)
            assert len(tries) > 3
            b.payloads.verify(staged[0])

    asyncio.run(main())


def test_a_small_transaction_overtakes_a_bulk_load_that_peers_still_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB") as nodes:
            a, b = nodes.values()
            await a.submit(create(), level=Level.ORDERED, timeout=20)
            gate = asyncio.Event()
            read = a.files.announced_payload

            async def slow(digest: bytes) -> bytes:
                await gate.wait()
                return await read(digest)

            monkeypatch.setattr(a.files, "announced_payload", slow)
            bulk, _ = stage(a)
            accepted = await a.submit(bulk, level=Level.ACCEPTED, timeout=20)
            assert accepted.run is None  # not stamped yet
            small = PreparedTransaction(
                transaction_id=uuid.uuid4().bytes,
                operations=(
                    PreparedOperation(
                        table="t", kind=OperationKind.DELETE_WHERE, predicate="id = 1"
                    ),
                ),
            )
            assert (await a.submit(small, level=Level.ORDERED, timeout=20)).position == 2
            awaited = a.status()["waiting_for"]
            assert [(item["peer"], item["why"]) for item in awaited] == [("B", "payload")]
            gate.set()
            await until(lambda: a.base.ordered.value == b.base.ordered.value == 3)
            found = await a.find(bulk.transaction_id)
            assert found is not None
            assert (found.position, found.outcome) == (3, "committed")

    asyncio.run(main())


def test_announced_runs_survive_a_restart_of_their_origin(tmp_path: Path) -> None:
    async def main() -> None:
        # One of two members only: the bulk load is accepted and cannot be stamped yet.
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in "AB"}
        ports = {name: s.getsockname()[1] for name, s in listeners.items()}
        config = config_of(tmp_path, "A", ports)
        async with serving(config, listeners["A"]) as alone:
            # A fresh node takes nothing before a peer took it: B does, and goes away.
            async with serving(config_of(tmp_path, "B", ports), listeners["B"]):
                await until(lambda: alone.base.links["B"].up)
            first = await alone.submit(create(), level=Level.ACCEPTED, timeout=20)
            assert first.run is not None
            bulk, staged = stage(alone)
            await alone.submit(bulk, level=Level.ACCEPTED, timeout=20)
        listener, other = (socket.create_server(("127.0.0.1", ports[name])) for name in "AB")
        async with serving(config, listener) as a:
            found = await a.find(bulk.transaction_id)
            assert found is not None
            assert (found.level, found.run) == (Level.ACCEPTED, None)
            again = asyncio.create_task(a.submit(bulk, level=Level.ORDERED, timeout=60))
            async with serving(config_of(tmp_path, "B", ports), other) as b:
                await until(lambda: b.base.ordered.value == 2)
                await until(lambda: a.base.ordered.value == 2)
                for file in staged:
                    b.payloads.verify(file)
                assert (await again).position == 2

    asyncio.run(main())


@pytest.mark.parametrize("harm", ["damaged", "deleted"])
def test_a_file_lost_after_it_was_accepted_alarms_every_node(tmp_path: Path, harm: str) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", idle_round_max=0.3, stage_timeout=0.5) as nodes:
            a, b = nodes.values()
            await a.submit(create(), level=Level.ORDERED, timeout=20)
            # So small that it is stamped at once: nobody can take that back.
            transaction, (file,) = stage(a, files=1, rows=1_000)
            path = Path(a.payloads.path(file.path))
            good = path.read_bytes()
            if harm == "damaged":
                path.write_bytes(good[:-1] + b"?")
            else:
                path.unlink()
            await a.submit(transaction, level=Level.ACCEPTED, timeout=20)
            assert all(good for _, good, _ in b.ready())
            await until(lambda: bool(b.status()["undelivered"]))
            (run,) = b.status()["undelivered"]
            assert (run["origin"], run["times"] >= 4) == ("A", True)
            assert "answered 422" in run["reason"]
            (lost,) = a.status()["damaged_files"]
            assert lost["path"] == file.path
            for node, code in ((a, "damaged-file"), (b, "undelivered-run")):
                assert [warning["code"] for warning in node.status()["warnings"]] == [code]
            # It is wrong with A alone: B takes transactions.
            assert [name for name, good, _ in a.ready() if not good] == ["payloads"]
            assert all(good for _, good, _ in b.ready())
            assert "sparktxlog_undelivered_runs 1.0" in b.base.metrics.text().decode()
            assert "sparktxlog_damaged_files 1.0" in a.base.metrics.text().decode()
            # No byte of the file travelled.
            assert sum(peer["fetched_bytes"] for peer in b.status()["peers"]) < len(good)
            path.write_bytes(good)
            await until(lambda: a.base.ordered.value == b.base.ordered.value == 2, 60)
            for node in (a, b):
                await until(lambda node=node: all(good for _, good, _ in node.ready()))
            assert "sparktxlog_undelivered_runs 0.0" in b.base.metrics.text().decode()

    asyncio.run(main())


@pytest.mark.parametrize("harm", ["damaged", "deleted"])
def test_a_file_lost_before_the_stamp_rejects_its_transaction(
    tmp_path: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", idle_round_max=0.3) as nodes:
            a, b = nodes.values()
            failed, wanted = b.damage.failed, list[bytes]()

            def fail(run: Any, reason: str) -> None:
                wanted.append(run.digest)
                failed(run, reason)

            monkeypatch.setattr(b.damage, "failed", fail)
            await a.submit(create(), level=Level.ORDERED, timeout=20)
            transaction, (file,) = stage(a, files=1)
            path = Path(a.payloads.path(file.path))
            good = path.read_bytes()
            if harm == "damaged":
                path.write_bytes(good[:-1] + b"?")
            else:
                path.unlink()
            with pytest.raises(PayloadStoreError, match=r"lost before .* ordered") as caught:
                await a.submit(transaction, level=Level.ORDERED, timeout=60)
            assert caught.value.definite
            told = await a.find(transaction.transaction_id)
            assert told is not None and (told.outcome, told.level) == ("rejected", None)
            (why,) = told.rejections
            assert (why.code, why.text) == ("payload-store", caught.value.message)
            assert a.status()["unstamped_runs"] == 0
            # Nothing waits for it, and a peer that asks for it again takes no alarm.
            await b.submit(create("u"), level=Level.ORDERED, timeout=20)
            assert b.status()["undelivered"] == []
            # Who had asked hears that it is gone; before, both were unready for ten minutes.
            await until(lambda: not any(map(b.damage.concerns, wanted)))
            assert wanted and a.status()["damaged_files"] == []
            assert all(good for node in (a, b) for _, good, _ in node.ready())
            path.write_bytes(good)
            receipt = await a.submit(transaction, level=Level.ORDERED, timeout=60)
            assert (receipt.outcome, receipt.position) == ("committed", 3)
            found = await a.find(transaction.transaction_id)
            assert found is not None and found.outcome == "committed"

    asyncio.run(main())


def test_a_damaged_file_is_fetched_again_from_who_holds_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", acquisition_quorum="all", idle_round_max=0.3) as nodes:
            a, b = nodes.values()
            await a.submit(create(), level=Level.ORDERED, timeout=20)
            transaction, (file,) = stage(a, files=1)
            await a.submit(transaction, level=Level.ORDERED, timeout=60)
            for node in (a, b):
                await until(lambda node=node: node.base.published.value == 2)
            paths = [Path(node.payloads.path(file.path)) for node in (a, b)]
            good = paths[0].read_bytes()

            # A peer asks its origin, which finds it gone and asks the others.
            paths[0].unlink()
            with pytest.raises(TransportError, match="answered 422"):
                await asyncio.to_thread(lambda: list(b.base.links["A"].stream(file, 0)))
            await until(paths[0].exists)
            a.payloads.verify(file)
            await until(lambda: not a.status()["damaged_files"])

            # A worker asks its node, which reads what it took for whole.
            status = paths[1].stat()
            paths[1].write_bytes(good[:-1] + b"?")
            os.utime(paths[1], ns=(status.st_atime_ns, status.st_mtime_ns))
            assert await b.files.repair_segments(1, 2) == {"fetched": [file.path], "lost": []}
            assert paths[1].read_bytes() == good

            # Nobody has it.
            for path in paths:
                path.write_bytes(good[:-1] + b"?")
            found = await b.files.repair_segments(2, 2)
            (lost,) = found["lost"]
            assert (found["fetched"], lost["path"], lost["position"]) == ([], file.path, 2)
            assert (lost["table"], lost["run"]) == ("t", "A/1/2")
            assert "has the digest" in lost["reason"]
            assert lost["asked"] == {"A": "it does not have a good copy"}
            assert [name for name, good, _ in b.ready() if not good] == ["payloads"]

    asyncio.run(main())


def test_a_peer_that_wants_another_file_withdraws_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", idle_round_max=0.3) as nodes:
            a, b = nodes.values()
            await a.submit(create(), level=Level.ORDERED, timeout=20)
            transaction, (file,) = stage(a, files=1)
            submitted = asyncio.create_task(a.submit(transaction, level=Level.ORDERED, timeout=60))
            wrong = replace(file, digest="0" * 64)
            with pytest.raises(TransportError, match="answered 422"):
                await asyncio.to_thread(lambda: list(b.base.links["A"].stream(wrong, 0)))
            assert (await submitted).outcome == "committed"

    asyncio.run(main())


def test_a_run_that_nobody_can_deliver_is_voided(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", idle_round_max=0.3, stage_timeout=0.5) as nodes:
            a, b = nodes.values()
            transaction, path, good = await _submit_damaged(a)
            waits = asyncio.create_task(b.submit(create("u"), level=Level.ORDERED, timeout=90))
            await until(lambda: bool(b.status()["undelivered"]))
            (run,) = b.status()["undelivered"]
            for node, name, error in (
                (b, run["digest"], "Ask A, which accepted it"),
                (a, "0" * 16, "no runs '0000000000000000' wait"),
            ):
                with pytest.raises((LocalProtocolError, NotFoundError), match=error) as caught:
                    await node.voiding.void(name, (), 30)
                assert caught.value.definite
            found = await a.voiding.void(run["digest"][:16], (), 60)
            assert (found["epoch"], found["voided"]["digest"]) == (2, run["digest"])
            assert (await waits).outcome == "committed"
            for node in (a, b):
                await until(lambda node=node: node.base.published.value == 3)
                status = node.status()
                assert (status["undelivered"], status["damaged_files"]) == ([], [])
                assert all(good for _, good, _ in node.ready())
                await _is_void(node, transaction)
            path.write_bytes(good)  # too late
            receipt = await a.submit(create("v"), level=Level.ORDERED, timeout=20)
            assert receipt.position == 4
            await _is_void(a, transaction)

    asyncio.run(main())


async def _submit_damaged(node: Node) -> tuple[PreparedTransaction, Path, bytes]:
    """Have a transaction accepted whose only file is damaged; return it, the file, what it was."""
    await node.submit(create(), level=Level.ORDERED, timeout=20)
    transaction, (file,) = stage(node, files=1, rows=1_000)
    path = Path(node.payloads.path(file.path))
    good = path.read_bytes()
    path.write_bytes(good[:-1] + b"?")
    await node.submit(transaction, level=Level.ACCEPTED, timeout=20)
    return transaction, path, good


async def _is_void(node: Node, transaction: PreparedTransaction) -> None:
    found = await node.find(transaction.transaction_id)
    assert found is not None
    assert (found.outcome, [one.code for one in found.rejections]) == ("rejected", ["voided"])


def test_a_run_that_a_member_holds_is_not_voided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster(tmp_path, "AB", idle_round_max=0.3, stage_timeout=0.5) as nodes:
            a, b = nodes.values()
            transaction, path, good = await _submit_damaged(a)
            await until(lambda: bool(b.status()["undelivered"]))
            (run,) = b.status()["undelivered"]
            verify = a.files._verify

            async def mended(file: StagedFile) -> None:
                path.write_bytes(good)
                await verify(file)

            monkeypatch.setattr(a.files, "_verify", mended)
            with pytest.raises(LocalProtocolError, match="A holds the run") as caught:
                await a.voiding.void(run["digest"], (), 60)
            assert caught.value.definite
            await until(lambda: a.base.ordered.value == b.base.ordered.value == 2, 60)
            assert (await b.find(transaction.transaction_id)).outcome == "committed"

    asyncio.run(main())
