"""The reason of an error of Spark, wherever PySpark keeps it."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.connect import AnalysisException as RemoteAnalysisException

import sparktxlog
from sparktxlog.api.writing.operations import Draft
from sparktxlog.errors import InvalidRequestError, RowTableError, first_lines, java_cause
from sparktxlog.model.tables.commit_table import REPLACES_NOTHING
from sparktxlog.model.tables.table import ONLY_READ

_TEXT = "[DATA_SOURCE_EXTERNAL_ERROR] Encountered error when saving to external data source."
_TRACE = (
    "org.apache.spark.sql.AnalysisException: {text}\n\tat org.apache.spark.Some.run(Some.scala:1)\n"
    "Caused by: java.lang.RuntimeException: outer\n\t... 4 more\n"
    "Caused by: java.io.IOException: No space left on device\n\t... 5 more\n"
)


def _captured(text: str, trace: str) -> AnalysisException:
    error = AnalysisException(text)
    error._stackTrace = trace  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    "error",
    [
        _captured(_TEXT, _TRACE.format(text=_TEXT)),
        RemoteAnalysisException(_TEXT, server_stacktrace=_TRACE.format(text=_TEXT)),
        RuntimeError(f"An error occurred while calling o9.save.\n: {_TRACE.format(text=_TEXT)}"),
    ],
    ids=["jvm", "connect", "py4j"],
)
def test_the_innermost_cause_is_told(error: Exception) -> None:
    assert java_cause(error) == "IOException: No space left on device"
    assert first_lines(error).endswith("  Caused by IOException: No space left on device")


def test_a_cause_that_the_text_tells_is_not_told_twice() -> None:
    assert first_lines(ValueError("no trace\nsecond")) == "no trace second"
    told = _captured("failed: No space left on device", _TRACE.format(text="x"))
    assert java_cause(told) == ""


def test_what_replaces_nothing_is_a_typed_error() -> None:
    error = _captured("[DELTA_CREATE_TABLE_SCHEME_MISMATCH] … " + REPLACES_NOTHING, "")
    typed = sparktxlog.errors_from_spark(error)
    assert isinstance(typed, InvalidRequestError)
    assert typed.definite and "t.overwrite" in typed.hint


@pytest.mark.parametrize(
    "error",
    [
        _captured(f"Unable to parse configuration … with value [{ONLY_READ}; …] as …", ""),
        RuntimeError(
            "An error occurred while calling o9.sql.\n: org.apache.spark.SparkException: aborted\n"
            "\tat org.apache.spark.Some.run(Some.scala:1)\nCaused by: java.lang."
            f"IllegalArgumentException: Unable to parse [{ONLY_READ}; …]\n\t... 5 more\n"
        ),
    ],
    ids=["driver", "task"],
)
def test_a_write_of_a_row_table_is_a_typed_error(error: Exception) -> None:
    typed = sparktxlog.errors_from_spark(error)
    assert isinstance(typed, RowTableError)
    assert typed.definite and "log.append" in typed.hint and "sparktxlog maintain" in typed.hint


def test_what_cannot_be_removed_does_not_hide_why_a_block_raised() -> None:
    class Stuck(Draft[None]):
        def commit(self) -> None:
            raise AssertionError("nothing is committed")

        def _drop(self) -> None:
            raise OSError("the disk fails")

    with pytest.raises(KeyError, match="the user's own") as raised, Stuck():
        raise KeyError("the user's own")
    assert "the disk fails" in raised.value.__notes__[0]
