"""The root of all commands, the options that many share, and what some of them need."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from sparktxlog.errors import MissingDependencyError

app = typer.Typer(
    name="sparktxlog",
    help="One order over many Delta tables from several writing sites.",
    epilog="Exit codes: 0 in sync, 1 error, 2 usage, 3 lagging, 4 diverged, 5 unreachable, "
    "6 bad configuration.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)
DEFAULT_URL = "http://127.0.0.1:7070"
Url = Annotated[str, typer.Option("--url", envvar="SPARKTXLOG_URL", help="URL of the node to ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a table.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML or .properties file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting; may be repeated."),
]


def require_spark(way_out: str = "") -> None:
    """Refuse to begin what will need Spark where it is not installed.

    Args:
        way_out: What else the user may do, a sentence.

    Raises:
        MissingDependencyError: There is no PySpark (definite).
    """
    if find_spec("pyspark") is None:
        raise MissingDependencyError(
            "this command needs PySpark",
            hint=f"Run: pip install 'sparktxlog[spark]'.  {way_out}".strip(),
        )
