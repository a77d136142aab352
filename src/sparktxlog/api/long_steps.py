"""Shows steps of a session that take over two seconds: staging, waits, and applying.

A terminal has one line, which is redrawn and disappears at the end, as Spark's own does.  A
notebook has one output that is updated.  Elsewhere there is a line every few seconds.
`SPARKTXLOG_PROGRESS=off` turns it off.  All but the notebook's output goes to stderr.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Protocol

#: Turns it off: `off`.
VARIABLE = "SPARKTXLOG_PROGRESS"
#: Seconds until a step is shown, between two updates, and between two lines without a terminal.
SHOWN_AFTER_S, UPDATE_S, LINES_S = 2.0, 0.5, 5.0
_CLEAR = "\r\x1b[2K"
_shown = threading.local()


class _Place(Protocol):
    """Where a step is shown."""

    period_s: float

    def show(self, text: str) -> None:
        """Show how far it is."""

    def end(self, text: str) -> None:
        """Show that it ended."""


class _Terminal:
    period_s = UPDATE_S

    def show(self, text: str) -> None:
        sys.stderr.write(_CLEAR + text[: shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()

    def end(self, text: str) -> None:
        sys.stderr.write(_CLEAR)
        sys.stderr.flush()


class _Lines:
    period_s = LINES_S

    def show(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    end = show


class _Notebook:
    period_s = UPDATE_S

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, text: str) -> None:
        shown = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    end = show


def _place() -> _Place:
    shell = sys.modules.get("IPython")
    if shell is not None and "ZMQ" in type(shell.get_ipython()).__name__:
        return _Notebook(shell.display.display)
    return _Terminal() if sys.stderr.isatty() else _Lines()


@contextmanager
def long_step(what: str, detail: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Show the block if it takes over two seconds; one within another shows nothing of its own.

    Args:
        what: Such as `staging rows for orders`.
        detail: Returns how far it is; called in another thread.
    """
    if os.environ.get(VARIABLE, "").lower() == "off" or getattr(_shown, "inside", False):
        yield
        return
    ended, begun = threading.Event(), monotonic()
    watch = threading.Thread(target=_watch, args=(what, detail, begun, ended), daemon=True)
    _shown.inside = True
    watch.start()
    try:
        yield
    finally:
        _shown.inside = False
        ended.set()
        watch.join()


def _watch(what: str, detail: Callable[[], str], begun: float, ended: threading.Event) -> None:
    if ended.wait(SHOWN_AFTER_S):
        return
    place = _place()
    while True:
        further = detail()
        said = f"{what}, {further}" if further else what
        place.show(f"{said}: {monotonic() - begun:.0f} s")
        if ended.wait(place.period_s):
            place.end(f"{what}: took {monotonic() - begun:.1f} s")
            return
