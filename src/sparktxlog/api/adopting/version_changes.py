"""What one version of a followed Delta table did, as operations of a transaction.

    files added, none removed      append of these files
    everything replaced            overwrite by the files that were added
    rows changed, table with keys  upserts and deletes by key, computed by Spark
    other rows share such a key    overwrite by all files of the version
    the same, without keys         overwrite by all files of the version
    OPTIMIZE and the like          nothing

Changed rows come from the change data of the commit if it has some.  Otherwise the rows of removed
files are compared with those of added ones, by keys and by row hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from sparktxlog.api.adopting.row_adoption import append_files, signature_of_rows
from sparktxlog.api.adopting.source_table import SourceFile, SourceTable
from sparktxlog.api.schema import HOW_OFTEN, columns_of, conform, rows_by_key
from sparktxlog.api.site_session import SiteSession
from sparktxlog.api.writing.transaction import SparkTransaction
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.errors import SchemaMismatchError
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.worker.apply.signatures import HASH_COLUMN, hashed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Action = dict[str, Any]
#: Column: how many rows of a key there may be.
_MOST = "__txlog_most"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionActions:
    """What the log of a Delta table says of one version, as far as rows and columns go."""

    version: int
    operation: str
    #: Of files whose rows came or went; OPTIMIZE moves rows only.
    adds: tuple[Action, ...]
    removes: tuple[Action, ...]
    has_change_data: bool
    #: UUID that it gives the table, empty = it says nothing of it.
    table_id: str
    #: Columns, properties or features may be others.
    is_new_definition: bool

    @classmethod
    def of(cls, version: int, actions: Sequence[Action]) -> VersionActions:
        """Read the actions of a commit file."""

        def having(name: str) -> list[Action]:
            return [action[name] for action in actions if name in action]

        def changing(name: str) -> tuple[Action, ...]:
            return tuple(file for file in having(name) if file.get("dataChange", True))

        infos = having("commitInfo")
        return cls(
            version=version,
            operation=str(infos[0].get("operation") or "unknown") if infos else "unknown",
            adds=changing("add"),
            removes=changing("remove"),
            has_change_data=bool(having("cdc")),
            table_id=next((str(found.get("id")) for found in having("metaData")), ""),
            is_new_definition=bool(having("metaData") or having("protocol")),
        )


def added_columns(source: SourceTable, definition: TableDefinition) -> dict[str, str]:
    """Return the columns that a table has to get before it takes rows of its source, with types.

    Raises:
        SchemaMismatchError: The source has changed in another way (definite).
    """
    found = {column.name: column for column in columns_of(source.struct)}
    known = {column.name: column for column in definition.columns}
    problems = [f"column {name!r} is gone or renamed" for name in known if name not in found]
    problems += [
        f"column {name!r} is {found[name].type}{'' if found[name].nullable else ' NOT NULL'}, "
        f"and was {column.type}{'' if column.nullable else ' NOT NULL'}"
        for name, column in known.items()
        if name in found
        and (found[name].type, found[name].nullable) != (column.type, column.nullable)
    ]
    problems += [
        f"column {name!r} is new and takes no NULL"
        for name, column in found.items()
        if name not in known and not column.nullable
    ]
    if source.partition_by != definition.partition_by:
        problems.append(f"it is partitioned by {', '.join(source.partition_by) or 'nothing'}")
    if problems:
        raise SchemaMismatchError(
            f"table {definition.name!r} cannot follow version {source.version} of {source.url}: "
            f"{'; '.join(problems)}",
            hint="Only added columns are followed.  Drop the table from the log and adopt it "
            "again, or change it back.",
            table=definition.name,
            version=source.version,
        )
    return {name: column.type for name, column in found.items() if name not in known}


def put_changes(
    t: SparkTransaction,
    site: SiteSession,
    name: str,
    source: SourceTable,
    actions: VersionActions,
) -> str:
    """Add to a transaction what a version did to the rows; return a text on it, for people.

    Args:
        source: The table at the version, without its files.

    Raises:
        InvalidRequestError: A file is missing (definite).
    """
    added = source.files(actions.adds)
    if not actions.removes:
        _put_files(t, site, name, source, added, OperationKind.APPEND)
        return "append"
    live = SourceTable.at(source.place, source.version)
    if {add["path"] for add in live.log.adds.values()} <= {add["path"] for add in actions.adds}:
        _put_files(t, site, name, source, added, OperationKind.OVERWRITE)
        return "overwrite"
    definition = t.definition(name)
    if not definition.keys:
        put_all(t, site, name, live)
        return "overwrite by the whole table, which has no keys"
    before, after = _changed(site, source, actions, added)
    repeated = _put_difference(t, site, definition, before, after, live)
    if repeated:
        put_all(t, site, name, live)
        return f"overwrite by the whole table, where rows share the key {repeated}"
    return "upserts and deletes"


def put_all(t: SparkTransaction, site: SiteSession, name: str, source: SourceTable) -> None:
    """Add an overwrite by all rows of a version to a transaction."""
    _put_files(t, site, name, source, source.files(), OperationKind.OVERWRITE)


def _put_files(
    t: SparkTransaction,
    site: SiteSession,
    name: str,
    source: SourceTable,
    files: Sequence[SourceFile],
    kind: OperationKind,
) -> None:
    definition = t.definition(name)
    split = source.split(site.spark, files, definition)
    rows = source.rows(site.spark, files)
    append_files(t, name, source, split, lambda: signature_of_rows(rows, definition), site, kind)


def _changed(
    site: SiteSession, source: SourceTable, actions: VersionActions, added: Sequence[SourceFile]
) -> tuple[DataFrame, DataFrame]:
    """Return rows that are gone and rows that came; some may be in both."""
    if actions.has_change_data:
        bounds = {"startingVersion": source.version, "endingVersion": source.version}
        reader = site.spark.read.format("delta").option("readChangeFeed", "true").options(**bounds)
        feed, kind = reader.load(source.url), F.col("_change_type")
        # It has the columns of the newest version.
        names = [quoted_name(name) for name in source.struct.names]
        if set(source.struct.names) <= set(feed.columns):
            return (
                feed.where(kind.isin("delete", "update_preimage")).select(*names),
                feed.where(kind.isin("insert", "update_postimage")).select(*names),
            )
    removes = list(actions.removes)
    if any("partitionValues" not in remove or "size" not in remove for remove in removes):
        # A writer that does not say it; the version before does.
        former = SourceTable.at(source.place, source.version - 1)
        gone = {remove["path"] for remove in removes}
        removes = [add for add in former.log.adds.values() if add["path"] in gone]
    removed = source.files([_as_add(remove) for remove in removes])
    return source.rows(site.spark, removed), source.rows(site.spark, added)


def _as_add(remove: Action) -> Action:
    kept = ("path", "partitionValues", "size", "deletionVector", "tags", "baseRowId")
    found = {name: remove[name] for name in kept if name in remove}
    return found | {"modificationTime": 0, "dataChange": True}


def _put_difference(
    t: SparkTransaction,
    site: SiteSession,
    definition: TableDefinition,
    before: DataFrame,
    after: DataFrame,
    live: SourceTable,
) -> str:
    """Add the upserts and deletes that lead from some rows to others.

    Args:
        live: The version with its files: an upsert or delete removes every row of its key from the
            log's table, also one that the version did not touch.

    Returns:
        A key that the version touched and that other rows have, too: nothing is added then.
    """
    keys = [quoted_name(key) for key in definition.keys]
    names = [quoted_name(column.name) for column in definition.columns]
    found = site.expressions.row_hash(definition)
    kind = OperationKind.APPEND
    old = hashed(conform(before, definition, kind), found, keep=keys)
    # If two rows have one key, perhaps one is gone: only a row that was alone can be as it was.
    alone = old.groupBy(*keys).agg(
        F.count("*").alias(HOW_OFTEN), F.first(HASH_COLUMN).alias(HASH_COLUMN)
    )
    alone = alone.where(F.col(HOW_OFTEN) == 1).alias("old")
    old = old.alias("old")
    new = hashed(conform(after, definition, kind), found, keep=names).alias("new")
    same = [F.col(f"new.{name}") == F.col(f"old.{name}") for name in (*keys, HASH_COLUMN)]
    upserts = new.join(alone, same, "left_anti").select(*names)
    gone = [F.col(f"new.{key}") == F.col(f"old.{key}") for key in keys]
    deletes = old.join(new, gone, "left_anti").select(*keys).distinct()
    most = upserts.select(*keys, F.lit(1).alias(_MOST)).unionByName(
        deletes.select(*keys, F.lit(0).alias(_MOST))
    )
    rows = conform(live.rows(site.spark, live.files()), definition, kind).select(*keys)
    there = rows_by_key(rows, keys).alias("there")
    touched = [F.col(f"there.{key}") == F.col(f"most.{key}") for key in keys]
    more = there.join(most.alias("most"), [*touched, F.col(HOW_OFTEN) > F.col(_MOST)])
    repeated = more.select(*[f"there.{key}" for key in keys]).first()
    if repeated is not None:
        return ", ".join(f"{key}={value!r}" for key, value in repeated.asDict().items())[:300]
    t.upsert(definition.name, upserts)
    t.delete_keys(definition.name, deletes)
    return ""
