"""Options that many commands share, and what some of them need."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

import typer

from sparktxlog.errors import MissingDependencyError

Url = Annotated[str, typer.Option("--url", envvar="SPARKTXLOG_URL", help="URL of the node to ask.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of a table.")]


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
