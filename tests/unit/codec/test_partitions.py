"""Partition values: what a submit takes, delta-rs reads as the same value, and Spark too.

What Spark 4.2 makes of each text is in the tables, as it was read from one-file Delta tables.
"""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sparktxlog.codec.partitions import canonical_value
from sparktxlog.errors import CommitRejectedError, SchemaMismatchError
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.worker.apply.tables import create_table

#: Type → text → its form in the log.  Spark reads both alike, delta-rs perhaps only the second.
TAKEN: dict[str, dict[str, str | None]] = {
    "boolean": {"true": "true", "false": "false", "": None},
    "tinyint": {"1": "1", "-128": "-128", "-0": "0", "": None},
    "smallint": {"007": "7"},
    "int": {"01": "1", "-2147483648": "-2147483648"},
    "bigint": {"9223372036854775807": "9223372036854775807"},
    "decimal(10,2)": {
        "-0.00": "0.00",
        "1.50": "1.50",
        "1.5": "1.50",
        "2": "2.00",
        "-02.000": "-2.00",
        "1e2": "100.00",
        "1.5E0": "1.50",
        "99999999.99": "99999999.99",
        "": None,
    },
    "decimal(5,0)": {"1": "1", "1.0": "1", "99999": "99999"},
    "decimal(10,7)": {"1E-7": "0.0000001", "0E-7": "0.0000000"},
    "decimal(38,10)": {
        "1234567890123456789012345678.1234567891": "1234567890123456789012345678.1234567891",
        "1": "1.0000000000",
    },
    "decimal(38,38)": {"1E-38": "0." + "0" * 37 + "1", "0": "0." + "0" * 38},
    "date": {"2024-01-05": "2024-01-05", "0001-01-01": "0001-01-01", "9999-12-31": "9999-12-31"},
    "timestamp": {
        "2024-01-05 10:00:00": "2024-01-05T10:00:00Z",
        "2024-01-05T10:00:00": "2024-01-05T10:00:00Z",
        "2024-01-05T10:00:00.5Z": "2024-01-05T10:00:00.5Z",
        "2024-01-05 10:00:00Z": "2024-01-05 10:00:00Z",
        "0001-01-01T00:00:00Z": "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z": "9999-12-31T23:59:59.999999Z",
        "": None,
    },
    "timestamp_ntz": {
        "2024-01-05 10:00:00": "2024-01-05 10:00:00",
        "2024-01-05T10:00:00": "2024-01-05 10:00:00",
        "2024-01-05T10:00:00.5Z": "2024-01-05 10:00:00.5",
        "2024-01-05 10:00:00.123456": "2024-01-05 10:00:00.123456",
    },
    "string": {"null": "null", " a ": " a ", "1.5": "1.5", "": None},
}
#: Type → texts that are refused: delta-rs opens no table with them, or another value is read.
REFUSED = {
    "boolean": ("True", "t", "1", "yes", " true"),
    "tinyint": ("128", "1.0", "1e1", "+1", " 1", "1 "),
    "int": ("2147483648", "1_000", "0x1", "\u0661", "1.5"),
    "bigint": ("9223372036854775808", "1L"),
    "decimal(10,2)": ("2.005", "123456789.00", ".5", "2.", " 1.50", "1,50", "NaN", "1e99", "+1"),
    "decimal(5,0)": ("1.5", "100000"),
    "date": (
        "2024-1-5",
        "2024-01",
        "2024-02-30",
        "10000-01-01",
        "0000-12-31",
        "20240105",
        "2024-01-05Z",
        "today",
    ),
    "timestamp": (
        "2024-01-05",
        "2024-01-05 10:00",
        "2024-01-05T10:00:60Z",
        "2024-01-05T24:00:00Z",
        "2024-02-30T10:00:00Z",
        "2024-01-05T10:00:00+02:00",
        "2024-01-05t10:00:00z",
        "2024-01-05 10:00:00.1234567",
        "2024-01-05 1000:000",
        "0000-12-31 23:59:59",
        "1704448800",
    ),
    "timestamp_ntz": ("2024-01-05", "2024-01-05 10:00:60", "2024-01-05 10:00:00+02:00"),
    "string": ("__HIVE_DEFAULT_PARTITION__",),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_a_value_that_is_taken_is_read_by_delta_rs(kind: str, tmp_path: Path) -> None:
    column = Column(name="p", type=kind)
    found = {text: canonical_value("t", column, text) for text in TAKEN[kind]}
    assert found == TAKEN[kind]
    assert {text: canonical_value("t", column, text) for text in found.values()} == {
        text: text for text in found.values()
    }
    definition = TableDefinition(
        name="t", columns=(Column(name="id", type="int"), column), partition_by=("p",)
    )
    create_table(tmp_path / "t", definition, "", {"appId": "a", "version": 1})
    with (tmp_path / "t/_delta_log" / f"{0:020}.json").open("a") as log:
        for number, text in enumerate(found.values()):
            add = {"path": f"{number}.parquet", "partitionValues": {"p": text}, "size": 1}
            add |= {"modificationTime": 0, "dataChange": True}
            log.write(json.dumps({"add": add}) + "\n")
    read = pa.table(DeltaTable(tmp_path / "t").get_add_actions(flatten=True))
    nulls = read["partition.p"].null_count if "partition.p" in read.column_names else len(found)
    assert (len(read), nulls) == (len(found), list(found.values()).count(None))


@pytest.mark.parametrize(("kind", "text"), [(k, text) for k in REFUSED for text in REFUSED[k]])
def test_a_text_that_readers_do_not_read_alike_is_refused(kind: str, text: str) -> None:
    column = Column(name="p", type=kind)
    with pytest.raises(CommitRejectedError) as caught:
        canonical_value("t", column, text)
    assert caught.value.definite and caught.value.fields["column"] == "p"
    if kind != "string":
        assert isinstance(caught.value, SchemaMismatchError)
        assert (caught.value.fields["value"], caught.value.fields["expected"]) == (text, kind)
        assert caught.value.hint
