"""Column types between Spark's DDL names and Arrow, both ways.

    DDL                     Arrow
    boolean                 bool
    tinyint … bigint        int8, int16, int32, int64
    float, double           float32, float64
    decimal(p,s)            decimal128(p, s), 1 <= p <= 38, 0 <= s <= p
    string, binary          string, binary
    date                    date32
    timestamp               timestamp(us, UTC)
    timestamp_ntz           timestamp(us)
    array<t>                list<element: t>
    struct<a:t,b:t>         struct<a: t, b: t>
    map<k,v>                map<k, v>; keys are never NULL

`arrow_type` also takes Spark's aliases (`long`, `integer`, `short`, `byte`, `real`, `dec`,
`numeric`, `timestamp_ltz`) and `ddl_type` the Arrow types that fit without loss (large and view
forms, dictionaries, coarser timestamps); both give the one canonical form above.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

from sparktxlog.codec.lexer import quoted_name
from sparktxlog.codec.refused_types import REFUSED_TYPES, check_not_refused
from sparktxlog.errors import SchemaMismatchError
from sparktxlog.lazy_arrow import pa, pq
from sparktxlog.model.tables.table import Column, TableDefinition


@cache
def _simple_types() -> dict[str, pa.DataType]:
    return {
        "boolean": pa.bool_(),
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "string": pa.string(),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }


@cache
def _simple_names() -> dict[pa.DataType, str]:
    return {kind: name for name, kind in _simple_types().items()}


_ALIASES = {
    "bool": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "character": "char",
    "null": "void",
    "timestamp_ltz": "timestamp",
}
_KNOWN = (
    "Known types: boolean, tinyint, smallint, int, bigint, float, double, decimal(p,s), string,"
    " binary, date, timestamp, timestamp_ntz, array<>, struct<>, map<,>."
)
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|[^\s<>(),:`]+|[<>(),:])")
_MARKS = frozenset("<>(),:")
#: Bounds of nested types and of names: more is an attack or a mistake.
_MAX_DEPTH = 32
_MAX_CHARACTERS = 65_536
#: Names up to this length are remembered with their types.
_REMEMBERED = 200


def arrow_type(ddl: str) -> pa.DataType:
    """Return the Arrow type of Spark's DDL name.

    Raises:
        SchemaMismatchError: The name is unknown or torn (definite).
    """
    return _short_type(ddl) if len(ddl) <= _REMEMBERED else _Parser(ddl).whole()


@lru_cache(maxsize=4096)
def _short_type(ddl: str) -> pa.DataType:
    return _Parser(ddl).whole()


def normal_type(ddl: str) -> str:
    """Return the canonical DDL name: lower case, no spaces, no aliases.

    Raises:
        SchemaMismatchError: The name is unknown or torn (definite).
    """
    return ddl_type(arrow_type(ddl))


def arrow_schema(definition: TableDefinition, names: Iterable[str] | None = None) -> pa.Schema:
    """Return the Arrow schema of a table's columns, in the table's order.

    Args:
        definition: The table.
        names: Only these columns; None = all.

    Raises:
        SchemaMismatchError: A column has an unknown type (definite).
    """
    wanted = None if names is None else set(names)
    return pa.schema(
        [
            pa.field(column.name, arrow_type(column.type), nullable=column.nullable)
            for column in definition.columns
            if wanted is None or column.name in wanted
        ]
    )


def file_schema(definition: TableDefinition, names: Iterable[str]) -> pa.Schema:
    """Return the Arrow schema of a table's columns in data files, in the table's order."""
    schema = arrow_schema(definition, names)
    stored = definition.in_files(schema.names)
    return pa.schema([field.with_name(name) for field, name in zip(schema, stored, strict=True)])


def schema_of_file(file: pq.ParquetFile) -> pa.Schema:
    """Return the schema of a Parquet file as Spark reads it: INT96, its old default, is an instant.

    Args:
        file: Opened by `open_parquet`, as its rows should be read.
    """
    schema = file.schema_arrow
    for index in range(len(file.schema)):
        column = file.schema.column(index)
        if column.physical_type == "INT96" and column.path in schema.names:
            at = schema.get_field_index(column.path)
            instant = schema.field(at).with_type(pa.timestamp("us", "UTC"))
            schema = schema.set(at, instant)
    return schema


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns of an Arrow schema.

    Raises:
        SchemaMismatchError: A column has a type that tables cannot hold (definite).
    """
    columns = []
    for field in schema:
        try:
            name = ddl_type(field.type)
        except SchemaMismatchError as error:
            raise SchemaMismatchError(
                f"column {field.name!r}: {error.message}", hint=error.hint, column=field.name
            ) from error
        columns.append(Column(name=field.name, type=name, nullable=field.nullable))
    return tuple(columns)


