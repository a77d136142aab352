"""Headers of runs for tests of the core's parts."""

from __future__ import annotations

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.posts import RunHeader


def header(seq: int, ts: int, n: int = 1, origin: str = "a", digest: bytes = b"") -> RunHeader:
    """Return the header of a run; the digest follows from its number if none is given."""
    return RunHeader(
        epoch=1,
        ts=ts,
        origin=NodeId(origin),
        incarnation=1,
        seq=seq,
        n=n,
        digest=digest or seq.to_bytes(32, "big"),
        size_bytes=10,
    )
