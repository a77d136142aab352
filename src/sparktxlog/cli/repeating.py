"""`--watch`: a command shows its answer again and again, until Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import sleep
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from sparktxlog.cli.common_options import ExitCode, end, exit_code_of
from sparktxlog.cli.printing import collected, is_terminal
from sparktxlog.errors import TransportError

Watch = Annotated[
    float | None,
    typer.Option(
        "--watch",
        "-w",
        min=0.1,
        metavar="SECONDS",
        help="Show it again each SECONDS, until Ctrl-C, which ends with the last exit code.",
    ),
]


def repeat(seconds: float | None, as_json: bool, once: Callable[[], ExitCode]) -> None:
    """Let a command print once, or with `--watch` until Ctrl-C; end with its last exit code.

    On a terminal the new answer takes the place of the old one; elsewhere, and with --json, it
    follows.  A node that does not answer any more is reported, and asked again.

    Args:
        seconds: Of `--watch`; None = print once.
        as_json: Whether programs read it.
        once: Prints, and returns the exit code.
    """
    code = ExitCode.IN_SYNC
    if seconds is None:
        end(once())
        return
    try:
        if as_json or not is_terminal():
            while True:
                code = _try(once)
                if not as_json:
                    sys.stdout.write("\n")
                sys.stdout.flush()
                sleep(seconds)
        with Live(console=Console(highlight=False), auto_refresh=False) as live:
            while True:
                with collected() as text:
                    code = _try(once)
                live.update(Text.from_ansi(text.getvalue()), refresh=True)
                sleep(seconds)
    except KeyboardInterrupt:
        end(code)


def _try(once: Callable[[], ExitCode]) -> ExitCode:
    try:
        return once()
    except TransportError as error:
        sys.stdout.write(f"{error}\n")
        return exit_code_of(error)
