"""What the Spark jobs of a replica share: arguments, exit codes, JSON line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sparktxlog.api.jobs.job_options import JOBS, LAKE, MASTER, ExitCode, JobCommand, JobOption
from sparktxlog.api.jobs.progress_lines import say, start_logging
from sparktxlog.api.session import build_session
from sparktxlog.errors import (
    ApplyError,
    CommitStateUnknownError,
    ConfigError,
    DivergedError,
    NotAppliedError,
    TransportError,
    TxLogError,
    first_lines,
)
from sparktxlog.http.tokens import admin_token, client_token
from sparktxlog.worker.replica.applier import ApplyOutcome
from sparktxlog.worker.replica.source import HttpLogSource

OK, ERROR, USAGE, LAGGING, DIVERGED, UNREACHABLE, BAD_CONFIG = ExitCode
_CODES: tuple[tuple[type[TxLogError], int], ...] = (
    (ConfigError, BAD_CONFIG),
    (DivergedError, DIVERGED),
    (NotAppliedError, LAGGING),
    (CommitStateUnknownError, LAGGING),
    (TransportError, UNREACHABLE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """What a job works with."""

    arguments: argparse.Namespace
    spark: SparkSession

    def open_source(self) -> HttpLogSource:
        """Return a new connection to the node."""
        return open_source(self.arguments)


#: What a job does: context → exit code and result.
Work = Callable[[JobContext], tuple[int, dict[str, Any]]]


def open_source(arguments: argparse.Namespace) -> HttpLogSource:
    """Return a connection to the node that the arguments name.

    An operator's token is shown only for what takes one, unless there is no other.
    """
    return HttpLogSource(arguments.url, client_token(), admin_token=admin_token())


def parser(
    description: str, options: Sequence[JobOption] = (LAKE, MASTER)
) -> argparse.ArgumentParser:
    """Return a parser with what all jobs of a replica take, and the options of one of them."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument(
        "--url",
        default=os.environ.get("SPARKTXLOG_URL", "http://127.0.0.1:7070"),
        help="URL of the site's node; a token comes from SPARKTXLOG_CLIENT_TOKEN",
    )
    for option in options:
        option.add_to(made)
    made.add_argument("--json", action="store_true", help="end with one line of JSON on stdout")
    return made


def work_of(found: JobCommand) -> Work:
    """Return what does a job."""
    module, _, function = found.work.partition(":")
    work: Work = getattr(import_module(f"sparktxlog.api.jobs.{module}"), function)
    return work


def main_of(name: str) -> Callable[[Sequence[str]], int]:
    """Return the main function of one of `JOBS`: arguments → exit code."""
    found = JOBS[name]

    def main(argv: Sequence[str]) -> int:
        made = parser(found.does, found.options)
        arguments = made.parse_args(argv)
        if said := found.conflict(arguments):
            made.error(said)
        return run_job(arguments, work_of(found))

    return main


def run_job(arguments: argparse.Namespace, work: Work) -> int:
    """Start Spark, do the work, print its result, and return the exit code."""
    code, result = perform(arguments, work)
    if arguments.json:
        print_result(code, result)
    return code


def perform(arguments: argparse.Namespace, work: Work) -> tuple[int, dict[str, Any]]:
    """Start Spark and do the work; return exit code and result, those of an error as well."""
    start_logging()
    try:
        # A node that is away is reported before Spark takes its seconds to start.
        with closing(open_source(arguments)) as source:
            source.info()
        # spark-submit has chosen the master where it started this process.
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        master = arguments.master or (None if submitted else "local[*]")
        spark = build_session(master, app_name="sparktxlog-worker")
        try:
            return work(JobContext(arguments=arguments, spark=spark))
        except (PySparkException, Py4JError) as error:
            raise ApplyError(
                f"Spark failed: {first_lines(error)}",
                hint="Tables keep their last whole state; the job may be repeated.",
            ) from error
        finally:
            spark.stop()
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
    """Return the exit code of what a worker did: diverged, not at a position, or fine."""
    if outcome.diverged or outcome.stopped or outcome.verdict == "DIVERGED":
        return DIVERGED
    return LAGGING if outcome.position < at_least else OK


def main(work: Callable[[Sequence[str]], int]) -> None:
    """End the process with the exit code of a job's main function."""
    sys.exit(work(sys.argv[1:]))
