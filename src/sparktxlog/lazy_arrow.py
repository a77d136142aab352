"""NumPy and pyarrow, loaded when something of them is first used.

A `Client` sends rows that are dicts as JSON, and needs neither: without extras sparktxlog is a
tenth as large, and starts sooner.  Modules that such a client loads take these libraries from here,
and use nothing of them while they are imported.  Where one is missing, the call that needs it
raises the error that names the command.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sparktxlog.errors import missing_extra

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

__all__ = ["has_arrow", "load_arrow", "np", "pa", "pc", "pq"]


class _Lazy(ModuleType):
    """Stands for a module, and has all that it has once something of it was asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked by those that look at every module, not by its users
            raise AttributeError(name)
        loaded = _load(self.__name__, "this call")
        # What was found is found without this function from now on.
        vars(self).update({k: v for k, v in vars(loaded).items() if not k.startswith("__")})
        return getattr(loaded, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


if not TYPE_CHECKING:
    np, pa = _Lazy("numpy"), _Lazy("pyarrow")
    pc, pq = _Lazy("pyarrow.compute"), _Lazy("pyarrow.parquet")


@cache
def has_arrow() -> bool:
    """Whether both libraries are installed."""
    return all(find_spec(library) is not None for library in ("numpy", "pyarrow"))


def load_arrow(what: str) -> None:
    """Load both libraries now, before a call that needs them begins.

    Args:
        what: The call, such as `client.view`, for the error's text.

    Raises:
        MissingDependencyError: One is not installed (definite).
    """
    for library in ("numpy", "pyarrow"):
        if sys.modules.get(library) is None:
            _load(library, what)


def _load(library: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        if (missing := missing_extra(what, error)) is None:
            raise
        raise missing from error
