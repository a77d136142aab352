"""What the commands share: common options, calls to a node, and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from sparktxlog.api.jobs.job_options import ExitCode as ExitCode
from sparktxlog.api.jobs.job_options import exit_code_of as exit_code_of
from sparktxlog.api.jobs.job_options import require_spark
from sparktxlog.cli.printing import print_json
from sparktxlog.errors import TransportError, TxLogError, UnreachableError
from sparktxlog.http.link import Http
from sparktxlog.http.tokens import admin_token, client_token
from sparktxlog.model.ids import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparktxlog.config import NodeConfig

#: Heading of `--help` → commands below it, in this order.
GROUPS: dict[str, tuple[str, ...]] = {
    "Cluster": (
        "status", "survival", "view", "peers", "peer", "site", "epochs", "settings", "audit",
        "void", "drill",
    ),
    "Log": ("queue", "why", "tx", "commit", "checkpoint"),
    "Replica": (
        "workers", "plan", "transfers", "apply", "catch-up", "replicate", "verify", "repair",
        "maintain",
    ),
    "Tables": ("tables", "table", "group", "attic"),
    "Backup": ("backup", "restore", "restore-point", "feed"),
    "Node": ("demo", "init", "config", "serve", "doctor", "maintenance"),
}  # fmt: skip


class GroupedCommands(TyperGroup):
    """Lists its commands in the groups of `GROUPS`, in `--help` and in the reference."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the groups."""
        return [name for names in self.groups().values() for name in names]

    def groups(self) -> dict[str, list[str]]:
        """Return the commands that there are by heading; those of no group come last."""
        found = {
            title: [name for name in names if name in self.commands]
            for title, names in GROUPS.items()
        }
        listed = {name for names in found.values() for name in names}
        found["More"] = [name for name in self.commands if name not in listed]
        return {title: names for title, names in found.items() if names}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each group with the first sentence of its commands."""
        for title, names in self.groups().items():
            with formatter.section(title):
                shown = [(name, self.commands[name].get_short_help_str(500)) for name in names]
                formatter.write_dl(shown)


def short_for(command: str) -> type[TyperGroup]:
    """Return a group that takes what names none of its commands as arguments of one of them."""

    class ShortForm(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
                args = [command, *args]
            return super().parse_args(ctx, args)

    return ShortForm


app = typer.Typer(
    name="sparktxlog",
    cls=GroupedCommands,
    help="One order over many Delta tables from several writing sites.",
    epilog="Exit codes: 0 in sync, 1 error, 2 usage, 3 lagging, 4 diverged, 5 unreachable, "
    "6 bad configuration.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)


def local_place(value: str) -> Path:
    """Return the place that an argument names; errors as `local_path`."""
    return Path(local_path(value))


DEFAULT_URL = "http://127.0.0.1:7070"
Url = Annotated[str, typer.Option("--url", envvar="SPARKTXLOG_URL", help="URL of the node to ask.")]
ReportDirectory = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="DIR",
        help="Directory for the report, as Markdown and HTML.",
        parser=local_place,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a table.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML or .properties file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting; may be repeated."),
]


def places_by(config: NodeConfig) -> dict[str, Any]:
    """Return where a site has its files, as its node says it by `/v1/info`."""
    places = {
        "payload_root": config.payload_dir,
        "lake_root": config.lake_dir,
        "commit_table_root": config.commit_table_dir,
        "reader_table_root": config.reader_table_dir,
        "log_root": config.data_dir / "log",
        "backup_dir": config.backup_dir,
    }
    return {
        **{name: None if path is None else str(path) for name, path in places.items()},
        "payload_url": config.payload_url,
        "lake_url": config.lake_url,
        "commit_table_url": config.commit_table_url,
    }


class NodeApi(Http):
    """Reads and changes one node's `/v1` resources.

    Args:
        url: The node's URL, scheme, host and port.
        token: Bearer token of all requests; default: `client_token` to read, and `admin_token` to
            change something; without either, the token that a node of this user on this machine
            noted.
        timeout_s: Seconds to wait for one answer.
        ca_file: As in `Http`.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 10.0,
        ca_file: Path | None = None,
    ) -> None:
        super().__init__(url, token=token or client_token(), timeout_s=timeout_s, ca_file=ca_file)
        self._admin_token = token or admin_token() or self.token

    def send(self, method: str, path: str, value: Any) -> Any:
        """Send a value as JSON; return the decoded answer, None for an empty one; as `get`."""
        body = json.dumps(value).encode()
        answer = self.request(method, path, body=body, token=self._admin_token)
        return self._decoded(answer or b"null")

    def _failed(self, method: str, path: str, error: TransportError) -> TransportError:
        if isinstance(error, UnreachableError):
            error.hint = "Start it with `sparktxlog serve`, or name another node with --url."
        return error


@contextmanager
def local_spark(command: str, stores: Sequence[str] = ()) -> Iterator[SparkSession]:
    """Give a command its own Spark session on this machine; raises as `require_spark`.

    Args:
        stores: URLs of buckets that it reaches.
    """
    require_spark()
    from sparktxlog.api.jobs.progress_lines import start_logging
    from sparktxlog.api.session import build_session

    start_logging()
    spark = build_session("local[*]", app_name=f"sparktxlog-{command}", stores=stores)
    try:
        yield spark
    finally:
        spark.stop()


# -- ends ----------------------------------------------------------------------------------------


def print_error(error: TxLogError, *, as_json: bool) -> None:
    """Print `[code] message  hint` to stderr, with --json the problem document to stdout."""
    if as_json:
        print_json(error.to_problem())
    sys.stderr.write(f"{error}\n")


def end(code: ExitCode) -> None:
    """End a command with its exit code."""
    if code is not ExitCode.IN_SYNC:
        raise typer.Exit(int(code))
