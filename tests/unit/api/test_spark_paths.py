"""Paths of this machine as Spark takes them."""

from __future__ import annotations

from pathlib import Path

from sparktxlog.api.spark_paths import spark_url


def test_a_path_is_not_quoted() -> None:
    assert spark_url(Path("/data/lake")) == Path("/data/lake").as_uri()
    assert spark_url("/mes données/%41") == "file:///mes données/%41"
