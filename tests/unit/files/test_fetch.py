"""Whole copies, faults of donors, the next donor, parts for executors."""

from __future__ import annotations

import pickle
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.stand_in_donor import StandInDonor
from tests.unit.files.conftest import (
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
from sparktxlog.files.fetch import (
    FetchPart,
    fetch_files,
    fetch_part,
    split,
    unstaged,
)
from sparktxlog.files.selection import Wanted
from sparktxlog.files.tasks import Fetched
from sparktxlog.files.workspace import CopyWorkspace
from sparktxlog.model.copying import Lease

SIZE = sum(size for size, _ in FILES.values())
CHUNKS = sum(-(-size // CHUNK) for size, _ in FILES.values())

NewDonor = Callable[..., StandInDonor]


def test_a_whole_copy(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    lease = donor.lease()
    shown: list[tuple[int, int]] = []
    stats = fetch_all(workspace, lease, streams=3, progress=lambda *s: shown.append(s))
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
    stats = fetch_all(workspace, lease, streams=2)
    assert_staged(workspace, donor.lake)
    text = sum(size for size, compressible in FILES.values() if compressible)
    if compression == "none":
        assert stats.wire_bytes == stats.fetched_bytes == SIZE
    else:
        assert SIZE - text < stats.wire_bytes < SIZE - text + 1_000


def test_a_second_fetch_has_nothing_to_do(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    lease = donor.lease()
    fetch_all(workspace, lease)
    asked = len(donor.chunks)
    stats = fetch_all(workspace, lease)
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

        def fault(path: str, offset: int, sent: int = number) -> str:
            return "500 internal" if len(donor.chunks) >= sent else ""

        donor.fault = fault
        with pytest.raises(TransportError):
            fetch_all(space, lease, streams=streams)
        donor.fault = lambda path, offset: ""
        stats = fetch_all(space, lease, streams=streams)
        assert_staged(space, donor.lake)
        twice = sum(count - 1 for count in Counter(donor.chunks).values())
        assert twice <= streams, number
        assert stats.fetched_bytes + stats.reused_bytes == SIZE


def test_another_attempt_completes_a_file_meanwhile(
    donor: StandInDonor, workspace: CopyWorkspace
) -> None:
    """Spark may run a task twice: what the slower one writes after that is no whole file."""
    lease = donor.lease()
    (key,) = (task.key for task in tasks_of(lease) if task.path == "big.parquet")
    part, staged = workspace.part(*key), workspace.staged(*key)

    def complete(path: str, offset: int) -> str:
        if (path, offset) == ("big.parquet", CHUNK):
            part.unlink()
            shutil.copy2(donor.lake / key[0] / path, staged)
        return ""

    donor.fault = complete
    fetch_all(workspace, lease, streams=1)
    assert_staged(workspace, donor.lake)
    assert not part.exists()


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
    stats = fetch_all(workspace, lease, streams=2)
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
        fetch_all(workspace, lease, streams=2)
    assert not list(workspace.root.rglob("big.parquet"))
    donor.fault = lambda path, offset: ""
    donor.chunks.clear()
    stats = fetch_all(workspace, lease, streams=2)
    assert_staged(workspace, donor.lake)
    assert stats.reused_bytes >= 7 * CHUNK
    assert ("big.parquet", 0) not in donor.chunks


def test_a_silent_donor_is_given_up(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """The socket looks fine."""
    donor.fault = _at(("big.parquet", 2 * CHUNK), "hang")
    lease = donor.lease()
    began = time.monotonic()
    with pytest.raises(TransportError, match=r"silent for 0\.5 s"):
        fetch_all(workspace, lease, streams=2, silence_s=0.5)
    assert time.monotonic() - began < 20


def test_an_expired_lease(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    lease = donor.lease()
    donor.gone = True
    with pytest.raises(LeaseGoneError):
        fetch_all(workspace, lease)


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
    fetch_all(workspace, lease, streams=1)
    assert_staged(workspace, donor.lake)
    assert cut


def test_the_next_donor_goes_on(new_donor: NewDonor, workspace: CopyWorkspace) -> None:
    """Equal files and chunks are not fetched again, others are."""
    first, second = new_donor(), new_donor("B")
    other = second.lake / "t" / "a" / "exact.parquet"
    other.write_bytes(b"y" * other.stat().st_size)
    first.fault = _at(("big.parquet", 9 * CHUNK), "cut")
    with pytest.raises(TransportError):
        fetch_all(workspace, first.lease(), streams=1)
    stats = fetch_all(workspace, second.lease(), streams=2)
    assert_staged(workspace, second.lake)
    assert {path for path, _ in second.chunks} >= {"a/exact.parquet", "big.parquet"}
    assert ("big.parquet", 8 * CHUNK) not in second.chunks
    assert stats.fetched_bytes + stats.reused_bytes == SIZE


# -- an end from outside, parts --------------------------------------------------------------------


def test_a_caller_may_end_a_fetch(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """What is done is kept."""
    donor.fault = lambda path, offset: "hang" if len(donor.chunks) >= 8 else ""

    def stop(here: int, total: int) -> None:
        if len(donor.chunks) >= 8:
            raise KeyboardInterrupt

    lease = donor.lease()
    with pytest.raises(KeyboardInterrupt):
        fetch_all(workspace, lease, streams=2, progress=stop)
    donor.fault = lambda path, offset: ""
    assert fetch_all(workspace, lease).reused_bytes > 0
    assert_staged(workspace, donor.lake)


def _run(part: FetchPart) -> Fetched:
    """Run a part as Spark does: each attempt gets the part anew."""
    return fetch_part(pickle.loads(pickle.dumps(part)))


def _split(workspace: CopyWorkspace, lease: Lease, wanted: Wanted, parts: int) -> list[FetchPart]:
    return split(workspace, lease, wanted, parts=parts, streams=2)


def test_parts_for_executors(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """Parts survive pickling, are disjoint, and leave the driver nothing."""
    lease = donor.lease()
    wanted = select_all(workspace, lease)
    parts = _split(workspace, lease, wanted, 3)
    assert len(parts) == 3 and max(len(part.works) for part in parts) < len(FILES)
    assert sum(_run(part).fetched_bytes for part in parts) == SIZE
    assert len(donor.chunks) == CHUNKS
    assert unstaged(workspace, wanted.works) == ()
    assert_staged(workspace, donor.lake)
    assert len(_split(workspace, lease, wanted, 99)) == len(FILES)


def test_a_part_that_is_run_again(donor: StandInDonor, workspace: CopyWorkspace) -> None:
    """A Spark task that failed does not fetch staged files again; the driver fetches the rest."""
    lease = donor.lease()
    wanted = select_all(workspace, lease)
    first, second = _split(workspace, lease, wanted, 2)
    assert [work.task.path for work in first.works] == ["big.parquet"]
    donor.fault = _at(("a/exact.parquet", CHUNK), "500 x")
    with pytest.raises(TransportError):
        _run(replace(second, streams=1))
    donor.fault = lambda path, offset: ""
    staged = len(second.works) - len(unstaged(workspace, second.works))
    assert staged > 0
    _run(second)
    left = replace(wanted, works=unstaged(workspace, wanted.works))
    assert [work.task.path for work in left.works] == ["big.parquet"]
    assert fetch_files(workspace, lease, left).fetched_bytes == FILES["big.parquet"][0]
    assert_staged(workspace, donor.lake)


def test_an_executor_that_does_not_see_the_lake(
    donor: StandInDonor, workspace: CopyWorkspace, tmp_path: Path
) -> None:
    lease = donor.lease()
    (part,) = _split(workspace, lease, select_all(workspace, lease), 1)
    with pytest.raises(StorageError, match="does not see the lake"):
        _run(replace(part, workspace=CopyWorkspace(tmp_path / "elsewhere", "copy1")))


def test_errors_are_of_one_family() -> None:
    assert issubclass(PeerTimeoutError, TransportError)
    assert issubclass(DamagedChunkError, TransportError)
