"""The epochs of a node for people and clients: phase, changes, `force`, links.

An operator's request becomes an event of the core, and waits for the core's answer.  Only the core
decides: a refusal has its reason (definite); without an answer the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import urlsplit

import structlog

from sparktxlog.config import NodeConfig
from sparktxlog.errors import (
    CommitStateUnknownError,
    FollowerError,
    ForeignLogError,
    InvalidRequestError,
    LocalProtocolError,
)
from sparktxlog.model.answers import (
    EpochView,
    ForceAnswer,
    OperatorWarning,
    Reachability,
    UnseenTransactions,
)
from sparktxlog.model.epoch import FollowedNode
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.synchro_holders import DEFAULT_EXPRESSION
from sparktxlog.model.values import split_urls
from sparktxlog.protocol.epoch.pulling import circle_of
from sparktxlog.protocol.messages.actions import TellChange, TellPhase
from sparktxlog.protocol.messages.events import ChangeRequested, Event, ForceRequested
from sparktxlog.protocol.messages.posts import Post
from sparktxlog.protocol.messages.view import Phase, Seat, View, Voided, decision_digest
from sparktxlog.runtime.commit.cycle import CoreLoop
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.log.epoch_history import EpochHistory, view_of
from sparktxlog.runtime.membership.data_owner import founding_addresses
from sparktxlog.runtime.membership.reachability import (
    HEARD_US,
    AddressReports,
    Found,
    differing_addresses,
)
from sparktxlog.runtime.membership.restriction import Restriction
from sparktxlog.runtime.membership.unseen_transactions import ShownTransactions
from sparktxlog.transport.addresses import found_addresses
from sparktxlog.transport.greeting import Greeter

_log = structlog.get_logger("sparktxlog.epochs")

#: Phases in which transactions of waiting clients may never get further at this node.
_DETACHED = (Phase.IDLE, Phase.JOINING, Phase.FOLLOWING, Phase.FAULT)
_CALM = (Phase.NORMAL, Phase.WITNESS, Phase.FOLLOWING)
_TAKING_PART = (*_CALM, Phase.SUSPECT, Phase.WEDGED)

Edit = Callable[[tuple[Seat, ...]], tuple[Seat, ...]]

_COPY = (
    "all nodes have other addresses than {}: this is a cluster that moved, or a copy of one.  If "
    "the original still runs, give this one another cluster-secret, and let no worker of one use "
    "the other."
)


class Epochs:
    """Follows the core's phases and passes operators' requests to it."""

    def __init__(self, base: Foundation, core: CoreLoop, greeter: Greeter) -> None:
        self._config = base.config
        self._founded = founding_addresses(base.state.values)
        self._master = base.master
        self._node_id = base.config.node_id
        self._cycle = core.cycle
        self._links = base.links
        self._greeter = greeter
        self._receipts = core.receipts
        self._now = base.clock.now
        self.history = EpochHistory(base.state.values, put=core.executor.write_then)
        self._shown = ShownTransactions(self._master)
        self._tickets = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[TellChange]] = {}
        #: Node → (time of its word, nodes that it is linked to).
        self._hears: dict[str, tuple[int, frozenset[str]]] = {}
        self._addresses = AddressReports()
        #: Returns why this node does not know the log yet, empty = it knows it.
        self.ignorance: Callable[[], str] = lambda: ""
        #: Whether all members were greeted since the start, or did not answer.
        self._has_asked = False
        #: The reason of the phase.
        self.reason = first_reason(self._master.phase, self._master.view, self._node_id)
        self.restriction = Restriction(self._master, self._node_id, self._voices, self._now)

    # -- from the core and the peers ---------------------------------------------------------------

    def on_phase(self, news: TellPhase) -> None:
        """Log the node's new phase; tell waiting clients if the node takes no part any more."""
        self.reason = news.reason
        self.restriction.look()
        if news.phase is not Phase.IDLE:  # JOINING follows at once
            self.history.take_up(news.view, news.phase)
        level = _log.info if news.phase in _CALM else _log.warning
        level(
            "phase",
            phase=news.phase.value,
            epoch=news.view.epoch,
            log_id=news.view.log_id,
            members=list(news.view.members),
            reason=news.reason,
        )
        if news.phase in _DETACHED:
            self._receipts.detach(f"this node is {news.phase.value}: {news.reason}")

    def on_change(self, news: TellChange) -> None:
        """Answer the waiting request for a change, if there is one."""
        _log.warning("change of places", epoch=news.epoch, reason=news.text)
        future = self._waiting.pop(news.ticket, None)
        if future is not None and not future.done():
            future.set_result(news)

    def on_hears(self, node_id: str, hears: Iterable[str]) -> None:
        """Note which nodes a peer is linked to."""
        self._hears[node_id] = (self._now(), frozenset(hears))
        self.restriction.look()

    def on_addresses(self, node_id: str, found: Found) -> None:
        """Note which addresses answer a peer."""
        self._addresses.note(node_id, found, self._now())

    def on_post(self, post: Post) -> None:
        """Note how many transactions a member has, by its post."""
        self._shown.on_post(post, self._now())

    # -- requests of operators ---------------------------------------------------------------------

    async def change(self, edit: Edit, timeout: float) -> EpochView:
        """Propose another roster; return the decided view.

        Raises:
            LocalProtocolError: The core refused, with its reason (definite).
            CommitStateUnknownError: No decision in time; it may still come (not definite).
        """
        roster = edit(self._master.view.roster)
        ticket = next(self._tickets)
        return await self._ask(ticket, ChangeRequested(ticket=ticket, roster=roster), timeout)

    async def set_quorum(self, rule: str, synchro_rule: str, timeout: float) -> EpochView:
        """Propose other quorums; return the decided view; errors as `change`.

        Args:
            rule: See `View.quorum_rule`; empty = unchanged.
            synchro_rule: See `View.synchro_rule`; empty = unchanged.
        """
        ticket, roster = next(self._tickets), self._master.view.roster
        event = ChangeRequested(
            ticket=ticket, roster=roster, quorum_rule=rule, synchro_rule=synchro_rule
        )
        return await self._ask(ticket, event, timeout)

    async def void(self, voided: Voided, timeout: float) -> EpochView:
        """Propose that a run takes no effect (P32); return the decided view; errors as `change`."""
        ticket, roster = next(self._tickets), self._master.view.roster
        event = ChangeRequested(ticket=ticket, roster=roster, void=voided)
        return await self._ask(ticket, event, timeout)

    async def force(
        self, confirmation: str, timeout: float, *, though_linked: bool = False
    ) -> ForceAnswer:
        """Let this node go on alone (P23); return the view, and the transactions that may be lost.

        Args:
            confirmation: The text of `force_text`.
            though_linked: Leave out linked voters too.

        Raises:
            InvalidRequestError: The confirmation is not `force_text` (definite).
            LocalProtocolError: Another voter is linked (definite); else as `change`.
            CommitStateUnknownError: As `change`.
        """
        if confirmation.strip() != self.force_text():
            raise InvalidRequestError(
                "the confirmation is not this node's id and its current epoch",
                hint=f"If all other nodes are certainly dead, confirm with "
                f"{self.force_text()!r}: with any of them alive the log forks.",
                expected=self.force_text(),
            )
        linked = self.linked_voters()
        if linked and not though_linked:
            raise LocalProtocolError(
                f"nothing was changed: {', '.join(linked)} is linked and may vote: it is not dead",
                hint="Remove a dead node with `sparktxlog peer remove`: the linked nodes decide. "
                "To leave them out nevertheless, add --though-linked.",
                linked=linked,
            )
        shown, ticket = self._shown.shown(), next(self._tickets)
        log_id = f"{self._config.cluster}-{uuid.uuid4().hex[:12]}"
        event = ForceRequested(ticket=ticket, log_id=log_id)
        view = await self._ask(ticket, event, timeout)
        return {**view, "may_be_lost": self._shown.of(shown, self._now())}

    def force_text(self) -> str:
        """Return the text with which an operator confirms `force`."""
        return f"{self._node_id} {self._master.view.epoch}"

    def linked_voters(self) -> list[str]:
        """Return the other nodes with a vote that this one is linked to, in precedence order."""
        up = set(self._voices())
        return [
            str(seat.node_id)
            for seat in self._master.view.roster
            if seat.weight and seat.node_id in up and seat.node_id != self._node_id
        ]

    def _voices(self) -> list[str]:
        """Return the linked nodes whose votes and promises count."""
        return [node for node in self.linked_nodes() if not self._greeter.is_joiner(node)]

    async def _ask(self, ticket: int, event: Event, timeout: float) -> EpochView:
        halted = self._cycle.halted
        if halted is not None:  # the core takes no more events
            raise LocalProtocolError(
                f"nothing was changed: this node has halted: {halted.text}",
                hint="Ask a node that goes on; see `sparktxlog status`.",
            )
        future: asyncio.Future[TellChange] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        self._cycle.tell_always(event)
        try:
            async with asyncio.timeout(timeout):
                answer = await future
        except TimeoutError:
            raise CommitStateUnknownError(
                f"the change was not decided in {timeout:g} s",
                hint="It may still be: look at GET /v1/epochs before asking again.",
            ) from None
        finally:
            self._waiting.pop(ticket, None)
        if answer.epoch is None:
            raise LocalProtocolError(
                f"nothing was changed: {answer.text}",
                hint="`sparktxlog peer list` says which nodes are linked.  If too many of the "
                "others are lost for ever, `sparktxlog peer force` goes on without them.",
            )
        return self.view()

    def losses(self) -> list[UnseenTransactions]:
        """Return for each other member how many transactions it has, and `force` would keep."""
        return self._shown.of(self._shown.shown(), self._now())

    # -- answers to questions ----------------------------------------------------------------------

    def warnings(self) -> list[OperatorWarning]:
        """Return what an operator should change, each with a code and a sentence."""
        view = self._master.view
        found: list[OperatorWarning] = []
        voters = [seat.node_id for seat in view.roster if seat.weight]
        if sum(not seat.follower for seat in view.roster) > 1 and len(voters) == 1:
            others = ", ".join(
                seat.node_id for seat in view.roster if not (seat.weight or seat.follower)
            )
            text = (
                f"{voters[0]} alone has all votes, as `peer force` leaves it: without it {others} "
                "cannot go on.  Give votes back with `sparktxlog peer set NODE --weight 1`."
            )
            found.append({"code": "sole-voter", "text": text})
        used = {node_id: link.url for node_id, link in self._links.items() if link.up}
        found += [
            {"code": "not-in-force", "text": t} for t in differences(self._config, view, used)
        ]
        if moved_since(self._config, view, self._founded):
            found.append({"code": "not-in-force", "text": _COPY.format("when the log began")})
        return found

    def decision(self, log_id: str, epoch: int) -> str:
        """Return the digest of the decision on an epoch; empty = none was needed, or unknown."""
        view = self._master.view
        if epoch <= 1:
            return ""
        if (view.log_id, view.epoch) == (log_id, epoch):
            return decision_digest(view)
        record = self.history.find(log_id, epoch)
        return "" if record is None else decision_digest(view_of(record))

    def shown(self, log_id: str, epoch: int) -> tuple[str, int, str]:
        """Return the decision on an epoch, the end of the queue, and the chain hash there.

        Args:
            log_id, epoch: Those of the greeting.  The core may be in a later epoch already, which
                is not durable yet.
        """
        base = self._master.base
        return self.decision(log_id, epoch), base.position, base.chain_hash.hex()

    def check_position(self, log_id: str, position: int) -> None:
        """Refuse a position that means another transaction in this log than in a client's.

        Args:
            log_id: Of the client's receipt; empty = unknown.

        Raises:
            ForeignLogError: It is a position of another log, or of the part of an earlier one that
                `force` did not take over (definite).
        """
        view = self._master.view
        if log_id in ("", view.log_id):
            return
        names = [*(name for name, _ in view.ancestors), view.log_id]
        if log_id not in names:
            raise ForeignLogError(
                f"position {position} is of the log {log_id!r}, this node's log is {view.log_id!r}",
                hint="Ask a node of the log where the transaction was committed.",
                log_id=view.log_id,
                position=position,
            )
        for (name, last), successor in zip(view.ancestors, names[1:], strict=True):
            begun = self.history.find(successor, last + 1) if successor != name == log_id else None
            if begun is not None and position > begun.begins_after.position:
                raise ForeignLogError(
                    f"position {position} is of the log {log_id!r}, which `force` took over only "
                    f"up to position {begun.begins_after.position}",
                    hint="The transaction may have another position here, or none: ask for its id.",
                    log_id=view.log_id,
                    position=position,
                )

    def check_no_follower(self) -> None:
        """Refuse what a follower does not take, or does not know (P38).

        Raises:
            FollowerError: This node is one; nothing happened (definite).
        """
        view = self._master.view
        if self._master.phase is not Phase.FOLLOWING:
            return
        found = {seat.node_id: seat.url for seat in view.roster if seat.node_id in view.members}
        for peer in self._config.peers:  # of the first epoch, or with other addresses
            if peer.id in view.members:
                found[peer.id] = found.get(peer.id) or peer.url
        members = [split_urls(found[node])[0] for node in view.members if found.get(node)]
        raise FollowerError(
            f"node {self._node_id!r} is a follower: it reads what the log has, and no more",
            hint=f"Ask a member: {', '.join(members)}.  A client that is given several URLs goes "
            "on to one by itself.",
            members=members,
        )

    def following(self) -> FollowedNode | None:
        """Return from which node this one gets the queue, and how far it is; None = no follower."""
        if (pulling := self._master.pulling) is None:
            return None
        upstream = pulling.upstream(self._now())
        return {
            "upstream": str(upstream.node) or None,
            "linked": upstream.linked,
            "heard_s": None if upstream.heard_us is None else round(upstream.heard_us / 1e6, 3),
            "lacks": upstream.lacks,
            "lags_s": round(upstream.lags_us / 1e6, 3),
            "circle": [
                *map(str, circle_of(self._node_id, self._master.view, self._greeter.follow_of))
            ],
        }

    @property
    def takes_part(self) -> bool:
        """Whether this node takes part in its epoch: it orders or follows, or its vote counts."""
        doubt = self.ignorance() or self.doubt()
        return self._master.phase in _TAKING_PART and self._admitted and not doubt

    def doubt(self) -> str:
        """Return why the others may have gone on to a later epoch; empty = they have not.

        A node that was down for longer than `suspect-timeout` begins as the member that it was.  A
        member that does not answer leaves no doubt: its first greeting has failed.
        """
        if self._master.phase not in _TAKING_PART:
            return ""
        if not self._has_asked:
            links = [self._links[node] for node in self._master.view.members if node in self._links]
            if unheard := [link.node_id for link in links if not link.tried.is_set()]:
                return f"asks {', '.join(unheard)} for the present epoch"
            self._has_asked = True
        if (ahead := self._greeter.ahead()) is None:
            return ""
        return f"{ahead[0]} is in epoch {ahead[1]}, of which this node learns now"

    @property
    def phase(self) -> Phase:
        """The phase that is shown: a node that does not know the log yet is no member for users.

        An empty disk founds a log of its own in the core, until a peer's greeting says otherwise.
        """
        phase = self._master.phase
        orders = phase in _TAKING_PART and phase is not Phase.WITNESS
        return Phase.JOINING if orders and self.ignorance() else phase

    @property
    def _admitted(self) -> bool:
        """A witness that came with an empty disk is not, until the members know its number."""
        if self._master.phase is not Phase.WITNESS:
            return True
        return self._master.view.is_current(self._node_id, self._master.incarnation)

    def view(self) -> EpochView:
        """Return the current view for people."""
        status, view, reason = self._master.status(), self._master.view, self.reason
        if not self._admitted:
            reason = f"votes after the members admitted it under {self._master.incarnation}"
        return {
            "phase": self.phase.value,
            "phase_reason": self.ignorance() or self.doubt() or reason,
            "log_id": view.log_id,
            "ancestors": [{"log_id": name, "epoch": epoch} for name, epoch in view.ancestors],
            "epoch": view.epoch,
            "members": list(view.members),
            "quorum": view.quorum,
            "quorum_rule": view.quorum_rule,
            "synchro_quorum": view.synchro_quorum,
            "synchro_rule": view.synchro_rule or DEFAULT_EXPRESSION,
            "suspects": list(status.suspects),
            "restricted": self.restriction.shown(),
            "duty": duty_master(view, status.suspects),
            "eviction": self._config.eviction,
            "eviction_guard": [list(one) for one in self._config.eviction_guard],
            "suspect_timeout": self._config.suspect_timeout,
            "roster": [
                {
                    "id": seat.node_id,
                    "url": seat.url,
                    "weight": seat.weight,
                    "witness": seat.witness,
                    "follower": seat.follower,
                    "incarnation": seat.incarnation,
                    "member": seat.node_id in view.members,
                }
                for seat in view.roster
            ],
            "begins_after": {
                "position": view.end.position,
                "chain_hash": view.end.chain_hash.hex(),
            },
        }

    def linked_nodes(self) -> tuple[str, ...]:
        """Return the nodes that this one is linked to."""
        return tuple(sorted(node_id for node_id, link in self._links.items() if link.up))

    def reachability(self) -> Reachability:
        """Return which node is linked to which, as far as known here, and where nodes differ.

        `addresses` has the same for each address of nodes with several: which observers it answers.
        """
        now, places = self._now(), [str(seat.node_id) for seat in self._master.view.roster]
        hears = {
            node: set(found) for node, (at, found) in self._hears.items() if now - at <= HEARD_US
        }
        hears[str(self._node_id)] = set(self.linked_nodes())
        matrix = {
            observer: {other: other in hears[observer] for other in places if other != observer}
            for observer in places
            if observer in hears
        }
        differing = sorted(
            other
            for other in places
            if len({row[other] for row in matrix.values() if other in row}) > 1
        )
        own = found_addresses(self._links)
        addresses = self._addresses.matrix(str(self._node_id), own, places, now)
        return {
            "linked": matrix,
            "differing": differing,
            "addresses": addresses,
            "differing_addresses": differing_addresses(addresses),
        }


