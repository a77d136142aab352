"""Every type that docs/tables.md keeps passes every way of a row; every other one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from tests.spark.api.nodes import RunningNode
from tools.types_page import NESTED, SIMPLE

import sparktxlog
from sparktxlog.api.connect import TxLog
from sparktxlog.api.schema import struct_of
from sparktxlog.codec.arrow import arrow_schema
from sparktxlog.codec.refused_types import REFUSED_TYPES
from sparktxlog.codec.rows import rows_to_arrow
from sparktxlog.errors import SchemaMismatchError
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.worker.apply.signatures import signature_of

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

COLUMNS = {
    "way": "string",
    "id": "int",
    **{f"c{number}": kind for number, kind in enumerate((*SIMPLE, *NESTED.values()))},
    "days": "map<date,decimal(38,10)>",
    "lists": "array<map<bigint,array<binary>>>",
}
#: Parquet's and Arrow's offsets have 31 bits; a string of this size is far from inline.
LONG = 16 << 20


def rows_of_types(way: str, shift: int = 0) -> list[dict[str, Any]]:
    """Return rows as JSON: extreme values, NULL at every level, empty lists and maps."""
    rows = []
    for number in range(max(map(len, SIMPLE.values())) + 1):
        plain = [v[(number + shift) % len(v)] for v in SIMPLE.values()]
        fields = {f"f{index}": value for index, value in enumerate(plain)}
        holes = {
            name: None if index % 3 == number % 3 else value
            for index, (name, value) in enumerate(fields.items())
        }
        lists = [[], [None], [fields, None, holes, dict.fromkeys(fields)]]
        maps = [[], [["", None]], [["k", fields], ["ä", holes], ["n", dict.fromkeys(fields)]]]
        rows.append(
            dict(zip(COLUMNS, [way, number, *plain], strict=False))
            | dict(
                zip(
                    list(COLUMNS)[2 + len(SIMPLE) :],
                    [
                        lists[number % 3],
                        [holes, dict.fromkeys(fields), fields][number % 3],
                        maps[number % 3],
                        [["0001-01-01", None], ["9999-12-31", "9" * 28 + "." + "9" * 10]],
                        [None, [], [["-9223372036854775808", None], [0, ["", None, "AP8="]]]],
                    ],
                    strict=True,
                )
            )
        )
    rows.append({**dict.fromkeys(COLUMNS), "way": way, "id": 1000})
    return rows


def _arrow(definition: TableDefinition, rows: list[dict[str, Any]]) -> pa.Table:
    return rows_to_arrow(definition.name, rows, arrow_schema(definition))


def _content(table: pa.Table) -> list[str]:
    """Return rows as texts in which -0.0, NaN, NULL and empty values differ."""
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.thorough
def test_every_kept_type_passes_every_way(
    spark: SparkSession, log: TxLog, node: RunningNode, tmp_path: Path
) -> None:
    log.create_table("types", ", ".join(f"{n} {k}" for n, k in COLUMNS.items()), ["way", "id"])
    definition = log.site.definition("types")
    assert {c.name: c.type for c in definition.columns} == COLUMNS
    long = {**dict.fromkeys(COLUMNS), "way": "staged", "id": 2000, "c10": "x" * LONG}
    other = _arrow(definition, [long | {"way": "json", "c10": "é" * 100_000}])
    ways = ("json", "arrow", "spark", "staged", "uploaded")
    source = {way: _arrow(definition, rows_of_types(way)) for way in ways}
    for way in ("staged", "uploaded"):
        source[way] = pa.concat_tables([source[way], _arrow(definition, [long | {"way": way}])])

    def staged(rows: pa.Table, name: str) -> DataFrame:
        """Return rows of a file that is too large to travel inline."""
        pq.write_table(rows, tmp_path / name, compression="none", use_dictionary=False)
        assert (tmp_path / name).stat().st_size > log.site.store.inline_limit_bytes
        return spark.read.parquet(str(tmp_path / name))

    def small(rows: pa.Table) -> DataFrame:
        return spark.createDataFrame(rows, struct_of(definition, OperationKind.APPEND))

    with sparktxlog.Client(node.url) as client:
        client.append("types", rows_of_types("json"))
        client.append("types", source["arrow"])
    log.append("types", small(source["spark"]))
    log.append("types", staged(source["staged"], "first.parquet"))
    with sparktxlog.connect(spark, node.url, staging="http") as uploading:
        uploading.append("types", staged(source["uploaded"], "uploaded.parquet"))

    def check() -> None:
        found = log.table("types", at_least=log.position())
        expected = pa.concat_tables(source.values())
        assert _content(found.toArrow().cast(expected.schema)) == _content(expected)
        own = log.snapshot().signatures["types"]
        pq.write_table(expected, tmp_path / "plain.parquet")
        plain = spark.read.parquet(str(tmp_path / "plain.parquet"))
        assert own == signature_of(plain, definition).to_text()
        assert own == signature_of(found, definition).to_text()

    check()
    # A MERGE writes the rows anew, next to other values.
    changed = {way: _arrow(definition, rows_of_types(way, shift=1)[:5]) for way in source}
    log.upsert("types", small(changed["spark"]))
    both = pa.concat_tables([changed["json"], changed["staged"], other])
    log.upsert("types", staged(both, "second.parquet"))
    for way in ("spark", "json", "staged"):
        source[way] = pa.concat_tables([changed[way], source[way].slice(5)])
    source["other"] = other
    check()


class Point(T.UserDefinedType):
    """A class of a user."""

    @classmethod
    def sqlType(cls) -> T.DataType:
        return T.ArrayType(T.DoubleType())

    @classmethod
    def module(cls) -> str:
        return __name__


_OTHERS: list[tuple[str, str | T.DataType]] = [
    ("variant", "variant"),
    ("interval", "interval"),
    ("interval", "interval year to month"),
    ("interval", "interval day to second"),
    ("time", "time(3)"),
    ("geometry", "geometry(4326)"),
    ("geography", "geography(4326)"),
    ("char", "char(5)"),
    ("varchar", "varchar(5)"),
    ("void", "void"),
    ("collate", "string collate UNICODE_CI"),
    ("udt", Point()),
]


def test_every_type_of_spark_is_kept_or_refused() -> None:
    """A type that a later Spark adds belongs into the table of docs/tables.md."""
    others = {name for name, _ in _OTHERS}
    assert others == set(REFUSED_TYPES)
    known = {type(T.DataType.fromDDL(f"a {kind}")[0].dataType) for kind in COLUMNS.values()}
    known |= {
        type(T.DataType.fromDDL(f"a {kind}")[0].dataType)
        for _, kind in _OTHERS
        if isinstance(kind, str)
    }
    known |= {T.StructType, T.StructField, T.DataType, T.UserDefinedType}
    all_types = {
        found
        for found in vars(T).values()
        if isinstance(found, type)
        and issubclass(found, T.DataType)
        and not found.__name__.startswith("_")
        and found.__module__ == T.__name__
        and not found.__subclasses__()
    }
    assert all_types - known == set()


@pytest.mark.parametrize(("name", "kind"), _OTHERS, ids=str)
def test_other_types_are_refused_with_the_reason(
    log: TxLog, node: RunningNode, name: str, kind: str | T.DataType
) -> None:
    found = T.DataType.fromDDL(f"a {kind}")[0].dataType if isinstance(kind, str) else kind
    refused = REFUSED_TYPES[name]
    for wanted in (found, T.ArrayType(T.StructType([T.StructField("y z", found)]))):
        struct = T.StructType([T.StructField("id", T.LongType()), T.StructField("a", wanted)])
        with pytest.raises(SchemaMismatchError, match="column 'a'") as caught:
            log.create_table("refused", struct)
        assert refused.reason in str(caught.value) and caught.value.hint == refused.way_out
    assert "refused" not in [table.name for table in sparktxlog.Client(node.url).tables()]
    if not isinstance(kind, str):
        return
    with pytest.raises(SchemaMismatchError) as caught, sparktxlog.Client(node.url) as client:
        client.create_table("refused", {"id": "bigint", "a": kind})
    assert refused.reason in str(caught.value) and caught.value.hint == refused.way_out
    with pytest.raises(SchemaMismatchError, match=refused.reason[:20]):
        log.create_table("refused", f"id bigint, a {kind}")


def test_texts_with_a_collation_are_taken_into_strings(spark: SparkSession, log: TxLog) -> None:
    log.create_table("collated", "id bigint, a string")
    log.append("collated", spark.sql("SELECT 1L AS id, 'Ä' COLLATE UNICODE_CI AS a"))
    assert [tuple(row) for row in log.table("collated").collect()] == [(1, "Ä")]
