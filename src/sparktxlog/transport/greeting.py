"""How nodes greet each other: the check that precedes all other requests.

A greeting is compared with this node's: node id and URL, log id, shared settings, wire
version, and the *instance*: a UUID made with the data directory.  Places are those of the
configuration until an epoch is decided, then those of its view.

A node id with another instance is a second node with the same id, or a node that lost its disk;
neither may go on with the old identity (protocol P21).  A *fresh* node, which has nothing of the
log, learns the log and the incarnation with which to rejoin.  It is then a *joiner*: it may ask for
the queue and for admission until a view has it with that incarnation.  A node that learns of that
view accepts the first instance with that incarnation.

A node that greets with its known instance, but shows less than before, runs with an older image of
its disk.  It must rejoin too, does so without an operator, and no other node stops (P30).
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from sparktxlog.codec.wire import Hello
from sparktxlog.config import SETTINGS
from sparktxlog.errors import QUARANTINE_HINT, BusyError, ForbiddenPeerError, WireVersionError
from sparktxlog.protocol.messages.balloting import Standing
from sparktxlog.protocol.messages.view import FIRST_VERSION

_log = structlog.get_logger("sparktxlog.greeting")

#: Settings that a greeting compares, as a sentence names them.
_SHARED = ", ".join(setting.key for setting in SETTINGS if setting.shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A node's addresses and incarnation."""

    urls: tuple[str, ...]
    incarnation: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Joiner:
    """A node that rejoins with another disk and is not admitted yet."""

    instance: str
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownDisk:
    """The data directory (instance) and the incarnation that a node showed."""

    instance: str
    incarnation: int = 1

    @classmethod
    def of_text(cls, text: str) -> ShownDisk:
        """Read what `to_text` wrote."""
        instance, _, number = text.partition("@")
        return cls(instance=instance, incarnation=int(number or 1))

    def to_text(self) -> str:
        """Return it as text: the UUID, then `@` and the incarnation if it is above the first."""
        return self.instance + (f"@{self.incarnation}" if self.incarnation > 1 else "")


class GreetingNode(Protocol):
    """The node, as its greeter uses it."""

    def remember(self, node_id: str, shown: str) -> None:
        """Keep what a peer showed, a `ShownDisk` as text."""

    def is_fresh(self) -> bool:
        """Return whether this node has nothing of the log yet."""

    def is_joining(self, node_id: str) -> bool:
        """Return whether this node cannot know a node's disk: it has the log, and is no member."""

    def is_linked(self, node_id: str) -> bool:
        """Return whether a node with its known instance can be reached now."""

    def shortfall(self, node_id: str, standing: Standing) -> str:
        """Return why a node must rejoin, given what it loaded (P30); empty = it need not."""

    def is_blank(self, node_id: str) -> bool:
        """Return whether a node has shown no state yet on which others could rely."""

    def shown(self, log_id: str, epoch: int) -> tuple[str, int, str]:
        """Return the decision on an epoch, and this node's position and chain hash."""

    def standing(self) -> Standing | None:
        """Return the durable state that this node shows (P30)."""


