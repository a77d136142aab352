"""Clients that commit one after the other, at any node, until they know the outcome or give up."""

from __future__ import annotations

import http.client
import itertools
import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.node_processes import HttpProblem, NodeProcess, append, call
from tests.verification.torture.history import Act

_LEVELS = ("ordered", "ordered", "ordered", "acquired", "accepted")
_TIMEOUT_S = 3.0
_ATTEMPTS = 5


class Clients:
    """Threads that add to one history.

    Args:
        nodes: A client draws one for each attempt.
        count: Clients.
        pause_s: Between two transactions of a client.
    """

    def __init__(
        self, nodes: Sequence[NodeProcess], seed: int, count: int = 6, pause_s: float = 0.01
    ) -> None:
        self.acts: list[Act] = []
        self._nodes = list(nodes)
        self._over = threading.Event()
        self._pause_s = pause_s
        self._numbers = itertools.count(1)
        self._threads = [
            threading.Thread(target=self._work, args=(random.Random(f"{seed} client {number}"),))
            for number in range(count)
        ]

    def start(self) -> None:
        """Let all begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let all finish what they are about, and wait for it."""
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _work(self, chance: random.Random) -> None:
        while not self._over.is_set():
            act = Act(str(uuid.UUID(int=chance.getrandbits(128), version=4)), time.monotonic())
            self.acts.append(act)
            self._commit(act, chance)
            act.ended = time.monotonic()
            self._over.wait(self._pause_s)

    def _commit(self, act: Act, chance: random.Random) -> None:
        body = append(next(self._numbers), act.transaction_id)

        def send(url: str, timeout: float) -> dict[str, Any]:
            receipt: dict[str, Any] = call(url, body, timeout=timeout)
            return receipt

        act.told, receipt = submitted(self._nodes, chance, chance.choice(_LEVELS), 0, send)
        if receipt is not None:
            act.position = receipt["position"]
            if receipt.get("outcome") == "rejected":
                act.told = "rejected"


def submitted(
    nodes: Sequence[NodeProcess],
    chance: random.Random,
    level: str,
    after: int,
    send: Callable[[str, float], dict[str, Any]],
) -> tuple[str, dict[str, Any] | None]:
    """Submit one thing at one node after the other, until its outcome is known.

    Args:
        after: Position that a node must have reached first.
        send: Sends it to a URL of `/v1/transactions`, within so many seconds; returns the receipt.

    Returns:
        A level and the receipt; or `refused` (it certainly did not happen) or `unknown`, and None.
    """
    unknown = False
    for node in chance.choices(nodes, k=_ATTEMPTS):
        query = f"level={level}&timeout={_TIMEOUT_S}&after={after}"
        try:
            receipt = send(f"{node.url}/v1/transactions?{query}", _TIMEOUT_S + 10)
        except HttpProblem as problem:
            unknown = unknown or not problem.document.get("definite", False)
        except (OSError, http.client.HTTPException):
            unknown = True
        else:
            return str(receipt["level"]), receipt
    return "unknown" if unknown else "refused", None
