"""Exploring one configuration, in a process of its own if need be."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tests.verification.exploration.configurations import CONFIGURATIONS, Configuration
from tests.verification.exploration.healing import sampled
from tests.verification.exploration.space import Exploration, Space, explore

from sparktxlog.errors import InvariantViolation


def run_one(name: str, limit: int) -> Exploration:
    """Explore one configuration; a violation is returned, not raised."""
    space = Space(CONFIGURATIONS[name])
    return explore(space, limit=limit, progress=_show, visit=sampled(space))


def run_plain(fields: dict[str, Any], limit: int) -> Exploration:
    """Explore a configuration of these fields, and say nothing meanwhile."""
    return explore(Space(Configuration(**fields)), limit=limit)


def replay(name: str, steps: Sequence[str]) -> tuple[int, list[str]]:
    """Take steps of a configuration; return 1 if an invariant breaks, 2 if a step is unknown.

    With it: what to print.
    """
    space = Space(CONFIGURATIONS[name])
    state, said = space.begin(), list[str]()
    for step in filter(None, steps):
        try:
            words, state = space.follow(state, step)
        except KeyError:
            return 2, [*said, f"there is no step {step} here"]
        except (InvariantViolation, AssertionError) as error:
            return 1, [*said, f"{step}\n{type(error).__name__}: {error}"]
        said.append(words)
    for number in state[: len(space.names)]:
        node = space.nodes.facts[number]
        queue = [f"{e.header.origin}:{e.header.seq}" for e in node.disk.queue]
        epoch = 1 if node.disk.view is None else node.disk.view.epoch
        said.append(f"{node.name}: {node.phase}, epoch {epoch}, queue {queue}")
    return 0, said


def _show(found: Exploration) -> None:
    """Show on the error stream how far it is."""
    print(
        f"{found.configuration}: depth {found.depth}, {found.states:,} states, "
        f"{found.node_states:,} of single nodes, {found.messages:,} messages, "
        f"{found.seconds:.0f} s{', complete' if found.complete else ''}",
        file=sys.stderr,
        flush=True,
    )
