"""Exploring one configuration, in a process of its own if need be."""

from __future__ import annotations

import contextlib
import sys

from tests.verification.exploration.configurations import CONFIGURATIONS
from tests.verification.exploration.demanded import DemandedMaster
from tests.verification.exploration.healing import sampled
from tests.verification.exploration.mutants import MUTANTS
from tests.verification.exploration.space import Exploration, Space, explore


def core_of(mutant: str) -> contextlib.AbstractContextManager[type[DemandedMaster]]:
    """Return the core to explore: the real one, or a mutant of it."""
    return MUTANTS[mutant]() if mutant else contextlib.nullcontext(DemandedMaster)


def run_one(name: str, *, limit: int, mutant: str) -> Exploration:
    """Explore one configuration; a violation is returned, not raised."""
    with core_of(mutant) as core:
        space = Space(CONFIGURATIONS[name], core)
        return explore(space, limit=limit, progress=_show, visit=sampled(space))


def _show(found: Exploration) -> None:
    """Show on the error stream how far it is."""
    print(
        f"{found.configuration}: depth {found.depth}, {found.states:,} states, "
        f"{found.node_states:,} of single nodes, {found.messages:,} messages, "
        f"{found.seconds:.0f} s{', complete' if found.complete else ''}",
        file=sys.stderr,
        flush=True,
    )
