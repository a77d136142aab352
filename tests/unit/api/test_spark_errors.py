"""The reason of an error of Spark, wherever PySpark keeps it."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.connect import AnalysisException as RemoteAnalysisException

import sparktxlog
from sparktxlog.api.writing.operations import Draft
from sparktxlog.errors import (
    ForbiddenError,
    InvalidRequestError,
    RowTableError,
    TransportError,
    TxLogError,
    UnauthorizedError,
    UnknownTableError,
    UnreachableError,
    first_lines,
    java_cause,
    wrong_value,
)
from sparktxlog.model.tables.commit_table import REPLACES_NOTHING
from sparktxlog.model.tables.table import ONLY_READ
from sparktxlog.service.handlers.catalog_errors import catalog_failure

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


_CALLED = "An error occurred while calling o62.sql.\n: "
_LISTED = f"{_CALLED}java.lang.IllegalStateException: io.unitycatalog.client.ApiException: "
_LOADED = f"{_CALLED}java.io.IOException: Failed to load table tx.default.orders (HTTP "


@pytest.mark.parametrize(
    "before", [f"{_LISTED}listSchemas call failed with: 401 - ", f"{_LOADED}401): "]
)
@pytest.mark.parametrize(
    "refused",
    [
        UnauthorizedError("the client token is wrong", hint="Send another."),
        ForbiddenError("it needs the token of an operator"),
        UnknownTableError("there is no table 'x'", hint="Create it.", table="x"),
    ],
)
def test_an_answer_of_the_catalog_is_the_error_that_clients_get(
    before: str, refused: TxLogError
) -> None:
    answer = bytes(catalog_failure(refused).body).decode()
    typed = sparktxlog.errors_from_spark(RuntimeError(f"{before}{answer}\n\tat io.X(X.java:1)"))
    assert type(typed) is type(refused)
    assert isinstance(typed, TxLogError)
    assert (typed.message, typed.hint, typed.fields, typed.definite) == (
        *(refused.message, refused.hint, refused.fields),
        True,
    )


@pytest.mark.parametrize(
    ("text", "kind", "definite"),
    [
        (f"{_LISTED}java.net.ConnectException\n\tat io.X(X.java:1)", UnreachableError, True),
        (f"{_LISTED}java.net.http.HttpConnectTimeoutException: x", UnreachableError, True),
        (f"{_LISTED}java.io.IOException: HTTP/1.1 header parser", TransportError, False),
        (f"{_LOADED}0): null\n\tat io.X(X.java:1)", UnreachableError, True),
        # The request may have arrived; commits may be read after the commit.
        (f"{_CALLED}x: Failed to update table a.b.c (HTTP 0): null", TransportError, False),
        (f"{_CALLED}x: Failed to load commits for table t (HTTP 0): null", TransportError, False),
        # A proxy's answer.
        (f"{_LOADED}403): <html>no</html>", ForbiddenError, True),
        (f"{_LISTED}listSchemas call failed with: 401 - <html>", UnauthorizedError, True),
    ],
)
def test_a_catalog_that_does_not_answer_is_a_typed_error(
    text: str, kind: type[TxLogError], definite: bool
) -> None:
    typed = sparktxlog.errors_from_spark(RuntimeError(text))
    assert type(typed) is kind
    assert isinstance(typed, TxLogError)
    assert typed.definite is definite and "spark.sql.catalog.NAME." in typed.hint


def test_other_answers_are_no_refusals_of_a_catalog() -> None:
    for text in (f"{_LOADED}500): <html>", f'{_LOADED}401): {{"error":{{', "(HTTP 0)"):
        error = RuntimeError(text)
        found = sparktxlog.errors_from_spark(error)
        assert found is error or isinstance(found, UnauthorizedError), text


def test_what_cannot_be_removed_does_not_hide_why_a_block_raised() -> None:
    class Stuck(Draft[None]):
        def commit(self) -> None:
            raise AssertionError("nothing is committed")

        def _drop(self) -> None:
            raise OSError("the disk fails")

    with pytest.raises(KeyError, match="the user's own") as raised, Stuck():
        raise KeyError("the user's own")
    assert "the disk fails" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL violated: id.\n", "NOT NULL violated: id."),
        ("x: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n\tat", "Division by zero."),
        ("[INTERNAL_ERROR] What. SQLSTATE: XX000", ""),
        ("[TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030", ""),
        ("No space left on device", ""),
    ],
)
def test_a_value_that_fits_nothing(text: str, said: str) -> None:
    assert wrong_value(RuntimeError(text)) == said
    outer = "An error occurred: [TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030"
    assert (
        wrong_value(RuntimeError(f"{outer}\n\tat X\nCaused by: a.B: {text}\n\t... 4 more\n"))
        == said
    )
