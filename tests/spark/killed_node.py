"""A node process that kills itself at a named point: `killed_node.py CONFIG POINT`.

Publishing: `files` written and not yet referred to, `rows` committed to the queue table and not yet
known to the journal, `mark` known to the journal.  Acquiring: `verified` a peer's payload, nothing
kept of it, `received` a staged file, `before` and `after` a peer's run becomes durable.
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
from sparktxlog.runtime.commit import run_fetching
from sparktxlog.runtime.log import publisher
from sparktxlog.storage.interfaces import MarkPublished, PutRun
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.log_tables.queue_table import QueueTable
from sparktxlog.storage.payloads.local_store import LocalPayloadStore


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


def dying_after(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with the end of the process behind it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        die()
        return result

    return call


def dying_write(own: str, point: str) -> Callable[[Journal, Sequence[Any]], None]:
    """Return a journal's `write` that dies beside the writes of its point."""
    write = Journal.write

    def call(self: Journal, writes: Sequence[Any]) -> None:
        foreign = any(isinstance(w, PutRun) and w.header.origin != own for w in writes)
        published = any(isinstance(w, MarkPublished) for w in writes)
        if point == "before" and foreign:
            die()
        write(self, writes)
        if (point == "after" and foreign) or (point == "mark" and published):
            die()

    return call


def main(config: str, point: str) -> int:
    """Run the node until it dies."""
    if point == "files":
        LocalPayloadStore.sync = dying_after(LocalPayloadStore.sync)  # type: ignore[method-assign]
    elif point == "rows":
        QueueTable.append = dying_after(QueueTable.append)  # type: ignore[method-assign]
    elif point == "verified":
        run_fetching.check_run = dying_after(run_fetching.check_run)
    elif point == "received":
        LocalPayloadStore.fetch = dying_after(LocalPayloadStore.fetch)  # type: ignore[method-assign]
    else:
        Journal.write = dying_write("B", point)  # type: ignore[method-assign]
    assert publisher.publish  # the publisher calls what was replaced above
    return run_node(load_config(Path(config)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