def has_moved(config: NodeConfig, seats: Iterable[Seat]) -> bool:
    """Return whether this node has an address that the nodes have not decided upon."""
    own = split_urls(config.master_url)
    decided = {split_urls(seat.url) for seat in seats if seat.node_id == config.node_id}
    return any(urls and len(elsewhere(own, urls)) == len(own) for urls in decided)


def elsewhere(urls: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses whose host, port and path none of the known ones has.

    The scheme does not count: a node that begins to speak TLS stays where it is.
    """
    places = {urlsplit(url)[1:3] for url in known}
    return tuple(url for url in urls if urlsplit(url)[1:3] not in places)


def _moved_places(config: NodeConfig, view: View, used: Mapping[str, str]) -> list[str]:
    """Return how addresses differ between configuration and decided view."""
    found = []
    for place in config.places:
        seat = view.seat(place.id)
        if seat is None or not seat.url or not elsewhere(place.urls[:1], split_urls(seat.url)):
            continue
        text = (
            f"the address of {place.id} is {place.url} in the configuration, {seat.url} is in force"
        )
        if used.get(place.id) in split_urls(seat.url):  # it moved: the file is what is old
            found.append(f"{text} and answers: change the configuration; a start reads it.")
            continue
        found.append(
            f"{text}: run `sparktxlog peer set {place.id} --address {place.url}` once the nodes "
            "are linked, or change the configuration."
        )
    if len(found) > 1 and len(found) == len(config.places) and has_moved(config, view.roster):
        found.append(_COPY.format("they decided upon"))
    return found


def moved_since(config: NodeConfig, view: View, founded: Mapping[str, str]) -> bool:
    """Return whether no address was decided upon and all nodes have other ones than at first.

    Args:
        founded: Node → its addresses when the log began.
    """
    if len(config.places) < 2 or any(seat.url for seat in view.roster):
        return False
    known = {place: split_urls(founded.get(place.id, "")) for place in config.places}
    return all(
        urls and len(elsewhere(place.urls, urls)) == len(place.urls)
        for place, urls in known.items()
    )


def differences(config: NodeConfig, view: View, used: Mapping[str, str]) -> list[str]:
    """Return the differences between configuration and decided view, a sentence for each.

    Args:
        used: Node → the address at which it is linked.
    """
    found = []
    if config.quorum_rule != view.quorum_rule:
        found.append(
            f"acquisition-quorum is {config.quorum_rule} in the configuration, {view.quorum_rule} "
            f"is in force: run `sparktxlog peer set-quorum {config.quorum_rule}`, or change the "
            "configuration."
        )
    wanted = config.synchro_quorum or DEFAULT_EXPRESSION
    in_force = view.synchro_rule or DEFAULT_EXPRESSION
    if wanted.replace(" ", "") != in_force.replace(" ", ""):
        found.append(
            f"synchro-quorum is {wanted} in the configuration, {in_force} is in force: run "
            f"`sparktxlog peer set-synchro-quorum '{wanted}'`, or change the configuration."
        )
    for place in config.places:
        seat = view.seat(place.id)
        if seat is not None and seat.follower != place.follower:
            roles = ("master", "follower")
            found.append(
                f"the role of {place.id} is {roles[place.follower]} in the configuration, "
                f"{roles[seat.follower]} is in force: run `sparktxlog peer set {place.id} --role "
                f"{roles[place.follower]}`, or change the configuration."
            )
        elif seat is not None and seat.weight != place.weight:
            found.append(
                f"the weight of {place.id} is {place.weight} in the configuration, {seat.weight} "
                f"is in force: run `sparktxlog peer set {place.id} --weight {place.weight}`, or "
                "change the configuration."
            )
    return found + _moved_places(config, view, used)


def first_reason(phase: Phase, view: View, node_id: NodeId) -> str:
    """Return the reason of a node's first phase, which no action of the core says."""
    if phase is Phase.JOINING:
        members = ", ".join(member for member in view.members if member != node_id)
        return f"no member of epoch {view.epoch} at the start: waits for {members} to admit it"
    if phase is Phase.FOLLOWING:
        return "follows the queue, without vote and promise"
    if phase is Phase.WEDGED:
        return f"promised a ballot before the start: what follows epoch {view.epoch} is open"
    return ""


def duty_master(view: View, suspects: Iterable[str]) -> str | None:
    """Return the master on duty: the first member that is not missing."""
    missing = set(suspects)
    return next((str(member) for member in view.members if member not in missing), None)
