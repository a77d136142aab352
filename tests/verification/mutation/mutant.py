"""What a mutation is, and the ways to put one in without touching the core's source."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from unittest.mock import patch

from sparktxlog.protocol.master import Master
from sparktxlog.protocol.order.ordering import Ordering
from sparktxlog.protocol.words.actions import PERSISTS, Action
from sparktxlog.protocol.words.events import Event
from sparktxlog.protocol.words.recovery import MasterConfig, RecoveredState

#: A mutated core for as long as the context lasts.
Core = Callable[[], contextlib.AbstractContextManager[type[Master]]]


class Killer(StrEnum):
    """What may find a mutation."""

    #: Random schedules of normal operation (`tests/verification/strategies.py`).
    SCHEDULES = "schedules"
    #: The simulation of whole clusters (`tests/verification/simulation`).
    SIMULATION = "simulation"
    #: A directed trace (`traces.py`).
    TRACE = "trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One rule, broken in one way."""

    name: str
    #: P1 … P23, with the letter of a part: P1b.
    rule: str
    #: What the broken core does.
    says: str
    core: Core
    #: What shall find it, tried in this order.
    killers: tuple[Killer, ...]
    #: Layouts of the simulation to try; empty = all.
    layouts: tuple[str, ...] = ()
    #: Why nothing is expected to find it; empty = it must be found.
    survives: str = ""

    @property
    def how(self) -> str:
        """Return how the mutation is put in."""
        return "subclass" if getattr(self.core, "is_subclass", False) else "patch"


def plain(mutant: type[Master]) -> Core:
    """Return a core that is a subclass."""

    def core() -> contextlib.AbstractContextManager[type[Master]]:
        return contextlib.nullcontext(mutant)

    core.is_subclass = True  # type: ignore[attr-defined]
    return core


def ordering(mutant: type[Ordering]) -> Core:
    """Return a core whose normal operation is the mutant's."""
    return plain(type(mutant.__name__, (Master,), {"ordering_class": mutant}))


def patched(*replacements: tuple[Any, str, Any], master: type[Master] = Master) -> Core:
    """Return a core with attributes replaced: (owner, name, replacement)."""

    @contextlib.contextmanager
    def core() -> Iterator[type[Master]]:
        with contextlib.ExitStack() as stack:
            for owner, name, replacement in replacements:
                stack.enter_context(patch.object(owner, name, replacement))
            yield master

    return core


def hasty(*kinds: type, messages: tuple[type, ...] = (), at_once: bool = False) -> Core:
    """Return a core that speaks before certain persists of the same batch are durable.

    Args:
        kinds: Persist actions that come too late.
        messages: Only batches that send such an epoch message; empty = all.
        at_once: What is said stands before all persists of the batch, not only before `kinds`:
            the simulated disk writes all persists of a batch together.
    """

    class Hasty(Master):
        def handle_all(
            self, events: Sequence[Event], now: int, wall: int | None = None
        ) -> list[Action]:
            actions = super().handle_all(events, now, wall)
            sent = tuple(getattr(action, "message", None) for action in actions)
            late = PERSISTS if at_once else kinds
            if not any(isinstance(action, kinds) for action in actions) or (
                messages and not any(isinstance(message, messages) for message in sent)
            ):
                return actions
            early = [action for action in actions if not isinstance(action, late)]
            return early + [action for action in actions if isinstance(action, late)]

    return plain(Hasty)


def forgetful(forget: Callable[[MasterConfig, RecoveredState], RecoveredState]) -> Core:
    """Return a core that starts with less than was durable."""

    class Forgetful(Master):
        def __init__(
            self, config: MasterConfig, state: RecoveredState, now: int, wall: int | None = None
        ) -> None:
            super().__init__(config, forget(config, state), now, wall)

    return plain(Forgetful)
