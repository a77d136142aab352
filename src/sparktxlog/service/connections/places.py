"""Places of connections: they belong to callers that proved something; strangers share a few.

A connection begins as a stranger's.  The first request that passes the check of its route makes it
a client's or a peer's (`prove`), and until then nothing that it sends takes a place of theirs: no
path, no header, no body.  Health checks need no proof and have places of their own, so that a node
under attack still says that it lives.

Where strangers or probes are too many, the address that holds most of them loses its oldest one.
So one address cannot push out the others.  Clients share their places by token (`budgets`): a
client that waits for an answer, in a long poll or a stream of events, has a place for as long.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Protocol, TypeVar

from sparktxlog.runtime.audit_trail import asks
from sparktxlog.runtime.tokens.budgets import Budget

#: Extension of an ASGI scope: gives the connection its place, once its caller has proved something.
PROVE = "sparktxlog.prove"
#: Places of peers, of connections that proved nothing yet, and of health checks.
PEER_PLACES = 64
NEW_PLACES = 256
PROBE_PLACES = 16


class Proof(Enum):
    """What the caller of a connection has shown so far."""

    NOTHING = "nothing"
    #: It asks only for health.
    PROBE = "probe"
    CLIENT = "client"
    PEER = "peer"


class Placed(Protocol):
    """A connection, as `Places` sees it."""

    #: Time of the last bytes.
    heard: float

    @property
    def address(self) -> str:
        """Address of its caller, empty = unknown."""

    @property
    def is_idle(self) -> bool:
        """Whether a request was answered and no other one came."""

    def abort(self) -> None:
        """Close without an answer."""

    def check(self, now: float) -> None:
        """Close it if it has been silent too long."""


_One = TypeVar("_One")


def _heard(connection: Placed) -> float:
    return connection.heard


def too_many(held: Mapping[_One, str]) -> _One:
    """Return which of too many must go: the oldest one of the address that holds most.

    Args:
        held: In the order of arrival, and the address of each; not empty.
    """
    largest = Counter(held.values()).most_common(1)[0][0]
    return next(one for one, address in held.items() if address == largest)


class Places:
    """The connections of a server, by what their callers proved.

    Args:
        clients: Connections that clients may have, by token.
        only_tls: Whether requests without TLS are refused.
    """

    def __init__(self, clients: Budget, *, only_tls: bool = False) -> None:
        self.only_tls = only_tls
        self._clients = clients
        self._most = {Proof.NOTHING: NEW_PLACES, Proof.PROBE: PROBE_PLACES, Proof.PEER: PEER_PLACES}
        #: In the order of arrival.
        self._held: dict[Proof, dict[Placed, None]] = {proof: {} for proof in Proof}
        #: Name of the token that each connection of a client showed last.
        self._owners: dict[Placed, str] = {}
        #: True: the server stops and takes no more connections.
        self.shut = False

    def enter(self, connection: Placed) -> None:
        """Add a connection of a stranger; if there are too many, one of them is closed."""
        if self.shut:
            connection.abort()
        self._take(connection, Proof.NOTHING)

    def leave(self, connection: Placed) -> None:
        """Forget a connection."""
        for held in self._held.values():
            held.pop(connection, None)
        if connection in self._owners:
            self._clients.give(self._owners.pop(connection))

    def probe(self, connection: Placed) -> None:
        """Let a stranger's connection take the place of a health check."""
        if connection in self._held[Proof.NOTHING]:
            self._take(connection, Proof.PROBE)

    def prove(self, connection: Placed, proof: Proof) -> bool:
        """Give a connection the place of a client or a peer; False if none of peers is left.

        A peer's stays one whatever its next request is.

        Raises:
            BusyError: None of clients is left, or the token has its share (definite).
        """
        mine, owner = self._held[proof], asks.get()
        if connection in self._held[Proof.PEER] or self._owners.get(connection) == owner:
            return True
        if proof is Proof.CLIENT:
            while not self._clients.fits(owner) and self._close_idle(
                other
                for other in mine
                if self._owners[other] == owner or not self._clients.has(owner)
            ):
                pass
            self._clients.take(holder=owner)
        elif len(mine) >= self._most[proof] and not self._close_idle(mine):
            return False
        self.leave(connection)
        mine[connection] = None
        if proof is Proof.CLIENT:
            self._owners[connection] = owner
        return True

    def _close_idle(self, connections: Iterable[Placed]) -> bool:
        """Close the one that has been idle longest; False if none is idle."""
        idle = min((one for one in connections if one.is_idle), key=_heard, default=None)
        if idle is not None:
            self._close(idle)
        return idle is not None

    def close(self) -> None:
        """Close all connections that are left."""
        for connection in self._all():
            connection.abort()

    async def sweep(self) -> None:
        """Close the connections that have been silent too long; called once a second."""
        now = asyncio.get_running_loop().time()
        for connection in self._all():
            connection.check(now)

    def _all(self) -> list[Placed]:
        return [connection for held in self._held.values() for connection in held]

    def _take(self, connection: Placed, proof: Proof) -> None:
        """Give a place that needs no proof; the largest holder's oldest one makes room."""
        self.leave(connection)
        held = self._held[proof]
        held[connection] = None
        if len(held) > self._most[proof]:
            self._close(too_many({other: other.address for other in held}))

    def _close(self, connection: Placed) -> None:
        """Close a connection; its place is free at once, though it ends a little later."""
        self.leave(connection)
        connection.abort()
