"""Commands that are also jobs: `commit`, `apply`, `table adopt`, `repair`, `maintain`, `verify`, …

They are built from the declarations in `api.jobs.job_options`; `jobs/*.py` run them.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from sparktxlog.api.jobs.job_options import JOBS, JobCommand, JobOption, require_spark
from sparktxlog.cli.commands.table_commands import table_app
from sparktxlog.cli.common_options import DEFAULT_URL, AsJson, ExitCode, Url, app, end
from sparktxlog.cli.printing import print_json, print_table
from sparktxlog.http.authorities import CA_HELP

_COLUMNS = "position published verdict batches transactions seconds stopped diverged".split()
_COPY_COLUMNS = (
    "donor from_position position tables size_bytes wire_bytes reused_bytes seconds quarantined"
).split()
_TABLE_COLUMNS = (
    "table files_before files disk_before disk optimized vacuumed seconds skipped failed"
).split()
_COMMIT_TABLE_COLUMNS = (
    "table version_before version files_before files optimized attempts checkpoint "
    "vacuumed_files vacuumed_bytes staged_commits seconds skipped failed"
).split()
_REMOVAL_COLUMNS = ("kind", "removed", "kept", "files", "size_bytes", "skipped", "failed")


#: `jobs/*.py` have no options before those of the command.
_CaFile = Annotated[Path | None, typer.Option("--ca-file", metavar="FILE", help=f"{CA_HELP}.")]


def _command(found: JobCommand) -> Callable[..., None]:
    """Return a function that runs a job; Typer makes its options from the function's signature."""

    def command(*, as_json: bool, **given: Any) -> None:
        given |= {o.attribute: given[o.attribute] or [] for o in found.options if o.repeated}
        arguments = Namespace(**given)
        if said := found.conflict(arguments):
            raise typer.BadParameter(said)
        if found.needs_spark(arguments):
            require_spark()  # before anything is done
        _run(found, arguments, as_json)

    # Required options come first.
    options = sorted(found.options, key=lambda option: not option.required)
    parameters = [_parameter(option) for option in options]
    first = sum(option.required for option in options)
    parameters.insert(first, _keyword("url", Url, DEFAULT_URL))
    parameters += [_keyword("ca_file", _CaFile, None), _keyword("as_json", AsJson, False)]
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
        shown = typer.Option(
            option.flag, help=option.help, metavar=option.metavar, min=option.least
        )
    return _keyword(option.attribute, Annotated[kind, shown], default)


def _run(found: JobCommand, arguments: Namespace, as_json: bool) -> None:
    """Run a job in its own Spark session; print its result, end with its exit code."""
    from sparktxlog.api.jobs import job
    from sparktxlog.api.jobs.progress_lines import say

    tell = say if as_json else typer.echo
    code, result = job.perform(arguments, job.work_of(found), tell)
    if as_json:
        print_json({"exit_code": code, **result})
    elif "error" not in result:
        _SHOWN.get(found.work, _show_replica)(result)
    end(ExitCode(code))


def _print_lines(title: str, columns: Sequence[str], lines: list[dict[str, Any]]) -> None:
    if lines:
        print_table(title, {name: name for name in columns}, lines)


def _show_replica(result: dict[str, Any]) -> None:
    if "verdict" in result:  # a commit, and a repair that did nothing, have said theirs
        _print_lines("replica", _COLUMNS, [result])
        _print_lines("copies", _COPY_COLUMNS, result["copies"])


def _show_upkeep(result: dict[str, Any]) -> None:
    _print_lines("tables", _TABLE_COLUMNS, result["tables"])
    _print_lines("commit tables", _COMMIT_TABLE_COLUMNS, result["commit_tables"])
    _print_lines("removed", _REMOVAL_COLUMNS, result["removed"])


#: Work whose result is not that of a replica.
_SHOWN: dict[str, Callable[[dict[str, Any]], None]] = {
    "upkeep:maintain": _show_upkeep,
    "upkeep:verify": lambda _: None,  # it has said all
}

for _name, _job in JOBS.items():
    _words = f"{_job.group} {_name}".strip()
    (table_app if _job.group else app).command(
        _name, epilog=f"Example: sparktxlog {_words} {_job.example}"
    )(_command(_job))
