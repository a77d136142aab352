"""Clients that commit at every node while things break, and remember what they were promised.

What was acknowledged, at `acquired` or `ordered`, must be in the queue once, at the position that
was told; the queue holds nothing else than what was submitted.
"""

from __future__ import annotations

import http.client
import itertools
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.support.node_processes import Cluster, HttpProblem, NodeProcess, append, call, wait_until

_numbers = itertools.count(1_000_000)


@dataclass(slots=True)
class Promises:
    """What one node's client tried and was promised."""

    #: Transaction id → position, None if only `acquired`.
    acknowledged: dict[str, int | None] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    #: Answers that are neither (UNKNOWN) nor a refusal that says so.
    unclear: list[str] = field(default_factory=list)
    #: What was refused or got no answer: steady time, for how long it was asked, and why.
    refused: list[tuple[float, float, str]] = field(default_factory=list)
    #: Longest time from one acknowledgement to the next one, seconds.
    longest_s: float = 0.0


class SteadyLoad:
    """One client for each node, as long as the context lasts, or from `join` until `leave`.

    Args:
        cluster: All its masters take part in the check; those at the beginning have clients.
        pause_s: Between two transactions of a client.
        timeout_s: How long a client waits for its acknowledgement.
    """

    def __init__(self, cluster: Cluster, pause_s: float = 0.03, timeout_s: float = 4.0) -> None:
        self._cluster = cluster
        self._pause_s = pause_s
        self._timeout_s = timeout_s
        self.base = int(cluster.masters()[0].status()["position"])
        self.promises: dict[str, Promises] = {}
        #: Node → token that its client shows, if it is not what all show.
        self.tokens: dict[str, str] = {}
        #: Node → set when its client shall end.
        self._over: dict[str, threading.Event] = {}
        self._threads: dict[str, threading.Thread] = {}

    def __enter__(self) -> Self:
        names = [node.name for node in self._cluster.masters()]
        for node in self._cluster.masters():
            self._begin(node)
        self.progress(names, 4)
        return self

    def join(self, node: NodeProcess) -> None:
        """Begin with a client of a node that is a member now."""
        self._begin(node)
        self.progress(node.name, 4)

    def leave(self, name: str) -> None:
        """End with a node's client; what it was promised is checked all the same."""
        self._over[name].set()
        self._threads[name].join()

    def _begin(self, node: NodeProcess) -> None:
        promises, over = Promises(), threading.Event()
        self.promises[node.name], self._over[node.name] = promises, over
        thread = threading.Thread(target=self._work, args=(node, promises, over))
        self._threads[node.name] = thread
        thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for over in self._over.values():
            over.set()
        for thread in self._threads.values():
            thread.join()

    def _work(self, node: NodeProcess, promises: Promises, over: threading.Event) -> None:
        last = time.monotonic()
        for level in itertools.cycle(("ordered", "acquired")):
            if over.is_set():
                return
            identity = str(uuid.uuid4())
            promises.tried.append(identity)
            began = time.monotonic()

            def note(error: Exception, began: float = began) -> None:
                took_s = time.monotonic() - began
                promises.refused.append((began, took_s, str(error)))

            url = f"{node.url}/v1/transactions?level={level}&timeout={self._timeout_s}"
            try:
                body = append(next(_numbers), identity)
                token = self.tokens.get(node.name, "")
                receipt = call(url, body, timeout=self._timeout_s + 20, token=token)
                position = receipt["position"] if receipt["level"] == "ordered" else None
                promises.acknowledged[identity] = position
                promises.longest_s = max(promises.longest_s, time.monotonic() - last)
                last = time.monotonic()
            except HttpProblem as problem:
                note(problem)
                if "definite" not in problem.document:
                    promises.unclear.append(str(problem))
            except (OSError, http.client.HTTPException) as error:
                note(error)  # killed or cut off: unknown
            over.wait(self._pause_s)

    def count(self, names: Iterable[str]) -> int:
        """Return how many acknowledgements the clients of these nodes have."""
        return sum(len(self.promises[name].acknowledged) for name in names)

    def progress(self, names: Iterable[str], count: int = 8) -> None:
        """Wait until each of these nodes acknowledged so many more."""
        wanted = {name: self.count(name) + count for name in names}
        wait_until(
            lambda: all(self.count(name) >= least for name, least in wanted.items()),
            what=f"commits at {''.join(wanted)}",
        )

    def stands_still(self, name: str) -> bool:
        """Return whether a commit at a node is refused, or said to be undecided (UNKNOWN)."""
        identity = str(uuid.uuid4())
        self.promises[name].tried.append(identity)
        try:
            self._cluster.nodes[name].commit(append(next(_numbers), identity), timeout=2)
        except HttpProblem as problem:
            unknown = (problem.status, problem.document["definite"]) == (504, False)
            return unknown or problem.document["title"] in ("not-a-member", "no-quorum")
        return False

    def check(self) -> int:
        """Return the end of the queue, once all promises are seen to be kept everywhere."""
        position = self._cluster.settle()
        self._cluster.agree(position)
        assert not any(promises.unclear for promises in self.promises.values())
        nodes = self._cluster.masters()
        found: dict[str, int] = {}
        others: list[dict[str, Any]] = []
        for number, identity in enumerate(
            identity for promises in self.promises.values() for identity in promises.tried
        ):
            first = number % len(nodes)
            receipt = _receipt(nodes[first:] + nodes[:first], identity)
            if receipt.get("outcome") == "committed":
                found[identity] = receipt["position"]
            elif receipt:
                others.append(receipt)
        assert len(set(found.values())) == len(found)
        submitted = f"{len(found)} are committed of {position - self.base}; {others[:5]}"
        assert position - self.base == len(found), submitted
        told: dict[str, int | None] = {}
        for promises in self.promises.values():
            told |= promises.acknowledged
        assert [identity for identity in told if identity not in found] == []
        wrong = {i: (p, found[i]) for i, p in told.items() if p is not None and p != found[i]}
        assert wrong == {}
        return position


def _receipt(nodes: list[NodeProcess], identity: str) -> dict[str, Any]:
    """Return what the first node says of a transaction, empty if it knows nothing.

    Of what was ordered before the summary that a node began with it tells the position only; then
    the next one is asked for the outcome, and must tell the same position.
    """
    found: dict[str, Any] = {}
    for node in nodes:
        before = found.get("position")
        try:
            found = call(f"{node.url}/v1/transactions/{identity}")
        except HttpProblem as problem:
            if problem.status != 404:
                raise
            found = {}
        assert before in (None, found.get("position")), (before, found)
        if found.get("outcome") is not None or found.get("position") is None:
            break
    return found
