"""Whole copies, faults of donors, several donors."""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.stand_in_donor import StandInDonor
from tests.unit.worker.copy.fetch.conftest import CHUNK, FILES, assert_staged, tasks_of

from sparktxlog.errors import (
    DamagedChunkError,
    FileChangedError,
    LeaseGoneError,
    PeerTimeoutError,
    StorageError,
    TransportError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.worker.copy.fetch.donor_link import LeaseKeeper, release_leases
from sparktxlog.worker.copy.fetch.fetch import fetch_files
from sparktxlog.worker.copy.fetch.parts import plan_parts, run_partition
from sparktxlog.worker.copy.fetch.workspace import CopyWorkspace

SIZE = sum(size for size, _ in FILES.values())
CHUNKS = sum(-(-size // CHUNK) for size, _ in FILES.values())

NewDonor = Callable[..., StandInDonor]


def test_a_whole_copy(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    grant = donor.grant()
    shown: list[tuple[int, int]] = []
    stats = fetch_files(
        workspace, [grant], tasks_of(grant), streams=3, progress=lambda *s: shown.append(s)
    )
    assert_staged(workspace, donor.lake)
    assert stats.complete
    assert (stats.size_bytes, stats.fetched_bytes, stats.resumed_bytes) == (SIZE, SIZE, 0)
    assert stats.chunks == CHUNKS == len(set(donor.chunks)) == len(donor.chunks)
    assert stats.by_donor == (("A", SIZE),)
    assert shown[-1] == (SIZE, SIZE)
    for task in tasks_of(grant):
        assert workspace.staged(*task.key).stat().st_mtime_ns // 1000 == task.modified_at


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_bytes_on_the_wire(new_donor: NewDonor, workspace: CopyWorkspace, compression: str) -> None:
    """Without compression they are the file's bytes; with it, fewer."""
    donor = new_donor(compression=compression)
    grant = donor.grant()
    stats = fetch_files(workspace, [grant], tasks_of(grant), streams=2)
    assert_staged(workspace, donor.lake)
    text = sum(size for size, compressible in FILES.values() if compressible)
    if compression == "none":
        assert stats.wire_bytes == stats.fetched_bytes == SIZE
    else:
        assert SIZE - text < stats.wire_bytes < SIZE - text + 1_000


def test_a_second_fetch_has_nothing_to_do(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    grant = donor.grant()
    fetch_files(workspace, [grant], tasks_of(grant))
    asked = len(donor.chunks), len(donor.asked)
    stats = fetch_files(workspace, [grant], tasks_of(grant))
    assert (stats.resumed_bytes, stats.fetched_bytes) == (SIZE, 0)
    assert asked == (len(donor.chunks), len(donor.asked))


def test_resume_after_a_failure_at_any_chunk(
    donor: StandInDonor, tmp_path: Path, workspace: CopyWorkspace
) -> None:
    """Only what was under way travels twice."""
    grant = donor.grant()
    streams = 2
    for number in range(0, CHUNKS, 3):
        space = CopyWorkspace(workspace.lake, f"copy-{number}")
        donor.chunks.clear()
        donor.fault = lambda path, offset, n=number: (
            "500 internal" if len(donor.chunks) >= n else ""
        )
        with pytest.raises(TransportError):
            fetch_files(space, [grant], tasks_of(grant), streams=streams)
        donor.fault = lambda path, offset: ""
        stats = fetch_files(space, [grant], tasks_of(grant), streams=streams)
        assert_staged(space, donor.lake)
        twice = sum(count - 1 for count in Counter(donor.chunks).values())
        assert twice <= streams, number
        assert stats.fetched_bytes + stats.resumed_bytes == SIZE


def test_a_chunk_damaged_once_is_fetched_again(
    donor: StandInDonor, workspace: CopyWorkspace
) -> None:
    spoilt = {("big.parquet", CHUNK), ("a/exact.parquet", 0)}

    def fault(path: str, offset: int) -> str:
        if (path, offset) in spoilt:
            spoilt.discard((path, offset))
            return "corrupt"
        return ""

    donor.fault = fault
    grant = donor.grant()
    stats = fetch_files(workspace, [grant], tasks_of(grant), streams=2)
    assert_staged(workspace, donor.lake)
    assert stats.wire_bytes == SIZE + 2 * CHUNK


def _at(where: tuple[str, int], fault: str) -> Callable[[str, int], str]:
    return lambda path, offset: fault if (path, offset) == where else ""


@pytest.mark.parametrize(
    ("fault", "error", "part"),
    [
        ("corrupt", TransportError, "twice: SHA-256"),
        ("short", TransportError, "instead of"),
        ("long", TransportError, "for a chunk of"),
        ("500 internal", TransportError, "answered 500"),
        ("503 busy", TransportError, "answered 503"),
        ("410 file-changed", FileChangedError, "file-changed"),
        ("404 not-found", FileChangedError, "not-found"),
        ("410 lease-gone", LeaseGoneError, "lease-gone"),
        ("401 unauthorized", UnauthorizedError, "answered 401"),
        ("403 forbidden", UnauthorizedError, "answered 403"),
        ("cut", TransportError, "broke off"),
    ],
)
def test_a_fault_that_stays(
    donor: StandInDonor, workspace: CopyWorkspace, fault: str, error: type[TxLogError], part: str
) -> None:
    """Every fault has its type, and what was fetched is kept."""
    donor.fault = _at(("big.parquet", 7 * CHUNK), fault)
    grant = donor.grant()
    with pytest.raises(error, match=part):
        fetch_files(workspace, [grant], tasks_of(grant), streams=2)
    assert not list(workspace.root.rglob("big.parquet"))
    donor.fault = lambda path, offset: ""
    donor.chunks.clear()
    stats = fetch_files(workspace, [grant], tasks_of(grant), streams=2)
    assert_staged(workspace, donor.lake)
    assert stats.resumed_bytes >= 7 * CHUNK
    assert ("big.parquet", 0) not in donor.chunks


def test_a_silent_donor_is_given_up(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """The socket looks fine."""
    donor.fault = _at(("big.parquet", 2 * CHUNK), "hang")
    grant = donor.grant()
    began = time.monotonic()
    with pytest.raises(TransportError, match=r"silent for 0\.5 s"):
        fetch_files(workspace, [grant], tasks_of(grant), streams=2, silence_s=0.5)
    assert time.monotonic() - began < 20


def test_an_expired_lease(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    grant = donor.grant()
    donor.gone = True
    with pytest.raises(LeaseGoneError):
        fetch_files(workspace, [grant], tasks_of(grant))


def test_leases_are_renewed(new_donor: NewDonor, workspace: CopyWorkspace) -> None:
    donors = new_donor(lease_s=0.15), new_donor("B", lease_s=0.15)
    donors[0].fault = lambda path, offset: time.sleep(0.05) or ""
    grants = [donor.grant() for donor in donors]
    fetch_files(workspace, grants, tasks_of(grants[0]), streams=2)
    assert all(donor.renewals >= 2 for donor in donors)


def test_a_connection_that_was_closed_is_opened_again(
    donor: StandInDonor, workspace: CopyWorkspace
) -> None:
    cut: list[str] = []

    def fault(path: str, offset: int) -> str:
        if path == "big.parquet" and offset == 5 * CHUNK and not cut:
            cut.append(path)
            return "cut"
        return ""

    donor.fault = fault
    grant = donor.grant()
    fetch_files(workspace, [grant], tasks_of(grant), streams=1)
    assert_staged(workspace, donor.lake)
    assert cut


# -- several donors --------------------------------------------------------------------------------


def _when_matched(donors: tuple[StandInDonor, ...], fault: Callable[[str, int], str]) -> None:
    """Hold all chunks back until every donor was asked for its digests."""

    def wait_first(path: str, offset: int) -> str:
        for _ in range(500):
            if all(donor.asked for donor in donors):
                time.sleep(0.02)
                break
            time.sleep(0.01)
        return ""

    donors[0].fault = lambda path, offset: wait_first(path, offset) or fault(path, offset)


def test_two_donors_share_the_work(new_donor: NewDonor, workspace: CopyWorkspace) -> None:
    donors = new_donor(), new_donor("B")
    _when_matched(donors, lambda path, offset: "")
    grants = [donor.grant() for donor in donors]
    stats = fetch_files(workspace, grants, tasks_of(grants[0]), streams=4)
    assert_staged(workspace, donors[0].lake)
    assert len(donors[0].chunks) + len(donors[1].chunks) == CHUNKS
    assert dict(stats.by_donor)["B"] > 0 < dict(stats.by_donor)["A"]


@pytest.mark.parametrize("dying", [0, 1])
def test_one_of_two_donors_dies(new_donor: NewDonor, workspace: CopyWorkspace, dying: int) -> None:
    donors = new_donor(), new_donor("B")
    _when_matched(donors, lambda path, offset: "")
    dead = threading.Event()
    before = donors[dying].fault

    def fault(path: str, offset: int) -> str:
        said = before(path, offset)
        if dead.is_set() or len(donors[dying].chunks) >= 1:
            dead.set()
            threading.Thread(target=donors[dying].die, daemon=True).start()
            return "cut"
        return said

    donors[dying].fault = fault
    grants = [donor.grant() for donor in donors]
    stats = fetch_files(workspace, grants, tasks_of(grants[0]), streams=4)
    assert_staged(workspace, donors[0].lake)
    assert [node for node, _ in stats.dropped] == ["AB"[dying]]


def test_another_file_of_the_same_name_is_not_taken(
    new_donor: NewDonor, workspace: CopyWorkspace
) -> None:
    donors = new_donor(), new_donor("B")
    other = donors[1].lake / "t" / "big.parquet"
    other.write_bytes(b"y" * other.stat().st_size)
    _when_matched(donors, lambda path, offset: "")
    grants = [donor.grant() for donor in donors]
    fetch_files(workspace, grants, tasks_of(grants[0]), streams=4)
    assert_staged(workspace, donors[0].lake)
    assert not [path for path, _ in donors[1].chunks if path == "big.parquet"]


def test_a_donor_whose_lease_is_gone(new_donor: NewDonor, workspace: CopyWorkspace) -> None:
    donors = new_donor(), new_donor("B", lease_s=0.15)
    grants = [donor.grant() for donor in donors]
    donors[1].gone = True
    donors[0].fault = lambda path, offset: time.sleep(0.03) or ""
    stats = fetch_files(workspace, grants, tasks_of(grants[0]), streams=2)
    assert_staged(workspace, donors[0].lake)
    assert stats.dropped[0][0] == "B"


def test_a_donor_with_other_chunks_does_not_help(
    new_donor: NewDonor, workspace: CopyWorkspace
) -> None:
    donors = new_donor(), new_donor("B", chunk_bytes=2 * CHUNK)
    grants = [donor.grant() for donor in donors]
    stats = fetch_files(workspace, grants, tasks_of(grants[0]), streams=2)
    assert_staged(workspace, donors[0].lake)
    assert stats.by_donor == (("A", SIZE),)


def test_a_frozen_donor_costs_its_silence_only(
    new_donor: NewDonor, workspace: CopyWorkspace
) -> None:
    """The second donor takes over what the first one was asked for."""
    donors = new_donor(), new_donor("B")
    _when_matched(donors, lambda path, offset: "hang" if len(donors[0].chunks) >= 3 else "")
    grants = [donor.grant() for donor in donors]
    began = time.monotonic()
    stats = fetch_files(workspace, grants, tasks_of(grants[0]), streams=4, silence_s=0.7)
    assert time.monotonic() - began < 20
    assert_staged(workspace, donors[0].lake)
    assert [node for node, _ in stats.dropped] == ["A"]


def test_no_donor_is_left(new_donor: NewDonor, workspace: CopyWorkspace) -> None:
    donors = new_donor(), new_donor("B")
    grants = [donor.grant() for donor in donors]
    for donor in donors:
        donor.die()
    with pytest.raises(TransportError):
        fetch_files(workspace, grants, tasks_of(grants[0]))


def test_no_grant_at_all(workspace: CopyWorkspace) -> None:
    with pytest.raises(TransportError, match="no donor granted a lease"):
        fetch_files(workspace, [], [])


def test_leases_given_back(new_donor: NewDonor) -> None:
    donors = new_donor(), new_donor("B")
    grants = [donor.grant() for donor in donors]
    donors[1].gone = True
    with LeaseKeeper(grants):
        pass
    assert list(release_leases(grants)) == ["B"]
    assert donors[0].released


# -- stop, parts -----------------------------------------------------------------------------------


def test_a_stop_keeps_what_is_done(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    stop = threading.Event()

    def fault(path: str, offset: int) -> str:
        if len(donor.chunks) >= 8:
            stop.set()
        return "hang" if stop.is_set() else ""

    donor.fault = fault
    grant = donor.grant()
    began = time.monotonic()
    stats = fetch_files(workspace, [grant], tasks_of(grant), streams=2, stop=stop)
    assert time.monotonic() - began < 20
    assert not stats.complete
    donor.fault = lambda path, offset: ""
    assert fetch_files(workspace, [grant], tasks_of(grant)).resumed_bytes > 0
    assert_staged(workspace, donor.lake)


def test_parts_for_executors(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """Plans survive pickling, parts are disjoint, and the driver only proves and names."""
    grant = donor.grant()
    tasks = tasks_of(grant)
    parted = plan_parts(workspace, [grant], tasks, parts=3)
    plans = pickle.loads(pickle.dumps(parted.plans))
    assert len(plans) == 3
    done = [run_partition(plan) for plan in plans]
    assert all(stats.complete for stats in done)
    records = [record for stats in done for record in stats.records]
    assert len(records) == CHUNKS == len(donor.chunks)
    stats = fetch_files(workspace, [grant], tasks, known=[*parted.records, *records])
    assert (stats.fetched_bytes, stats.resumed_bytes) == (0, SIZE)
    assert_staged(workspace, donor.lake)


def test_a_part_that_failed_is_made_up_for(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    grant = donor.grant()
    tasks = tasks_of(grant)
    first, *_ = plan_parts(workspace, [grant], tasks, parts=3).plans
    done = run_partition(first)
    stats = fetch_files(workspace, [grant], tasks, known=done.records)
    assert stats.chunks == CHUNKS - len(done.records)
    assert_staged(workspace, donor.lake)


def test_a_part_that_is_run_again(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """A Spark task that failed goes on from the journals of its first attempt."""
    grant = donor.grant()
    tasks = tasks_of(grant)
    (plan,) = plan_parts(workspace, [grant], tasks, parts=1).plans
    donor.fault = lambda path, offset: "500 x" if len(donor.chunks) >= 12 else ""
    with pytest.raises(TransportError):
        run_partition(plan)
    donor.fault = lambda path, offset: ""
    done = run_partition(plan)
    assert len(done.records) == CHUNKS
    assert done.resumed_bytes + done.fetched_bytes == SIZE
    assert len(donor.chunks) == CHUNKS
    fetch_files(workspace, [grant], tasks, known=done.records)
    assert_staged(workspace, donor.lake)


def test_an_executor_that_does_not_see_the_lake(
    donor: StandInDonor, workspace: CopyWorkspace, tmp_path: Path
) -> None:
    grant = donor.grant()
    plan = plan_parts(workspace, [grant], tasks_of(grant), parts=1).plans[0]
    with pytest.raises(StorageError, match="does not see the lake"):
        run_partition(replace(plan, lake=str(tmp_path / "elsewhere")))


def test_wrong_chunks_of_an_earlier_attempt(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """A part that fits its journal but is of another file: fetched again as a whole."""
    grant = donor.grant()
    tasks = tasks_of(grant)
    donor.fault = _at(("big.parquet", 9 * CHUNK), "500 internal")
    with pytest.raises(TransportError):
        fetch_files(workspace, [grant], tasks, streams=1)
    donor.fault = lambda path, offset: ""
    other = donor.lake / "t" / "big.parquet"
    other.write_bytes(b"z" * other.stat().st_size)
    fetch_files(workspace, [grant], tasks, streams=2)
    assert_staged(workspace, donor.lake)


def test_a_file_that_never_fits_its_digest(
    donor: StandInDonor, workspace: CopyWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(donor, "digest", lambda table, path: "00" * 32)
    grant = donor.grant()
    with pytest.raises(DamagedChunkError, match="fetched 2 times"):
        fetch_files(workspace, [grant], tasks_of(grant), streams=2)


def test_errors_are_of_one_family() -> None:
    assert issubclass(PeerTimeoutError, TransportError)
    assert issubclass(DamagedChunkError, TransportError)
