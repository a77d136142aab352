"""Rules for all tests: with CI=true a skipped test is a failed run."""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rewrite`: scenario files of tests/testdata get the results of this run."""
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="rewrite the expected results in tests/testdata; look at the diff before committing",
    )


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if CI skipped something: a test that does not run proves nothing."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not _in_ci():
        return
    skipped = reporter.stats.get("skipped", [])
    if skipped and session.exitstatus == pytest.ExitCode.OK:
        reporter.write_line(f"CI=true: {len(skipped)} skipped tests fail this run", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
