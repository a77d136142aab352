"""What all Spark jobs share: their context, their exit codes, and the hook that watches them.

Spark is imported and started by the first job step that needs it.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparktxlog.api.jobs.job_options import ExitCode, JobCommand, exit_code_of, require_spark
from sparktxlog.api.jobs.progress_lines import say, start_logging
from sparktxlog.errors import (
    ApplyError,
    InvalidRequestError,
    OutsideWindowError,
    TxLogError,
    first_lines,
)
from sparktxlog.http.authorities import trust
from sparktxlog.http.tokens import admin_token, client_token
from sparktxlog.model.ids import local_path
from sparktxlog.tracing import traced_program
from sparktxlog.worker.lakes.lake_places import is_in_bucket
from sparktxlog.worker.replica.source import HttpLogSource, NodeInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparktxlog.worker.replica.applier import ApplyOutcome

OK, ERROR, USAGE, LAGGING, DIVERGED, UNREACHABLE, BAD_CONFIG = ExitCode
#: Names `module:function`, which is called for each job: it takes name and arguments when the job
#: begins, and returns what takes exit code and result when it ends.
HOOK_VARIABLE = "SPARKTXLOG_JOB_HOOK"


@dataclass(kw_only=True)
class JobContext:
    """Arguments, Spark session and connection of a job; made by `job_context`."""

    arguments: argparse.Namespace
    #: Prints a line for people.
    tell: Callable[[str], None] = say
    #: URLs in stores that the session has to reach, in addition to those of the arguments.
    urls: list[str] = field(default_factory=list)

    @cached_property
    def spark(self) -> SparkSession:
        """The job's Spark session, started at the first use.

        Raises:
            InvalidRequestError: There is no such store (definite).
            MissingDependencyError: There is no PySpark, or Spark did not start (definite).
        """
        require_spark()
        from sparktxlog.api.session import build_session

        start_logging()
        # If spark-submit started this process, it has chosen the master.
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        master = self.arguments.master or (None if submitted else "local[*]")
        given = (getattr(self.arguments, name, None) for name in ("stores", "input", "path"))
        stores = [*filter(None, given), *self.urls]
        return build_session(master, app_name="sparktxlog-worker", stores=stores)

    def lake_of(self, info: NodeInfo) -> str:
        """Return the lake that the arguments name, or that of the replica there, or the main one's.

        The session will reach it, and the payload store, wherever they are.

        Raises:
            InvalidNameError, NotFoundError: The site has no replica of that name (definite).
            InvalidRequestError: Its lake is not on this machine (definite).
        """
        name = getattr(self.arguments, "replica", None)
        lake: str = self.arguments.lake or (info.lake if name is None else info.lake_of(name))
        if name is not None and not is_in_bucket(lake) and not Path(lake).is_dir():
            raise InvalidRequestError(
                f"the lake of replica {name!r}, {lake}, is not on this machine",
                hint="Run it where the replica's worker runs, or say where this machine has that "
                "directory: --lake.",
                field="replica",
                value=name,
            )
        if info.payload_url is not None:
            self.urls.append(info.payload_url)
        if is_in_bucket(lake):
            self.urls.append(lake)
        return lake

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
        if given is not None and not _is_url(name, given):
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


def _is_url(name: str, given: str) -> bool:
    """Return whether an option names a place in a bucket, and may."""
    return name in ("images", "lake", "path") and is_in_bucket(given)


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
    "work_dir": str,
}
#: The work of a job: context → exit code and result.
Work = Callable[[JobContext], tuple[int, dict[str, Any]]]


def work_of(found: JobCommand) -> Work:
    """Return the function that does a job's work."""
    module, _, function = found.work.partition(":")
    work: Work = getattr(import_module(f"sparktxlog.api.jobs.{module}"), function)
    return work


def perform(
    arguments: argparse.Namespace, work: Work, tell: Callable[[str], None] = say
) -> tuple[int, dict[str, Any]]:
    """Do the work; return exit code and result, also for an error."""
    start_logging()
    ended = _watched(work.__name__, arguments)
    with traced_program("sparktxlog-worker", socket.gethostname()):
        code, result = _performed(arguments, work, tell)
    ended(code, result)
    return code, result


def _watched(name: str, arguments: argparse.Namespace) -> Callable[[int, dict[str, Any]], None]:
    """Tell the hook, if there is one, that a job begins; return what reports the end to it."""
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


def _performed(
    arguments: argparse.Namespace, work: Work, tell: Callable[[str], None]
) -> tuple[int, dict[str, Any]]:
    try:
        trust(getattr(arguments, "ca_file", None))
        with job_context(arguments, tell) as context:
            # An unreachable node is reported before Spark takes seconds to start.
            with closing(context.open_source()) as source:
                source.info()
            return work(context)
    except TxLogError as error:
        say(str(error))
        code = exit_code_of(error)
        # The arguments could be read: what they name may be there at the next attempt.
        return ERROR if code is USAGE else code, {"error": error.to_problem()}


def code_of_outcome(outcome: ApplyOutcome, at_least: int) -> int:
    """Return a worker's exit code: diverged, position not reached, or success."""
    if outcome.diverged or outcome.stopped or outcome.verdict == "DIVERGED":
        return DIVERGED
    return LAGGING if outcome.position < at_least else OK
