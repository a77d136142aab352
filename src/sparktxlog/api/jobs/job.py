"""What all Spark jobs share: arguments, exit codes, the line of JSON.

Spark is imported and started by the first job step that needs it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparktxlog.api.jobs.job_options import JOBS, ExitCode, JobCommand, require_spark
from sparktxlog.api.jobs.progress_lines import say, start_logging
from sparktxlog.errors import (
    ApplyError,
    CertificateError,
    CommitStateUnknownError,
    ConfigError,
    DivergedError,
    NotAppliedError,
    OutsideWindowError,
    TransportError,
    TxLogError,
    first_lines,
)
from sparktxlog.http.authorities import CA_HELP, trust
from sparktxlog.http.tokens import admin_token, client_token
from sparktxlog.model.ids import local_path
from sparktxlog.tracing import traced_program
from sparktxlog.worker.replica.source import HttpLogSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparktxlog.worker.replica.applier import ApplyOutcome

OK, ERROR, USAGE, LAGGING, DIVERGED, UNREACHABLE, BAD_CONFIG = ExitCode
#: Names `module:function`, which is told of each job: it takes name and arguments when the job
#: begins, and returns what takes exit code and result when it ends.
HOOK_VARIABLE = "SPARKTXLOG_JOB_HOOK"
_CODES: tuple[tuple[type[TxLogError], int], ...] = (
    (ConfigError, BAD_CONFIG),
    (CertificateError, BAD_CONFIG),
    (DivergedError, DIVERGED),
    (NotAppliedError, LAGGING),
    (CommitStateUnknownError, LAGGING),
    (TransportError, UNREACHABLE),
)


@dataclass(kw_only=True)
class JobContext:
    """Arguments, Spark session and connection of a job; made by `job_context`."""

    arguments: argparse.Namespace
    #: Prints a line for people.
    tell: Callable[[str], None] = say

    @cached_property
    def spark(self) -> SparkSession:
        """The job's Spark session, started at the first use.

        Raises:
            MissingDependencyError: There is no PySpark, or Spark did not start (definite).
        """
        require_spark()
        from sparktxlog.api.session import build_session

        start_logging()
        # If spark-submit started this process, it has chosen the master.
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        master = self.arguments.master or (None if submitted else "local[*]")
        return build_session(master, app_name="sparktxlog-worker")

    def open_source(self) -> HttpLogSource:
        """Return a new connection to the node that the arguments name.

        An operator's token is shown only for what takes one, unless there is no other.
        """
        return HttpLogSource(self.arguments.url, client_token(), admin_token=admin_token())


@contextmanager
def job_context(
    arguments: argparse.Namespace, tell: Callable[[str], None] = say
) -> Iterator[JobContext]:
    """Give a job its context, and stop the Spark session that it started.

    Raises:
        ApplyError: Spark failed; tables keep their last complete state (definite).
    """
    for name, kind in _PLACES.items():
        given = getattr(arguments, name, None)
        if given is not None:
            setattr(arguments, name, kind(local_path(given, name)))
    context = JobContext(arguments=arguments, tell=tell)
    if getattr(arguments, "in_window", False):
        _check_window(context)
    try:
        yield context
    except Exception as error:
        if "spark" not in vars(context) or isinstance(error, TxLogError):
            raise
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        if not isinstance(error, (PySparkException, Py4JError)):
            raise
        raise ApplyError(
            f"Spark failed: {first_lines(error)}",
            hint="Tables keep their last complete state; the job may be repeated.",
        ) from error
    finally:
        if "spark" in vars(context):
            context.spark.stop()


def _check_window(context: JobContext) -> None:
    with closing(context.open_source()) as source:
        if not source.info().maintenance_open:
            raise OutsideWindowError(
                "upkeep may not run now: no maintenance window of the node is open",
                hint="`sparktxlog settings show` has maintenance-windows.  Without --in-window the "
                "job runs at any time.",
            )


#: Options that name a place of this machine → type of their value.
_PLACES: dict[str, Callable[[str], Any]] = {
    "images": Path,
    "lake": str,
    "path": str,
    "state": Path,
}
#: The work of a job: context → exit code and result.
Work = Callable[[JobContext], tuple[int, dict[str, Any]]]


def parser(found: JobCommand) -> argparse.ArgumentParser:
    """Return a parser with the common options of all jobs, and those of one job."""
    made = argparse.ArgumentParser(description=found.does)
    made.add_argument(
        "--url",
        default=os.environ.get("SPARKTXLOG_URL", "http://127.0.0.1:7070"),
        help="URL of the site's node; the token comes from SPARKTXLOG_CLIENT_TOKEN",
    )
    made.add_argument("--ca-file", help=CA_HELP)
    for option in found.options:
        option.add_to(made)
    made.add_argument("--json", action="store_true", help="end with one line of JSON on stdout")
    return made


def work_of(found: JobCommand) -> Work:
    """Return the function that does a job's work."""
    module, _, function = found.work.partition(":")
    work: Work = getattr(import_module(f"sparktxlog.api.jobs.{module}"), function)
    return work


