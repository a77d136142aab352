"""Directed traces: histories that chance does not find, one rule each.

A trace drives one core by hand and asserts what the rule demands; it passes with the real core.
Each public function of a module of traces is one.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from inspect import isfunction

from tests.verification.mutation import (
    change_traces,
    clock_traces,
    commit_traces,
    condition_traces,
    deciding_traces,
    entering_traces,
    following_traces,
    group_traces,
    holding_traces,
    joining_traces,
    ordinary_traces,
    prepared_traces,
    standing_traces,
    synchronous_traces,
    version_traces,
    voiding_traces,
)

from sparktxlog.protocol.master import Master

Trace = Callable[[type[Master]], None]

#: In the order in which they look for a mutation.
_MODULES = (
    clock_traces,
    ordinary_traces,
    standing_traces,
    deciding_traces,
    entering_traces,
    joining_traces,
    following_traces,
    holding_traces,
    version_traces,
    voiding_traces,
    condition_traces,
    change_traces,
    synchronous_traces,
    prepared_traces,
    commit_traces,
    group_traces,
)
TRACES: tuple[Trace, ...] = tuple(
    value
    for module in _MODULES
    for name, value in vars(module).items()
    if isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
)


def failing_traces(first: Sequence[str] = ()) -> dict[str, bool]:
    """Return the traces that fail by an assertion: name → whether it is one of their own.

    One that runs out of memory fails, too: see `isolation`.

    Args:
        first: Traces that are expected to fail.  If each of them does, no other one is run.
    """
    found = _failing([trace for trace in TRACES if trace.__name__ in first])
    if not first or found.keys() != {*first}:
        found |= _failing([trace for trace in TRACES if trace.__name__ not in first])
    return found


def _failing(traces: Sequence[Trace]) -> dict[str, bool]:
    files = {trace.__code__.co_filename for trace in TRACES}
    found: dict[str, bool] = {}
    for trace in traces:
        try:
            trace(Master)
        except AssertionError as error:
            own = traceback.extract_tb(error.__traceback__)[-1].filename in files
            found[trace.__name__] = own
        except MemoryError:
            found[trace.__name__] = False
        except Exception:
            pass
    return found
