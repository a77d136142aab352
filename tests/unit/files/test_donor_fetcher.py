"""A donor's files in the hands of the one who copies: from the ticket to the removal."""

from __future__ import annotations

import shutil

import pytest
from tests.support.stand_in_donor import StandInDonor
from tests.unit.files.conftest import CHUNK, FILES, assert_staged

from sparktxlog.errors import TransportError
from sparktxlog.files.workspace import CopyWorkspace
from sparktxlog.model.copying import CopyTicket, Decision
from sparktxlog.worker.copy.donor_fetcher import DonorFetcher

SIZE = sum(size for size, _ in FILES.values())


def _ticket(donor: StandInDonor) -> CopyTicket:
    decision = Decision(worker_id="w", plan="copy", reason="")
    return CopyTicket(copy_id="c", decision=decision, lease=donor.lease(), streams=2)


def test_a_copy_that_is_begun_anew_takes_over_what_the_last_one_left(
    donor: StandInDonor, workspace: CopyWorkspace
) -> None:
    ticket = _ticket(donor)
    files = ticket.lease.tables[0].files
    own = workspace.lake / "t" / "a" / "exact.parquet"
    own.parent.mkdir(parents=True)
    shutil.copy(donor.lake / "t" / "a" / "exact.parquet", own)
    first = DonorFetcher(workspace.lake, "first")
    first.hold(ticket)
    donor.fault = lambda path, at: "500 x" if (path, at) == ("big.parquet", 9 * CHUNK) else ""
    with pytest.raises(TransportError):
        first.fetch(first.select("t", files))
    first.release()
    assert donor.released
    donor.fault = lambda path, at: ""
    second = DonorFetcher(workspace.lake, workspace.copy_id)
    second.hold(ticket)
    wanted = second.select("t", files)
    second.require_space([wanted])
    fetched = second.fetch(wanted)
    second.release()
    assert_staged(workspace, donor.lake)
    assert workspace.staged("t", "a/exact.parquet").samefile(own)
    assert (fetched.size_bytes, fetched.fetched_bytes + fetched.reused_bytes) == (SIZE, SIZE)
    # What came, and the own file.
    assert fetched.reused_bytes >= 11 * CHUNK
    second.remove()
    assert own.exists() and CopyWorkspace.found(workspace.lake) == []
