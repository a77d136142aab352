"""Commands `commit`, `apply`, `catch-up`, `replicate` and `repair`: jobs of the same names.

They are made of what `api.job_options` says of the jobs.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal

import typer

from sparktxlog.api.jobs.job_options import JOBS, JobCommand, JobOption
from sparktxlog.cli.root import (
    DEFAULT_URL,
    AsJson,
    ExitCode,
    Url,
    app,
    end,
    print_table,
    require_spark,
)

_COLUMNS = (
    "position", "published", "verdict", "batches", "transactions", "seconds", "stopped", "diverged",
)  # fmt: skip
_COPY_COLUMNS = (
    "donor", "from_position", "position", "tables", "size_bytes", "wire_bytes", "reused_bytes",
    "seconds", "quarantined",
)  # fmt: skip


def _command(found: JobCommand) -> Callable[..., None]:
    """Return what runs a job, with the signature from which Typer makes its options."""

    def command(*, as_json: bool, **given: Any) -> None:
        given |= {o.attribute: given[o.attribute] or [] for o in found.options if o.repeated}
        arguments = Namespace(**given)
        if said := found.conflict(arguments):
            raise typer.BadParameter(said)
        _run(found, arguments, as_json)

    # What must be given stands first.
    options = sorted(found.options, key=lambda option: not option.required)
    parameters = [_parameter(option) for option in options]
    first = sum(option.required for option in options)
    parameters.insert(first, _keyword("url", Url, DEFAULT_URL))
    parameters.append(_keyword("as_json", AsJson, False))
    command.__doc__ = found.does
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _keyword(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _parameter(option: JobOption) -> Parameter:
    kind: Any = Literal[option.choices] if option.choices else option.kind
    if option.repeated:
        kind = list[kind]
    default = False if option.kind is bool else option.default
    if option.required:
        default = Parameter.empty
    elif default is None:
        kind = kind | None
    shown: Any = typer.Argument(help=option.help)
    if option.flag.startswith("--"):
        shown = typer.Option(option.flag, help=option.help, metavar=option.metavar)
    return _keyword(option.attribute, Annotated[kind, shown], default)


def _run(found: JobCommand, arguments: Namespace, as_json: bool) -> None:
    """Do a job in a Spark session of its own; print its result, end with its exit code."""
    require_spark()
    from sparktxlog.api.jobs import job

    code, result = job.perform(arguments, job.work_of(found))
    if as_json:
        job.print_result(code, result)
    elif "verdict" in result:  # a commit, and a repair that did nothing, have said so
        print_table("replica", {name: name for name in _COLUMNS}, [result])
        if result["copies"]:
            print_table("copies", {name: name for name in _COPY_COLUMNS}, result["copies"])
    end(ExitCode(code))


for _name, _job in JOBS.items():
    app.command(_name, epilog=f"Example: sparktxlog {_name} {_job.example}")(_command(_job))
