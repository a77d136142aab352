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
from tests.support.stand_in_donor import StandInDonor
from tests.unit.worker.copy.fetch.conftest import (
    CHUNK,
    FILES,
    assert_staged,
    fetch_all,
    select_all,
    tasks_of,
)

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
from sparktxlog.worker.copy.fetch.fetch import fetch_files
from sparktxlog.worker.copy.fetch.parts import (
    FetchedPart,
    FetchPlan,
    keep_parts,
    plan_parts,
    run_partition,
)
from sparktxlog.worker.copy.fetch.selection import Wanted
from sparktxlog.worker.copy.fetch.workspace import CopyWorkspace

SIZE = sum(size for size, _ in FILES.values())
CHUNKS = sum(-(-size // CHUNK) for size, _ in FILES.values())

NewDonor = Callable[..., StandInDonor]


def test_a_whole_copy(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    lease = donor.lease()
    shown: list[tuple[int, int]] = []
    stats = fetch_all(workspace, [lease], streams=3, progress=lambda *s: shown.append(s))
    assert_staged(workspace, donor.lake)
    assert (stats.size_bytes, stats.fetched_bytes, stats.reused_bytes) == (SIZE, SIZE, 0)
    assert CHUNKS == len(set(donor.chunks)) == len(donor.chunks)
    assert shown[-1] == (SIZE, SIZE)
    for task in tasks_of(lease):
        assert workspace.staged(*task.key).stat().st_mtime_ns // 1000 == task.modified_at


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_bytes_on_the_wire(new_donor: NewDonor, workspace: CopyWorkspace, compression: str) -> None:
    """Without compression they are the file's bytes; with it, fewer."""
    donor = new_donor(compression=compression)
    lease = donor.lease()
    stats = fetch_all(workspace, [lease], streams=2)
    assert_staged(workspace, donor.lake)
    text = sum(size for size, compressible in FILES.values() if compressible)
    if compression == "none":
        assert stats.wire_bytes == stats.fetched_bytes == SIZE
    else:
        assert SIZE - text < stats.wire_bytes < SIZE - text + 1_000


def test_a_second_fetch_has_nothing_to_do(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    lease = donor.lease()
    fetch_all(workspace, [lease])
    asked = len(donor.chunks)
    stats = fetch_all(workspace, [lease])
    assert (stats.reused_bytes, stats.fetched_bytes) == (SIZE, 0)
    assert asked == len(donor.chunks)


def test_resume_after_a_failure_at_any_chunk(
    donor: StandInDonor, tmp_path: Path, workspace: CopyWorkspace
) -> None:
    """Only what was under way travels twice."""
    lease = donor.lease()
    streams = 2
    for number in range(0, CHUNKS, 3):
        space = CopyWorkspace(workspace.lake, f"copy-{number}")
        donor.chunks.clear()
        donor.fault = lambda path, offset, n=number: (
            "500 internal" if len(donor.chunks) >= n else ""
        )
        with pytest.raises(TransportError):
            fetch_all(space, [lease], streams=streams)
        donor.fault = lambda path, offset: ""
        stats = fetch_all(space, [lease], streams=streams)
        assert_staged(space, donor.lake)
        twice = sum(count - 1 for count in Counter(donor.chunks).values())
        assert twice <= streams, number
        assert stats.fetched_bytes + stats.reused_bytes == SIZE


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
    lease = donor.lease()
    stats = fetch_all(workspace, [lease], streams=2)
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
    lease = donor.lease()
    with pytest.raises(error, match=part):
        fetch_all(workspace, [lease], streams=2)
    assert not list(workspace.root.rglob("big.parquet"))
    donor.fault = lambda path, offset: ""
    donor.chunks.clear()
    stats = fetch_all(workspace, [lease], streams=2)
    assert_staged(workspace, donor.lake)
    assert stats.reused_bytes >= 7 * CHUNK
    assert ("big.parquet", 0) not in donor.chunks


def test_a_silent_donor_is_given_up(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """The socket looks fine."""
    donor.fault = _at(("big.parquet", 2 * CHUNK), "hang")
    lease = donor.lease()
    began = time.monotonic()
    with pytest.raises(TransportError, match=r"silent for 0\.5 s"):
        fetch_all(workspace, [lease], streams=2, silence_s=0.5)
    assert time.monotonic() - began < 20


def test_an_expired_lease(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    lease = donor.lease()
    donor.gone = True
    with pytest.raises(LeaseGoneError):
        fetch_all(workspace, [lease])


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
    lease = donor.lease()
    fetch_all(workspace, [lease], streams=1)
    assert_staged(workspace, donor.lake)
    assert cut


@pytest.fixture
def given_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nodes of the donors that were given up."""
    nodes: list[str] = []
    monkeypatch.setattr(
        "sparktxlog.worker.copy.fetch.chunk_schedule._logger.info",
        lambda text, node, reason: nodes.append(node),
    )
    return nodes


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
    leases = [donor.lease() for donor in donors]
    fetch_all(workspace, leases, streams=4)
    assert_staged(workspace, donors[0].lake)
    assert len(donors[0].chunks) + len(donors[1].chunks) == CHUNKS
    assert donors[0].chunks and donors[1].chunks


@pytest.mark.parametrize("dying", [0, 1])
def test_one_of_two_donors_dies(
    new_donor: NewDonor, workspace: CopyWorkspace, dying: int, given_up: list[str]
) -> None:
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
    leases = [donor.lease() for donor in donors]
    fetch_all(workspace, leases, streams=4)
    assert_staged(workspace, donors[0].lake)
    assert given_up == ["AB"[dying]]


def test_another_file_of_the_same_name_is_not_taken(
    new_donor: NewDonor, workspace: CopyWorkspace
) -> None:
    donors = new_donor(), new_donor("B")
    other = donors[1].lake / "t" / "big.parquet"
    other.write_bytes(b"y" * other.stat().st_size)
    _when_matched(donors, lambda path, offset: "")
    leases = [donor.lease() for donor in donors]
    fetch_all(workspace, leases, streams=4)
    assert_staged(workspace, donors[0].lake)
    assert not [path for path, _ in donors[1].chunks if path == "big.parquet"]


def test_a_donor_whose_lease_is_gone(
    new_donor: NewDonor, workspace: CopyWorkspace, given_up: list[str]
) -> None:
    donors = new_donor(), new_donor("B", lease_s=0.15)
    leases = [donor.lease() for donor in donors]
    donors[1].gone = True
    donors[0].fault = lambda path, offset: time.sleep(0.03) or ""
    fetch_all(workspace, leases, streams=2)
    assert_staged(workspace, donors[0].lake)
    assert given_up == ["B"]


def test_a_donor_with_other_chunks_does_not_help(
    new_donor: NewDonor, workspace: CopyWorkspace
) -> None:
    donors = new_donor(), new_donor("B", chunk_bytes=2 * CHUNK)
    leases = [donor.lease() for donor in donors]
    fetch_all(workspace, leases, streams=2)
    assert_staged(workspace, donors[0].lake)
    assert len(donors[0].chunks) == CHUNKS


def test_a_frozen_donor_costs_its_silence_only(
    new_donor: NewDonor, workspace: CopyWorkspace, given_up: list[str]
) -> None:
    """The second donor takes over what the first one was asked for."""
    donors = new_donor(), new_donor("B")
    frozen = threading.Event()

    def freeze(path: str, offset: int) -> str:
        if len(donors[0].chunks) < 3:
            return ""
        frozen.set()
        return "hang"

    _when_matched(donors, freeze)
    # The other donor must leave it something.
    donors[1].fault = lambda path, offset: (frozen.wait(20) and "") or ""
    leases = [donor.lease() for donor in donors]
    began = time.monotonic()
    fetch_all(workspace, leases, streams=4, silence_s=0.7)
    assert time.monotonic() - began < 20
    assert_staged(workspace, donors[0].lake)
    assert given_up == ["A"]


def test_no_donor_is_left(new_donor: NewDonor, workspace: CopyWorkspace) -> None:
    donors = new_donor(), new_donor("B")
    leases = [donor.lease() for donor in donors]
    wanted = select_all(workspace, leases[0])
    for donor in donors:
        donor.die()
    with pytest.raises(TransportError, match="no donor is left"):
        fetch_files(workspace, leases, wanted)


def test_no_grant_at_all(workspace: CopyWorkspace) -> None:
    with pytest.raises(TransportError, match="no donor granted a lease"):
        fetch_files(workspace, [], Wanted(tasks=(), works=()))


# -- an end from outside, parts --------------------------------------------------------------------


def test_a_caller_may_end_a_fetch(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """What is done is kept."""
    donor.fault = lambda path, offset: "hang" if len(donor.chunks) >= 8 else ""

    def stop(here: int, total: int) -> None:
        if len(donor.chunks) >= 8:
            raise KeyboardInterrupt

    lease = donor.lease()
    with pytest.raises(KeyboardInterrupt):
        fetch_all(workspace, [lease], streams=2, progress=stop)
    donor.fault = lambda path, offset: ""
    assert fetch_all(workspace, [lease]).reused_bytes > 0
    assert_staged(workspace, donor.lake)


def _run(plan: FetchPlan) -> FetchedPart:
    """Run a part as Spark does: each attempt gets the plan anew."""
    return pickle.loads(pickle.dumps(run_partition(pickle.loads(pickle.dumps(plan)))))


def test_parts_for_executors(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """Plans survive pickling, parts are disjoint, and the driver only proves and names."""
    lease = donor.lease()
    wanted = select_all(workspace, lease)
    plans = plan_parts(workspace, [lease], wanted, parts=3)
    assert len(plans) == 3
    done = [_run(plan) for plan in plans]
    assert sum(len(work.digests) for part in done for work in part.works) == CHUNKS
    assert len(donor.chunks) == CHUNKS
    assert sum(part.fetched.fetched_bytes for part in done) == SIZE
    keep_parts(workspace, wanted, done)
    stats = fetch_files(workspace, [lease], wanted)
    assert (stats.fetched_bytes, stats.reused_bytes) == (0, SIZE)
    assert_staged(workspace, donor.lake)


def test_a_part_that_failed_is_made_up_for(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    lease = donor.lease()
    wanted = select_all(workspace, lease)
    first, *_ = plan_parts(workspace, [lease], wanted, parts=3)
    done = _run(first)
    keep_parts(workspace, wanted, [done])
    assert fetch_files(workspace, [lease], wanted).fetched_bytes == (
        SIZE - done.fetched.fetched_bytes
    )
    assert len(donor.chunks) == CHUNKS
    assert_staged(workspace, donor.lake)


def test_a_part_that_is_run_again(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """A Spark task that failed goes on from the journals of its first attempt."""
    lease = donor.lease()
    wanted = select_all(workspace, lease)
    (plan,) = plan_parts(workspace, [lease], wanted, parts=1)
    donor.fault = lambda path, offset: "500 x" if len(donor.chunks) >= 12 else ""
    with pytest.raises(TransportError):
        _run(plan)
    donor.fault = lambda path, offset: ""
    done = _run(plan)
    assert sum(len(work.digests) for work in done.works) == CHUNKS == len(donor.chunks)
    assert 0 < done.fetched.fetched_bytes < SIZE
    keep_parts(workspace, wanted, [done])
    fetch_files(workspace, [lease], wanted)
    assert_staged(workspace, donor.lake)


def test_chunks_that_the_driver_does_not_see_are_fetched(
    donor: StandInDonor, workspace: CopyWorkspace
) -> None:
    """Executors have another disk under the same path."""
    lease = donor.lease()
    wanted = select_all(workspace, lease)
    done = [_run(plan) for plan in plan_parts(workspace, [lease], wanted, parts=2)]
    for part in workspace.root.rglob("*.part"):
        part.unlink()
    keep_parts(workspace, wanted, done)
    assert fetch_files(workspace, [lease], wanted).fetched_bytes == SIZE
    assert_staged(workspace, donor.lake)


def test_an_executor_that_does_not_see_the_lake(
    donor: StandInDonor, workspace: CopyWorkspace, tmp_path: Path
) -> None:
    lease = donor.lease()
    (plan,) = plan_parts(workspace, [lease], select_all(workspace, lease), parts=1)
    with pytest.raises(StorageError, match="does not see the lake"):
        _run(replace(plan, workspace=CopyWorkspace(tmp_path / "elsewhere", "copy1")))


def test_wrong_chunks_of_an_earlier_attempt(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """A part that fits its journal but is of another file: fetched again as a whole."""
    lease = donor.lease()
    donor.fault = _at(("big.parquet", 9 * CHUNK), "500 internal")
    with pytest.raises(TransportError):
        fetch_all(workspace, [lease], streams=1)
    donor.fault = lambda path, offset: ""
    other = donor.lake / "t" / "big.parquet"
    other.write_bytes(b"z" * other.stat().st_size)
    fetch_all(workspace, [lease], streams=2)
    assert_staged(workspace, donor.lake)


def test_a_file_that_never_fits_its_digest(
    donor: StandInDonor, workspace: CopyWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(donor, "digest", lambda table, path: "00" * 32)
    lease = donor.lease()
    with pytest.raises(DamagedChunkError, match="fetched 2 times"):
        fetch_all(workspace, [lease], streams=2)


def test_errors_are_of_one_family() -> None:
    assert issubclass(PeerTimeoutError, TransportError)
    assert issubclass(DamagedChunkError, TransportError)
