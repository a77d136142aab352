"""Checks which addresses of a peer answer, apart from the one in use.

A link uses only one of a peer's addresses; a broken other one would be noticed only when it is
needed.  So each unused address is greeted now and then, with the same signed request as on a link,
which changes nothing at a peer that knows this start already.  An address answers if the answer is
proved to be the peer's, and comes from its known instance; a refusal does not count.

Each check uses its own connection and does not affect the link.  Peers with one address are not
checked.  The results are kept with the link and sent to all peers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from sparktxlog.codec import wire
from sparktxlog.errors import TransportError, TxLogError, UnauthorizedError
from sparktxlog.supervision import Supervisor
from sparktxlog.transport.exchange import PeerAnswer, ask
from sparktxlog.transport.greeting import Greeter
from sparktxlog.transport.kept_connections import KeptConnections, Patience
from sparktxlog.transport.peer_link import PeerLink
from sparktxlog.transport.signing import Signer

_log = structlog.get_logger("sparktxlog.transport")

#: Values of `check-addresses`: which of several addresses are checked.
CHOICES: Mapping[str, slice] = {
    "all": slice(None),
    "first": slice(0, 1),
    "second": slice(1, 2),
    "none": slice(0),
}
_INTERVAL_MIN_S = 1.0
_INTERVAL_MAX_S = 60.0
#: Interval if members are never overdue.
_INTERVAL_S = 10.0
_NAME = "checking addresses"
_HELLO = "/peer/v1/hello"
_PATIENCE = Patience(total_s=5.0)


def check_interval_s(suspect_timeout_s: float) -> float:
    """Return the seconds between checks: the suspect timeout, within bounds."""
    return min(max(suspect_timeout_s or _INTERVAL_S, _INTERVAL_MIN_S), _INTERVAL_MAX_S)


def found_addresses(links: Mapping[str, PeerLink]) -> wire.FoundAddresses:
    """Return which addresses answer, of all peers with several addresses."""
    return tuple(
        (node_id, url, answers)
        for node_id, link in sorted(links.items())
        for url, answers in link.addresses().items()
    )


class AddressCheck:
    """Greets the addresses that no link uses.

    Args:
        links: All links by node id; shared with `Membership`.
        greeter: This node's greeting; knows the instances of peers.
        signer: Signs this node's requests.
        which: One of `CHOICES`.
        interval_s: Seconds from the end of one round of checks to the next.
        supervisor: Keeps the checks going.
    """

    def __init__(
        self,
        *,
        links: Mapping[str, PeerLink],
        greeter: Greeter,
        signer: Signer,
        which: str,
        interval_s: float,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self._links = links
        self._greeter = greeter
        self._signer = signer
        self._chosen = CHOICES[which]
        self._works = which != "none"
        self._interval_s = interval_s
        #: Set to check at once.
        self._hurry = asyncio.Event()
        #: Whether the last report to peers had an address.
        self._told = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start checking on the running event loop."""
        if self._works:
            self._task = asyncio.create_task(self._supervisor.keep(_NAME, self._run), name=_NAME)

    async def close(self) -> None:
        """Stop; checks under way are cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def look_again(self) -> None:
        """Check at once: a link came up or broke, so another address is in use or none."""
        self._hurry.set()

    async def _run(self) -> None:
        while True:
            self._hurry.clear()
            connections = KeptConnections()
            try:
                await self._check_all(connections)
            finally:
                await connections.close()  # the next check shows whether one can be opened
            self._tell()
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._hurry.wait()
            except TimeoutError:
                continue

    async def _check_all(self, connections: KeptConnections) -> None:
        async with asyncio.TaskGroup() as group:
            for link in tuple(self._links.values()):
                for url in self._due(link):
                    group.create_task(self._check(connections, link, url))

    def _due(self, link: PeerLink) -> Sequence[str]:
        if len(link.urls) < 2:
            return ()
        return [url for url in link.urls[self._chosen] if not link.uses(url)]

    async def _check(self, connections: KeptConnections, link: PeerLink, url: str) -> None:
        try:
            await self._greet(connections, link, url)
        except TxLogError as error:
            if link.note_address(url, False):
                _log.warning(
                    "address does not answer", peer=link.node_id, url=url, reason=str(error)
                )
        else:
            if link.note_address(url, True):
                _log.info("address answers", peer=link.node_id, url=url)

    async def _greet(self, connections: KeptConnections, link: PeerLink, url: str) -> None:
        """Greet the peer at an address.

        Raises:
            TransportError: No node answers there, or it refuses.
            UnauthorizedError: The answer is not the peer's.
        """
        body, to = wire.encode(self._greeter.own), link.boot

        async def greet(to: str) -> PeerAnswer:
            return await ask(
                connections,
                self._signer,
                url,
                "POST",
                _HELLO,
                body,
                to=to,
                patience=_PATIENCE,
                peer=link.node_id,
            )

        answer = await greet(to)
        if answer.status == 409 and answer.boot != to:  # it was restarted; the link will notice
            answer = await greet(answer.boot)
        answer.check_status(_HELLO, link.node_id)
        if not answer.sealed:
            raise UnauthorizedError(f"{url} does not prove that it is of this cluster")
        hello = wire.decode(wire.Hello, answer.body)
        if not self._greeter.recognizes(hello, link.node_id):
            raise TransportError(
                f"node {hello.node_id[:80]!r} answers at {url} instead of the peer"
            )

    def _tell(self) -> None:
        found = found_addresses(self._links)
        if found or self._told:
            for link in self._links.values():
                link.posts.tell_addresses(found)
        self._told = bool(found)
