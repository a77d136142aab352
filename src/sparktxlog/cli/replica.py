"""Commands `commit`, `apply`, `catch-up`, `replicate` and `repair`: jobs of the same names."""

from __future__ import annotations

from argparse import Namespace
from typing import Annotated, Any

import typer

from sparktxlog.api import job_options as options
from sparktxlog.api.job_options import Forced, InputFormat, JobOption, RowOperation
from sparktxlog.cli.node_api import DEFAULT_URL
from sparktxlog.cli.options import AsJson, Url, require_spark
from sparktxlog.cli.output import print_rows

_COLUMNS = (
    "position", "published", "verdict", "batches", "transactions", "seconds", "stopped", "diverged",
)  # fmt: skip
_COPY_COLUMNS = (
    "donor", "from_position", "position", "tables", "size_bytes", "wire_bytes", "reused_bytes",
    "seconds", "quarantined",
)  # fmt: skip


def _typed(option: JobOption) -> Any:
    return typer.Option(option.flag, help=option.help, metavar=option.metavar)


Lake = Annotated[str | None, _typed(options.LAKE)]
Master = Annotated[str | None, _typed(options.MASTER)]
Timeout = Annotated[float, _typed(options.TIMEOUT)]
NoVerify = Annotated[bool, _typed(options.NO_VERIFY)]
History = Annotated[bool, _typed(options.HISTORY)]


def commit(
    table: Annotated[str, _typed(options.TABLE)],
    source: Annotated[str, _typed(options.INPUT)],
    url: Url = DEFAULT_URL,
    form: Annotated[InputFormat, _typed(options.FORMAT)] = InputFormat.PARQUET,
    option: Annotated[list[str] | None, _typed(options.OPTION)] = None,
    operation: Annotated[RowOperation, _typed(options.OPERATION)] = RowOperation.APPEND,
    create: Annotated[bool, _typed(options.CREATE)] = False,
    keys: Annotated[str, _typed(options.KEYS)] = "",
    partition_by: Annotated[str, _typed(options.PARTITION_BY)] = "",
    transaction_column: Annotated[str | None, _typed(options.TRANSACTION_COLUMN)] = None,
    transaction_ids_column: Annotated[str | None, _typed(options.TRANSACTION_IDS_COLUMN)] = None,
    transaction_id: Annotated[str | None, _typed(options.TRANSACTION_ID)] = None,
    level: Annotated[str, _typed(options.LEVEL)] = options.LEVEL.default,
    timeout: Annotated[float, _typed(options.LEVEL_TIMEOUT)] = options.TIMEOUT_S,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Commit a Parquet, CSV, JSON or Delta input to a table of the log."""
    arguments = Namespace(
        url=url, table=table, input=source, format=form.value, option=option or [],
        op=operation.value, create=create, keys=keys, partition_by=partition_by,
        transaction_column=transaction_column, transaction_ids_column=transaction_ids_column,
        transaction_id=transaction_id, level=level, timeout=timeout, master=master,
    )  # fmt: skip
    _run("commit", arguments, as_json)


def apply(
    url: Url = DEFAULT_URL,
    lake: Lake = None,
    master: Master = None,
    once: Annotated[bool, _typed(options.ONCE)] = False,
    follow: Annotated[bool, _typed(options.FOLLOW)] = False,
    no_copy: Annotated[bool, _typed(options.NO_COPY)] = False,
    at_least: Annotated[int, _typed(options.AT_LEAST)] = options.AT_LEAST.default,
    at_most: Annotated[int | None, _typed(options.AT_MOST)] = None,
    timeout: Timeout = options.TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Apply the published log to the site's replica: once, for ever, or up to a position."""
    arguments = Namespace(
        url=url, lake=lake, master=master, once=once, follow=follow, no_copy=no_copy,
        at_least=at_least, at_most=at_most, timeout=timeout,
    )  # fmt: skip
    if found := options.conflict(arguments):
        raise typer.BadParameter(found)
    _run("apply", arguments, as_json)


def catch_up(
    url: Url = DEFAULT_URL,
    lake: Lake = None,
    master: Master = None,
    force: Annotated[Forced | None, _typed(options.FORCE)] = None,
    donor: Annotated[str, _typed(options.DONOR)] = options.DONOR.default,
    no_verify: NoVerify = False,
    history: History = False,
    timeout: Timeout = options.TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Bring the site's replica back to the published end: by replay or copy, as the node plans."""
    arguments = Namespace(
        url=url, lake=lake, master=master, force=None if force is None else force.value,
        donor=donor, no_verify=no_verify, history=history, timeout=timeout,
    )  # fmt: skip
    _run("catch_up", arguments, as_json)


def replicate(
    url: Url = DEFAULT_URL,
    lake: Lake = None,
    master: Master = None,
    parts: Annotated[int, _typed(options.PARTS)] = options.PARTS.default,
    no_verify: NoVerify = False,
    history: History = False,
    timeout: Timeout = options.TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Copy a donor's replica, fetched by Spark's executors, then replay on.

    All executors must see the lake under the driver's path.
    """
    arguments = Namespace(
        url=url, lake=lake, master=master, parts=parts, no_verify=no_verify, history=history,
        timeout=timeout,
    )  # fmt: skip
    _run("replicate", arguments, as_json)


def repair(
    table: Annotated[str, typer.Argument(help="Table to look at, and to repair.")],
    url: Url = DEFAULT_URL,
    lake: Lake = None,
    master: Master = None,
    local: Annotated[bool, _typed(options.LOCAL)] = False,
    dry_run: Annotated[bool, _typed(options.DRY_RUN)] = False,
    timeout: Timeout = options.TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Bring a table that somebody else wrote to back to what the log says.

    Rows that others added are kept in quarantine. A copy is offered where another site can give
    one. No other worker may run; --dry-run may be asked beside one.
    """
    arguments = Namespace(
        url=url, lake=lake, master=master, table=table, local=local, dry_run=dry_run,
        timeout=timeout,
    )  # fmt: skip
    _run("repair", arguments, as_json)


def _run(name: str, arguments: Namespace, as_json: bool) -> None:
    """Do a job in a Spark session of its own; print its result, end with its exit code."""
    require_spark()
    from sparktxlog.api import ingest, job, replica_jobs

    work = {
        "commit": ingest.commit,
        "apply": replica_jobs.apply,
        "catch_up": replica_jobs.catch_up,
        "replicate": replica_jobs.replicate,
        "repair": replica_jobs.repair,
    }
    code, result = job.perform(arguments, work[name])
    if as_json:
        job.print_result(code, result)
    elif "verdict" in result:  # a commit, and a repair that did nothing, have said so
        print_rows("replica", _COLUMNS, [[result[column] for column in _COLUMNS]])
        if result["copies"]:
            print_rows(
                "copies", _COPY_COLUMNS,
                [[copy[column] for column in _COPY_COLUMNS] for copy in result["copies"]],
            )  # fmt: skip
    if code:
        raise typer.Exit(code)
