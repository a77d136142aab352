"""The workspace of a copy: names, adoption, cleanup."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from tests.support.node_processes import wait_until
from tests.support.stand_in_donor import Fault, StandInDonor
from tests.unit.files.conftest import CHUNK, FILES, assert_staged, fetch_all

from sparktxlog.errors import RemoteProtocolError, TransportError
from sparktxlog.files.workspace import CopyWorkspace, remove_workspaces

SIZE = sum(size for size, _ in FILES.values())


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a\0b", "x.part"])
def test_paths_that_lead_elsewhere(workspace: CopyWorkspace, path: str) -> None:
    with pytest.raises(RemoteProtocolError):
        workspace.staged("t", path)


def break_off(donor: StandInDonor, older: CopyWorkspace, fault: Fault) -> None:
    """Fetch into an older workspace until a fault ends it."""
    donor.fault = fault
    lease = donor.lease()
    with pytest.raises(TransportError):
        fetch_all(older, lease, streams=1)
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
    stats = fetch_all(workspace, lease)
    assert_staged(workspace, donor.lake)
    assert ("big.parquet", 0) not in donor.chunks
    assert ("a/exact.parquet", 0) in donor.chunks
    # A whole file that is another one by now was never counted as found.
    assert stats.fetched_bytes + stats.reused_bytes == SIZE
    assert stats.fetched_bytes == 2 * CHUNK + FILES["big.parquet"][0] - 9 * CHUNK


def test_chunks_of_another_file_are_not_taken(
    new_donor: Callable[..., StandInDonor], workspace: CopyWorkspace
) -> None:
    """Those of an earlier attempt belong to a file that changed since."""
    donor = new_donor()
    older = CopyWorkspace(workspace.lake, "older")
    break_off(
        donor, older, lambda path, at: "500 x" if (path, at) == ("a/exact.parquet", CHUNK) else ""
    )
    change_a_file(donor)
    workspace.adopt_older()
    stats = fetch_all(workspace, donor.lease())
    assert_staged(workspace, donor.lake)
    asked = [offset for path, offset in donor.chunks if path == "a/exact.parquet"]
    assert sorted(asked) == [0, CHUNK]
    assert stats.fetched_bytes + stats.reused_bytes == SIZE


def test_a_staged_file_of_another_donor_is_not_taken(
    donor: StandInDonor, workspace: CopyWorkspace
) -> None:
    """Not even if it was named and its process killed at once, and sizes and times are equal."""
    path = "a/exact.parquet"
    fetch_all(workspace, donor.lease())
    theirs = donor.lake / "t" / path
    status = theirs.stat()
    theirs.write_bytes(b"other" + theirs.read_bytes()[5:])
    os.utime(theirs, ns=(status.st_mtime_ns, status.st_mtime_ns))
    assert fetch_all(workspace, donor.lease()).fetched_bytes == 2 * CHUNK
    assert_staged(workspace, donor.lake)


def test_cleanup(workspace: CopyWorkspace) -> None:
    for name in ("a", "b", "c"):
        CopyWorkspace(workspace.lake, name).root.mkdir(parents=True)
    assert {space.copy_id for space in CopyWorkspace.found(workspace.lake)} == {"a", "b", "c"}
    remove_workspaces(workspace.lake)
    assert CopyWorkspace.found(workspace.lake) == []
    assert CopyWorkspace.found(workspace.lake / "none") == []
