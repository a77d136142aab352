"""Bodies and answers of routes that have no type elsewhere; `routes` says whose they are."""

from __future__ import annotations

from typing import Annotated, TypedDict

import msgspec

from sparktxlog.model.ids import LARGEST
from sparktxlog.model.replicas import MAIN
from sparktxlog.storage.interfaces import Segment

_Url = Annotated[str, msgspec.Meta(description="One address, or several with commas.")]
_Votes = Annotated[int | None, msgspec.Meta(description="Votes.")]


class CopyRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Asks for a lease at a donor."""

    worker_id: str
    forced: bool = False
    donor: Annotated[
        str, msgspec.Meta(description="Copy only from this site, even if replicas differ.")
    ] = ""
    failed: Annotated[
        list[str], msgspec.Meta(description="Donors that failed in this copy; asked last.")
    ] = []


class RepairRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The range of positions whose files could not be read."""

    first: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
    last: Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]


class NewRestorePoint(msgspec.Struct, forbid_unknown_fields=True):
    """A restore point to make."""

    name: str
    note: Annotated[str, msgspec.Meta(max_length=1_000, description="What it is for.")] = ""


class NewGroup(msgspec.Struct, forbid_unknown_fields=True):
    """A group of sites to make."""

    sites: Annotated[list[str], msgspec.Meta(max_length=1_000, description="Ids of their nodes.")]
    copies: Annotated[
        int, msgspec.Meta(description="So many hold a transaction's rows before it is ordered.")
    ] = 1
    schemas: Annotated[
        list[str], msgspec.Meta(max_length=1_000, description="New tables of these belong to it.")
    ] = []


class GroupChange(msgspec.Struct, forbid_unknown_fields=True):
    """What changes of a group; null stays."""

    copies: int | None = None
    schemas: Annotated[list[str], msgspec.Meta(max_length=1_000)] | None = None


class RecountOrder(msgspec.Struct, forbid_unknown_fields=True):
    """Row tables that the worker of a replica is to recount."""

    tables: Annotated[list[str], msgspec.Meta(min_length=1, max_length=100)]
    replica: Annotated[str, msgspec.Meta(description="Its name at this site.")] = MAIN


class OrderedRecount(TypedDict):
    """What the worker was asked to recount, by its next report."""

    worker_id: str
    tables: list[str]
    #: Seconds between two reports of a worker that follows.
    heartbeat_s: float


class AddPeer(msgspec.Struct, forbid_unknown_fields=True):
    """A node to add."""

    id: str
    url: _Url
    #: Default: 1, of a follower 0.
    weight: _Votes = None
    witness: bool = False
    follower: bool = False


class ChangePeer(msgspec.Struct, forbid_unknown_fields=True):
    """Changes of a node's address, votes or role."""

    url: _Url | None = None
    #: Of one that becomes a follower 0, of a follower that becomes a member 1.
    weight: _Votes = None
    #: false: a follower becomes a member, once it is at the end of the queue; true: and back.
    follower: bool | None = None


class ReplacePeer(msgspec.Struct, forbid_unknown_fields=True):
    """The node that replaces another one; None: as the old one."""

    id: str
    url: _Url
    weight: _Votes = None
    witness: bool | None = None
    follower: bool | None = None


class SetQuorum(msgspec.Struct, forbid_unknown_fields=True):
    """How many members must hold a transaction, or a synchronous one."""

    #: default, all, majority or a number.
    rule: str | int | None = None
    #: Of synchronous transactions: a number, or an expression such as N/2+1.
    synchro_rule: str | int | None = None


class VoidRun(msgspec.Struct, forbid_unknown_fields=True):
    """A run that no node can deliver; `status` names such runs."""

    run: Annotated[
        str, msgspec.Meta(description="Its digest, or the first 8 hexadecimal digits or more.")
    ]
    without: Annotated[
        list[str], msgspec.Meta(description="Members not to wait for, although they may hold it.")
    ] = []


class ForceEpoch(msgspec.Struct, forbid_unknown_fields=True):
    """Confirms that all other nodes are dead."""

    confirm: Annotated[str, msgspec.Meta(description="Node id and epoch.")]
    though_linked: Annotated[
        bool, msgspec.Meta(description="Even if other voters are linked; they are left out.")
    ] = False


class DigestRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Files as (table, path)."""

    files: list[tuple[str, str]]


class DigestAnswer(TypedDict):
    """For each file the SHA-256 of its chunks, hexadecimal, one after the other."""

    digests: list[str]


class SegmentsAnswer(TypedDict):
    """Published segments after a position."""

    position: int
    log_id: str
    epoch: int
    segments: list[Segment]
    #: Tables among them whose rows this site does not hold → the sites that do.
    elsewhere: dict[str, list[str]]
