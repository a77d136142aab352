"""The views of the state and their columns: a part of docs/views.md, from the code that has them.

`tools/reference.py` (make docs) writes it, a test compares the page.
"""

from __future__ import annotations

import inspect
import re

from sparktxlog.codec import state_views
from sparktxlog.codec.arrow import ddl_type
from sparktxlog.codec.state_views import KEPT, VIEWS
from sparktxlog.storage.log_tables import log_schemas
from sparktxlog.storage.log_tables.log_schemas import LOG_TABLES


def sections_of_views() -> str:
    """Return a section for each view: what a row is, and its columns."""
    said = _said_of(log_schemas) | _said_of(state_views)
    schemas = {name: LOG_TABLES[kept.directory] for name, kept in KEPT.items()}
    constants = {name: kept.directory.upper() for name, kept in KEPT.items()}
    schemas |= {name: view.schema for name, view in VIEWS.items()}
    parts = []
    for name, schema in schemas.items():
        text = said[constants.get(name, name.upper())]
        columns = ", ".join(f"`{field.name}` {ddl_type(field.type)}" for field in schema)
        parts += [f"### {name}\n", f"{text}\n", f"{columns}\n"]
    return "\n".join(parts)


def _said_of(module: object) -> dict[str, str]:
    """Return constant of a module → the comment above it, as one paragraph."""
    found = {}
    source = inspect.getsource(module)  # type: ignore[arg-type]
    for comment, name in re.findall(r"((?:^#: .*\n)+)^([A-Z_]+) = ", source, re.MULTILINE):
        text = " ".join(line.removeprefix("#: ") for line in comment.splitlines())
        found[name] = re.sub(r"\s+", " ", text)
    return found