def main_of(name: str) -> Callable[[Sequence[str]], int]:
    """Return the main function of one of `JOBS`: arguments → exit code."""
    found = JOBS[name]

    def main(argv: Sequence[str]) -> int:
        made = parser(found)
        arguments = made.parse_args(argv)
        if said := found.conflict(arguments):
            made.error(said)
        code, result = perform(arguments, work_of(found))
        if arguments.json:
            print_result(code, result)
        return code

    return main


def perform(arguments: argparse.Namespace, work: Work) -> tuple[int, dict[str, Any]]:
    """Do the work; return exit code and result, also for an error."""
    start_logging()
    ended = _watched(work.__name__, arguments)
    with traced_program("sparktxlog-worker", socket.gethostname()):
        code, result = _performed(arguments, work)
    ended(code, result)
    return code, result


def _watched(name: str, arguments: argparse.Namespace) -> Callable[[int, dict[str, Any]], None]:
    """Tell the hook, if there is one, that a job begins; return what tells it how it ended."""
    place = os.environ.get(HOOK_VARIABLE, "")

    def call(function: Callable[..., Any], *given: Any) -> Any:
        try:
            return function(*given)
        except Exception as error:  # noqa: BLE001 - what only watches must not fail a job
            say(f"{HOOK_VARIABLE}={place}: {type(error).__name__}: {first_lines(error)}")
            return None

    def begin() -> Any:
        module, _, function = place.partition(":")
        return getattr(import_module(module), function)(name, arguments)

    ended = call(begin) if place else None
    return lambda code, result: call(ended, code, result) if ended else None


def _performed(arguments: argparse.Namespace, work: Work) -> tuple[int, dict[str, Any]]:
    try:
        trust(getattr(arguments, "ca_file", None))
        with job_context(arguments) as context:
            # An unreachable node is reported before Spark takes seconds to start.
            with closing(context.open_source()) as source:
                source.info()
            return work(context)
    except TxLogError as error:
        say(str(error))
        return exit_code(error), {"error": error.to_problem()}


def print_result(code: int, result: dict[str, Any]) -> None:
    """Print the line of JSON that a job ends with."""
    sys.stdout.write(json.dumps({"exit_code": code, **result}, default=str) + "\n")
    sys.stdout.flush()


def exit_code(error: TxLogError) -> int:
    """Return the exit code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ERROR)


def exit_code_of(outcome: ApplyOutcome, at_least: int) -> int:
    """Return a worker's exit code: diverged, position not reached, or success."""
    if outcome.diverged or outcome.stopped or outcome.verdict == "DIVERGED":
        return DIVERGED
    return LAGGING if outcome.position < at_least else OK


def main(work: Callable[[Sequence[str]], int]) -> None:
    """End the process with the exit code of a job's main function."""
    sys.exit(work(sys.argv[1:]))
