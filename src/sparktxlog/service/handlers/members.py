"""Routes for the members of the cluster: epochs, peers, the quorum, `force`.

Every change is a change of the roster, on which the nodes vote; the answer is the new view.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sparktxlog.errors import InvalidNameError, InvalidRequestError, LocalProtocolError
from sparktxlog.model.answers import EpochsAnswer, EpochView, ForceAnswer, VoidAnswer
from sparktxlog.model.epoch import EpochRecord
from sparktxlog.model.ids import NodeId, check_new_name, check_node_id
from sparktxlog.model.tables.groups import check_places
from sparktxlog.model.transactions.synchro_holders import check_expression
from sparktxlog.model.values import MAX_WEIGHT, read_urls
from sparktxlog.protocol.messages.view import NO_MAJORITY, Seat, is_rule
from sparktxlog.runtime.node import Node
from sparktxlog.service.routing.endpoints import RouteHandlers
from sparktxlog.service.routing.request_bodies import (
    AddPeer,
    ChangePeer,
    ForceEpoch,
    ReplacePeer,
    SetQuorum,
    VoidRun,
)

#: Digits of a run's digest, and the least number of them that may name it.
_DIGITS, _LEAST_DIGITS = 64, 8
Roster = tuple[Seat, ...]


class MemberRoutes(RouteHandlers):
    """One method per route."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def epochs(self) -> EpochsAnswer:
        epochs = self._node.epochs
        return {
            **epochs.view(),
            "reachability": epochs.reachability(),
            "force": {
                "confirm": epochs.force_text(),
                "may_be_lost": epochs.losses(),
                "linked_voters": epochs.linked_voters(),
            },
        }

    async def epoch_history(self, limit: int) -> list[EpochRecord]:
        history = self._node.epochs.history
        await history.settle()
        return history.latest(limit)

    async def add_peer(self, timeout: float, body: AddPeer) -> EpochView:
        if self._node.membership.verifier is None:
            raise LocalProtocolError(
                f"this node has no cluster-secret: node {body.id!r} could not prove that it is one",
                hint="Set cluster-secret-file, the same for all, restart this node, and add the "
                "other one then.",
                setting="cluster-secret",
            )
        seat = Seat(
            node_id=_node_id(body.id),
            url=self._urls(body.url),
            weight=_weight(int(not body.follower) if body.weight is None else body.weight),
            witness=body.witness,
            follower=body.follower,
        )

        def edit(roster: Roster) -> Roster:
            return _put_in(roster, seat, len(roster))

        try:
            return await self._change(edit, timeout)
        except LocalProtocolError as error:
            if error.message.endswith(NO_MAJORITY) and seat.weight:
                # Until it has joined it does not answer.  From one node to two that is so always.
                name = seat.node_id
                error.hint = (
                    f"Add it without votes, `sparktxlog peer add {name} {seat.url} --weight 0`, "
                    "start it, and give it votes once it is a member: "
                    f"`sparktxlog peer set {name} --weight {seat.weight}`."
                )
            raise

    async def remove_peer(self, id_: str, timeout: float) -> EpochView:
        def edit(roster: Roster) -> Roster:
            return self._keeps_groups(_take_out(roster, id_)[1])

        return await self._change(edit, timeout)

    def _keeps_groups(self, roster: Roster) -> Roster:
        """Return a new roster, unless a group that has tables would be without any site (P41).

        Raises:
            InvalidRequestError: As `check_places`.
        """
        check_places(self._node.groups(), {seat.node_id for seat in roster if seat.may_be_member})
        return roster

    async def change_peer(self, id_: str, timeout: float, body: ChangePeer) -> EpochView:
        url = None if body.url is None else self._urls(body.url)
        weight = None if body.weight is None else _weight(body.weight)

        def edit(roster: Roster) -> Roster:
            old, others, at = _take_out(roster, id_)
            follower = old.follower if body.follower is None else body.follower
            votes = old.weight if follower is old.follower else int(not follower)
            seat = replace(
                old,
                url=old.url if url is None else url,
                weight=votes if weight is None else weight,
                follower=follower,
            )
            return self._keeps_groups(_put_in(others, seat, at))

        return await self._change(edit, timeout)

    async def replace_peer(self, id_: str, timeout: float, body: ReplacePeer) -> EpochView:
        new, url = _node_id(body.id), self._urls(body.url)
        weight = None if body.weight is None else _weight(body.weight)
        if new == id_:
            raise LocalProtocolError(
                f"node {new!r} cannot replace itself",
                hint="A node that lost its disk rejoins when it is started again; PATCH "
                "/v1/peers/{id} changes its address or votes.",
                node=new,
            )

        def edit(roster: Roster) -> Roster:
            old, others, at = _take_out(roster, id_)
            follower = old.follower if body.follower is None else body.follower
            votes = old.weight if follower is old.follower else int(not follower)
            seat = Seat(
                node_id=new,
                url=url,
                weight=votes if weight is None else weight,
                witness=old.witness if body.witness is None else body.witness,
                follower=follower,
            )
            return self._keeps_groups(_put_in(others, seat, at))

        return await self._change(edit, timeout)

    async def promote_peer(self, id_: str, timeout: float) -> EpochView:
        return await self._move(id_, -1, timeout)

    async def demote_peer(self, id_: str, timeout: float) -> EpochView:
        return await self._move(id_, +1, timeout)

    async def _move(self, name: str, step: int, timeout: float) -> EpochView:
        def edit(roster: Roster) -> Roster:
            seat, others, at = _take_out(roster, name)
            to = min(max(at + step, 0), len(others))
            return (*others[:to], seat, *others[to:])

        return await self._change(edit, timeout)

    async def set_quorum(self, timeout: float, body: SetQuorum) -> EpochView:
        rule = "" if body.rule is None else str(body.rule)
        synchro_rule = "" if body.synchro_rule is None else check_expression(str(body.synchro_rule))
        if (rule or not synchro_rule) and not is_rule(rule):
            raise InvalidRequestError(
                f"rule {rule[:40]!r}: expected all, majority, default or a number",
                field="rule",
                value=rule[:40],
            )
        return await self._node.epochs.set_quorum(rule, synchro_rule, timeout)

    async def void(self, timeout: float, body: VoidRun) -> VoidAnswer:
        if not _LEAST_DIGITS <= len(body.run) <= _DIGITS:
            raise InvalidRequestError(
                f"run {body.run[:80]!r}: expected {_LEAST_DIGITS} to {_DIGITS} digits of its "
                "digest",
                field="run",
            )
        without = [_node_id(name) for name in body.without]
        return await self._node.voiding.void(body.run, without, timeout)

    async def force(self, timeout: float, body: ForceEpoch) -> ForceAnswer:
        return await self._node.epochs.force(
            body.confirm, timeout, though_linked=body.though_linked
        )

    def _urls(self, text: str) -> str:
        """Return the addresses of a node, checked; one at least that this node may call."""
        try:
            urls = read_urls(text)
        except ValueError as error:
            raise InvalidNameError(f"url {text[:200]!r}: {error}", value=text[:200]) from error
        certificate = self._node.base.certificate
        only_tls = certificate is not None and certificate.only_tls
        if only_tls and not any(url.startswith("https:") for url in urls.split(",")):
            raise InvalidRequestError(
                f"url {urls[:200]!r} has no https address, and this node speaks with peers by TLS "
                "only",
                hint="Name an https address; while a cluster changes over, nodes have tls-mode = "
                "allow-http (docs/access.md).",
                field="url",
                value=urls[:200],
            )
        return urls

    async def _change(self, edit: Callable[[Roster], Roster], timeout: float) -> EpochView:
        return await self._node.epochs.change(edit, timeout)


