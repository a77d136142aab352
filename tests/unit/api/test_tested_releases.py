"""What is said of releases that were not tested: one line, once, and nothing of those that were."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest
from tests.architecture.source_tree import ROOT

from pyspark_txlog import DefaultSource
from sparktxlog.api import tested_releases
from sparktxlog.api.spark_jars import delta_package
from sparktxlog.api.tested_releases import TESTED, untested, warn_of_untested


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested_releases, "_said", set())


@pytest.mark.parametrize("name", TESTED)
def test_the_first_and_the_last_release_are_tested_and_their_neighbours_are_not(name: str) -> None:
    (major, first), (_, last) = TESTED[name]
    assert untested([(name, f"{major}.{first}.0"), (name, f"{major}.{last}.99")]) == ""
    assert f"{name} {major}.{last + 1}.0" in untested([(name, f"{major}.{last + 1}.0")])
    assert f"{name} {major}.{first - 1}.9" in untested([(name, f"{major}.{first - 1}.9")])


def test_one_line_names_all_and_what_was_tested() -> None:
    line = untested([("Python", "3.15.0a1"), ("Spark", "4.3.0-SNAPSHOT"), ("Delta", "4.4.0")])
    assert "Python 3.15.0a1 (tested: 3.11 to 3.14), Spark 4.3.0-SNAPSHOT (tested: 4.1" in line
    assert "Delta" not in line and "\n" not in line


def test_a_process_says_it_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # A session of Spark Connect, of which no JVM can be asked.
    kind = type("SparkSession", (SimpleNamespace,), {"__module__": "pyspark.sql.connect.session"})
    session: Any = kind(version="4.9.1")
    with caplog.at_level(logging.WARNING):
        warn_of_untested(session)
        warn_of_untested(session)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "Spark 4.9.1" in caplog.text
        caplog.clear()
        monkeypatch.setattr(sys, "version_info", (3, 15, 0, "final", 0))
        warn_of_untested()
    assert "Python 3.15.0" in caplog.text and "Spark" not in caplog.text


def test_a_python_that_was_tested_without_spark_only_is_named_to_a_session(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kind = type("SparkSession", (SimpleNamespace,), {"__module__": "pyspark.sql.connect.session"})
    session: Any = kind(version="4.2.0")
    monkeypatch.setattr(sys, "version_info", (3, 14, 1, "final", 0))
    warn_of_untested()
    assert caplog.text == ""
    warn_of_untested(session)
    assert "Python with Spark 3.14.1 (tested: 3.11 to 3.13)" in caplog.text


def test_the_format_names_it_where_no_session_has(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark finds `format("txlog")` by itself, and makes it in a process of its own."""
    DefaultSource({"url": "http://127.0.0.1:1"})
    assert caplog.text == ""
    monkeypatch.setattr(pyspark, "__version__", "4.9.0")
    for _ in range(2):
        DefaultSource({"url": "http://127.0.0.1:1"})
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "Spark 4.9.0 (tested: 4.1 to 4.2)" in caplog.text


def test_nothing_is_said_of_this_python(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_untested()
    assert caplog.text == ""


def test_it_is_what_the_package_asks_for() -> None:
    """The extras, the classifiers and the JARs say the same."""
    text = (ROOT / "pyproject.toml").read_text()
    (major, first), (_, last) = TESTED["Python"]
    for minor in range(first, last + 1):
        assert f'"Programming Language :: Python :: {major}.{minor}"' in text
    assert f"{major}.{last + 1}" not in text
    (major, first), (_, last) = TESTED["Spark"]
    assert f'"pyspark>={major}.{first},<={major}.{last}.' in text
    delta = delta_package("4.2").rpartition(":")[2]
    assert untested([("Delta", delta)]) == ""
