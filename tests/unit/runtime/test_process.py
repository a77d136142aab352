"""Memory of a node's process: what it uses again and again is not mapped again and again."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Makes and drops bodies of 1 MiB, and prints how many pages the system had to give for them.
_BODIES = """
import resource
from sparktxlog.runtime.process import bound_memory, trim_memory

bound_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    body = bytearray(b"x" * (1 << 20))
    del body
pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
body = [b"x" * (1 << 20) for _ in range(48)]
del body

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

held = resident()
trim_memory()
print(pages, held - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc and /proc")
def test_bodies_use_the_same_pages_and_rest_gives_them_back() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _BODIES], capture_output=True, text=True, check=True
    )
    pages, given_back = map(int, ran.stdout.split())
    assert pages < 20_000  # 200 times two bodies of 256 pages are 102,400
    assert given_back > 24 << 20
