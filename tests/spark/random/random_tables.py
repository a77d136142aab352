"""Random tables: schema, values, operations and changes, and the same by plain Spark.

A `RandomTable` draws one operation after the other.  It keeps what the table should be as a
DataFrame of plain Spark: unions, anti joins, filters, casts.  Nothing of the log's own code is in
that, but the reading of JSON values.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from tools.types_page import SIMPLE

from sparktxlog.codec.arrow import arrow_type, ddl_type
from sparktxlog.codec.lexer import quoted_name
from sparktxlog.codec.rows import rows_to_arrow

#: Names that one part or another could take for something else.
_NAMES = (
    "id", "ID2", "select", "a.b", "ä", "x-y", "from", "value", "`tick`", "path", "a%20b", "day",
    "__x", "1st", "😀", "position", "a/b", "null", "w:v", "part#", "first",
    "place", "count",
)  # fmt: skip
_NESTED = (
    "array<{0}>",
    "struct<a:{0},`b c`:{1}>",
    "map<string,{0}>",
    "map<int,array<{0}>>",
    "array<struct<x:{0},y:map<string,{1}>>>",
)
_KEYS = [kind for kind in SIMPLE if kind not in ("float", "double")]
_PARTS = [kind for kind in _KEYS if kind != "binary"]
#: Wider types that `alter_table` takes.
_WIDER = {
    "tinyint": ("smallint", "bigint", "double", "decimal(12,2)"),
    "smallint": ("int", "bigint"),
    "int": ("bigint", "double"),
    "bigint": ("decimal(22,2)",),
    "float": ("double",),
    "decimal(10,2)": ("decimal(12,2)", "decimal(20,5)"),
    "date": ("timestamp_ntz",),
}
_NUMBERS = ("{0} > 0", "{0} BETWEEN -10 AND 10", "NOT {0} = 0")
#: What is odd about floats: NaN is greater than all, and -0.0 is 0.0.
_REALS = (
    *_NUMBERS, "{0} > 5.0", "{0} >= -0.0D", "{0} = 0.0", "{0} <> -1.5", "NOT ({0} <= 1e300)",
    "{0} IN (0.0, 7.0)", "{0} NOT IN (0.0, -1.5)", "{0} < -1e300", "{0} = 7 OR {0} > 1e300",
)  # fmt: skip
_FIRST, _LAST = "0001-01-01", "9999-12-31"
#: Type → predicates of a value.
_TESTS: dict[str, tuple[str, ...]] = {
    "boolean": ("{0}", "NOT {0}"),
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint", "decimal(10,2)"), _NUMBERS),
    **dict.fromkeys(("float", "double"), _REALS),
    "decimal(38,0)": ("{0} > 0", "{0} = " + "9" * 38, "{0} <> -" + "9" * 38),
    "decimal(38,38)": ("{0} > 0.0", "{0} NOT IN (0.0, 0.5)"),
    "string": (
        "{0} = 'a'", "{0} LIKE 'a%'", "{0} NOT LIKE 'z\\%%'", "{0} = ''", "{0} >= 'z'",
        "{0} <> ' b '", "{0} IN ('', 'NULL')",
    ),
    "binary": ("{0} = X'00FF'", "{0} > X'60'", "{0} <> X''"),
    "date": (
        "{0} < DATE '1970-01-01'", f"{{0}} = DATE '{_LAST}'",
        f"{{0}} <> DATE '{_FIRST}'",
    ),
    **{
        kind: (
            f"{{0}} < {word} '1970-01-01 00:00:00'",
            f"{{0}} >= {word} '{_LAST} 23:59:59.999999'",
            f"{{0}} <= {word} '{_FIRST} 00:00:00'",
            f"{{0}} <> {word} '1582-10-10 12:00:00.000001'",
        )
        for kind, word in (("timestamp", "TIMESTAMP"), ("timestamp_ntz", "TIMESTAMP_NTZ"))
    },
}  # fmt: skip
_TEXTS = ("", " ", "a=b", "a/b", "ä%20", "x\ty", "{}", "'q'", '"', "NULL", "..", "é😀", "z" * 60)


@dataclass(slots=True)
class Field:
    """A column as it is now."""

    name: str
    kind: str
    nullable: bool = True


@dataclass(slots=True, kw_only=True)
class Draw:
    """An operation: what to call, and its rows as JSON."""

    kind: str
    rows: list[dict[str, Any]] | None = None
    schema: pa.Schema | None = None
    predicate: str = ""
    change: dict[str, Any] | None = None


class RandomTable:
    """One table and its life.

    Args:
        spark: Computes what it should be.
        name: Of the table.
        seed: Decides everything.
    """

    def __init__(self, spark: SparkSession, name: str, seed: int) -> None:
        self._spark = spark
        self.name = name
        self._chance = random.Random(seed)
        names = self._chance.sample(_NAMES, self._chance.randint(2, 6))
        self.fields = [Field(one, self._kind()) for one in names]
        self.keys: list[str] = []
        self.partition_by: list[str] = []
        for field in self.fields[: self._chance.choice((0, 1, 1, 2))]:
            field.kind, field.nullable = self._chance.choice(_KEYS), False
            self.keys.append(field.name)
        if self._chance.random() < 0.4:
            # Also a key may partition the table.
            (field,) = self._chance.sample(self.fields[:-1], 1)
            field.name = field.name.replace(".", "").replace("`", "")
            self.keys = [f.name for f in self.fields[: len(self.keys)]]
            field.kind = self._chance.choice(_PARTS)
            self.partition_by.append(field.name)
        last = self.fields[-1]
        last.nullable = last.nullable and self._chance.random() < 0.8
        self.deletion_vectors = self._chance.random() < 0.5
        self._used = set(names)
        self._schema_of_rows = self._arrow()
        self.expected = self._frame([])
        #: Keys that were written, to meet them again.
        self._seen: list[dict[str, Any]] = []

    def columns(self) -> dict[str, str]:
        """Return the columns as `Client.create_table` takes them."""
        return {f.name: f.kind + ("" if f.nullable else " not null") for f in self.fields}

    def operations(self, count: int) -> Iterator[Draw]:
        """Draw operations; `expected` is what the table is after the last one drawn."""
        yield self._write("append")
        for _ in range(count - 1):
            draws = [self._append, self._append, self._overwrite, self._delete_where, self._alter]
            if self.keys:
                draws += [self._upsert, self._upsert, self._upsert, self._delete_keys]
            yield self._chance.choice(draws)()

    # -- values ----------------------------------------------------------------------------------

    def _kind(self) -> str:
        one, two = self._chance.choices(list(SIMPLE), k=2)
        if self._chance.random() < 0.7:
            return one
        return self._chance.choice(_NESTED).format(one, two)

    def _value(self, kind: pa.DataType, depth: int = 0) -> Any:
        if depth and self._chance.random() < 0.2:
            return None
        if pa.types.is_map(kind):
            keys = ["", "k", "ä"] if pa.types.is_string(kind.key_type) else [0, -1, 7]
            found = self._chance.sample(keys, self._chance.randint(0, 3))
            return [[key, self._value(kind.item_type, depth + 1)] for key in found]
        if pa.types.is_list(kind):
            size = self._chance.randint(0, 3)
            return [self._value(kind.value_type, depth + 1) for _ in range(size)]
        if pa.types.is_struct(kind):
            return {field.name: self._value(field.type, depth + 1) for field in kind}
        if pa.types.is_string(kind) and self._chance.random() < 0.5:
            return self._chance.choice(_TEXTS)
        values = _VALUES.get(kind)
        if values is None:  # a type that a column became by widening
            return str(self._chance.randint(-99, 99))
        return self._chance.choice(values)

    def _row(self) -> dict[str, Any]:
        row = {}
        for field in self.fields:
            value = self._value(arrow_type(field.kind))
            while field.name in self.partition_by and (
                not _is_part(field, value) or (value == "" and not field.nullable)
            ):
                value = self._value(arrow_type(field.kind))
            is_null = field.nullable and self._chance.random() < 0.25
            row[field.name] = None if is_null else value
        return row

    def _rows(self) -> list[dict[str, Any]]:
        return [self._row() for _ in range(self._chance.choice((1, 2, 3, 5, 20)))]

    def _arrow(self, names: list[str] | None = None) -> pa.Schema:
        return pa.schema(
            [
                pa.field(f.name, arrow_type(f.kind), f.nullable)
                for f in self.fields
                if names is None or f.name in names
            ]
        )

    def _frame(self, rows: list[dict[str, Any]], names: list[str] | None = None) -> DataFrame:
        """Return rows as plain Spark has them; empty partition values are NULL, as in Delta."""
        table = rows_to_arrow(self.name, rows, self._arrow(names))
        wanted = [f for f in self.fields if names is None or f.name in names]
        schema = T.DataType.fromDDL(", ".join(f"{quoted_name(f.name)} {f.kind}" for f in wanted))
        frame = self._spark.createDataFrame(table, schema)
        for name in self.partition_by if names is None else ():
            if frame.schema[name].dataType == T.StringType():
                value = F.nullif(F.col(quoted_name(name)), F.lit(""))
                frame = frame.withColumn(name, value)
        return frame

    # -- operations ------------------------------------------------------------------------------

    def _write(self, kind: str) -> Draw:
        rows = self._rows()
        self._seen += [{key: row[key] for key in self.keys} for row in rows]
        frame = self._frame(rows)
        self.expected = frame if kind == "overwrite" else self.expected.unionAll(frame)
        return Draw(kind=kind, rows=rows, schema=self._arrow())

    def _append(self) -> Draw:
        return self._write("append")

    def _overwrite(self) -> Draw:
        return self._write("overwrite")

    def _upsert(self) -> Draw:
        rows, taken = [], set()
        for row in self._rows():
            if self._seen and self._chance.random() < 0.6:
                row |= self._chance.choice(self._seen)
            key = repr([_plain(row[name]) for name in self.keys])
            if key not in taken:
                taken.add(key)
                rows.append(row)
        self._seen += [{key: row[key] for key in self.keys} for row in rows]
        frame = self._frame(rows)
        self.expected = self._without(frame).unionAll(frame)
        return Draw(kind="upsert", rows=rows, schema=self._arrow())

    def _delete_keys(self) -> Draw:
        rows = [{name: self._row()[name] for name in self.keys}]
        rows += self._chance.sample(self._seen, min(3, len(self._seen)))
        self.expected = self._without(self._frame(rows, self.keys))
        return Draw(kind="delete_keys", rows=rows, schema=self._arrow(self.keys))

    def _without(self, frame: DataFrame) -> DataFrame:
        names = {name: f"__key{index}" for index, name in enumerate(self.keys)}
        keys = frame.select(*[F.col(quoted_name(n)).alias(k) for n, k in names.items()])
        same = [self.expected[quoted_name(n)] == F.col(k) for n, k in names.items()]
        return self.expected.join(keys, same, "left_anti")

    def _delete_where(self) -> Draw:
        field = self._chance.choice(self.fields)
        name, kind = quoted_name(field.name), arrow_type(field.kind)
        tests = [f"{name} IS NULL", f"{name} IS NOT NULL AND NOT ({name} IS NOT NULL)"]
        if pa.types.is_struct(kind):
            inner = self._chance.choice(list(kind))
            name, kind = f"{name}.{quoted_name(inner.name)}", inner.type
        tests += [test.format(name) for test in _TESTS.get(ddl_type(kind), ())]
        predicate = self._chance.choice(tests)
        self.expected = self.expected.where(f"NOT coalesce({predicate}, false)")
        return Draw(kind="delete_where", predicate=predicate)

    def _alter(self) -> Draw:
        change: dict[str, Any] = {}
        frame = self.expected
        free = [f for f in self.fields if f.name not in (*self.keys, *self.partition_by)]
        what = self._chance.choice(("add", "rename", "drop", "widen", "add"))
        wide = [f for f in self.fields if f.kind in _WIDER and f.name not in self.partition_by]
        if what == "drop" and len(free) > 1:
            gone = self._chance.choice(free)
            self.fields.remove(gone)
            frame = frame.select(*[F.col(quoted_name(f.name)) for f in self.fields])
            change["drop"] = [gone.name]
        elif what == "widen" and wide:
            field = self._chance.choice(wide)
            before, field.kind = field.kind, self._chance.choice(_WIDER[field.kind])
            if field.name in self.keys and field.kind == "double":
                field.kind = "bigint"  # no key is a double
            if field.kind == before:
                field.kind = _WIDER[before][0]
            if field.name in self.keys and field.kind == "timestamp_ntz":  # it was a date
                self._seen = [
                    {**row, field.name: dt.datetime.fromisoformat(row[field.name]).isoformat()}
                    for row in self._seen
                ]
            frame = frame.withColumn(field.name, F.col(quoted_name(field.name)).cast(field.kind))
            change["widen"] = {field.name: field.kind}
        elif what == "rename":
            field, name = self._chance.choice(self.fields), self._new_name()
            change["rename"] = {field.name: name}
            if field.name in self.partition_by:
                change["rename"][field.name] = name = name.replace(".", "").replace("`", "")
            for names in (self.keys, self.partition_by):
                names[:] = [name if one == field.name else one for one in names]
            self._seen = [
                {name if key == field.name else key: value for key, value in row.items()}
                for row in self._seen
            ]
            field.name = name
            frame = frame.toDF(*[f.name for f in self.fields])
        else:
            field = Field(self._new_name(), self._kind())
            self.fields.append(field)
            frame = frame.withColumn(field.name, F.lit(None).cast(field.kind))
            change["add"] = {field.name: field.kind}
        self.expected = frame
        return Draw(kind="alter_table", change=change)

    def _new_name(self) -> str:
        name = f"{self._chance.choice(_NAMES)}_{len(self._used)}"
        self._used.add(name)
        return name


_VALUES = {arrow_type(kind): values for kind, values in SIMPLE.items()}


def _is_part(field: Field, value: Any) -> bool:
    return value != "__HIVE_DEFAULT_PARTITION__" and "\x00" not in str(value)


def _plain(value: Any) -> Any:
    """Return a key value such that equal keys are equal texts."""
    return value if isinstance(value, bool) else str(value)
