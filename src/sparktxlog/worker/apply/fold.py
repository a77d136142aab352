"""Rows of a batch as DataFrames, reduced by key: functions from DataFrame to DataFrame.

`rows_of` reads pieces of effects with the place of each row; `last_operations` keeps the last
upsert or delete of each key; `with_gone` marks appended rows that a later operation removes.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING
from urllib.parse import quote

from pyarrow.types import is_primitive, is_string
from pyspark.sql import functions as F

from sparktxlog.codec.arrow import arrow_type
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.errors import ApplyError
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.transactions.operation import (
    OP_COLUMN,
    POSITION_COLUMN,
    OperationKind,
    StagedFile,
)
from sparktxlog.worker.apply.batches import Piece, TableStage, Where
from sparktxlog.worker.apply.row_copying import PART_ROWS, RowPlaces
from sparktxlog.worker.apply.signatures import (
    count_columns,
    hashed,
    row_hash,
    signature_from,
    sums_of,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from sparktxlog.model.tables.table import Column as TableColumn
    from sparktxlog.model.tables.table import TableDefinition

#: Path of the file a row was read from, as `quoted_path` gives it.
FILE_COLUMN = "__txlog_file"
#: The file of a row as `file_uri` gives it, and the row's number in its file.
URI_COLUMN, ROW_INDEX = "__txlog_uri", "__txlog_row_index"
#: Which part of its file a row is in, and the bits of the part's rows.
_PART_COLUMN, _BITS_COLUMN = "__txlog_part", "__txlog_bits"
#: True: the key's rows are removed and not replaced.
DELETED_COLUMN = "__txlog_deleted"
#: True: a later operation removes the appended row.
GONE_COLUMN = "__txlog_gone"
_MATCHED_COLUMN = "__txlog_matched"
_TAG_COLUMN = "__txlog_tag"
_PARTITION_COLUMN = "__txlog_partition"
#: Whether rows of a file say their place, and what is added to their position then.
_SAID_COLUMN = "__txlog_said"
# A table may have columns of any other name.
_PATH_COLUMN = "__txlog_path"
_FIRST_COLUMN = "__txlog_first"
_PLACE_COLUMN = "__txlog_place"
#: The last operation of a key: before the names of its columns, its place, its row.
_LAST_PREFIX = "__txlog_last_"
_AT_POSITION, _AT_OP, _ROW_COLUMN = "__txlog_at_position", "__txlog_at_op", "__txlog_row"
#: Bytes of keys that are sent to all executors, so that the table need not be sorted by key.
_MOST_BROADCAST = 48 << 20
#: About the size of a key's value, by its type, and of what else belongs to a key.
_NARROW, _WIDE, _KEY_BYTES = 8, 40, 24
# What java.net.URI leaves unquoted in a path, as `_metadata.file_path` shows it.
_URI_SAFE = "/-_.!~'()*,;:$&+=@"
#: Categories of characters that it quotes in all scripts: controls and spaces.
_URI_QUOTED = frozenset({"Cc", "Zl", "Zp", "Zs"})


def rows_of(
    session: SparkSession,
    root: str,
    columns: Sequence[TableColumn],
    pieces: Sequence[Piece],
    stage: TableStage | None = None,
    *,
    placed: bool = False,
) -> DataFrame:
    """Read the rows of pieces, each with its place in the log.

    Args:
        root: Payload store, an absolute path or a URL.
        columns: Those to read; a file that lacks one gives NULL or its partition's value.
        stage: Bounds to keep where a piece is not whole.
        placed: Add `URI_COLUMN` and `ROW_INDEX`.

    **Shape:** `columns` in order, then position (bigint), op (int) and file (string), never NULL.
    """
    fields = [f"{quoted_name(column.in_files)} {column.type}" for column in columns]
    schema = ", ".join([*fields, f"{POSITION_COLUMN} bigint", f"{OP_COLUMN} int"])
    paths = [join_path(root, file) for piece in pieces for file in piece.effect.files]
    frame = session.read.schema(schema).parquet(*[_escape_glob(path) for path in paths])
    own = [_path_of(file_uri(frame)).alias(FILE_COLUMN), *(place_columns(frame) if placed else ())]
    frame, kept = frame.select("*", *own), (URI_COLUMN, ROW_INDEX) if placed else ()
    places = {None if p.effect.says_places else (p.effect.first, p.effect.op) for p in pieces}
    of_runs = any(p.effect.run for p in pieces)
    partitioned = any(file.partition for piece in pieces for file in piece.effect.files)
    if partitioned or of_runs or len(places) > 1:
        frame = _placed(session, root, frame, columns, pieces, kept)
    elif (place := places.pop()) is not None:
        known = _place_literal(place)
        names = (POSITION_COLUMN, OP_COLUMN)
        frame = frame.withColumns({name: known.getField(name) for name in names})
    named = [F.col(quoted_name(c.in_files)).alias(c.name) for c in columns]
    frame = frame.select(*named, POSITION_COLUMN, OP_COLUMN, FILE_COLUMN, *kept)
    if left_out := sorted({at for piece in pieces for at in piece.effect.left_out}):
        frame = frame.where(~F.col(POSITION_COLUMN).isin(left_out))
    if stage is not None and any(not piece.whole for piece in pieces):
        frame = frame.where(_within(stage))
    return frame


def file_uri(frame: DataFrame) -> Column:
    """Return the file of each row, as Spark names it."""
    # A table may have a column `_metadata`.
    return frame.metadataColumn("_metadata").getField("file_path")


def place_columns(rows: DataFrame) -> list[Column]:
    """Return `URI_COLUMN` and `ROW_INDEX` of rows that are read from files.

    Delta gives no row numbers of tables without deletion vectors; those of Parquet files it does.
    """
    index = rows.metadataColumn("_metadata").getField("row_index")
    return [file_uri(rows).alias(URI_COLUMN), index.alias(ROW_INDEX)]


def _path_of(uri: Column) -> Column:
    """Return the path of a file, as `quoted_path` gives it."""
    # Spark writes both file:/path and file:///path.
    return F.regexp_replace(uri, "^file:/+", "/")


def _placed(
    session: SparkSession,
    root: str,
    frame: DataFrame,
    columns: Sequence[TableColumn],
    pieces: Sequence[Piece],
    kept: Sequence[str],
) -> DataFrame:
    """Join what only the log knows about a file: place of its operation, partition values."""
    facts = [
        (
            quoted_path(join_path(root, file)),
            piece.effect.says_places,
            piece.effect.run if piece.effect.says_places else piece.effect.first,
            piece.effect.op,
            json.dumps(file.partition or {}),
        )
        for piece in pieces
        for file in piece.effect.files
    ]
    known = session.createDataFrame(
        facts,
        f"{_PATH_COLUMN} string, {_SAID_COLUMN} boolean, {_FIRST_COLUMN} bigint, "
        f"{_PLACE_COLUMN} int, {_PARTITION_COLUMN} string",
    )
    joined = frame.join(F.broadcast(known), frame[FILE_COLUMN] == known[_PATH_COLUMN], "left")
    # A file that the join does not find would silently lose its rows.
    lost = F.raise_error(F.concat(F.lit("no operation known for "), F.col(FILE_COLUMN)))
    position = F.when(F.col(_PATH_COLUMN).isNull(), lost.cast("bigint"))
    position = position.when(~F.col(_SAID_COLUMN), F.col(_FIRST_COLUMN)).otherwise(
        F.col(_FIRST_COLUMN) + F.col(POSITION_COLUMN)
    )
    op = F.when(F.col(_SAID_COLUMN), F.col(OP_COLUMN)).otherwise(F.col(_PLACE_COLUMN))
    in_path = {name for p in pieces for file in p.effect.files for name in file.partition or ()}
    values = F.from_json(F.col(_PARTITION_COLUMN), "map<string,string>")
    # Where a file has a partition column too, the log's value counts, as for readers of the table.
    selected = [
        F.when(F.map_contains_key(values, F.lit(stored)), values[stored].cast(kind))
        .otherwise(F.col(quoted_name(stored)))
        .alias(stored)
        if stored in in_path
        else F.col(quoted_name(stored))
        for stored, kind in ((column.in_files, column.type) for column in columns)
    ]
    return joined.select(
        *selected, position.alias(POSITION_COLUMN), op.alias(OP_COLUMN), FILE_COLUMN, *kept
    )


def _within(stage: TableStage) -> Column:
    place = F.struct(F.col(POSITION_COLUMN), F.col(OP_COLUMN))
    bound = place >= _place_literal(stage.lower)
    return bound if stage.upper is None else bound & (place < _place_literal(stage.upper))


def _place_literal(place: tuple[int, int]) -> Column:
    position, op = place
    return F.struct(
        F.lit(position).cast("bigint").alias(POSITION_COLUMN),
        F.lit(op).cast("int").alias(OP_COLUMN),
    )


def last_operations(
    session: SparkSession,
    root: str,
    definition: TableDefinition,
    stage: TableStage,
    *,
    distinct: bool = False,
) -> DataFrame:
    """Keep the last upsert or delete of each key of a stage.

    Args:
        distinct: No two of them have the same key, so there is nothing to fold.

    **Shape:** the table's columns (NULL except in the keys where deleted), one row a key; then
    position, op and `DELETED_COLUMN`.

    Raises:
        ApplyError: The table has no keys (definite).
    """
    if not definition.keys:
        raise ApplyError(
            f"table {definition.name!r} has no keys, yet the log holds upserts or deletes by key",
            table=definition.name,
        )
    keys = [column for column in definition.columns if column.name in definition.keys]
    frames = []
    for kind, columns in (
        (OperationKind.UPSERT, definition.columns),
        (OperationKind.DELETE_KEYS, keys),
    ):
        pieces = [piece for piece in stage.keyed if piece.effect.kind == kind]
        if pieces:
            frame = rows_of(session, root, columns, pieces, stage)
            absent = {
                column.name: F.lit(None).cast(column.type)
                for column in definition.columns
                if column not in columns
            }
            deleted = F.lit(kind is OperationKind.DELETE_KEYS)
            frames.append(frame.withColumns({**absent, DELETED_COLUMN: deleted}))
    rows = _as_stored(reduce(lambda left, right: left.unionByName(right), frames), definition)
    names = [quoted_name(column.name) for column in definition.columns]
    carried = [*names, POSITION_COLUMN, OP_COLUMN, DELETED_COLUMN]
    last = rows.select(*carried) if distinct else _folded(rows, definition, carried)
    if not stage.wheres:
        return last
    gone = _removed_later(stage.wheres)
    return last.withColumn(DELETED_COLUMN, F.col(DELETED_COLUMN) | gone)


def _as_stored(rows: DataFrame, definition: TableDefinition) -> DataFrame:
    """Make the empty text of partition columns NULL, as Delta stores it; else its hash would count.

    Staged files have NULL already; rows that came with a request do not.
    """
    texts = [
        column.name
        for column in definition.columns
        if column.name in definition.partition_by and is_string(arrow_type(column.type))
    ]
    return rows.withColumns({n: F.nullif(F.col(quoted_name(n)), F.lit("")) for n in texts})


def _folded(rows: DataFrame, definition: TableDefinition, carried: Sequence[str]) -> DataFrame:
    """Keep the last row of each key."""
    # Two rows of one key in one operation are refused at submit.  If they come all the same,
    # their hashes decide, so that every site takes the same one.
    order = F.struct(POSITION_COLUMN, OP_COLUMN, row_hash(definition.columns).alias("hash"))
    key_names = [quoted_name(key) for key in definition.keys]
    folded = rows.groupBy(*[F.col(key) for key in key_names]).agg(
        F.max_by(F.struct(*carried), order).alias(_ROW_COLUMN)
    )
    return folded.select(f"{_ROW_COLUMN}.*")


def with_gone(
    appended: DataFrame, last: DataFrame | None, definition: TableDefinition, stage: TableStage
) -> DataFrame:
    """Add `GONE_COLUMN` to appended rows; rows with NULL keys are removed by predicates only.

    Args:
        last: As `last_operations` returns it; None = the stage has no keyed rows.
    """
    gone = _removed_later(stage.wheres)
    if last is not None:
        appended = appended.join(_lasts(last, definition.keys), _same_key(definition), "left_outer")
        at = F.struct(F.col(_AT_POSITION).alias(POSITION_COLUMN), F.col(_AT_OP).alias(OP_COLUMN))
        later = F.struct(POSITION_COLUMN, OP_COLUMN) < at
        gone = gone | (F.col(_AT_POSITION).isNotNull() & later)
    return appended.withColumn(GONE_COLUMN, gone)


def with_removed(
    target: DataFrame, last: DataFrame, definition: TableDefinition, stage: TableStage
) -> DataFrame:
    """Add `GONE_COLUMN` to rows of the table: what a stage removes by keys and by predicates."""
    gone = F.col(quoted_name(_LAST_PREFIX + definition.keys[0])).isNotNull()
    if stage.merges_wheres:
        # Before the join, which then need not carry columns that only predicates read.
        target = target.withColumn(_MATCHED_COLUMN, matching(stage.predicate))
        gone = gone | F.col(_MATCHED_COLUMN)
    keys = _keys_of(last, definition, stage)
    return target.join(keys, _same_key(definition), "left_outer").withColumn(GONE_COLUMN, gone)


def met_by_key(last: DataFrame, definition: TableDefinition, stage: TableStage) -> DataFrame:
    """Join operations with the keys of all: as many rows as before, unless two have the same key.

    It costs next to nothing in a job that sends these keys around for `with_removed`.
    """
    return last.join(_keys_of(last, definition, stage), _same_key(definition))


def is_sent_around(definition: TableDefinition, stage: TableStage) -> bool:
    """Return whether the keys of a stage are few enough to be sent to all executors."""
    kinds = [arrow_type(c.type) for c in definition.columns if c.name in definition.keys]
    width = sum(_NARROW if is_primitive(kind) else _WIDE for kind in kinds) + _KEY_BYTES
    return stage.keyed_rows * width <= _MOST_BROADCAST


def _keys_of(last: DataFrame, definition: TableDefinition, stage: TableStage) -> DataFrame:
    keys = last.select(*_last_keys(definition.keys))
    return F.broadcast(keys) if is_sent_around(definition, stage) else keys


def matching(predicate: str) -> Column:
    """Return a predicate of the log as a condition, false where it is NULL."""
    return F.coalesce(F.expr(predicate), F.lit(False))


def _removed_later(wheres: Iterable[Where]) -> Column:
    """Return whether a predicate removes a row that stands before it."""
    place = F.struct(POSITION_COLUMN, OP_COLUMN)
    removed = (
        (place < _place_literal(where.place)) & matching(where.predicate) for where in wheres
    )
    return reduce(lambda left, right: left | right, removed, F.lit(False))


def signatures_of(
    frames: Iterable[tuple[str, DataFrame, TableDefinition]],
) -> dict[str, TableSignature]:
    """Count the signatures of several sets of rows, by tag, in one Spark job."""
    return signatures_and_places(frames)[0]


def signatures_and_places(
    frames: Iterable[tuple[str, DataFrame, TableDefinition | None]],
    placed: DataFrame | None = None,
) -> tuple[dict[str, TableSignature], dict[str, RowPlaces]]:
    """Count the signatures of several sets of rows, and find where others are, in one Spark job.

    Args:
        frames: Tag, rows, and their table; None for that = only the rows of signatures count, and
            columns that nothing else needs are not read.
        placed: The others, with `place_columns`; only with `URI_COLUMN` = they have no numbers, and
            are counted by file.

    Returns:
        Signatures by tag, and places by file, as `FILE_COLUMN` names it.
    """
    counted, no_bits = [], F.lit(None).cast("binary").alias(_BITS_COLUMN)
    no_part = (F.lit(0).cast("bigint").alias(_PART_COLUMN), no_bits)
    for tag, frame, definition in frames:
        if definition is None:
            sums = frame.agg(*count_columns())
        else:
            sums = hashed(frame, row_hash(definition.columns), keep=()).agg(*sums_of())
        sums = sums.select("*", F.lit("").alias(FILE_COLUMN), *no_part)
        counted.append(sums.withColumn(_TAG_COLUMN, F.lit(tag)))
    if placed is not None:
        # A path is made of each group's URI, not of each row's.
        if ROW_INDEX in placed.columns:
            part = F.expr(f"{ROW_INDEX} div {PART_ROWS}").alias(_PART_COLUMN)
            bits = F.bitmap_construct_agg(F.col(ROW_INDEX) % PART_ROWS).alias(_BITS_COLUMN)
            parts = placed.groupBy(URI_COLUMN, part).agg(*count_columns(), bits)
        else:
            parts = placed.groupBy(URI_COLUMN).agg(*count_columns()).select("*", *no_part)
        parts = parts.withColumn(FILE_COLUMN, _path_of(F.col(URI_COLUMN))).drop(URI_COLUMN)
        counted.append(parts.withColumn(_TAG_COLUMN, F.lit(None).cast("string")))
    found: dict[str, TableSignature] = {}
    places: dict[str, RowPlaces] = {}
    if counted:
        rows = reduce(lambda left, right: left.unionByName(right), counted).collect()
        for row in rows:
            signature = signature_from(row)
            if row[_TAG_COLUMN] is not None:
                found[row[_TAG_COLUMN]] = signature
            elif signature.rows:
                file = places.setdefault(row[FILE_COLUMN], RowPlaces())
                file.add(row[_PART_COLUMN], signature.rows, bytes(row[_BITS_COLUMN] or b""))
    return found, places


def join_path(root: str, file: StagedFile) -> str:
    """Return where a payload file is, as Spark names it."""
    return f"{root}/{file.path}"


def quoted_path(path: str) -> str:
    """Return an absolute path as `FILE_COLUMN` shows it: quoted like a URI, without scheme."""
    # java.net.URI quotes what is not allowed in a path but leaves letters of all scripts alone.
    return "".join(
        char
        if ord(char) > 127 and unicodedata.category(char) not in _URI_QUOTED
        else quote(char, safe=_URI_SAFE)
        for char in path
    )


def _lasts(last: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Return keys and places of the last operations with separate column names."""
    return last.select(
        *_last_keys(keys),
        F.col(POSITION_COLUMN).alias(_AT_POSITION),
        F.col(OP_COLUMN).alias(_AT_OP),
    )


def _last_keys(keys: Sequence[str]) -> list[Column]:
    return [F.col(quoted_name(key)).alias(_LAST_PREFIX + key) for key in keys]


def _same_key(definition: TableDefinition) -> Column:
    same = [
        F.col(quoted_name(key)) == F.col(quoted_name(_LAST_PREFIX + key)) for key in definition.keys
    ]
    return reduce(lambda left, right: left & right, same)


def _escape_glob(path: str) -> str:
    """Escape what Hadoop would read as a pattern."""
    return "".join("\\" + char if char in "{}[]*?\\" else char for char in path)