class Greeter:
    """Holds this node's greeting and judges those of others.

    Args:
        own: This node's greeting.
        places: The other nodes: node id → place, or its URLs with commas between them.
        instances: What peers showed before: node id → `ShownDisk` as text.
        node: This node, asked at each greeting.
    """

    def __init__(
        self,
        own: Hello,
        places: Mapping[str, Place | str],
        instances: Mapping[str, str],
        node: GreetingNode,
    ) -> None:
        self._own = own
        self._places: dict[str, Place] = {}
        self.set_places(places)
        self._shown = {node_id: ShownDisk.of_text(text) for node_id, text in instances.items()}
        self._node = node
        self._joiners: dict[str, Joiner] = {}
        #: Node → version that both speak, by its last greeting.
        self._common: dict[str, int] = {}
        #: Node → its epoch of the present log, by its last greeting.
        self._epochs: dict[str, int] = {}
        #: Node → those that it follows, by its last greeting.
        self._follow: dict[str, tuple[str, ...]] = {}

    @property
    def node_id(self) -> str:
        """This node."""
        return self._own.node_id

    @property
    def own(self) -> Hello:
        """This node's present greeting."""
        decision, position, chain_hash = self._node.shown(self._own.log_id, self._own.epoch)
        return replace(
            self._own,
            fresh=self._node.is_fresh(),
            decision=decision,
            position=position,
            chain_hash=chain_hash,
            standing=self._node.standing(),
        )

    def known(self, node_id: str) -> bool:
        """Return whether a node id has a place."""
        return node_id in self._places

    def is_joiner(self, node_id: str) -> bool:
        """Return whether a node has an incarnation that no view has yet."""
        return node_id in self._joiners

    def version(self, node_id: str) -> int:
        """Return the wire version to use with a node that greeted; the first one before."""
        return self._common.get(node_id, FIRST_VERSION)

    def ahead(self) -> tuple[str, int] | None:
        """Return a node that is in a later epoch of this log, and which one; None = none is."""
        found = {node: self._epochs.get(node, 0) for node in self._places}
        first = max(found, key=lambda node: found[node], default="")
        epoch = found.get(first, 0)
        return (first, epoch) if epoch > self._own.epoch else None

    def follow_of(self, node_id: str) -> tuple[str, ...] | None:
        """Return which nodes one is set to follow, empty = the members; None = it greeted nobody.

        Of this node, too.
        """
        return self._own.follow if node_id == self.node_id else self._follow.get(node_id)

    # -- places ------------------------------------------------------------------------------------

    def set_places(self, places: Mapping[str, Place | str]) -> None:
        """Use new places of other nodes; a node without a place is a stranger."""
        self._places = {
            node_id: Place(urls=tuple(place.split(","))) if isinstance(place, str) else place
            for node_id, place in places.items()
        }

    def enter(
        self,
        places: Mapping[str, Place | str],
        log_id: str,
        ancestors: Iterable[str],
        *,
        epoch: int = 0,
        ancestor_epochs: Iterable[int] = (),
        version: int = FIRST_VERSION,
    ) -> None:
        """Use the places of a decided view; its joiners are known from now on."""
        self.set_places(places)
        if log_id != self._own.log_id:
            self._epochs.clear()
        self._own = replace(
            self._own,
            log_id=log_id,
            ancestors=tuple(ancestors),
            founding_hash="",
            epoch=epoch,
            ancestor_epochs=tuple(ancestor_epochs),
            oldest=version,
        )
        for node_id, joiner in list(self._joiners.items()):
            place = self._places.get(node_id)
            if place is None or place.incarnation > joiner.incarnation:
                del self._joiners[node_id]
            elif place.incarnation == joiner.incarnation:
                del self._joiners[node_id]
                self._keep(node_id, joiner.instance, joiner.incarnation)

    def _keep(self, node_id: str, instance: str, incarnation: int) -> None:
        shown = self._shown[node_id] = ShownDisk(instance=instance, incarnation=incarnation)
        self._node.remember(node_id, shown.to_text())

    def recognizes(self, hello: Hello, expected: str) -> bool:
        """Return whether a greeting is of the expected, known node; changes nothing."""
        found = (self._joiners.get(expected), self._shown.get(expected))
        known = [one.instance for one in found if one is not None]
        known += [hello.instance] if found[1] is None else []
        return hello.node_id == expected and hello.instance in known

    # -- judging -----------------------------------------------------------------------------------

    def check(self, hello: Hello, expected: str) -> None:
        """Accept the greeting of the node that was addressed as `expected`.

        Raises:
            ForbiddenPeerError: It is not the node that it should be; nothing changed (definite).
        """
        _refuse(
            hello,
            (
                self.judge(hello, expected) > 0,
                f"node {expected!r} has to join the log first",
                "It learns that by its own greeting, and then joins.",
            ),
        )

    def judge(self, hello: Hello, expected: str) -> int:
        """Judge a greeting: 0 = accepted, else the incarnation with which the node must rejoin.

        The first case that applies counts:

            a fresh node, of another log id   joins the log that is here
            a fork, another log or founding    refused
            fresh, and would found this log    joins under the next incarnation, if a member says so
            the known disk, showing less       joins under the next incarnation
            the known disk                     accepted
            a later incarnation                accepted as a joiner, if the old disk is gone
            fresh, or an older image           joins under the next incarnation, if that is gone
            any other disk                     refused as a second node under one id

        Raises:
            ForbiddenPeerError: It is not the node that it should be; nothing changed (definite).
            BusyError: This node joins, and cannot know; the other node greets again (definite).
        """
        own = self.own
        self.check_identity(hello, expected)
        place = self._places[expected]
        known = self._shown.get(expected)
        same = self._is_known_disk(hello, known, place)
        joins = hello.fresh and not own.fresh
        if joins and not own.founding_hash and not continues(hello, own):
            return place.incarnation if same else self._next_incarnation(hello, place)
        _check_log(hello, own, joins=joins)
        if joins and known is None and hello.founding_hash:
            # It may have had this log: nodes that knew it may be away.
            if self._node.is_joining(expected):
                raise _unknown_disk(hello)
            return place.incarnation + 1
        if same and (short := self._falls_short(hello, own)):
            _log.error(
                "a node returned with an older disk: it has to join again",
                peer=expected,
                reason=short,
            )
            return max(place.incarnation, hello.incarnation) + 1
        if same:
            if hello.log_id == own.log_id:
                self._epochs[expected] = hello.epoch
            self._joiners.pop(expected, None)
            shown = ShownDisk(instance=hello.instance, incarnation=hello.incarnation)
            if known is None or (known != shown and place.incarnation == hello.incarnation):
                self._keep(expected, hello.instance, hello.incarnation)
            return 0
        if hello.incarnation > place.incarnation and not self._is_old_alive(hello):
            self._joiners[expected] = Joiner(instance=hello.instance, incarnation=hello.incarnation)
            return 0
        if joins or (hello.standing is not None and hello.incarnation < place.incarnation):
            return self._next_incarnation(hello, place)
        raise _second_node(hello)

    def _is_known_disk(self, hello: Hello, known: ShownDisk | None, place: Place) -> bool:
        """Return whether a node shows the known disk, or the one that replaced it."""
        if known is None or hmac.compare_digest(known.instance, hello.instance):
            return True
        # It was admitted while it was not reached from here, or an empty disk was in its place.
        # A node that speaks under a later incarnation is a joiner.
        admitted = known.incarnation < place.incarnation
        returned = self._node.is_blank(hello.node_id) and not hello.fresh
        replaced = (admitted or returned) and hello.incarnation == place.incarnation
        return replaced and not self._is_old_alive(hello)

    def _falls_short(self, hello: Hello, own: Hello) -> str:
        # Not asked of a node that went on under a log id of its own: an operator forced it as it
        # was.
        if hello.standing is None or hello.log_id not in (own.log_id, *own.ancestors):
            return ""
        return self._node.shortfall(hello.node_id, hello.standing)

    def _next_incarnation(self, hello: Hello, place: Place) -> int:
        if self._is_old_alive(hello):
            raise _second_node(hello)
        return place.incarnation + 1

    def _is_old_alive(self, hello: Hello) -> bool:
        joiner = self._joiners.get(hello.node_id)
        if joiner is not None and joiner.instance == hello.instance:
            return False
        return self._node.is_linked(hello.node_id)

    def check_identity(self, hello: Hello, expected: str) -> None:
        """Accept a greeting whose node id, address and settings are as expected.

        Raises:
            ForbiddenPeerError: They are not; nothing changed (definite).
        """
        own = self._own
        _refuse(
            hello,
            (
                hello.node_id == own.node_id and hello.instance != own.instance,
                f"two nodes with one id: {own.node_id!r} is this node's own",
                "Give each node its own node-id.",
            ),
            (
                hello.node_id != expected or expected not in self._places,
                f"node {hello.node_id!r} answers where {expected!r} is configured",
                "Compare peer.<n>.id with the peer's node-id.",
            ),
        )
        url, urls = hello.url.rstrip("/"), self._places[expected].urls
        self._common[expected] = self._choose(hello, expected)
        self._follow[expected] = hello.follow
        _refuse(
            hello,
            (
                url not in urls,
                f"URL of node {expected!r} is {url[:120]!r}, here {','.join(urls)!r}",
                "Compare peer.<n>.url with the peer's master-url.",
            ),
            (
                hello.config_hash != own.config_hash,
                (
                    f"configuration of node {expected!r} is {hello.config_hash[:120]!r}, "
                    f"here {own.config_hash!r}"
                ),
                f"{_SHARED} must be the same on all members.",
            ),
        )

    def _choose(self, hello: Hello, node: str) -> int:
        """Return the wire version to use with a node (P31).

        Raises:
            WireVersionError: There is no common version (definite).
        """
        own, fresh = self._own, self._node.is_fresh()
        oldest, newest, least, most = own.oldest, own.newest, hello.oldest, hello.newest
        # A node without anything of the log learns the version in force when it joins.
        if fresh and not hello.fresh:
            oldest = FIRST_VERSION
        if hello.fresh and not fresh:
            least = FIRST_VERSION
        if max(oldest, least) <= min(newest, most):
            return min(newest, most)
        older = f"node {node!r}" if most < oldest else "this node"
        raise WireVersionError(
            f"node {node!r} ({hello.software[:40] or 'no release named'}) speaks wire versions "
            f"{least} to {most}, this one ({own.software}) {oldest} to {newest}: none in "
            f"common.  Install the newer release at {older}; the log's version never goes back",
            node=hello.node_id[:80],
            url=hello.url[:200],
        )


