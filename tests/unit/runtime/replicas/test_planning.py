"""The planner at work: quick answers, questions to donors, messages once and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.known_replicas import base_of
from tests.unit.runtime.replicas.test_backlog import Segments, effect, segment

from sparktxlog.config import load_config
from sparktxlog.errors import NotFoundError, TransportError
from sparktxlog.model.answers import ReportAnswer
from sparktxlog.model.copying import CatchUpKind, ReplicaSize, Transfer
from sparktxlog.model.replicas import MAIN
from sparktxlog.model.report import ReplayCost, TableState, WorkerReport
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.transactions.receipt import Appliers
from sparktxlog.runtime.commit.executor import AsideWrite
from sparktxlog.runtime.donors.donor_sizes import SIZES_S, DonorSizes, missing_bytes
from sparktxlog.runtime.replicas.judged_replicas import Replicas
from sparktxlog.runtime.replicas.planning import DECISION_S, Planning
from sparktxlog.runtime.settings import RunTimeSettings
from sparktxlog.storage.interfaces import PutValue, Write

END = 1_000
DEAD_US = 10_000_000
GIB = 1 << 30


def hash_at(position: int) -> bytes | None:
    return position.to_bytes(32, "big") if position % 10 == 0 else None


def report(position: int, node: str = "A", rows: int = 1, **changes: Any) -> WorkerReport:
    tables = {"t": TableState(version=1, signature=TableSignature(rows=rows), schema="s")}
    made = WorkerReport(
        worker_id=f"w{node}",
        node_id=node,
        log_id="l",
        epoch=1,
        position=position,
        chain_hash=(hash_at(position) or b"").hex(),
        tables=tables if position else {},
    )
    return replace(made, **changes)


def run_blocking(work: Any, *args: Any) -> asyncio.Future[Any]:
    return asyncio.get_running_loop().run_in_executor(None, work, *args)


@dataclass
class Link:
    """A donor that answers, or does not."""

    node_id: str
    size_bytes: int | None = 1_000
    #: Tables of other groups.
    others: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    up: bool = True
    ups: int = 1
    posts: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(round_trip_s=None))
    asked: int = 0
    #: Questions wait until it is set.
    gate: asyncio.Event | None = None

    async def replica_size(self, name: str = MAIN) -> ReplicaSize:
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.size_bytes is None:
            raise TransportError("cannot be reached")
        files = {"t": [("part-1.parquet", self.size_bytes)], **self.others}
        return ReplicaSize(node_id=self.node_id, position=END, files=files)


@dataclass
class Site:
    """Planning of node A with everything around it in memory."""

    lake: Path
    links: dict[str, Link] = field(default_factory=dict)
    saved: dict[str, bytes] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    steady: float = 0.0
    ask_s: float = 5.0
    now: int = 1_000_000
    merge_bytes: int = GIB
    #: Tables of groups whose rows this site does not hold.
    elsewhere: tuple[str, ...] = ()
    journal: Segments = field(default_factory=Segments)

    def __post_init__(self) -> None:
        # 100 batches with a MERGE each: some minutes by the first guess.
        self.journal.kept = [
            segment(p - 9, p, effect("t", "upsert", self.merge_bytes))
            for p in range(10, END + 1, 10)
        ]
        values = {"node-id": "A", "master-url": "http://127.0.0.1:1", "data-dir": str(self.lake)}
        self.settings = RunTimeSettings(load_config(None, values | self.config, {}), self.saved)
        self.replicas = Replicas(base_of("A", hash_at, position=END, dead_after_us=DEAD_US))
        executor: Any = self
        base: Any = SimpleNamespace(
            config=SimpleNamespace(
                node_id="A",
                worker_dead_after=DEAD_US / 1e6,
                signature_interval=10,
                lake_dir=self.lake,
            ),
            settings=self.settings,
            journal=self.journal,
            links=self.links,
            holds=lambda table: table not in self.elsewhere,
            run_blocking=run_blocking,
            run_on_files=lambda place, work, *args: run_blocking(work, *args),
            published=SimpleNamespace(value=END),
            clock=SimpleNamespace(now=lambda: self.now),
            state=SimpleNamespace(values=self.saved),
        )
        self.sizes = DonorSizes(base, self.lake, clock=lambda: self.steady, ask_s=self.ask_s)
        self.planning = Planning(
            base, self.replicas, executor, self.sizes, clock=lambda: self.steady
        )

    def put(self, items: Iterable[Any]) -> None:
        for write in (write for item in items for write in item.writes):
            assert isinstance(write, PutValue)
            self.saved[write.name] = write.value

    def tell(self, told: WorkerReport) -> ReportAnswer:
        """Post a report as the node takes it; return the answer."""
        comparison, _, _ = self.replicas.accept(told, self.now)
        if told.node_id != "A":
            return ReportAnswer(verdict="", plan="", reason="")
        self.planning.learn_replay(told.pace)
        return self.planning.answer(told, comparison)

    async def settled(self) -> None:
        """Wait for questions in the background."""
        while self.planning._asking:
            await asyncio.gather(*self.planning._asking._tasks.values())
            await asyncio.sleep(0)


def messages(logs: list[Any]) -> list[str]:
    return [log["event"] for log in logs if log["event"] not in ("replica", "no size")]


def run(work: Any) -> Any:
    return asyncio.run(work)


def test_a_short_backlog_is_replayed_and_nobody_is_asked(tmp_path: Path) -> None:
    async def main() -> None:
        link = Link("B")
        site = Site(tmp_path, {"B": link}, merge_bytes=10)
        site.journal.kept = [segment(p - 9, p) for p in range(10, END + 1, 10)]
        site.tell(report(END, "B"))
        with capture_logs() as logs:
            assert site.tell(report(10))["plan"] == "replay"
            await site.settled()
            assert site.tell(report(20))["plan"] == "replay"
            assert site.tell(report(END))["plan"] == "up-to-date"
            await site.settled()
        assert messages(logs) == []
        assert link.asked == 0

    run(main())


def test_a_long_backlog_is_copied_once_the_donors_have_said_their_size(tmp_path: Path) -> None:
    async def main() -> None:
        link = Link("B", gate=asyncio.Event())
        site = Site(tmp_path, {"B": link})
        site.tell(report(END, "B"))
        with capture_logs() as logs:
            # The first answer waits for nobody; the worker goes on replaying.
            assert site.tell(report(10))["plan"] == "replay"
            while not link.asked:
                await asyncio.sleep(0.001)
            assert site.tell(report(20))["plan"] == "replay"
            assert link.gate is not None
            link.gate.set()
            await site.settled()
            answer = site.tell(report(30))
            assert (answer["plan"], answer["verdict"]) == ("copy", "IN_SYNC")
            assert site.tell(report(30)) == answer
            await site.settled()
        why, what = messages(logs)
        assert what == "Replicating (catch up)"
        assert "copy is preferred" in why
        assert "from B" in why
        assert (link.asked, logs[-1]["log_level"]) == (1, "info")
        decision, donors = await site.planning.decide("wA")
        assert (decision.plan, decision.donor, donors) == ("copy", "B", ["B"])
        assert decision.replay is not None
        assert decision.copy is not None
        assert decision.replay.seconds > 600 > decision.copy.seconds

    run(main())


def test_a_donor_is_asked_again_when_its_link_is_mended(tmp_path: Path) -> None:
    async def main() -> None:
        link = Link("B", size_bytes=None)
        sizes = Site(tmp_path, {"B": link}).sizes
        assert await sizes.missing(["B"], report(0)) == {"B": None}
        asked = link.asked
        link.size_bytes = 1_000
        assert await sizes.missing(["B"], report(0)) == {"B": None}, (
            "a failure is good for a second"
        )
        assert link.asked == asked
        link.ups += 1
        assert await sizes.missing(["B"], report(0)) == {"B": 1_000}
        # Who asks for a copy is not told an old failure.
        sizes = Site(tmp_path, {"B": link}).sizes
        link.size_bytes = None
        assert await sizes.missing(["B"], report(0)) == {"B": None}
        link.size_bytes = 2_000
        assert await sizes.missing(["B"], report(0), again=True) == {"B": 2_000}

    run(main())


def test_parameters_of_run_time_count_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        site = Site(tmp_path, {"B": Link("B", size_bytes=10 * GIB)})
        site.tell(report(END, "B"))
        site.tell(report(10))

        async def write(writes: Sequence[Write]) -> None:
            site.put([AsideWrite(writes=writes)])

        async def plan() -> str:
            await site.settings.change(changes, write)
            return (await site.planning.look(None)).plan

        changes: dict[str, Any] = {}
        assert await plan() == "copy"
        changes = {"NetSpeedBitsPerSec": 1_000_000}
        assert await plan() == "replay"
        changes = {"NetSpeedBitsPerSec": None, "FullReplicationTimeFactor": 100}
        assert await plan() == "replay"
        changes = {"FullReplicationTimeFactor": None, "MinTimeToConsiderFullReplicationS": 1e6}
        assert await plan() == "replay"
        await site.settled()

    run(main())


def test_files_that_are_here_cost_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "t").mkdir()
        site = Site(tmp_path, {"B": Link("B", size_bytes=5)})
        site.tell(report(END, "B"))
        site.tell(report(10))
        await site.settled()
        assert "5 bytes" in (await site.planning.look("wA")).copy.basis  # type: ignore[union-attr]
        (tmp_path / "t" / "part-1.parquet").write_bytes(b"12345")
        # What the donor said is good for a while, then it is asked again.
        assert "5 bytes" in (await site.planning.look("wA")).copy.basis  # type: ignore[union-attr]
        site.steady += SIZES_S
        found = (await site.planning.look("wA")).copy
        assert found is not None
        assert found.basis.startswith("0 bytes")
        assert site.links["B"].asked == 2

    run(main())


def test_what_this_site_does_not_hold_is_not_copied(tmp_path: Path) -> None:
    """P41: the donor has tables of groups that this site is not of."""

    async def main() -> None:
        others = {"of_b": [("part-1.parquet", 1_000)]}
        for elsewhere, size in ((("of_b",), "5 bytes"), ((), "1,005 bytes")):
            link = Link("B", size_bytes=5, others=others)
            site = Site(tmp_path, {"B": link}, elsewhere=elsewhere)
            site.tell(report(END, "B"))
            site.tell(report(10))
            await site.settled()
            found = (await site.planning.look("wA")).copy
            assert found is not None and found.basis.startswith(size)

    run(main())


def test_names_from_a_donor_never_lead_out_of_the_lake(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"1234")
    lake = tmp_path / "lake"
    lake.mkdir()
    size = ReplicaSize(
        node_id="B",
        position=1,
        files={"..": [("secret", 4)], "t": [("../../secret", 4), ("\x00", 1)]},
    )
    assert missing_bytes(size, lake) == 9


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (report(15, chain_hash="00"), "Replicating (out of sync)"),
        (report(20, chain_hash="ff"), "Replicating (out of sync)"),
        (report(20, irreparable="disk lost"), "Replicating (out of sync)"),
        (report(20, rows=2), "Replicating (out of sync), forced"),
        (report(0), "Replicating (empty)"),
    ],
)
def test_messages_of_what_must_be_copied(tmp_path: Path, bad: WorkerReport, message: str) -> None:
    async def main() -> None:
        site = Site(tmp_path, {"B": Link("B"), "C": Link("C")})
        for name in "BC":
            site.tell(report(20, name))
            site.tell(report(END, name))
        with capture_logs() as logs:
            for _ in range(3):
                site.tell(bad)
                await site.settled()
            assert site.tell(bad)["plan"] == "copy"
            # Healthy again, and ill again: that is another event.
            assert site.tell(report(END, rows=1))["plan"] == "up-to-date"
            site.tell(bad)
            await site.settled()
        assert messages(logs) == [message, message]
        level = "info" if "empty" in message else "warning"
        assert {log["log_level"] for log in logs if log["event"] == message} == {level}

    run(main())


def test_all_empty_and_all_silent(tmp_path: Path) -> None:
    async def main() -> None:
        site = Site(tmp_path, {"B": Link("B", size_bytes=None), "C": Link("C", up=False)})
        site.tell(report(0, "B"))
        with capture_logs() as logs:
            site.tell(report(0))
            await site.settled()
            assert site.tell(report(0))["plan"] == "replay"
        assert messages(logs) == []
        site.tell(report(END, "B"))
        site.tell(report(END, "C"))
        with capture_logs() as logs:
            site.steady += DECISION_S
            site.tell(report(0))
            await site.settled()
            answer = site.tell(report(0))
        assert messages(logs) == ["Couldn't find storage size"]
        assert (answer["plan"], logs[-1]["log_level"]) == ("replay", "warning")

    run(main())


def test_a_diverged_replica_stops_without_a_healthy_donor(tmp_path: Path) -> None:
    async def main() -> None:
        site = Site(tmp_path, {"B": Link("B", up=False), "C": Link("C")})
        site.tell(report(20, "B"))
        site.tell(report(20, "D"))
        # Right away, before any question: B is behind nothing, but its node cannot be reached.
        answer = site.tell(report(20, rows=2))
        assert (answer["verdict"], answer["plan"]) == ("DIVERGED", "stop")
        assert "no healthy donor" in answer["reason"]
        # Where single tables stand still, the others need not even wait for that answer.
        still = TableState(version=1, signature=TableSignature(), schema="s", diverged="damaged")
        answer = site.tell(report(20, tables={"t": still}))
        assert (answer["verdict"], answer["plan"]) == ("DIVERGED", "replay")
        assert "no healthy donor" in answer["reason"]
        # Diverged itself, C is no donor either.
        site.tell(report(20, "C", chain_hash="ff"))
        await site.settled()
        assert site.tell(report(20, rows=2))["plan"] == "stop"
        assert (await site.planning.decide("wA"))[1] == []
        assert site.replicas.applied(Appliers(3)) == 0
        # B is back, though its worker does not run now: that counts at once.
        site.links["B"].up = True
        site.now += DEAD_US + 1
        assert site.tell(report(20, rows=2))["plan"] == "copy"
        await site.settled()
        assert site.tell(report(20, rows=2))["plan"] == "copy"

    run(main())


def test_contested_replicas_replay_and_lend_only_to_whom_names_them(tmp_path: Path) -> None:
    async def main() -> None:
        site = Site(tmp_path, {"B": Link("B"), "C": Link("C")})
        site.tell(report(20, "B"))
        answer = site.tell(report(20, rows=2))
        assert (answer["verdict"], answer["plan"]) == ("IN_SYNC", "replay")
        assert "site B has 1:" in answer["reason"] and "--donor" in answer["reason"]
        await site.settled()
        assert site.tell(report(20, rows=2))["plan"] == "replay"
        decision, donors = await site.planning.decide("wA", forced=True)
        assert (decision.plan, donors) == ("stop", [])
        assert "contested: B; name the one" in decision.reason
        decision, donors = await site.planning.decide("wA", forced=True, donor="B")
        assert (decision.plan, decision.donor, donors) == ("copy", "B", ["B"])
        # A third site that agrees with B settles it.
        site.tell(report(20, "C"))
        assert site.tell(report(20, rows=2))["plan"] == "copy"
        await site.settled()
        assert (await site.planning.decide("wA"))[1] == ["B", "C"]

    run(main())


def test_foreign_and_ahead_stop_and_unknown_workers_are_named(tmp_path: Path) -> None:
    async def main() -> None:
        site = Site(tmp_path, {"B": Link("B")})
        site.tell(report(END, "B"))
        assert site.tell(report(20, log_id="other"))["plan"] == "stop"
        assert site.tell(report(END + 10))["plan"] == "stop"
        assert not site.planning._asking
        for name in ("nobody", "wB"):
            with pytest.raises(NotFoundError, match=name):
                await site.planning.look(name)
        # Asked for, the replica of a node that is ahead is copied over.
        assert (await site.planning.decide("wA", forced=True))[0].plan == "copy"

    run(main())


def test_the_furthest_ahead_comes_first_and_the_silent_last(tmp_path: Path) -> None:
    async def main() -> None:
        links = {
            "B": Link("B", posts=SimpleNamespace(round_trip_s=0.5)),
            "C": Link("C", posts=SimpleNamespace(round_trip_s=0.1)),
            "D": Link("D", size_bytes=None),
        }
        site = Site(tmp_path, links)
        for node, position in (("B", 900), ("C", 900), ("D", END)):
            site.tell(report(position, node))
        site.tell(report(10))
        await site.settled()
        decision, donors = await site.planning.decide("wA")
        assert (decision.donor, donors) == ("C", ["C", "B", "D"])

    run(main())


def test_paces_are_learned_from_reports_and_transfers_and_survive_a_restart(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        site = Site(tmp_path, {"B": Link("B")})
        cost = ReplayCost(
            batches=1, merges=10, transactions=10, appended_bytes=0, merged_bytes=0, seconds=3.0
        )
        for _ in range(6):
            site.tell(report(END, pace=cost))
        site.tell(report(END, pace=replace(cost, merges=-(10**40))))
        transfer = Transfer(
            transfer_id="c",
            worker_id="wA",
            node_id="A",
            kind=CatchUpKind.COPY,
            donors=("B",),
            from_position=0,
            to_position=1,
            started_at=0,
            finished_at=0,
            estimated_s=1.0,
            actual_s=10.0,
            size_bytes=2 * GIB,
            reused_bytes=GIB,
        )
        site.planning.learn_transfer(replace(transfer, outcome="broken off"))
        assert not site.planning.transfer_pace.transfers
        site.planning.learn_transfer(transfer)
        again = Site(tmp_path, {}, saved=site.saved)
        assert again.planning.replay_pace == site.planning.replay_pace
        assert again.planning.transfer_pace.bytes_per_s("B") == pytest.approx(GIB / 10)
        assert 5 < len(again.planning.replay_pace.keyed) < 7
        broken = {"pace:replay": b"\xc1", "pace:transfer": b"x"}
        assert Site(tmp_path, {}, saved=broken).planning.replay_pace.keyed == ()
        await site.settled()

    run(main())


def test_a_copy_plan_ends_when_the_replica_has_moved_up(tmp_path: Path) -> None:
    async def main() -> None:
        site = Site(tmp_path, {"B": Link("B")})
        site.tell(report(END, "B"))
        site.tell(report(10))
        await site.settled()
        assert site.tell(report(20))["plan"] == "copy"
        # The copy has ended; its end was not told yet, and some transactions are missing again.
        assert site.tell(report(990))["plan"] == "replay"
        await site.settled()
        assert site.tell(report(990))["plan"] == "replay"
        assert site.planning.held_plan("wA") is not None
        await site.planning.close()

    run(main())


def test_a_slow_donor_holds_nothing_up_and_its_answer_serves_later(tmp_path: Path) -> None:
    async def main() -> None:
        slow = Link("B", gate=asyncio.Event())
        site = Site(tmp_path, {"B": slow}, ask_s=0.01)
        site.tell(report(END, "B"))
        site.tell(report(10))
        with capture_logs() as logs:
            await site.settled()
            assert site.tell(report(10))["plan"] == "replay"
        assert messages(logs) == ["Couldn't find storage size"]
        assert (await site.planning.look("wA")).plan == "replay"
        assert slow.asked == 1
        assert slow.gate is not None
        slow.gate.set()
        await asyncio.gather(*site.sizes._questions.values())
        assert (await site.planning.look("wA")).plan == "copy"
        assert slow.asked == 1
        # A question that hangs is ended with the node.
        slow.gate = asyncio.Event()
        site.steady += SIZES_S
        await site.planning.look("wA")
        assert len(site.sizes._questions) == 1
        await site.planning.close()
        assert site.sizes._questions == {}

    run(main())
