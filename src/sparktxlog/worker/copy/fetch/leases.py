"""Leases kept alive in the background, and given back.

Each request to a donor renews its lease; between requests, while Spark works or other donors
serve, a `LeaseKeeper` does.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from sparktxlog.errors import LeaseGoneError, TxLogError, UnauthorizedError
from sparktxlog.model.copying import Grant
from sparktxlog.supervision import foreseen
from sparktxlog.worker.copy.fetch.chunks import DonorLink

#: A lease is renewed so many times in its life.
_RENEWALS = 3


class LeaseKeeper:
    """Renews leases for as long as its `with` block runs; may be nested.

    Args:
        grants: Of the donors.
        silence_s: Longest silence of a donor, seconds.
    """

    def __init__(self, grants: Sequence[Grant], *, silence_s: float = 30.0) -> None:
        self._links = [DonorLink(grant, silence_s=silence_s) for grant in grants]
        self._pause_s = min((grant.lease_s for grant in grants), default=1.0) / _RENEWALS
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(max(1, len(grants)), thread_name_prefix="leases")
        self._futures: list[Future[None]] = []
        #: Index of a grant → why its lease cannot be kept; only grows.
        self.gone: dict[int, TxLogError] = {}
        #: Index of a grant → what its last renewal failed of that may go by.
        self.unanswered: dict[int, TxLogError] = {}

    def __enter__(self) -> Self:
        self._futures = [
            self._pool.submit(self._keep, index, link) for index, link in enumerate(self._links)
        ]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        for link in self._links:
            link.abort()
        self._pool.shutdown(wait=True)
        for future in self._futures:
            future.result()

    def _keep(self, index: int, link: DonorLink) -> None:
        # A thread per donor: one that is silent must not cost the others their leases.
        try:
            while index not in self.gone and not self._over.wait(self._pause_s):
                self._renew(index, link)
        finally:
            link.close()

    def _renew(self, index: int, link: DonorLink) -> None:
        try:
            link.renew()
        except (LeaseGoneError, UnauthorizedError) as error:
            self.gone[index] = error
        except Exception as error:  # noqa: BLE001
            # It may answer the next time; whether it is of use, those know that read from it.
            self.unanswered[index] = foreseen(error)


def release_leases(grants: Sequence[Grant], *, silence_s: float = 5.0) -> dict[str, str]:
    """Give leases back when a copy is over; return node → why it could not, none is harmless.

    A lease that is not given back expires by itself.
    """
    failed: dict[str, str] = {}
    for grant in grants:
        link = DonorLink(grant, silence_s=silence_s)
        try:
            link.release()
        except TxLogError as error:
            failed[grant.node_id] = error.message
        finally:
            link.close()
    return failed
