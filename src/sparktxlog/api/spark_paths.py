"""Paths of this machine as Spark takes them."""

from __future__ import annotations

from pathlib import Path


def spark_url(path: Path | str) -> str:
    """Return an absolute path as a URL for Spark.

    Nothing is quoted: Hadoop does that itself, and of `file:///a%20b` it makes the directory
    `a%20b`.
    """
    return f"file://{path}"
