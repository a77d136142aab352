"""A node process that kills itself while it shortens the log: `killed_pruning.py CONFIG POINT`.

Points, in the order of work: `expired` the journal says what is gone and every file still stands,
`files` of the expired segments are removed and the journal still lists them, `dropped` the journal
forgot them, `commit` the queue table's commit removed the rows and no file is vacuumed,
`vacuumed` its files are gone, `shrunk` the journal's file was shortened.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparktxlog.cli.serve import run_node
from sparktxlog.config import load_config
from sparktxlog.storage.interfaces import DropExpired, ExpireLog
from sparktxlog.storage.journal import log_expiry
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.log_tables.log_table import LogTable
from sparktxlog.storage.payloads.payload_expiry import PayloadExpiry


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def dying_after(function: Callable[..., Any], when: Callable[..., bool]) -> Callable[..., Any]:
    """Return the function with the end of the process behind it, if `when` says so."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if when(*args):
            die()
        return result

    return call


def writes_a(kind: type) -> Callable[..., bool]:
    """Return whether the journal is told such a write."""

    def told(_: Journal, writes: Sequence[Any]) -> bool:
        return any(isinstance(write, kind) for write in writes)

    return told


def main(config: str, point: str, *settings: str) -> int:
    """Run the node until it dies."""
    always = lambda *_: True
    has_removed = lambda _, actions, *rest: not any("add" in a for a in actions)
    replaced: dict[str, tuple[Any, str, Callable[..., bool]]] = {
        "expired": (Journal, "write", writes_a(ExpireLog)),
        "files": (PayloadExpiry, "remove", lambda _, files: bool(files)),
        "dropped": (Journal, "write", writes_a(DropExpired)),
        "commit": (LogTable, "_commit", has_removed),
        "vacuumed": (LogTable, "_vacuum", always),
        "shrunk": (log_expiry, "shrink", always),
    }
    owner, name, when = replaced[point]
    setattr(owner, name, dying_after(getattr(owner, name), when))
    overrides = dict(setting.partition("=")[::2] for setting in settings)
    return run_node(load_config(Path(config), overrides))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
