"""Options that many commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Url = Annotated[str, typer.Option("--url", envvar="SPARKTXLOG_URL", help="URL of the node to ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a table.")]
