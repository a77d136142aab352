"""Chain hash of the synchronized queue (protocol S1).

Each run of the queue is hashed together with the hash before it, so two nodes with the same hash
at a position hold the same queue up to there.  The bytes that are hashed, in this order:

    32 bytes  chain hash before the run; 32 zero bytes at position 0
     8 bytes  epoch                          unsigned, big endian, as are all numbers
     8 bytes  timestamp, microseconds
     8 bytes  incarnation of the origin
     8 bytes  sequence number of the run's first transaction
     4 bytes  number of transactions
     2 bytes  length of the origin's node id
     …        node id of the origin, UTF-8
    32 bytes  digest of the run's payload
"""

from __future__ import annotations

import hashlib
import struct

from sparktxlog.protocol.words.messages import RunHeader

#: Chain hash at position 0.
GENESIS_HASH = bytes(32)
_FIXED = struct.Struct(">QQQQIH")


def chain_hash(previous: bytes, header: RunHeader) -> bytes:
    """Return the chain hash at the end of a run that follows `previous`."""
    origin = header.origin.encode()
    fixed = _FIXED.pack(
        header.epoch, header.ts, header.incarnation, header.seq, header.n, len(origin)
    )
    return hashlib.sha256(b"".join((previous, fixed, origin, header.digest))).digest()
