"""Messages between nodes as bytes: msgpack of the protocol's values, typed on both sides.

Pushes are frames so that payload bytes are neither copied into nor out of msgpack:

    u32 length of the header | header (msgpack RunHeader) | u64 length of the payload | payload

one or more in a body.  Parts of epoch decisions travel as (name of the kind, body), because the
values of the protocol know nothing of their names on the wire.  Fields that a reader does not know
are skipped, those that a writer did not know have their defaults (P31).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar, get_args

import msgspec

from sparktxlog.errors import RemoteProtocolError, UnknownKindError
from sparktxlog.model.copying import Lease, ReplicaSize
from sparktxlog.model.ids import JournalNumber
from sparktxlog.model.replicas import MAIN, ReplicaName, TableSet
from sparktxlog.model.report import WorkerReport
from sparktxlog.model.site_data import SiteData, SitePace
from sparktxlog.model.tables.table_versions import TableVersions
from sparktxlog.protocol.messages.balloting import EpochMessage, Standing
from sparktxlog.protocol.messages.posts import Announcement, Post, RunHeader, Tail
from sparktxlog.protocol.messages.view import FIRST_VERSION

#: Node id, one of its several addresses, whether it answers.
FoundAddresses = tuple[tuple[str, str, bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What one node posts to another: its status, and changed reports of its workers."""

    post: Post | None = None
    reports: tuple[WorkerReport, ...] = ()
    #: The nodes that the sender is linked to.
    hears: tuple[str, ...] = ()
    #: Which addresses of peers with several answer the sender; None = nothing new.
    addresses: FoundAddresses | None = None
    #: Small runs that were to be pushed at the same time, as `encode_pushes` makes them.
    pushes: bytes = b""
    #: What the sender's site holds of the data; None = it does not know the log yet, or is a
    #: witness.
    data: SiteData | None = None
    #: How quick the sender's disk is.
    pace: SitePace = field(default_factory=SitePace)
    #: Names of the replicas of the sender's site: it knows no others.  None = it does not say.
    replicas: tuple[str, ...] | None = None
    #: Orders the envelopes, and the answers with a post, of one start of the sender: an older one
    #: may come later, and then does not say any more how its sender is.
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PostAnswer:
    """Answer to an `Envelope`, if there is something to say."""

    #: Labels of the reports whose tables the receiver keeps now.
    kept: tuple[str, ...] = ()
    #: The receiver's own next post: it has the runs that came with the envelope.
    post: Post | None = None
    #: With a post: the nodes that the receiver is linked to, and a number as in `Envelope`.
    hears: tuple[str, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """How nodes greet each other; the answer has the same form."""

    node_id: str
    url: str
    #: UUID kept in the data directory: two nodes under one id differ in it.
    instance: str
    #: New at each start; requests of the other side carry it, so that old ones are refused.
    boot: str
    log_id: str
    #: `NodeConfig.shared_hash()`.
    config_hash: str
    software: str = ""
    #: `NodeConfig.founding_hash()`; empty once the places were decided by an epoch.
    founding_hash: str = ""
    #: Log ids that `log_id` continues by `force` (P23).
    ancestors: tuple[str, ...] = ()
    #: Epoch of the node, 0 = unknown; and the last one of each ancestor.
    epoch: int = 0
    ancestor_epochs: tuple[int, ...] = ()
    #: Incarnation under which the node takes part (P21).
    incarnation: int = 1
    #: True: the node has nothing of the log yet.
    fresh: bool = False
    #: Answer to a fresh node: the incarnation under which it must join `log_id`; 0 = welcome.
    join_as: int = 0
    #: What the node loaded at its start (P30); None = it shows nothing.
    standing: Standing | None = None
    #: Digest of the decision on `epoch`, hexadecimal; empty = configured, or unknown.
    decision: str = ""
    #: End of the node's queue, and the chain hash there, hexadecimal; 0 = none, or unknown.
    position: int = 0
    chain_hash: str = ""
    #: Wire versions that the node speaks.  None below the one in force, but for a fresh node: it
    #: has to learn that one first (P31).
    oldest: int = FIRST_VERSION
    newest: int = FIRST_VERSION
    #: Nodes that it follows while it is a follower (P38); empty = the members.
    follow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """Asks a donor for a lease on its replica; the answer is a `Lease`."""

    #: The worker that wants to copy.
    worker_id: str
    #: An operator says that the donor's replica is right, although another one differs from it.
    named: bool = False
    #: Which replica of the donor's site is to lend.
    name: ReplicaName = MAIN
    #: Patterns of the tables that the target holds; empty = all.
    only: TableSet = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsRequest:
    """Asks for small runs; the answer is a `RunsAnswer`."""

    #: Origin, incarnation and first sequence number of each.
    runs: tuple[tuple[str, JournalNumber, JournalNumber], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsAnswer:
    """Payload containers in the order asked; None = not held here."""

    payloads: tuple[bytes | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryOffer:
    """A summary of the queue that may be fetched (P21)."""

    #: SHA-256 of its bytes, hexadecimal.
    name: str
    #: End of the queue that it describes.
    position: int
    size_bytes: int


Message = (
    Envelope
    | PostAnswer
    | Hello
    | Announcement
    | Tail
    | RunHeader
    | RunsRequest
    | RunsAnswer
    | LeaseRequest
    | Lease
    | ReplicaSize
    | SummaryOffer
    | TableVersions
)
_M = TypeVar("_M", bound=Message)

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type[Message], msgspec.msgpack.Decoder[Message]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in get_args(Message)
}
_HEADER_LENGTH = struct.Struct("<I")
_PAYLOAD_LENGTH = struct.Struct("<Q")


def encode(message: Message) -> bytes:
    """Return a message's bytes."""
    return _encoder.encode(message)


def decode(kind: type[_M], data: bytes | memoryview) -> _M:
    """Read a message of a kind.

    Raises:
        RemoteProtocolError: The bytes are no such message; nothing changed (definite).
    """
    decoder: msgspec.msgpack.Decoder[Message] = _decoders[kind]  # type: ignore[index]
    try:
        message = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"no {kind.__name__} in these bytes: {error}") from error
    assert isinstance(message, kind)
    return message


_epoch_decoders = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in get_args(EpochMessage)}
_tagged_decoder = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])


