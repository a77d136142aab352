"""Administration of who belongs to the cluster: epochs, peers, the quorum, `force`.

Changes need the admin token where one is configured (`access`).  Every change is one of the roster,
which the members decide upon; the answer is the view that has it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sparktxlog.errors import InvalidNameError, InvalidRequestError, LocalProtocolError
from sparktxlog.model.ids import NodeId, check_new_name, check_node_id
from sparktxlog.model.values import MAX_WEIGHT, read_urls
from sparktxlog.protocol.words.view import Seat, is_rule
from sparktxlog.runtime.node import Node
from sparktxlog.service.problems import Handler, json_response
from sparktxlog.service.queries import seconds, whole

#: Default wait for a decision, seconds: longer than four times the default `suspect-timeout`, after
#: which a change is refused that too few nodes answer to decide.
_TIMEOUT_S = 60.0
#: Digits of a run's digest, and how many of them name it at least.
_DIGITS, _LEAST_DIGITS = 64, 8
_T = TypeVar("_T")
Roster = tuple[Seat, ...]


class _AddPeer(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    url: str
    weight: int = 1
    witness: bool = False


class _ChangePeer(msgspec.Struct, forbid_unknown_fields=True):
    url: str | None = None
    weight: int | None = None


class _ReplacePeer(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    url: str
    #: None: as the node that goes.
    weight: int | None = None
    witness: bool | None = None


class _Quorum(msgspec.Struct, forbid_unknown_fields=True):
    rule: str | int


class _Void(msgspec.Struct, forbid_unknown_fields=True):
    #: Digest of the run, hexadecimal, or the beginning of it.
    run: str
    #: Members that may hold it, and are given up.
    without: list[str] = []


class _Force(msgspec.Struct, forbid_unknown_fields=True):
    confirm: str
    though_linked: bool = False


def epoch_handlers(
    node: Node, read_body: Callable[[Request], Awaitable[bytes]]
) -> list[tuple[str, str, Handler]]:
    """Return (method, path, handler) of the routes."""
    api = _EpochApi(node, read_body)
    return [
        ("GET", "/v1/epochs", api.show),
        ("GET", "/v1/epochs/history", api.history),
        ("POST", "/v1/peers", api.add),
        ("DELETE", "/v1/peers/{id}", api.remove),
        ("PATCH", "/v1/peers/{id}", api.change),
        ("POST", "/v1/peers/{id}/promote", api.promote),
        ("POST", "/v1/peers/{id}/demote", api.demote),
        ("POST", "/v1/peers/{id}/replace", api.replace),
        ("POST", "/v1/quorum", api.set_quorum),
        ("POST", "/v1/void", api.void),
        ("POST", "/v1/force", api.force),
    ]


class _EpochApi:
    """One method per route."""

    def __init__(self, node: Node, read_body: Callable[[Request], Awaitable[bytes]]) -> None:
        self._node = node
        self._read_body = read_body

    async def show(self, _: Request) -> Response:
        return json_response(
            self._node.epochs().view()
            | {
                "reachability": self._node.epochs().reachability(),
                "force": {
                    "confirm": self._node.epochs().force_text(),
                    "may_be_lost": self._node.epochs().losses(),
                    "linked_voters": self._node.epochs().linked_voters(),
                },
            }
        )

    async def history(self, request: Request) -> Response:
        limit = whole(request, "limit", 100, 1, 1000)
        history = self._node.epochs().history
        await history.settle()
        return json_response(history.latest(limit))

    async def add(self, request: Request) -> Response:
        wanted = await self._decode(request, _AddPeer)
        seat = Seat(
            node_id=_node_id(wanted.id),
            url=_urls(wanted.url),
            weight=_weight(wanted.weight),
            witness=wanted.witness,
        )

        def edit(roster: Roster) -> Roster:
            _check_free(roster, seat)
            return (*roster, seat)

        return await self._change(request, edit)

    async def remove(self, request: Request) -> Response:
        name = request.path_params["id"]

        def edit(roster: Roster) -> Roster:
            at = _index(roster, name)
            return (*roster[:at], *roster[at + 1 :])

        return await self._change(request, edit)

    async def change(self, request: Request) -> Response:
        name, wanted = request.path_params["id"], await self._decode(request, _ChangePeer)
        url = None if wanted.url is None else _urls(wanted.url)
        weight = None if wanted.weight is None else _weight(wanted.weight)

        def edit(roster: Roster) -> Roster:
            at = _index(roster, name)
            seat = roster[at]
            seat = replace(
                seat,
                url=seat.url if url is None else url,
                weight=seat.weight if weight is None else weight,
            )
            _check_free((*roster[:at], *roster[at + 1 :]), seat)
            return (*roster[:at], seat, *roster[at + 1 :])

        return await self._change(request, edit)

    async def replace(self, request: Request) -> Response:
        """Give a node's place, with its precedence, to another one: one change, one decision."""
        name, wanted = request.path_params["id"], await self._decode(request, _ReplacePeer)
        new, url = _node_id(wanted.id), _urls(wanted.url)
        weight = None if wanted.weight is None else _weight(wanted.weight)
        if new == name:
            raise LocalProtocolError(
                f"node {new!r} cannot replace itself",
                hint="A node that lost its disk comes back when it is started again; PATCH "
                "/v1/peers/{id} changes its address or votes.",
                node=new,
            )

        def edit(roster: Roster) -> Roster:
            at = _index(roster, name)
            old, others = roster[at], (*roster[:at], *roster[at + 1 :])
            seat = Seat(
                node_id=new,
                url=url,
                weight=old.weight if weight is None else weight,
                witness=old.witness if wanted.witness is None else wanted.witness,
            )
            _check_free(others, seat)
            return (*roster[:at], seat, *roster[at + 1 :])

        return await self._change(request, edit)

    async def promote(self, request: Request) -> Response:
        return await self._move(request, -1)

    async def demote(self, request: Request) -> Response:
        return await self._move(request, +1)

    async def _move(self, request: Request, step: int) -> Response:
        name = request.path_params["id"]

        def edit(roster: Roster) -> Roster:
            at = _index(roster, name)
            to = min(max(at + step, 0), len(roster) - 1)
            seats = [*roster[:at], *roster[at + 1 :]]
            seats.insert(to, roster[at])
            return tuple(seats)

        return await self._change(request, edit)

    async def set_quorum(self, request: Request) -> Response:
        wanted = await self._decode(request, _Quorum)
        rule = str(wanted.rule)
        if not is_rule(rule):
            raise InvalidRequestError(
                f"rule {rule[:40]!r}: expected all, majority, default or a number", field="rule",
                value=rule[:40],
            )  # fmt: skip
        timeout = seconds(request, "timeout", _TIMEOUT_S)
        return json_response(await self._node.epochs().set_quorum(rule, timeout))

    async def void(self, request: Request) -> Response:
        wanted = await self._decode(request, _Void)
        if not _LEAST_DIGITS <= len(wanted.run) <= _DIGITS:
            raise InvalidRequestError(
                f"run {wanted.run[:80]!r}: expected {_LEAST_DIGITS} to {_DIGITS} digits of its "
                "digest", field="run",
            )  # fmt: skip
        without = [_node_id(name) for name in wanted.without]
        timeout = seconds(request, "timeout", _TIMEOUT_S)
        return json_response(await self._node.voiding().void(wanted.run, without, timeout))

    async def force(self, request: Request) -> Response:
        wanted = await self._decode(request, _Force)
        timeout = seconds(request, "timeout", _TIMEOUT_S)
        return json_response(
            await self._node.epochs().force(
                wanted.confirm, timeout, though_linked=wanted.though_linked
            )
        )

    async def _change(self, request: Request, edit: Callable[[Roster], Roster]) -> Response:
        timeout = seconds(request, "timeout", _TIMEOUT_S)
        return json_response(await self._node.epochs().change(edit, timeout))

    async def _decode(self, request: Request, kind: type[_T]) -> _T:
        try:
            return msgspec.json.decode(await self._read_body(request), type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequestError(f"the request cannot be read: {error}") from error


def _index(roster: Roster, name: str) -> int:
    for at, seat in enumerate(roster):
        if seat.node_id == name:
            return at
    known: list[Any] = [seat.node_id for seat in roster]
    raise LocalProtocolError(
        f"no node {name[:80]!r} has a place", hint=f"Places: {', '.join(known)}.", node=name[:80]
    )


def _check_free(roster: Roster, seat: Seat) -> None:
    for other in roster:
        if other.node_id == seat.node_id:
            raise LocalProtocolError(
                f"node {seat.node_id!r} has a place already",
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


def _urls(text: str) -> str:
    try:
        return read_urls(text)
    except ValueError as error:
        raise InvalidNameError(f"url {text[:200]!r}: {error}", value=text[:200]) from error


def _weight(value: int) -> int:
    if not 0 <= value <= MAX_WEIGHT:
        raise InvalidRequestError(f"weight {value}: expected 0 to {MAX_WEIGHT}", weight=value)
    return value
