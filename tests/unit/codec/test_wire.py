"""Messages as bytes: round trips, sizes, and bytes that are none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import pytest

from sparktxlog.codec import wire
from sparktxlog.errors import RemoteProtocolError, UnknownKindError
from sparktxlog.model.copying import Lease, OfferedFile, OfferedTable, ReplicaSize
from sparktxlog.model.ids import NodeId
from sparktxlog.model.report import TableState, WorkerReport
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.site_data import SiteData
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.tables.table_versions import TableVersions, VersionFiles
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.protocol.messages.balloting import (
    Accept,
    Accepted,
    Decide,
    EpochMessage,
    Flush,
    Flushed,
    JoinRequest,
    MemberState,
    Prepare,
    Probe,
    ProbeAnswer,
    Promise,
    Refusal,
    TailRequest,
    Vote,
)
from sparktxlog.protocol.messages.posts import (
    Announcement,
    MergeBase,
    Post,
    QueueEntry,
    Rejection,
    RunHeader,
    Tail,
)
from sparktxlog.protocol.messages.view import Ballot, Seat, View

HEADER = RunHeader(
    epoch=1,
    ts=1_795_255_315_522_579,
    origin=NodeId("site-a"),
    incarnation=1,
    seq=7,
    n=1_000,
    digest=bytes(range(32)),
    size_bytes=200_000,
    staged_bytes=1 << 40,
)
POST = Post(
    log_id="l",
    epoch=1,
    sender=NodeId("site-a"),
    round=9,
    base=MergeBase(position=5),
    counter=1_795_255_315_522_580,
    last_seq=1_006,
    headers=(HEADER,),
    known={"b": 3},
    acquired={"b": 2},
    held=(b"d" * 32,),
    busy=True,
)
REPORT = WorkerReport(
    worker_id="w",
    node_id="a",
    log_id="l",
    epoch=1,
    position=3,
    chain_hash="00",
    tables={
        "t": TableState(version=1, signature=TableSignature(rows=2, lane0=2**64 - 1), schema="s")
    },
)
TAIL = Tail(
    log_id="l",
    epoch=1,
    sender=NodeId("a"),
    previous_hash=bytes(32),
    entries=(
        QueueEntry(
            position=1,
            header=HEADER,
            previous_hash=bytes(32),
            chain_hash=b"h" * 32,
            rejections=(Rejection(index=1, code="c", text="t"),),
        ),
    ),
)
LEASE = Lease(
    lease_id="l",
    token="t",
    node_id="a",
    url="http://127.0.0.1:1",
    log_id="l",
    epoch=1,
    position=3,
    chain_hash="00",
    chunk_bytes=5,
    lease_s=1.5,
    tables=(
        OfferedTable(
            definition=TableDefinition(name="t", columns=(Column(name="id", type="bigint"),)),
            version=1,
            signature=TableSignature(rows=2, lane0=2**64 - 1),
            files=(
                OfferedFile(path="p=ü/x", size_bytes=1 << 40, modified_at=1_795_255_315_522_579),
            ),
        ),
    ),
)


MESSAGES: list[wire.Message] = [
    wire.Envelope(post=POST, reports=(REPORT,)),
    wire.Envelope(),
    wire.Envelope(hears=("b",), addresses=(("b", "http://b", True), ("b", "http://b2", False))),
    wire.PostAnswer(kept=("w",)),
    wire.LeaseRequest(worker_id="w"),
    wire.RunsRequest(runs=(("a", 1, 7),)),
    wire.RunsAnswer(payloads=(b"p", None)),
    LEASE,
    ReplicaSize(node_id="a", position=3, files={"t": [("x.parquet", 1 << 40)]}),
    TAIL,
    Announcement(
        log_id="l", epoch=1, origin=NodeId("a"), digest=b"d" * 32, size_bytes=1, staged_bytes=2
    ),
    wire.Hello(node_id="a", url="u", instance="i", boot="b", log_id="l", config_hash="c"),
    HEADER,
    wire.SummaryOffer(name="d" * 64, position=9, size_bytes=1 << 40),
    TableVersions(
        versions=(
            VersionFiles(
                version=1,
                files=(StagedFile(path="a.parquet", size_bytes=3, rows=0, digest="d"),),
            ),
        ),
        placed=2,
    ),
    wire.Envelope(post=POST, pushes=b"runs"),
    wire.PostAnswer(post=POST, hears=("b",)),
    wire.Envelope(data=SiteData(rows_after=7, lacks=1, lacking=("uuid",))),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_come_back_as_they_were(message: wire.Message) -> None:
    assert wire.decode(type(message), wire.encode(message)) == message


def test_a_header_of_a_terabyte_costs_less_than_a_kilobyte() -> None:
    assert len(wire.encode(HEADER)) < 256
    assert len(wire.encode(wire.Envelope(post=POST))) < 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class _OlderEnvelope:
    """What a node understands that knows nothing of addresses."""

    post: Post | None = None
    reports: tuple[WorkerReport, ...] = ()
    hears: tuple[str, ...] = ()


def test_addresses_are_small_and_no_hindrance_to_nodes_that_do_not_know_them() -> None:
    found = tuple(
        (f"site-{number}", f"http://10.0.{number}.{way}:7070", True)
        for number in range(10)
        for way in (1, 2)
    )
    new = wire.Envelope(post=POST, hears=("b",), addresses=found)
    old = _OlderEnvelope(post=POST, hears=("b",))
    data = wire.encode(new)
    assert len(data) - len(wire.encode(wire.Envelope(post=POST, hears=("b",)))) < 20 * 40
    assert msgspec.msgpack.decode(data, type=_OlderEnvelope) == old
    assert wire.decode(wire.Envelope, msgspec.msgpack.encode(old)).addresses is None


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", b"\xff" * 9, b"\x91" * 5_000])
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        wire.decode(Tail, data)


@pytest.mark.parametrize("number", [-1, 1 << 62, (1 << 64) - 1])
def test_numbers_that_no_journal_keeps_are_refused(number: int) -> None:
    body = wire.encode(wire.RunsRequest(runs=(("A", number, 1),)))
    with pytest.raises(RemoteProtocolError):
        wire.decode(wire.RunsRequest, body)


@pytest.mark.parametrize("only", [tuple(f"t{n}" for n in range(65)), ("t" * 129,)])
def test_sets_of_tables_have_bounds(only: tuple[str, ...]) -> None:
    """They are compared with the names of all tables, on the event loop."""
    wrong: tuple[wire.Message, ...] = (
        wire.LeaseRequest(worker_id="w", only=only),
        wire.Envelope(reports=(replace(REPORT, only=only),)),
    )
    for message in wrong:
        with pytest.raises(RemoteProtocolError):
            wire.decode(type(message), wire.encode(message))


def test_a_site_with_more_replicas_than_fit_is_heard() -> None:
    """Its post must not be refused for it: the order would wait for that site."""
    said = wire.Envelope(post=POST, replicas=(*(f"r{n}" for n in range(99)), "a/b"))
    assert wire.decode(wire.Envelope, wire.encode(said)) == said


def test_pushes_carry_payloads_untouched() -> None:
    pushes = [(HEADER, b"payload"), (HEADER, b""), (HEADER, b"\x00" * 70_000)]
    assert list(wire.decode_pushes(wire.encode_pushes(pushes))) == pushes


@pytest.mark.parametrize("cut", [1, 3, 20, -1])
def test_a_torn_push_is_refused(cut: int) -> None:
    body = wire.encode_pushes([(HEADER, b"payload")])
    with pytest.raises(RemoteProtocolError):
        list(wire.decode_pushes(body[:cut]))


_A = NodeId("a")
_VIEW = View(
    log_id="l",
    epoch=3,
    members=(_A,),
    tail=(HEADER,),
    ancestors=(("k", 2),),
    roster=(Seat(node_id=_A, url="http://a,http://b", weight=2, witness=True, incarnation=4),),
)
_BALLOT = Ballot(number=7, node="a")
_STATE = MemberState(
    base=MergeBase(position=5), key=(1, 2, "a", 3), watermarks={"a": 3}, acquired=(HEADER,)
)
_BY_VIEW = {"sender": _A, "incarnation": 4, "view": _VIEW, "ballot": _BALLOT}
_BY_EPOCH = {"log_id": "l", "epoch": 3, "sender": _A, "incarnation": 4}
EPOCH_MESSAGES: list[EpochMessage] = [
    Probe(**_BY_EPOCH, number=1, suspects=(_A,)),  # type: ignore[arg-type]
    ProbeAnswer(**_BY_EPOCH, number=1, hears=(_A,)),  # type: ignore[arg-type]
    Prepare(**_BY_VIEW),  # type: ignore[arg-type]
    Promise(**_BY_EPOCH, ballot=_BALLOT, accepted=Vote(ballot=_BALLOT, view=_VIEW), state=_STATE),  # type: ignore[arg-type]
    Refusal(**_BY_EPOCH, ballot=_BALLOT, promised=_BALLOT),  # type: ignore[arg-type]
    Flush(**_BY_VIEW, candidate=_VIEW, holder=_A),  # type: ignore[arg-type]
    Flushed(**_BY_EPOCH, ballot=_BALLOT, missing=2),  # type: ignore[arg-type]
    Accept(**_BY_VIEW, candidate=_VIEW),  # type: ignore[arg-type]
    Accepted(**_BY_EPOCH, ballot=_BALLOT),  # type: ignore[arg-type]
    Decide(sender=_A, view=_VIEW),
    JoinRequest(**_BY_EPOCH, base=MergeBase(position=9), ts=7),  # type: ignore[arg-type]
    TailRequest(**_BY_EPOCH, position=9, chain_hash=b"h" * 32),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("message", EPOCH_MESSAGES, ids=lambda m: type(m).__name__)
def test_parts_of_epoch_decisions_come_back_as_they_were(message: EpochMessage) -> None:
    assert wire.decode_epoch(wire.encode_epoch(message)) == message


def test_every_message_is_tried() -> None:
    assert {type(message) for message in MESSAGES} == set(wire._decoders)


def test_every_part_of_a_decision_is_tried() -> None:
    assert {type(m).__name__ for m in EPOCH_MESSAGES} == set(wire._epoch_decoders)


def test_a_part_of_a_decision_of_another_release_is_told_from_damage() -> None:
    with pytest.raises(UnknownKindError, match="no epoch message is called 'Later'"):
        wire.decode_epoch(msgspec.msgpack.encode(("Later", {"anything": 1})))


@pytest.mark.parametrize("data", [b"", b"\xc1", wire.encode(MESSAGES[0]), b"\x92\xa4Vote\x80"])
def test_bytes_that_are_no_part_of_a_decision(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="epoch message"):
        wire.decode_epoch(data)


def test_a_cut_part_of_a_decision_is_refused() -> None:
    data = wire.encode_epoch(EPOCH_MESSAGES[3])
    for length in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            wire.decode_epoch(data[:length])
