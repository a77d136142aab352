"""Standings of other nodes, and the number of this node's starts, in the journal (P30)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping

import msgspec

from sparktxlog.protocol.messages.balloting import Standing
from sparktxlog.storage.interfaces import (
    INHERITED,
    JournalState,
    PutAnnouncement,
    PutReservation,
    PutValue,
    Write,
)
from sparktxlog.storage.journal.journal import Journal

#: UUID made with the data directory: it differs in two nodes of the same id.
INSTANCE = "instance"
_STARTS = "starts"
_PREFIX = "standing:"
#: Instances of peers.  A kill may come between the writes of an instance and of a standing.
PEER_INSTANCE = "peer-instance:"
_decode = msgspec.msgpack.Decoder(Standing).decode


def keep_standing(node: str, standing: Standing) -> PutValue:
    """Return the write that keeps the greatest standing that a node showed."""
    return PutValue(name=_PREFIX + node, value=msgspec.msgpack.encode(standing))


def kept_standings(values: Mapping[str, bytes]) -> dict[str, Standing]:
    """Return the kept standings; a node that is not in it was never heard (P29)."""
    known = {name: Standing() for name in _suffixes(PEER_INSTANCE, values)}
    return known | {name: _decode(values[_PREFIX + name]) for name in _suffixes(_PREFIX, values)}


def _suffixes(prefix: str, names: Iterable[str]) -> list[str]:
    return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]


def count_start(values: Mapping[str, bytes]) -> tuple[int, PutValue]:
    """Return the number of this start, and the write that counts it."""
    number = int(values.get(_STARTS, b"0")) + 1
    return number, PutValue(name=_STARTS, value=str(number).encode())


def renew_instance() -> PutValue:
    """Return the write of a new instance: a copy of this node's old disk is a stranger then."""
    return PutValue(name=INSTANCE, value=str(uuid.uuid4()).encode())


def begin_as_another(
    node_id: str, incarnation: int, state: JournalState, journal: Journal
) -> list[Write]:
    """Return what a node writes before it begins under a later incarnation; often nothing.

    It does so at each start until it has taken up a view under that incarnation.  No peer has a
    promise of that incarnation, so the counter begins again.  Own runs under the old incarnation
    become unstamped: the log may have them already, after the end of this queue, under their old
    numbers.  When this node is a member it stamps them again; those that the log has are then
    refused as duplicates, by their ids.

    Args:
        incarnation: Its incarnation when it joins.
    """
    core = state.core
    if incarnation <= state.incarnation:
        return []
    writes: list[Write] = [PutReservation(counter=0)] if core.reserved else []
    kept = {waiting.digest for waiting in core.announcements}
    ticket = max((waiting.ticket for waiting in core.announcements), default=0)
    for run in sorted(core.incoming, key=lambda run: run.header.seq):
        header = run.header
        if header.origin != node_id or header.digest in kept:
            continue
        payload = journal.read_payload(header.origin, header.incarnation, header.seq)
        if payload is not None:
            ticket += 1
            writes.append(PutAnnouncement(ticket=ticket, digest=header.digest, payload=payload))
    inherited = str(ticket).encode()
    if ticket and state.values.get(INHERITED) != inherited:
        writes.append(PutValue(name=INHERITED, value=inherited))
    return writes
