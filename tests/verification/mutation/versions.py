"""Mutations of how the version in force is raised (protocol P31)."""

from __future__ import annotations

from collections.abc import Mapping

from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.epoch.proposer import Proposer
from sparktxlog.protocol.words.versions import Raising, deciders
from sparktxlog.protocol.words.view import View

_linked = Raising.linked
_awaited = Proposer._awaited


def raised_by_most(before: View, candidate: View, spoken: Mapping[NodeId, int]) -> int:
    """Be content with those that promised."""
    return max(before.version, min(spoken.values()))


def lowered(before: View, candidate: View, spoken: Mapping[NodeId, int]) -> int:
    """Follow the slowest, down as well."""
    return min(spoken.get(node, 0) for node in deciders(candidate)) or before.version


def never(self: Raising) -> bool:
    """See no reason."""
    return False


def never_forgets(self: Raising, node: str, newest: int) -> None:
    """Count who has gone as if it were there."""
    if newest:
        _linked(self, node, newest)


def members_only(self: Proposer, now: int) -> set[NodeId]:
    """Wait for no witness."""
    return _awaited(self, now) & set(self.view.members)