def ddl_type(kind: pa.DataType) -> str:
    """Return Spark's DDL name of an Arrow type.

    Raises:
        SchemaMismatchError: Tables cannot hold the type without loss (definite).
    """
    # Types of users need not have a hash.
    found = None if isinstance(kind, pa.BaseExtensionType) else _simple_names().get(kind)
    if found is not None:
        return found
    types = pa.types
    if types.is_dictionary(kind):
        return ddl_type(kind.value_type)
    if types.is_timestamp(kind) and kind.unit in ("s", "ms", "us"):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if types.is_large_string(kind) or types.is_string_view(kind):
        return "string"
    if (
        types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    ):
        return "binary"
    if types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision},{kind.scale})"
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return f"array<{ddl_type(kind.value_type)}>"
    if types.is_map(kind):
        return f"map<{ddl_type(kind.key_type)},{ddl_type(kind.item_type)}>"
    if types.is_struct(kind) and kind.num_fields:
        fields = [kind.field(i) for i in range(kind.num_fields)]
        for field in fields:  # how Spark marks the parts of types that Arrow does not have
            for mark in field.metadata or ():
                check_not_refused(mark.decode(errors="replace"), str(kind))
        return f"struct<{','.join(f'{_quoted(f.name)}:{ddl_type(f.type)}' for f in fields)}>"
    raise SchemaMismatchError(
        f"tables cannot hold Arrow type {kind}", hint=_advice(kind), type=str(kind)
    )


def _advice(kind: pa.DataType) -> str:
    types = pa.types
    for check, word in ((types.is_duration, "interval"), (types.is_time, "time")):
        if check(kind):
            return REFUSED_TYPES[word].way_out
    if types.is_timestamp(kind):
        return "Cast to timestamp('us'): tables keep microseconds."
    if types.is_unsigned_integer(kind):
        return "Cast to a signed type that holds all values."
    if types.is_null(kind):
        return "The data has no type: cast it to the type of the table's column."
    return _KNOWN


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else quoted_name(name)


class _Parser:
    """Recursive descent over the tokens of one DDL name; quoted names keep their backticks."""

    def __init__(self, ddl: str) -> None:
        self._ddl = ddl
        text, at = ddl.rstrip(), 0
        #: What is left to read, the next one last.
        self._tokens: list[str] = []
        for match in _TOKEN.finditer(text):
            if match.start() != at:
                break
            self._tokens.append(match[1])
            at = match.end()
        if at != len(text) or at > _MAX_CHARACTERS:
            raise self._error()
        self._tokens.reverse()

    def whole(self) -> pa.DataType:
        kind = self._type(0)
        if self._tokens:
            raise self._error()
        return kind

    def _type(self, depth: int) -> pa.DataType:
        word = self._take().lower()
        name = _ALIASES.get(word, word)
        if depth > _MAX_DEPTH:
            raise self._error()
        match name:
            case "decimal":
                return self._decimal()
            case "array":
                self._expect("<")
                kind = pa.list_(pa.field("element", self._type(depth + 1)))
            case "map":
                self._expect("<")
                key = self._type(depth + 1)
                self._expect(",")
                kind = pa.map_(key, self._type(depth + 1))
            case "struct":
                self._expect("<")
                kind = self._struct(depth)
            case _ if name in _simple_types():
                return _simple_types()[name]
            case _:
                check_not_refused(name, self._ddl)
                raise self._error()
        self._expect(">")
        return kind

    def _decimal(self) -> pa.DataType:
        if not self._accept("("):
            return pa.decimal128(10, 0)
        precision = self._number()
        scale = self._number() if self._accept(",") else 0
        self._expect(")")
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise SchemaMismatchError(
                f"{self._ddl!r}: precision is 1 to 38, scale is 0 to precision", type=self._ddl
            )
        return pa.decimal128(precision, scale)

    def _struct(self, depth: int) -> pa.DataType:
        fields: dict[str, pa.Field] = {}
        while not fields or self._accept(","):
            name = self._take()
            if name in _MARKS:
                raise self._error()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            if name.lower() in fields:
                raise SchemaMismatchError(
                    f"{self._ddl!r}: field {name!r} occurs twice (case is ignored)", type=self._ddl
                )
            self._accept(":")
            fields[name.lower()] = pa.field(name, self._type(depth + 1))
        return pa.struct(list(fields.values()))

    def _take(self) -> str:
        if not self._tokens:
            raise self._error()
        return self._tokens.pop()

    def _accept(self, mark: str) -> bool:
        """Take a mark if it comes next."""
        found = bool(self._tokens) and self._tokens[-1] == mark
        if found:
            self._tokens.pop()
        return found

    def _expect(self, mark: str) -> None:
        if not self._accept(mark):
            raise self._error()

    def _number(self) -> int:
        token = self._take()
        if not re.fullmatch(r"[0-9]{1,3}", token):
            raise self._error()
        return int(token)

    def _error(self) -> SchemaMismatchError:
        if self._tokens and self._tokens[-1].lower() == "collate":
            check_not_refused("collate", self._ddl)
        shown = self._ddl[:140]
        return SchemaMismatchError(f"{shown!r} is not a column type", hint=_KNOWN, type=shown)
