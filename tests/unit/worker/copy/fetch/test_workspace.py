"""The workspace of a copy: names, journals, adoption, cleanup."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.node_processes import wait_until
from tests.support.stand_in_donor import Fault, StandInDonor
from tests.unit.worker.copy.fetch.conftest import CHUNK, FILES, assert_staged, fetch_all

from sparktxlog.errors import RemoteProtocolError, TransportError
from sparktxlog.worker.copy.fetch.tasks import ChunkRecord
from sparktxlog.worker.copy.fetch.workspace import CopyWorkspace, remove_workspaces

SIZE = sum(size for size, _ in FILES.values())


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a\0b", "x.part"])
def test_paths_that_lead_elsewhere(workspace: CopyWorkspace, path: str) -> None:
    with pytest.raises(RemoteProtocolError):
        workspace.staged("t", path)


def test_a_torn_line_swallows_no_other(workspace: CopyWorkspace) -> None:
    record = ChunkRecord(table="t", path="p", chunk=3, digest="ab")
    with workspace.journal("0") as journal:
        journal.append(record)
    file = workspace.root / "chunks-0.jsonl"
    file.write_bytes(file.read_bytes() + b'{"table":"t","pa')
    with workspace.journal("0") as journal:
        journal.append(ChunkRecord(table="t", path="p", chunk=4, digest="cd"))
    assert workspace.chunk_records() == {("t", "p"): {3: {"ab"}, 4: {"cd"}}}


def break_off(donor: StandInDonor, older: CopyWorkspace, fault: Fault) -> None:
    """Fetch into an older workspace until a fault ends it."""
    donor.fault = fault
    lease = donor.lease()
    with pytest.raises(TransportError):
        fetch_all(older, [lease], streams=1)
    donor.fault = lambda path, offset: ""


def change_a_file(donor: StandInDonor) -> None:
    """Give a file other bytes, of the same number, and begin another lease."""
    changed = donor.lake / "t" / "a" / "exact.parquet"
    changed.write_bytes(b"n" * changed.stat().st_size)
    donor.lease_id = "another"
    donor.chunks.clear()


def test_adopting_an_older_copy(
    new_donor: Callable[..., StandInDonor], workspace: CopyWorkspace
) -> None:
    """Whole files and parts serve a new lease; a file that changed since is fetched."""
    donor = new_donor()
    older = CopyWorkspace(workspace.lake, "older")
    others = [older.staged("t", path) for path in FILES if path != "big.parquet"]

    def once_the_others_are_proved(path: str, offset: int) -> str:
        if (path, offset) != ("big.parquet", 9 * CHUNK):
            return ""
        # Chunks in place are no file yet: which files are whole would be a matter of luck.
        wait_until(lambda: all(file.exists() for file in others), what="the others are staged")
        return "500 x"

    break_off(donor, older, once_the_others_are_proved)
    change_a_file(donor)
    lease = donor.lease()
    workspace.adopt_older()
    assert [space.copy_id for space in CopyWorkspace.found(workspace.lake)] == ["copy1"]
    workspace.adopt_older()
    stats = fetch_all(workspace, [lease])
    assert_staged(workspace, donor.lake)
    assert ("big.parquet", 0) not in donor.chunks
    assert ("a/exact.parquet", 0) in donor.chunks
    # A whole file that is another one by now was never counted as found.
    assert stats.fetched_bytes + stats.reused_bytes == SIZE
    assert stats.fetched_bytes == 2 * CHUNK + FILES["big.parquet"][0] - 9 * CHUNK


def test_a_part_of_a_file_that_changed_is_fetched_twice(
    new_donor: Callable[..., StandInDonor], workspace: CopyWorkspace
) -> None:
    """Chunks fit or not only as a whole file: what was taken for found is asked for again."""
    donor = new_donor()
    older = CopyWorkspace(workspace.lake, "older")
    break_off(
        donor, older, lambda path, at: "500 x" if (path, at) == ("a/exact.parquet", CHUNK) else ""
    )
    change_a_file(donor)
    lease = donor.lease()
    workspace.adopt_older()
    stats = fetch_all(workspace, [lease])
    assert_staged(workspace, donor.lake)
    asked = [offset for path, offset in donor.chunks if path == "a/exact.parquet"]
    assert sorted(asked) == [0, CHUNK, CHUNK]
    # The chunk that seemed to be here, and the one fetched beside it.
    assert stats.fetched_bytes + stats.reused_bytes == SIZE + 2 * CHUNK


def test_a_name_is_given_after_its_record(
    donor: StandInDonor, workspace: CopyWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between both, a file of another donor would be taken for one fetched before."""
    path = "a/exact.parquet"
    fetch_all(workspace, [donor.lease()])
    theirs = donor.lake / "t" / path
    first, status = theirs.read_bytes(), theirs.stat()
    theirs.write_bytes(b"other" + first[5:])

    def named_and_killed(self: Path, target: Path) -> None:
        os.rename(self, target)
        raise RuntimeError("killed")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(Path, "replace", named_and_killed)
        fetch_all(workspace, [donor.lease()])
    assert workspace.staged("t", path).read_bytes()[:5] == b"other"
    theirs.write_bytes(first)
    os.utime(theirs, ns=(status.st_mtime_ns, status.st_mtime_ns))
    fetch_all(workspace, [donor.lease()])
    assert_staged(workspace, donor.lake)


def test_cleanup(workspace: CopyWorkspace) -> None:
    for name in ("a", "b", "c"):
        with CopyWorkspace(workspace.lake, name).journal("0"):
            pass
    assert {space.copy_id for space in CopyWorkspace.found(workspace.lake)} == {"a", "b", "c"}
    remove_workspaces(workspace.lake)
    assert CopyWorkspace.found(workspace.lake) == []
    assert CopyWorkspace.found(workspace.lake / "none") == []
