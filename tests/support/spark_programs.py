"""Long-lived programs of Spark beside a test: they say in their log when they are ready."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pyspark
import pytest
from tests.architecture.source_tree import ROOT


@contextmanager
def spark_program(
    script: str, *arguments: str, told: str, prefix: Sequence[str | Path] = ()
) -> Iterator[str]:
    """Run a script of Spark's `bin`; give what its log tells.

    Args:
        told: A pattern with one group, which is given.
        prefix: What the command line begins with: a program that starts another one.
    """
    home = Path(pyspark.__file__).parent
    process = subprocess.Popen(
        [*prefix, home / "bin" / script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": f"{ROOT / 'src'}",
        },
    )
    assert process.stdout is not None
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if found := re.search(told, line):
                # It goes on logging, and would stand still with a full pipe.
                Thread(target=process.stdout.read, daemon=True).start()
                yield found[1]
                break
        else:
            pytest.fail("".join(said[-30:]))
    finally:
        process.terminate()
        process.wait()
