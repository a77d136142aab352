"""One connection to a donor: bounds on what it may say, trickling, zstd."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import zstandard
from tests.support.node_processes import wait_until
from tests.support.stand_in_donor import StandInDonor
from tests.unit.files.conftest import CHUNK, FILES

from sparktxlog.errors import (
    PeerTimeoutError,
    TransportError,
    UnauthorizedError,
    UnreachableError,
)
from sparktxlog.files.donor_link import (
    DonorLink,
    LeaseKeeper,
    _inflate,
    digest_batches,
)
from sparktxlog.files.tasks import FileTask
from sparktxlog.model.copying import Lease


def test_lease_calls(donor: StandInDonor) -> None:
    link = DonorLink(donor.lease(), silence_s=5)
    link.renew()
    size = FILES["big.parquet"][0]
    task = FileTask(table="t", path="big.parquet", size_bytes=size, modified_at=0)
    digests = link.digests([task])[task.key]
    assert len(digests) == 21 and "".join(digests) == donor.digest("t", "big.parquet")
    with pytest.raises(TransportError, match="other digests than those of 1 files"):
        link.digests([replace(task, size_bytes=size + CHUNK)])
    link.release()
    link.close()
    assert (donor.renewals, donor.released) == (1, True)


def test_digests_are_asked_for_in_batches() -> None:
    tasks = [
        FileTask(table="t", path=str(n), size_bytes=size, modified_at=0)
        for n, size in enumerate([1] * 2_500 + [200 << 20] * 3)
    ]
    assert [len(batch) for batch in digest_batches(tasks)] == [1_000, 1_000, 501, 1, 1]
    assert list(digest_batches([])) == []


def test_leases_are_renewed_and_given_back(
    new_donor: Callable[..., StandInDonor], caplog: pytest.LogCaptureFixture
) -> None:
    donor, other = new_donor(lease_s=0.15), new_donor("C")
    other.gone = True
    keepers = LeaseKeeper(donor.lease()), LeaseKeeper(other.lease())
    wait_until(lambda: donor.renewals >= 2, what="renewals")
    with caplog.at_level(logging.INFO):
        for keeper in keepers:
            keeper.release()
    assert (donor.released, other.released) == (True, False)
    assert [r.args[0] for r in caplog.records if r.args and isinstance(r.args, tuple)] == ["C"]


def test_another_token(donor: StandInDonor) -> None:
    link = DonorLink(replace(donor.lease(), token="wrong"), silence_s=5)
    with pytest.raises(UnauthorizedError) as refused:
        link.renew()
    assert "wrong" not in str(refused.value)
    link.close()


def test_nobody_listens(new_donor: Callable[..., StandInDonor]) -> None:
    donor = new_donor()
    lease = donor.lease()
    donor.die()
    with pytest.raises(UnreachableError):
        DonorLink(lease, silence_s=5).renew()


def test_an_idle_connection_that_the_donor_closed(donor: StandInDonor) -> None:
    link = DonorLink(donor.lease(), silence_s=5)
    link.renew()
    donor.cut()
    time.sleep(0.05)
    link.renew()
    link.close()
    assert donor.renewals == 2


def test_inflating_is_bounded() -> None:
    """Neither a declared size nor a bomb makes more than the buffer of it."""
    plain = b"abc" * 1_000
    packed = memoryview(zstandard.compress(plain))
    once = zstandard.ZstdDecompressor()
    into = memoryview(bytearray(3_000))
    assert _inflate(once, packed, into) == 3_000
    assert bytes(into) == plain
    assert _inflate(once, packed, memoryview(bytearray(2_000))) == 2_001
    assert _inflate(once, packed, memoryview(bytearray(4_000))) == 3_000
    bomb = memoryview(zstandard.compress(bytes(1 << 28)))
    assert _inflate(once, bomb, memoryview(bytearray(1_000))) == 1_001
    with pytest.raises(zstandard.ZstdError):
        _inflate(once, memoryview(b"no zstd at all"), into)


class _Trickle(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(CHUNK))
        self.end_headers()
        try:
            for _ in range(600):
                self.wfile.write(b"x")
                time.sleep(0.05)
        except OSError:
            self.close_connection = True


@pytest.fixture
def trickle(donor: StandInDonor) -> Iterator[Lease]:
    server = HTTPServer(("127.0.0.1", 0), _Trickle)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield replace(donor.lease(), url=f"http://127.0.0.1:{server.server_address[1]}")
    server.shutdown()
    server.server_close()


def test_a_donor_that_trickles_is_overdue(trickle: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps the socket alive, and not the donor."""
    monkeypatch.setattr("sparktxlog.files.donor_link.SLOWEST_BYTES_PER_S", 1 << 20)
    link = DonorLink(trickle, silence_s=0.3)
    failed: list[TransportError] = []

    def fetch() -> None:
        try:
            link.fetch("t", "big.parquet", 0, memoryview(bytearray(CHUNK)))
        except TransportError as error:
            failed.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    deadline = time.monotonic() + 20
    while not link.overdue(time.monotonic()) and time.monotonic() < deadline:
        time.sleep(0.02)
    link.abort()
    thread.join(10)
    assert isinstance(failed[0], PeerTimeoutError)
    assert "less than" in str(failed[0])


def test_a_donor_that_yields_is_asked_again(donor: StandInDonor) -> None:
    answers = iter(["503 donor-yields", "503 donor-yields", "", "503 busy"])
    donor.fault = lambda path, offset: next(answers)
    link = DonorLink(donor.lease(), silence_s=5)
    into = memoryview(bytearray(CHUNK))
    link.fetch("t", "big.parquet", 0, into)
    with pytest.raises(TransportError, match="503"):
        link.fetch("t", "big.parquet", 0, into)
    asked = []

    def yield_after_an_abort(path: str, _: int) -> str:
        asked.append(path)
        link.abort()
        return "503 donor-yields"

    donor.fault = yield_after_an_abort
    with pytest.raises(TransportError):
        link.fetch("t", "big.parquet", 0, into)
    assert len(asked) == 1
    link.close()
