"""Settings of a node's process: its logs, and how freed memory goes back to the system.

Logs are structured: one record per line, JSON or for people, with node and epoch in each; records
of the standard library get the same form.  The memory settings are hints: if the C library lacks
the functions, the node only needs more memory.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable

import pyarrow as pa
import structlog

#: Parameters of glibc's `mallopt`: number of per-thread pools, least size of separate mappings, and
#: free bytes at the end of a pool above which they go back at once.
_M_ARENA_MAX = -8
_M_MMAP_THRESHOLD = -3
_M_TRIM_THRESHOLD = -1
#: Bodies, sections and segments are smaller.  What is mapped or given back for each of them is
#: new, zeroed pages each time, a tenth of the node's CPU; `trim_memory` gives back what is free.
_KEPT_BYTES = 32 << 20

_libc = ctypes.CDLL(None)
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def set_up_logs(
    node_id: str, level: str, form: str, epoch: Callable[[], int | None] = lambda: None
) -> None:
    """Configure logging of the process; call it once, before the node is built.

    Args:
        node_id: Part of each record.
        level: The lowest that is logged.
        form: `json` or `console`.
        epoch: The epoch that the node is in, part of each record; None = not known yet.
    """
    least = _LEVELS[level]

    def name_node(
        logger: object, method: str, record: structlog.types.EventDict
    ) -> structlog.types.EventDict:
        record.setdefault("node", node_id)
        if (current := epoch()) is not None:
            record.setdefault("epoch", current)
        return record

    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        name_node,
    ]
    renderer: structlog.types.Processor
    if form == "json":
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(level=max(least, logging.INFO), handlers=[handler], force=True)


def bound_memory() -> None:
    """Make all threads share two pools, which keep what is freed until `trim_memory`."""
    pa.set_memory_pool(pa.system_memory_pool())
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_ARENA_MAX, 2)
        _libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        _libc.mallopt(_M_TRIM_THRESHOLD, 2 * _KEPT_BYTES)


def trim_memory() -> None:
    """Return freed pages to the system; takes milliseconds, without the interpreter's lock."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
