"""Keeping freed memory from piling up: payloads pass through many threads and allocators.

All of it are hints: where the C library lacks the functions, the node only needs more memory.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

#: Parameters of glibc's `mallopt`: number of per-thread pools, least size of separate mappings.
_M_ARENA_MAX = -8
_M_MMAP_THRESHOLD = -3
_MMAP_THRESHOLD_BYTES = 128 << 10

_libc = ctypes.CDLL(None)


def bound_memory() -> None:
    """Let all threads share two pools, and large blocks go back to the system when freed."""
    pa.set_memory_pool(pa.system_memory_pool())
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_ARENA_MAX, 2)
        _libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)


def trim_memory() -> None:
    """Give freed pages back to the system; takes milliseconds, without the interpreter's lock."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
