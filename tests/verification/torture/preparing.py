"""Prepared transfers: who said what of them, and whether all sites decided alike (P35)."""

from __future__ import annotations

import http.client
import random
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.node_processes import HttpProblem, NodeProcess, call
from tests.verification.torture.clients import submitted
from tests.verification.torture.history import Act, QueueOnDisk, effects

from sparktxlog.codec.submits.mark_requests import mark_id
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.transactions.operation import Mark

PARTICIPANTS = ("from", "to")
#: How long one is valid, seconds, and how long a client waits for a decision at one node.
_VALID_S = (4.0, 20.0)
_DECISION_S = 3.0
_SILENT, _NO = 0.1, 0.1


@dataclass(slots=True)
class Prepared:
    """One prepared transaction, and all that was told of it.

    Attributes:
        act: Its submit; `told` is `prepared` if it was ordered and fitted.
        marks: What its participants said (participant, whether YES).
        answers: Decisions that nodes told: outcome, position, code of the rejection.
    """

    act: Act
    marks: dict[tuple[str, bool], Act] = field(default_factory=dict)
    answers: set[tuple[str, int, str]] = field(default_factory=set)

    def acts(self) -> Iterator[Act]:
        """Yield it and its marks as a history of single transactions."""
        yield self.act
        yield from self.marks.values()

    def note(self, receipt: dict[str, Any]) -> None:
        """Keep what a receipt tells of the decision, if it does."""
        if receipt.get("outcome") in ("committed", "rejected"):
            code = next((rejection["code"] for rejection in receipt["rejections"]), "")
            self.answers.add((receipt["outcome"], receipt["position"], code))


def prepare(
    nodes: Sequence[NodeProcess], chance: random.Random, after: int, body: dict[str, Any]
) -> Prepared:
    """Prepare a transaction, let its participants speak at any node, and ask for the decision.

    Args:
        after: Position that its node must have reached.
        body: Operations and conditions.
    """
    identity = str(uuid.UUID(int=chance.getrandbits(128), version=4))
    until_us = int((time.time() + chance.choice(_VALID_S)) * 1_000_000)
    body = {
        **body,
        "transaction_id": identity,
        "participants": PARTICIPANTS,
        "valid_until": until_us,
    }
    one = Prepared(Act(identity, time.monotonic()))

    def send(url: str, timeout: float) -> dict[str, Any]:
        receipt: dict[str, Any] = call(url, body, timeout=timeout)
        return receipt

    one.act.told, receipt = submitted(nodes, chance, "ordered", after, send)
    one.act.ended = time.monotonic()
    if receipt is not None:
        one.note(receipt)
        one.act.told, one.act.position = "prepared", receipt["prepared_at"]
        for participant in chance.sample(PARTICIPANTS, len(PARTICIPANTS)):
            _speak(nodes, chance, one, participant)
        _ask(nodes, chance, one)
    return one


def _speak(
    nodes: Sequence[NodeProcess], chance: random.Random, one: Prepared, participant: str
) -> None:
    if chance.random() < _SILENT:
        return
    yes = chance.random() >= _NO
    identity = one.act.transaction_id
    mark = Mark(transaction_id=uuid.UUID(identity).bytes, participant=participant, yes=yes)
    act = Act(transaction_id_to_text(mark_id(mark)), time.monotonic())
    one.marks[participant, yes] = act

    def send(url: str, timeout: float) -> dict[str, Any]:
        body = {"participant": participant, "yes": yes}
        url = url.replace("/v1/transactions", f"/v1/transactions/{identity}/marks")
        receipt: dict[str, Any] = call(url, body, timeout=timeout)
        return receipt

    act.told, receipt = submitted(nodes, chance, "ordered", one.act.position or 0, send)
    act.ended = time.monotonic()
    if receipt is not None:
        act.position = receipt["position"]
        if receipt["outcome"] == "rejected":
            act.told = "rejected"


def _ask(nodes: Sequence[NodeProcess], chance: random.Random, one: Prepared) -> None:
    path = f"/v1/transactions/{one.act.transaction_id}"
    for node in chance.sample(nodes, len(nodes)):
        query = f"after={one.act.position}&timeout={_DECISION_S}"
        try:
            one.note(call(f"{node.url}{path}?{query}", timeout=_DECISION_S + 10))
        except (OSError, HttpProblem, http.client.HTTPException):
            continue


def prepared_violations(
    prepared: Sequence[Prepared], queue: QueueOnDisk, written: Collection[int]
) -> Iterator[str]:
    """Yield what is wrong, a sentence each.

    Args:
        queue: As one node's files say it; those of the others are the same.
        written: Positions at which rows of the tables changed.
    """
    places, effective = queue.prepared, effects(queue)
    for one in prepared:
        name = one.act.transaction_id
        if one.act.told == "prepared" and places.get(name) != one.act.position:
            yield f"{name} was prepared at {one.act.position}, and is so at {places.get(name)}"
        if len(one.answers) > 1:
            yield f"{name} was told to be {sorted(one.answers)}"
        said = {of: effective.get(act.transaction_id) for of, act in one.marks.items()}
        yes = [said.get((participant, True)) for participant in PARTICIPANTS]
        no = [at for (_, is_yes), at in said.items() if at is not None and not is_yes]
        whole = max(at for at in yes if at) if all(yes) else None
        for outcome, position, code in one.answers:
            where = f"{name} was told to be {outcome} {code} at {position}"
            if code == "rolled-back" and position not in no:
                yield f"{where}; participants said NO at {no}"
            if code == "expired-transaction" and (whole or no):
                yield f"{where}; participants said YES at {yes}, NO at {no}"
            if code in ("", "conflict") and position != whole:
                yield f"{where}; participants said YES at {yes}"
            if (outcome == "committed") != (position in written):
                yield f"{where}; rows are {'not ' * (position not in written)}written there"