def encode_epoch(message: EpochMessage) -> bytes:
    """Return the bytes of a part of an epoch decision."""
    return _encoder.encode((type(message).__name__, message))


def decode_epoch(data: bytes | memoryview) -> EpochMessage:
    """Read what `encode_epoch` wrote.

    Raises:
        UnknownKindError: It is of a kind that this release does not know (definite).
        RemoteProtocolError: The bytes are no such message; nothing changed (definite).
    """
    try:
        name, body = _tagged_decoder.decode(data)
        decoder = _epoch_decoders[name]
        message: EpochMessage = decoder.decode(body)
    except KeyError as error:
        raise UnknownKindError(f"no epoch message is called {str(error)[:80]}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"no epoch message in these bytes: {error}") from error
    return message


def encode_pushes(pushes: Iterable[tuple[RunHeader, bytes]]) -> bytes:
    """Return headers and payloads as one body."""
    parts: list[bytes] = []
    for header, payload in pushes:
        head = _encoder.encode(header)
        parts += (_HEADER_LENGTH.pack(len(head)), head, _PAYLOAD_LENGTH.pack(len(payload)), payload)
    return b"".join(parts)


def decode_pushes(body: bytes) -> Iterator[tuple[RunHeader, bytes]]:
    """Read what `encode_pushes` wrote.

    Raises:
        RemoteProtocolError: Torn frames (definite).
    """
    view = memoryview(body)
    at = 0
    while at < len(view):
        head, at = _take(view, at, _HEADER_LENGTH)
        payload, at = _take(view, at, _PAYLOAD_LENGTH)
        yield decode(RunHeader, head), bytes(payload)


def _take(view: memoryview, at: int, length: struct.Struct) -> tuple[memoryview, int]:
    start = at + length.size
    if start > len(view):
        raise RemoteProtocolError("the push is torn")
    end = start + length.unpack_from(view, at)[0]
    if end > len(view):
        raise RemoteProtocolError("the push is torn")
    return view[start:end], end