def _take_out(roster: Roster, name: str) -> tuple[Seat, Roster, int]:
    """Return a node's seat, the other seats, and its index."""
    at = _index(roster, name)
    return roster[at], (*roster[:at], *roster[at + 1 :]), at


def _put_in(others: Roster, seat: Seat, at: int) -> Roster:
    """Return the roster with a new or changed seat; refuse what cannot be."""
    _check_free(others, seat)
    if seat.follower and seat.weight:
        raise LocalProtocolError(
            f"{seat.node_id} cannot be a follower and vote",
            hint=f"Leave its weight out.  `sparktxlog peer set {seat.node_id} --role master` makes "
            "a follower a member, with a vote.",
            node=seat.node_id,
            field="weight",
            value=seat.weight,
        )
    return (*others[:at], seat, *others[at:])


def _index(roster: Roster, name: str) -> int:
    for at, seat in enumerate(roster):
        if seat.node_id == name:
            return at
    known = [str(seat.node_id) for seat in roster]
    raise LocalProtocolError(
        f"{name[:80]!r} is not a node of the cluster",
        hint=f"Nodes: {', '.join(known)}.",
        node=name[:80],
    )


def _check_free(roster: Roster, seat: Seat) -> None:
    for other in roster:
        if other.node_id == seat.node_id:
            raise LocalProtocolError(
                f"node {seat.node_id!r} is already in the cluster",
                hint="Change it with PATCH /v1/peers/{id}.",
                node=seat.node_id,
            )
        shared = set(other.url.split(",")) & set(seat.url.split(",")) - {""}
        if shared:
            raise LocalProtocolError(
                f"{', '.join(sorted(shared))} is the address of {other.node_id!r}", url=seat.url
            )


def _node_id(text: str) -> NodeId:
    check_new_name(text)
    return check_node_id(text)


def _weight(value: int) -> int:
    if not 0 <= value <= MAX_WEIGHT:
        raise InvalidRequestError(f"weight {value}: expected 0 to {MAX_WEIGHT}", weight=value)
    return value