def _refuse(hello: Hello, *cases: tuple[bool, str, str]) -> None:
    """Raise the first case (condition, message, hint) whose condition is true."""
    for holds, message, hint in cases:
        if holds:
            raise ForbiddenPeerError(
                message, hint=hint, node=hello.node_id[:80], url=hello.url[:200]
            )


def _second_node(hello: Hello) -> ForbiddenPeerError:
    return ForbiddenPeerError(
        f"two nodes with one id: {hello.node_id!r} shows another data directory",
        hint="Stop one of them.  A node that lost its data directory rejoins with an empty one, "
        "once the other one cannot be reached.",
        node=hello.node_id[:80],
        url=hello.url[:200],
    )


def _unknown_disk(hello: Hello) -> BusyError:
    """Return the refusal of a node whose disk a member may know, and this node, new here, cannot.

    It would give up its votes, and the log may need them to admit this node.
    """
    return BusyError(
        f"this node joins the log and does not know node {hello.node_id!r}",
        hint="A member sends that node the log's members.  It greets this node again.",
        node=hello.node_id[:80],
    )


def _check_log(hello: Hello, own: Hello, *, joins: bool) -> None:
    """Refuse a node of another log than this one's."""
    name, founding = hello.node_id, own.founding_hash
    _refuse(
        hello,
        (
            # In the message: the other node shows only that of a refusal.
            are_forks(hello, own) and not joins,
            (
                f"the log has forked: node {name!r} went on as log id {hello.log_id[:120]!r}, "
                f"this one as {own.log_id!r}.  {QUARANTINE_HINT}"
            ),
            "",
        ),
        (
            not continues(hello, own),
            f"log_id of node {name!r} is {hello.log_id[:120]!r}, here {own.log_id!r}",
            "cluster and the set of members must be the same on all members.",
        ),
        (
            bool(hello.founding_hash and founding) and hello.founding_hash != founding,
            f"configuration of node {name!r} differs",
            "URLs, weights, roles and quorum must be the same on all members.",
        ),
    )


def continues(theirs: Hello, ours: Hello) -> bool:
    """Return whether two nodes belong to one log; one may not know of a `force` yet."""
    return (
        theirs.log_id == ours.log_id
        or theirs.log_id in ours.ancestors
        or ours.log_id in theirs.ancestors
    )


def are_forks(theirs: Hello, ours: Hello) -> bool:
    """Return whether two nodes continued one log separately (P23).

    Either neither of their log ids continues the other, or one node is in epochs of an ancestor
    that the other does not know.
    """
    if continues(theirs, ours):
        return _outran(theirs, ours) or _outran(ours, theirs)
    return bool({*theirs.ancestors} & {*ours.ancestors})


def _outran(one: Hello, other: Hello) -> bool:
    """Return whether a node is in a later epoch of its log id than the other one continued."""
    left = dict(zip(other.ancestors, other.ancestor_epochs, strict=False))
    return one.log_id != other.log_id and one.epoch > left.get(one.log_id, one.epoch)
