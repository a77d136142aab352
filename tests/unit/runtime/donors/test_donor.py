"""The donor: who may be one, leases and their end, chunks and digests under a lease."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.support.known_replicas import base_of
from tests.support.replica_lakes import (
    DEFINITION,
    SIGNATURE,
    append_rows,
    chunk_digests,
    contents,
    report_of,
    write_state,
)

from sparktxlog.config import load_config
from sparktxlog.errors import (
    BusyError,
    CorruptLogError,
    LeaseGoneError,
    NotFoundError,
    StorageError,
    TxLogError,
    UnauthorizedError,
    UnknownTableError,
)
from sparktxlog.files.pinned_chunks import Chunk, ChunkReader
from sparktxlog.files.pins import Pins
from sparktxlog.model.report import WorkerReport
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.runtime.donors.copy_throttle import CopyThrottle
from sparktxlog.runtime.donors.donor import MAX_LEASES, Donor, _step_back
from sparktxlog.runtime.metrics import Metrics
from sparktxlog.runtime.replicas.judged_replicas import Replicas

CHUNK = 65_536


class World:
    """A donor with a lake of one table, and a clock that stands still."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        values = {
            "node-id": "A",
            "master-url": "http://127.0.0.1:7070",
            "data-dir": str(directory),
            "replication.chunk-bytes": CHUNK,
            "replication.lease": 60,
        } | settings
        self.config = load_config(None, values, {})
        self.lake = self.config.lake_dir
        self.now = 1_000.0
        self.tables: dict[str, TableDefinition] = {"t": DEFINITION}
        self.metrics = Metrics()
        self.replicas = Replicas(
            base_of(
                "A",
                lambda position: bytes([position] * 32),
                position=100,
                dead_after_us=1,
                log_id=self.config.log_id,
            )
        )
        #: A change of the table, which the log has from this position on.
        self.changed: tuple[int, TableDefinition] | None = None
        base: Any = SimpleNamespace(
            config=self.config,
            metrics=self.metrics,
            journal=SimpleNamespace(read_definitions=self.definitions),
        )
        self.donor = Donor(
            base, self.replicas, CopyThrottle(0.1), self.lake, clock=lambda: self.now
        )
        self.version = append_rows(self.lake / "t", 10_000, seed=1)

    def definitions(self, position: int) -> dict[str, TableDefinition]:
        """Return the tables of the log at a position."""
        if self.changed is None or position < self.changed[0]:
            return self.tables
        return {"t": self.changed[1]}

    def report(self, position: int = 10, worker: str = "w", version: int | None = None) -> None:
        """Take in a report of the own replica."""
        self.take(self.report_at(position, worker, version))

    def report_at(
        self, position: int, worker: str = "w", version: int | None = None
    ) -> WorkerReport:
        status = {
            "node_id": "A",
            "log_id": self.config.log_id,
            "epoch": 1,
            "position": position,
            "chain_hash": bytes([position] * 32).hex(),
        }
        return report_of(status, self.version if version is None else version, worker)

    def take(self, report: WorkerReport) -> None:
        self.replicas.accept(report, int(self.now * 1e6))

    def leases(self) -> list[str]:
        """Return the leases on disk."""
        root = self.lake / "_sparktxlog" / "leases"
        return sorted(path.name for path in root.iterdir()) if root.exists() else []

    def metric(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(f"sparktxlog_donor_{name}") or 0.0


@asynccontextmanager
async def world(directory: Path, **settings: Any) -> AsyncIterator[World]:
    found = World(directory, **settings)
    await found.donor.start()
    try:
        yield found
    finally:
        await found.donor.close()
        assert found.leases() == []


async def unpinned(here: World, count: int) -> None:
    """Wait until so many leases are left on disk."""
    async with asyncio.timeout(10):
        while len(here.leases()) != count:
            await asyncio.sleep(0.01)


def test_a_grant_says_what_the_newest_report_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            here.report(5, version=0)
            here.report(10)
            write_state(here.lake, "w", 12)
            lease = await here.donor.lend("w of B")
            assert (lease.position, lease.chain_hash) == (10, bytes([10] * 32).hex())
            assert (lease.node_id, lease.url) == ("A", "http://127.0.0.1:7070")
            assert (lease.log_id, lease.epoch) == (here.config.log_id, 1)
            assert (lease.chunk_bytes, lease.lease_s) == (CHUNK, 60)
            assert len(lease.token) >= 43
            (table,) = lease.tables
            assert (table.definition, table.version, table.signature) == (
                DEFINITION,
                here.version,
                SIGNATURE,
            )
            assert [file.path for file in table.files] == sorted(contents(here.lake / "t"))
            other = await here.donor.lend("w of C")
            assert len({lease.token, other.token, lease.lease_id, other.lease_id}) == 4
            assert here.metric("leases") == 2

    asyncio.run(main())


def test_a_replica_that_stands_before_a_change_is_lent_as_it_is(tmp_path: Path) -> None:
    """The log is further; the new definition may even look alike, and its files are others."""

    async def main() -> None:
        async with world(tmp_path) as here:
            again = TableChange(drop=("v",), add=(Column(name="v", type="string"),))
            here.changed = (20, again.applied_to(DEFINITION))
            assert here.changed[1].fingerprint() == DEFINITION.fingerprint()
            here.report(10)
            (table,) = (await here.donor.lend("w of B")).tables
            assert table.definition == DEFINITION
            here.report(20)
            (table,) = (await here.donor.lend("w of B")).tables
            assert table.definition.in_files(["v"]) == ("__txlog_2_v",)

    asyncio.run(main())


def _diverged(here: World) -> None:
    here.report(10)
    table = replace(here.report_at(10).tables["t"], diverged="foreign commit")
    here.take(replace(here.report_at(10), tables={"t": table}))


def _behind_its_report(here: World) -> None:
    here.report(10)
    write_state(here.lake, "w", 9)


def _made_anew(here: World) -> None:
    here.report(10)
    write_state(here.lake, "another", 50)


def _other_table(here: World) -> None:
    here.report(10)
    here.tables.clear()


def _version_gone(here: World) -> None:
    here.report(10, version=7)


def _state_torn(here: World) -> None:
    here.report(10)
    write_state(here.lake, "w", 10)
    (here.lake / "_sparktxlog" / "state.json").write_text('{"worker')


@pytest.mark.parametrize(
    ("arrange", "kind", "text"),
    [
        (lambda here: None, NotFoundError, "no applied replica"),
        (lambda here: here.take(here.report_at(0)), NotFoundError, "no applied replica"),
        (_diverged, NotFoundError, "DIVERGED: table 't': foreign commit"),
        (lambda here: here.report(101), NotFoundError, "AHEAD"),
        (_behind_its_report, NotFoundError, "is at position 9"),
        (_made_anew, NotFoundError, "no applied replica"),
        (_other_table, NotFoundError, "differs from that of the log at position 10"),
        (_version_gone, StorageError, "the log of version 7"),
        (_state_torn, CorruptLogError, "cannot be read"),
    ],
)
def test_who_is_no_donor_says_why_and_pins_nothing(
    tmp_path: Path, arrange: Callable[[World], None], kind: type[TxLogError], text: str
) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            arrange(here)
            with pytest.raises(kind, match=text):
                await here.donor.lend("w")
            assert here.leases() == []

    asyncio.run(main())


def test_a_lease_lives_as_long_as_it_is_used(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            here.report()
            used, unused = await here.donor.lend("w"), await here.donor.lend("w")
            for _ in range(3):
                here.now += 40
                here.donor.lease(used.lease_id, used.token)
            await unpinned(here, 1)
            assert here.leases() == [used.lease_id]
            with pytest.raises(LeaseGoneError) as caught:
                here.donor.lease(unused.lease_id, unused.token)
            assert (caught.value.http_status, caught.value.definite) == (410, True)
            here.donor.release(used.lease_id, used.token)
            await unpinned(here, 0)
            with pytest.raises(LeaseGoneError):
                here.donor.release(used.lease_id, used.token)
            assert here.metric("leases") == 0

    asyncio.run(main())


def test_nobody_needs_to_ask_for_a_lease_to_expire(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path, **{"replication.lease": 1}) as here:
            here.report()
            await here.donor.lend("w")
            here.now += 2  # the timer fires a second from now and finds it over
            await unpinned(here, 0)

    asyncio.run(main())


def test_wrong_tokens_open_nothing_and_renew_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            here.report()
            lease, other = await here.donor.lend("w"), await here.donor.lend("w")
            here.now += 59
            for token in ("", "x", other.token, lease.token + "x", "ü"):
                with pytest.raises(UnauthorizedError):
                    here.donor.lease(lease.lease_id, token)
                with pytest.raises(UnauthorizedError):
                    await here.donor.chunk(lease.lease_id, token, "t", "x", 0, 1)
            here.now += 2
            assert here.donor._leases.expire() == [lease.lease_id, other.lease_id]

    asyncio.run(main())


def test_too_many_leases_are_refused_as_busy(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            here.report()
            leases = [here.donor.lend("w") for _ in range(MAX_LEASES + 5)]
            answers = await asyncio.gather(*leases, return_exceptions=True)
            refused = [answer for answer in answers if isinstance(answer, BusyError)]
            assert len(refused) == 5
            assert refused[0].retryable
            assert len(here.leases()) == MAX_LEASES
            here.now += 61
            await here.donor.lend("w")

    asyncio.run(main())


def test_pins_of_a_former_start_are_removed(tmp_path: Path) -> None:
    async def main() -> None:
        left = tmp_path / "lake" / "_sparktxlog" / "leases" / "old" / "t"
        left.mkdir(parents=True)
        (left / "f").write_bytes(b"x")
        async with world(tmp_path) as here:
            assert here.leases() == []

    asyncio.run(main())


def test_pins_of_a_former_start_are_removed_before_a_named_replica_lends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nobody copies from it; and two that copy at once keep their pins."""

    async def main() -> None:
        lake, pinned = tmp_path / "reports", threading.Event()
        leases = lake / "_sparktxlog" / "leases"
        (leases / "old").mkdir(parents=True)
        version = append_rows(lake / "t", 100, seed=1)
        here = World(tmp_path / "node")
        here.replicas.register("reports", str(lake))
        await here.donor.start()
        async with asyncio.timeout(10):
            while list(leases.iterdir()):
                await asyncio.sleep(0.01)
        here.take(replace(here.report_at(10, "r", version), name="reports"))
        again = Donor(
            here.donor._base, here.replicas, CopyThrottle(0.1), here.lake, clock=lambda: here.now
        )
        remove, pin = Pins.release_others, Pins.pin

        def late(self: Pins, *live: Any) -> Any:
            pinned.wait(0.3)  # another lease is given meanwhile, if it may be
            return remove(self, *live)

        def noted(self: Pins, *of: Any) -> Any:
            try:
                return pin(self, *of)
            finally:
                pinned.set()

        with monkeypatch.context() as patched:
            patched.setattr(Pins, "release_others", late)
            patched.setattr(Pins, "pin", noted)
            given = await asyncio.gather(*(again.lend(f"w{n}", name="reports") for n in (1, 2)))
        assert {path.name for path in leases.iterdir()} == {one.lease_id for one in given}
        for donor in (again, here.donor):
            await donor.close()
        assert not list(leases.iterdir())

    asyncio.run(main())


def test_the_copy_is_the_pinned_state_while_the_replica_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            here.report()
            before = contents(here.lake / "t")
            lease = await here.donor.lend("w")
            append_rows(here.lake / "t", 10, seed=2)
            table = DeltaTable(here.lake / "t")
            table.delete()
            table.vacuum(0, dry_run=False, enforce_retention_duration=False)
            key = (lease.lease_id, lease.token)
            got = {}
            for file in lease.tables[0].files:
                chunks = [
                    await here.donor.chunk(*key, "t", file.path, at, CHUNK)
                    for at in range(0, file.size_bytes, CHUNK)
                ]
                assert not any(chunk.packed for chunk in chunks)
                got[file.path] = sum(chunk.file_bytes for chunk in chunks)
            assert got == {path: len(data) for path, data in before.items()}
            names = [("t", path) for path in before]
            digests = await here.donor.digests(*key, names)
            assert digests == [chunk_digests(data, CHUNK) for data in before.values()]
            assert here.metric("file_bytes_total") == sum(map(len, before.values()))
            assert here.metric("sent_bytes_total") == here.metric("file_bytes_total")
            # Chunks are compressed if the holder takes them so.
            log = next(path for path in before if path.endswith(".json"))
            assert (await here.donor.chunk(*key, "t", log, 0, CHUNK, packed=True)).packed
            assert here.metric("sent_bytes_total") < here.metric("file_bytes_total")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("table", "path", "kind"),
    [
        ("u", "x", UnknownTableError),
        ("..", "x", UnknownTableError),
        ("t", "../_sparktxlog/state.json", NotFoundError),
        ("t", "/etc/passwd", NotFoundError),
        ("t", "_delta_log/../_delta_log/00000000000000000000.json", NotFoundError),
        ("t", "", NotFoundError),
    ],
)
def test_only_listed_files_can_be_named(
    tmp_path: Path, table: str, path: str, kind: type[TxLogError]
) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            here.report()
            lease = await here.donor.lend("w")
            write_state(here.lake, "w", 10)
            key = (lease.lease_id, lease.token)
            with pytest.raises(kind) as caught:
                await here.donor.chunk(*key, table, path, 0, 1)
            assert caught.value.fields["value"] == (path if kind is NotFoundError else table)
            with pytest.raises(kind):
                await here.donor.digests(*key, [(table, path)])

    asyncio.run(main())


def test_the_size_is_that_of_the_live_files(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            with pytest.raises(NotFoundError):
                await here.donor.size()
            DeltaTable(here.lake / "t").delete()
            here.version = append_rows(here.lake / "t", 7, seed=3)
            here.report()
            size = await here.donor.size()
            ((path, size_bytes),) = size.files["t"]
            assert (here.lake / "t" / path).stat().st_size == size_bytes == size.size_bytes
            assert (size.node_id, size.position) == ("A", 10)

    asyncio.run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
def test_copies_give_way_to_the_protocol(tmp_path: Path) -> None:
    async def main() -> None:
        async with world(tmp_path) as here:
            own = os.getpriority(os.PRIO_PROCESS, 0)
            assert await here.donor._run(os.getpriority, os.PRIO_PROCESS, 0) >= min(own + 1, 19)
            assert os.getpriority(os.PRIO_PROCESS, 0) == own

    asyncio.run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
@pytest.mark.parametrize(("before", "after"), [(3, 13), (10, 19)])
def test_copies_give_way_at_whatever_priority_the_node_has(before: int, after: int) -> None:
    found = []

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), before)
        _step_back()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [after]


def test_a_lease_in_use_does_not_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()
    read = ChunkReader.read

    def slowly(reader: ChunkReader, *rest: Any) -> Chunk:
        began.set()
        assert go_on.wait(10)
        return read(reader, *rest)

    monkeypatch.setattr(ChunkReader, "read", slowly)

    async def main() -> None:
        async with world(tmp_path) as here:
            here.report()
            lease = await here.donor.lend("w")
            assert lease.token not in repr(lease)
            key = (lease.lease_id, lease.token)
            path = lease.tables[0].files[0].path
            task = asyncio.create_task(here.donor.chunk(*key, "t", path, 0, 1))
            await asyncio.to_thread(began.wait, 10)
            here.now += 1_000
            assert here.donor._leases.expire() == []
            go_on.set()
            assert (await task).file_bytes == 1
            here.now += 59  # renewed at its end
            assert here.donor.lease(*key) == lease
            assert here.donor._leases.expire() == []

    asyncio.run(main())
