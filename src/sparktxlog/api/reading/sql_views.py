"""SQL names for what a site has: `SELECT … FROM txlog.orders`, and `DESCRIBE`.

A schema of the session's catalog gets a view for each row table, over the table's directory in the
site's lake.  Spark resolves a view by each query, so it shows the newest Delta version and the
table's present columns.  A view of one version would show old rows until somebody made it again,
and a table of a Python data source cannot be read below Delta's catalog (decision 57).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sparktxlog.api.connect import TxLog
from sparktxlog.api.datasource import register_format
from sparktxlog.api.nodes import Nodes
from sparktxlog.api.reading.replica_snapshot import is_here, reached_answer
from sparktxlog.api.spark_paths import spark_url
from sparktxlog.api.tested_releases import warn_of_untested
from sparktxlog.codec.lexer import quoted_name, string_literal
from sparktxlog.codec.state_views import KEPT, VIEWS
from sparktxlog.delta.log_files import has_log
from sparktxlog.errors import DivergedError, InvalidRequestError, NotAppliedError
from sparktxlog.model.ids import check_name_part
from sparktxlog.model.replicas import MAIN, replica_id

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Comment of a schema that `register` made; it drops views in no other one.
_OURS = "Tables of the log; made by sparktxlog.register"
#: Property of a view.
_REPLICA = "sparktxlog.replica"


def register(
    spark: SparkSession,
    log: TxLog | str | Sequence[str],
    token: str | None = None,
    *,
    schema: str = "txlog",
    ca_file: str | None = None,
    replica: str | None = None,
) -> tuple[str, ...]:
    """Let a session read by SQL what this site has: `SELECT … FROM txlog.orders`.

        sparktxlog.register(spark, log)
        spark.sql("SELECT * FROM txlog.orders JOIN txlog.customers USING (customer)")

    Each row table that is applied here has a view; `bronze.events` has `txlog_bronze.events`.  What
    the log says of itself has views, too, and they hide row tables of these names: all of
    `codec.state_views.KEPT` and `VIEWS`.  `txlog.epochs` has the whole history.  For the other
    views the node writes files every two seconds from now on; `as_of` is the time of a row.  A view
    of a table shows the newest rows and columns whenever it is read.  While a worker applies a
    batch, the view may show a part of it; `log.snapshot()` does not.
    Call it again when tables were created or dropped.  Views are only read.
    `format("txlog")` is registered, too.

    A view reads one replica of the site, and says which: `SHOW TBLPROPERTIES txlog.orders` has
    `sparktxlog.replica`.

    Args:
        spark: A session with Delta.
        log: What `connect` returned, or URLs of nodes as for `connect`; the first that answers
            says where the tables are.
        token: Client token, with a URL.
        schema: Schema of the session's catalog to make, or to make again.
        ca_file: Authority of certificates, with a URL.
        replica: Name of the replica to read; default: of each table the least behind of those that
            hold it and whose files this process sees, first of those with all tables.

    Returns:
        The names of the views, sorted: `txlog.orders`, ….

    Raises:
        InvalidRequestError: There is a schema of that name that is not of `register` (definite).
        InvalidNameError: The schema's name is outside the allowed pattern (definite).
        NotFoundError: The site has no such replica (definite).
        UnreachableError, UnauthorizedError: From the node (definite).
    """
    check_name_part(schema)
    warn_of_untested(spark)
    if isinstance(log, TxLog):
        places = _places(log.site.home.get, replica)
    else:
        with closing(Nodes(log, token=token, ca_file=ca_file)) as nodes:
            places = _places(nodes.get, replica)
            register_format(spark, url=",".join(nodes.urls), token=token, ca_file=ca_file)
    views: dict[str, dict[str, _View]] = {schema: {}}
    for name, query in places.items():
        # The session's catalog takes no dot in a name: `bronze.events` is `txlog_bronze.events`.
        inner, _, last = name.rpartition(".")
        views.setdefault(f"{schema}_{inner}" if inner else schema, {})[last] = query
    for owned, named in views.items():
        _own(spark, owned)
        there = {row["viewName"] for row in spark.sql(f"SHOW VIEWS IN {owned}").collect()}
        for name in there - named.keys():
            spark.sql(f"DROP VIEW IF EXISTS {owned}.`{name}`")
        for name, made in named.items():
            shown = string_literal(made.replica)
            said = f"TBLPROPERTIES ('{_REPLICA}' = {shown})" if made.replica else ""
            # Without SCHEMA EVOLUTION `*` means the columns of now.
            head = f"CREATE OR REPLACE VIEW {owned}.`{name}` {said} WITH SCHEMA EVOLUTION"
            spark.sql(f"{head} AS {made.query}")
    return tuple(sorted(f"{owned}.{name}" for owned, named in views.items() for name in named))


class _View(NamedTuple):
    query: str
    #: Of a row table the replica that is read, as `model.replicas` names it.
    replica: str = ""


def _places(get: Callable[..., Any], replica: str | None) -> dict[str, _View]:
    """Return view → its query; what the log says of itself hides a row table."""
    found: dict[str, _View] = {}
    info = get("/v1/info")
    for answer in _snapshots(get, replica):
        shown = replica_id(str(info["node_id"]), str(answer.get("replica") or MAIN))
        for name, table in answer["tables"].items():
            uri = str(table["uri"])
            query = _of_delta(spark_url(uri) if uri.startswith("/") else uri)
            found.setdefault(name.lower(), _View(query, shown))
    root, state = Path(info["log_root"]), Path(get("/v1/state-files")["directory"])
    for name, view in VIEWS.items():
        ddl, file = string_literal(f"struct<{view.ddl}, as_of: timestamp>"), state / f"{name}.json"
        read = f"from_json(value, {ddl}) AS r FROM text.{quoted_name(spark_url(file))}"
        found[name] = _View(f"SELECT r.* FROM (SELECT {read})")
    kept = {name: view.delta_table for name, view in VIEWS.items() if view.delta_table}
    kept |= {name: table.directory for name, table in KEPT.items()}
    for name, folder in kept.items():
        if has_log(root / folder):
            found[name] = _View(_of_delta(spark_url(root / folder)))
    return found


def _snapshots(get: Callable[..., Any], replica: str | None) -> list[Mapping[str, Any]]:
    """Return the snapshots of the replicas to read, best first; none if nothing was applied yet."""

    def ask(name: str | None) -> Mapping[str, Any]:
        found: Mapping[str, Any] = get("/v1/snapshot", replica=name)
        return found

    try:
        first = reached_answer(ask, replica)
    except NotAppliedError:  # no batch was applied here yet
        return []
    found = [first]
    for name in () if replica else first.get("others") or ():
        with suppress(NotAppliedError, DivergedError):
            found.append(ask(name))
    return [first, *(one for one in found[1:] if is_here(one))]


def _of_delta(uri: str) -> str:
    return f"SELECT * FROM delta.{quoted_name(uri)}"


def _own(spark: SparkSession, schema: str) -> None:
    """Make the schema; refuse one that somebody else made."""
    spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema} COMMENT '{_OURS}'")
    if spark.catalog.getDatabase(schema).description != _OURS:
        raise InvalidRequestError(
            f"schema {schema!r} of the session's catalog is not one that register made",
            hint="Give another one: register(spark, log, schema='log_tables').",
            field="schema",
            value=schema,
        )
