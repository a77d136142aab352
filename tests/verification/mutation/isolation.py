"""A process of its own for each mutated core: it imports a patched copy of the patched modules.

The processes are forked from one that has imported the libraries and nothing of the project, so a
mutation costs no more than the import of the core.

A mutated core may collect without end what the rule would have thrown away, or never return.  It
has so much memory and no more, and ends with the process that asked for it.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

from tests.verification.mutation.mutant import Patch, patched_sources

#: What takes long to import, and has nothing of the project.
_LIBRARIES = ["numpy", "msgspec", "pyarrow", "hypothesis", "sortedcontainers"]

#: Address space of a process with a mutated core.  A simulation takes a tenth of it.
MAX_MEMORY = 3 << 30

#: What a process runs: patches, `module:function`, its arguments.
Task = tuple[tuple[Patch, ...], str, tuple[Any, ...]]


class _Copies(MetaPathFinder):
    """Finds the patched copies of modules."""

    def __init__(self, copies: dict[str, Path]) -> None:
        self._copies = copies

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        copy = self._copies.get(name)
        return None if copy is None else spec_from_file_location(name, copy)


def run_all(tasks: Sequence[Task], jobs: int = 1) -> Iterator[Any]:
    """Run tasks, each in a new process, and yield what they return, in order.

    Raises:
        AssertionError: A patch does not fit.
        Exception: A task raised it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LIBRARIES)
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap(_run, tasks, chunksize=1)


def run_isolated(patches: tuple[Patch, ...], target: str, *arguments: Any) -> Any:
    """Run one `module:function` with the patches in place, in a new process."""
    (result,) = run_all([(patches, target, arguments)])
    return result


def import_patched(patches: tuple[Patch, ...], folder: Path) -> dict[str, Path]:
    """Let this process import patched modules from copies in a folder; return these by name.

    From then on it has no more than `MAX_MEMORY`, if anything is patched.
    """
    if patches:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        soft = MAX_MEMORY if hard == resource.RLIM_INFINITY else min(MAX_MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    copies: dict[str, Path] = {}
    for number, (path, text) in enumerate(patched_sources(patches).items()):
        name = path.removeprefix("src/").removesuffix(".py").replace("/", ".")
        assert name not in sys.modules, f"{name} was imported before it was patched"
        copies[name] = folder / f"{number}_{Path(path).name}"
        copies[name].write_text(text)
    sys.meta_path.insert(0, _Copies(copies))
    return copies


def _end_with_parent() -> None:
    """End this process when the one that asked for it has ended, however that was."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="end-with-parent", daemon=True).start()


def _run(task: Task) -> Any:
    patches, target, arguments = task
    _end_with_parent()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copies = import_patched(patches, Path(folder))
        module, function = target.split(":")
        try:
            result = getattr(import_module(module), function)(*arguments)
        except StopIteration as error:
            # As it stands it would end the iteration over the results of all tasks.
            raise RuntimeError(f"{target} raised {error!r}") from error
        unused = sorted(name for name in copies if name not in sys.modules)
        assert not unused, f"{unused} were patched and never imported"
        return result
