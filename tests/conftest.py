"""Rules for all tests: the long form, their order and sharing, and that CI=true allows no skip."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import HealthCheck, settings
from tests.spark.jvm import environment
from tests.support.sharing import LONGEST, FewSessions, commit_of, shuffled

from sparktxlog.cli.printing import records_to_stderr


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rewrite`: scenario files of tests/testdata get the results of this run."""
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="rewrite the expected results in tests/testdata; look at the diff before committing",
    )
    parser.addoption(
        "--long",
        action="store_true",
        help="repeat the kills of processes and the random histories more often (minutes)",
    )
    parser.addoption(
        "--minutes",
        type=float,
        help="begin no file after so many minutes, and name those that were left; needs -n",
    )
    parser.addoption(
        "--shuffled",
        action="store_true",
        help="give each commit an order of its own, so that --minutes leaves other files each time",
    )


# How long inputs take to make and to try says how busy the machine is, and nothing about the test.
settings.register_profile(
    "any-machine",
    settings.default,
    deadline=None,
    suppress_health_check={*settings.default.suppress_health_check, HealthCheck.too_slow},
)
settings.load_profile("any-machine")
# Set before anything of Spark is imported; what the caller has set stays.
os.environ.update(environment() | os.environ)
#: Where nodes note the files of their tokens: not where the user's own nodes do.
_NOTES = tempfile.TemporaryDirectory(prefix="sparktxlog-tests-")
os.environ["XDG_CONFIG_HOME"] = _NOTES.name
# Nodes run in the processes of tests, which read the answers of commands from stdout.
records_to_stderr()

#: Markers of tests that take long, the longest first.
_HEAVY = ("slow", "spark", "e2e")


_SCHEDULER = pytest.StashKey[FewSessions]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files with the longest tests first: all processes then end at nearly one time.

    What needs root runs in the long form only; there it is skipped, and said so, without root.
    Cases that repeat others on a larger scale run there, too.
    """
    if not config.getoption("--long"):
        left_out = [
            item
            for item in items
            if item.get_closest_marker("privileged") or item.get_closest_marker("repeated")
        ]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in left_out]
    ranks = {config.rootpath / file: rank - len(LONGEST) for rank, file in enumerate(LONGEST)}
    for item in items:
        marked = [rank for rank, name in enumerate(_HEAVY) if item.get_closest_marker(name)]
        ranks[item.path] = min([ranks.get(item.path, len(_HEAVY)), *marked])
    items.sort(key=lambda item: ranks[item.path])
    if config.getoption("--shuffled"):
        files = list(dict.fromkeys(item.nodeid.partition("::")[0] for item in items))
        places = {file: at for at, file in enumerate(shuffled(files, commit_of(config.rootpath)))}
        items.sort(key=lambda item: places[item.nodeid.partition("::")[0]])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FewSessions | None:
    """Share the files of a run by our rule; another one named on the command line stays."""
    if config.getoption("dist") != "loadfile":
        return None
    scheduler = FewSessions(config, log, config.getoption("--minutes"))
    config.stash[_SCHEDULER] = scheduler
    return scheduler


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the files that `--minutes` left no time for: what did not run proves nothing."""
    scheduler = terminalreporter.config.stash.get(_SCHEDULER, None)
    if scheduler is None or not scheduler.left:
        return
    terminalreporter.section(f"{len(scheduler.left)} files were not begun: --minutes were over")
    for file in scheduler.left:
        terminalreporter.line(f"LEFT {file}")


@pytest.fixture(scope="session")
def long_form(pytestconfig: pytest.Config) -> bool:
    """Whether this run repeats what takes minutes."""
    return bool(pytestconfig.getoption("--long"))


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
