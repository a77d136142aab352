"""Copies at the target's own node: it finds donors and passes on their leases.

The node only arranges a copy; the worker fetches straight from the donors.  The node compares each
offer with its own log before it passes it on: another log, or another history with the same
positions, must never reach a replica.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace

import structlog

from sparktxlog.errors import ExpiredError, LocalProtocolError, RemoteProtocolError, TxLogError
from sparktxlog.model.copying import CatchUpKind, CopyTicket, Decision, Lease
from sparktxlog.model.replicas import name_of, site_of
from sparktxlog.runtime.donors.donor import Donor
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.replicas.planning import Planning
from sparktxlog.transport.peer_link import PeerLink

_log = structlog.get_logger("sparktxlog.copies")

#: Seconds that a donor may be ahead of this node's queue: a few rounds.
_REACH_S = 10.0


class CopyOrders:
    """Makes tickets; belongs to the event loop."""

    def __init__(self, base: Foundation, planner: Planning, own: Donor) -> None:
        self._base = base
        self._own = own
        self._config = base.config
        self.planner = planner

    async def order(
        self, worker_id: str, *, forced: bool, donor: str = "", failed: Collection[str] = ()
    ) -> CopyTicket:
        """Plan a copy for a worker of this site and return its ticket.

        Args:
            forced: Copy even if a replay is possible.
            donor: The replica that is right, according to an operator; empty = not named.
            failed: Donors that failed the worker in this copy; they are asked last.

        Raises:
            LocalProtocolError: No copy is possible or necessary, with the reason (definite).
        """
        decision, donors = await self.planner.decide(worker_id, forced, donor)
        if decision.plan != CatchUpKind.COPY.value or not donors:
            raise LocalProtocolError(
                f"no copy for worker {worker_id!r}: {decision.reason}",
                hint="See `sparktxlog status` for the replicas that could be copied.",
                worker_id=worker_id,
                plan=decision.plan,
            )
        donors.sort(key=lambda one: one in failed)
        return await self.ticket(decision, donors, named=bool(donor))

    async def ticket(
        self, decision: Decision, donors: Sequence[str], *, named: bool = False
    ) -> CopyTicket:
        """Return a ticket with a lease of the first donor that gives one.

        Args:
            donors: Replicas, best first.
            named: An operator chose the donor, so it lends even if another replica differs.

        Raises:
            LocalProtocolError: None of them gave a lease; the message has the reasons (definite).
        """
        failures: list[str] = []
        for donor in donors:
            try:
                lease = await self._lease(donor, decision, named)
                break
            except TxLogError as error:
                _log.warning("no lease", donor=donor, worker=decision.worker_id, reason=str(error))
                failures.append(f"{donor}: {error.message}")
        else:
            raise LocalProtocolError(
                f"no donor for worker {decision.worker_id!r}: "
                f"{'; '.join(failures) or 'none is known'}",
                hint="A donor is a site whose worker reports IN_SYNC and whose node is linked.",
                worker_id=decision.worker_id,
                donors=list(donors),
            )
        ticket = CopyTicket(
            copy_id=uuid.uuid4().hex,
            decision=decision,
            lease=lease,
            streams=self._config.replication_streams,
        )
        _log.info(
            "copy arranged",
            copy=ticket.copy_id,
            worker=decision.worker_id,
            donor=lease.replica,
            position=lease.position,
            reason=decision.reason,
        )
        return ticket

    async def _lease(self, donor: str, decision: Decision, named: bool) -> Lease:
        site, name = site_of(donor), name_of(donor)
        worker_id, only = decision.worker_id, decision.only
        if site == self._config.node_id:
            own = await self._own.lend(worker_id, named=named, name=name, only=only, here=True)
            try:
                await self._check(own, site, [own.url])
            except BaseException:
                self._own.release(own.lease_id, own.token)
                raise
            return own
        link = self._base.links.get(site)
        if link is None:
            raise LocalProtocolError(f"node {site[:80]!r} is no peer of this one", donor=donor)
        lease = await link.request_lease(worker_id, named=named, name=name, only=only)
        try:
            await self._check(lease, site, link.urls)
        except BaseException:
            await self._give_back(link, lease)
            raise
        # The donor names its first address; the one in use certainly leads there.
        return replace(lease, url=link.url)

    async def _check(self, lease: Lease, donor: str, urls: Sequence[str]) -> None:
        """Compare a lease with what this node knows itself.

        Raises:
            RemoteProtocolError: It belongs to another log, history or configuration (definite).
        """
        config = self._config
        for what, theirs, ours in (
            ("node", lease.node_id, donor),
            ("URL", lease.url, lease.url if lease.url in urls else " or ".join(urls)),
            ("log_id", lease.log_id, config.log_id),
            (
                "replication.chunk-bytes",
                str(lease.chunk_bytes),
                str(config.replication_chunk_bytes),
            ),
        ):
            if theirs != ours:
                raise RemoteProtocolError(
                    f"{donor!r} offers a replica with {what} {theirs[:200]!r}, here it is {ours!r}",
                    donor=donor,
                )
        reached = await self._base.ordered.reach(lease.position, _REACH_S)
        if reached < lease.position:
            raise RemoteProtocolError(
                f"{donor!r} offers position {lease.position}, the queue here ends at {reached}",
                hint="Wait until this node has caught up.",
                donor=donor,
            )
        try:
            here = await self._base.run_blocking(self._base.journal.read_hash_at, lease.position)
        except ExpiredError as error:
            raise RemoteProtocolError(
                f"{donor!r} offers position {lease.position}, which is too old to be compared with "
                f"this node's history: {error.message}",
                hint="Let the donor's worker catch up, then try again.",
                donor=donor,
            ) from error
        if here is None or here.hex() != lease.chain_hash:
            found = "none" if here is None else here.hex()[:12]
            raise RemoteProtocolError(
                f"{donor!r} offers another history: hash {lease.chain_hash[:12]} at position "
                f"{lease.position}, here {found}",
                donor=donor,
            )

    @staticmethod
    async def _give_back(link: PeerLink, lease: Lease) -> None:
        try:
            await link.release_lease(lease)
        except TxLogError as error:
            _log.info("lease left to expire", donor=link.node_id, reason=str(error))
