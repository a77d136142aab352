"""Runs as they are kept outside of any node, and the chain hashes that follow from them.

A program with the headers of all runs from a position on, and the chain hash there, can compute
each later one: no run can be left out, put in twice, changed or moved without another hash at the
end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sparktxlog.model.answers import ListedRun
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import RunHeader, chain_hash

#: At position 0, hexadecimal.
FIRST_HASH = bytes(32).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """What a chain hash is computed from, and when the run was ordered."""

    n: int
    origin: str
    incarnation: int
    seq: int
    ts: int
    epoch: int
    #: SHA-256 of the run's manifest, hexadecimal.
    digest: str
    #: Wall clock of the node that was asked, microseconds since 1970 UTC; 0 = not known.
    ordered_at: int = 0

    @classmethod
    def listed(cls, run: ListedRun) -> KeptRun:
        """Return a run as `/v1/queue` lists it."""
        return cls(
            n=run["n"],
            origin=run["origin"],
            incarnation=run["incarnation"],
            seq=run["seq"],
            ts=run["ts"],
            epoch=run["epoch"],
            digest=run["digest"],
            ordered_at=run["ordered_at"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnd:
    """Where a run ends: a replica may stop there."""

    position: int
    #: Chain hash there, hexadecimal.
    chain_hash: str
    epoch: int
    ordered_at: int = 0


def run_ends(position: int, chain: str, runs: Iterable[KeptRun]) -> Iterator[RunEnd]:
    """Yield the ends of runs, in their order.

    Args:
        position: After which the first one begins.
        chain: Chain hash there, hexadecimal.

    Raises:
        ValueError: A digest is no hexadecimal text.
    """
    hashed = bytes.fromhex(chain)
    for run in runs:
        header = RunHeader(
            epoch=run.epoch,
            ts=run.ts,
            origin=NodeId(run.origin),
            incarnation=run.incarnation,
            seq=run.seq,
            n=run.n,
            digest=bytes.fromhex(run.digest),
            size_bytes=0,
        )
        hashed = chain_hash(hashed, header)
        position += run.n
        yield RunEnd(
            position=position,
            chain_hash=hashed.hex(),
            epoch=run.epoch,
            ordered_at=run.ordered_at,
        )
