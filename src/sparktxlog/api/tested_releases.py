"""Releases of Python, Spark and Delta that were tested; another one is named when work begins.

An untested release may work: it is not refused.  Where something fails later, the line of the
start says what to look at first.  `doctor` says the same of what is installed.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: First and last minor release of each: `make test`, `make test-spark41` and `make release`.
TESTED = {
    "Python": ((3, 11), (3, 14)),
    "Python with Spark": ((3, 11), (3, 13)),
    "Spark": ((4, 1), (4, 2)),
    "Delta": ((4, 4), (4, 4)),
}

_log = logging.getLogger("sparktxlog")
#: What this process was warned of; a session or a node that begins again says it no second time.
_said: set[str] = set()


def untested(found: Iterable[tuple[str, str]]) -> str:
    """Return a line that names releases which were not tested; empty = all were.

    Args:
        found: Name as in `TESTED`, and its release, such as `4.2.0`.
    """
    named = []
    for name, release in found:
        first, last = TESTED[name]
        numbers = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
        if not first <= numbers <= last:
            shown = sorted({".".join(map(str, one)) for one in (first, last)})
            named.append(f"{name} {release} (tested: {' to '.join(shown)})")
    if not named:
        return ""
    return f"not tested with sparktxlog: {', '.join(named)}; docs/stability.md says what was"


def python_release(*, with_spark: bool = False) -> tuple[str, str]:
    """Return the release of this interpreter for `untested`."""
    name = "Python with Spark" if with_spark else "Python"
    return name, ".".join(map(str, sys.version_info[:3]))


def warn_of_untested(spark: SparkSession | None = None, *, spark_release: str = "") -> None:
    """Log one warning for this process if something that it works with was not tested.

    Args:
        spark: The session that begins; None = work without one.
        spark_release: Of a process that Spark itself started, which has no session; empty = this
            one works without Spark.
    """
    found = [python_release(with_spark=spark is not None or bool(spark_release))]
    if spark_release:
        found.append(("Spark", spark_release))
    if spark is not None:
        from sparktxlog.worker.apply.worker_session import delta_release  # a node needs none of it

        found.append(("Spark", spark.version))
        if release := delta_release(spark):
            found.append(("Delta", release))
    line = untested(found)
    if line and line not in _said:
        _said.add(line)
        _log.warning(line)
