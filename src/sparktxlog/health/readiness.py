"""Whether one node can serve now, as `/readyz` says it: only what is wrong with this node itself.

What is wrong at another node, or with a transaction that somebody else staged, makes no node
unready: a load balancer would take all of them away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

_WITH_PART = ("NORMAL", "SUSPECT", "WEDGED", "WITNESS", "FOLLOWING")


class Check(NamedTuple):
    """One condition of readiness."""

    name: str
    good: bool
    #: What was found; of a check that is not good what it waits for or what is wrong.
    text: str


def readiness(status: Mapping[str, Any]) -> list[Check]:
    """Return the checks of a node; it is ready if all are good.

    Args:
        status: Its own answer of `/v1/status`.
    """
    halted, failure = status.get("halted"), status.get("publish_failure")
    return [
        _membership(status),
        _check("submits", "paused" if status.get("paused") else "", "taken"),
        _check("protocol", halted, "takes part"),
        _check("journal", _journal(status), "writable"),
        _check("payloads", _damage(status), "whole"),
        _check("publisher", failure, "publishing"),
        _check("running", "stopping" if status.get("stopping") else "", "started"),
        *(
            Check(one["task"], False, one["text"])
            for one in status.get("failing") or []
            if one["text"] != failure
        ),
        *(
            Check(f"peer {one['id']}", True, "linked" if one["linked"] else one["reason"])
            for one in status.get("peers") or []
        ),
    ]


def whole(status: Mapping[str, Any]) -> Check:
    """Return the check `data`: whether a site has all data that the others count on it to have.

    It is not one of readiness: a node that fetches takes and orders transactions, and its traffic
    need not wait.  Operators wait for it before they replace the next disk.
    """
    return _check("data", "; ".join(status.get("lacks") or []), "whole")


def _check(name: str, wrong: str | None, well: str) -> Check:
    return Check(name, not wrong, wrong or well)


def _membership(status: Mapping[str, Any]) -> Check:
    phase, reason = status["phase"], status.get("phase_reason")
    text = f"{phase} in epoch {status['epoch']}"
    takes_part = status.get("takes_part", phase in _WITH_PART)
    return Check("membership", takes_part, f"{text}: {reason}" if reason else text)


def _journal(status: Mapping[str, Any]) -> str:
    if status.get("only_joins"):
        return "perhaps lost: this node waits for a peer whose log it can join"
    return "disk full" if status.get("disk_full") else ""


def _damage(status: Mapping[str, Any]) -> str:
    """Return what is wrong with this node's own files; what others cannot deliver is not."""
    texts = (
        f"{one['path']} is damaged: {one['reason']}" for one in status.get("damaged_files") or []
    )
    return next(texts, "")
