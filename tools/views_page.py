"""The views of the state and their columns; written to docs/views.md from the code that has them.

`tools/reference.py` (make docs) writes the page, a test compares it.
"""

from __future__ import annotations

import inspect
import re

from sparktxlog.codec import state_views
from sparktxlog.codec.arrow import ddl_type
from sparktxlog.codec.state_views import KEPT, VIEWS
from sparktxlog.storage.log_tables import log_schemas
from sparktxlog.storage.log_tables.log_schemas import LOG_TABLES

_TOP = """# The state as tables

{note}

What a node knows of the log, of itself and of all sites can be read as tables. `NAME` is one of the
views below.

| from | how |
|---|---|
| a session with a log | `log.NAME()`, a DataFrame |
| any session | `spark.read.format("txlog").load("NAME")`; option `url` if none is connected |
| [SQL](reading-tables.md#sql) | `FROM txlog.NAME`, after `sparktxlog.register(spark, log)` |
| Python without Spark | `client.view("NAME")`, an Arrow table |
| a command | `sparktxlog view NAME`, with `--json` for programs |
| HTTP | `GET /v1/views/NAME`: JSON; Arrow or CSV by `?format=` or the header `Accept` |

- All but {kept} are made when they are asked for, from what the asked node knows at that moment.
  In SQL they are at most two seconds old; their column `as_of` says of when a row is.
- {kept} are Delta tables of the node. `log.NAME()`, `.load("NAME")` and SQL read all of them.
  `/v1/views/NAME`, `client.view` and the command read the last 1,000 rows, or `limit`; with
  `after` the first rows after a position or a time.
- `queue` and `lag` are [streams](streams.md#read-a-stream), too:
  `spark.readStream.format("txlog").load("lag")`.
- In SQL `epochs` and `transfers` have the whole history.

"""


def views_page(note: str) -> str:
    """Return docs/views.md."""
    said = _said_of(log_schemas) | _said_of(state_views)
    schemas = {name: LOG_TABLES[kept.directory] for name, kept in KEPT.items()}
    constants = {name: kept.directory.upper() for name, kept in KEPT.items()}
    schemas |= {name: view.schema for name, view in VIEWS.items()}
    kept = " and ".join(f"`{name}`" for name in KEPT)
    parts = [_TOP.format(note=note, kept=kept)]
    for name, schema in schemas.items():
        text = said[constants.get(name, name.upper())]
        columns = ", ".join(f"`{field.name}` {ddl_type(field.type)}" for field in schema)
        parts += [f"## {name}\n", f"{text}\n", f"{columns}\n"]
    return "\n".join(parts)


def _said_of(module: object) -> dict[str, str]:
    """Return constant of a module → the comment above it, as one paragraph."""
    found = {}
    source = inspect.getsource(module)  # type: ignore[arg-type]
    for comment, name in re.findall(r"((?:^#: .*\n)+)^([A-Z_]+) = ", source, re.MULTILINE):
        text = " ".join(line.removeprefix("#: ") for line in comment.splitlines())
        found[name] = re.sub(r"\s+", " ", text)
    return found
