"""Finds the typed error inside an error of Spark, and the way out if Spark itself refuses."""

from __future__ import annotations

import json
import re
from contextlib import suppress

from sparktxlog.codec.problems import ERROR_CLASSES
from sparktxlog.errors import (
    ForbiddenError,
    InvalidRequestError,
    RowTableError,
    TransportError,
    TxLogError,
    UnauthorizedError,
    UnreachableError,
    java_cause,
    java_trace,
)
from sparktxlog.model.tables.commit_table import REPLACE_HINT, REPLACES_NOTHING
from sparktxlog.model.tables.table import ONLY_READ

#: The way out for what Spark does not let a Python data source do as a sink.
FOREACH_BATCH = (
    "Use sparktxlog.write_stream(log, frame, table, mode), which goes by foreachBatch; see "
    "docs/streams.md."
)

_CODES = "|".join(re.escape(code) for code in ERROR_CLASSES)
#: How the answer begins by which a catalog refuses, in the text of a client in Java.
_ANSWER = '{"error":{'
#: What that client says of an answer: its status, 0 = it got none.
_STATUS = re.compile(
    r"(Failed to (?:load|create staging) table|Credential fetch failed|Failed to [a-z]+)\b"
    r".*?\(HTTP (\d+)\)|failed with: (\d+) - "
)
#: The ways out.
_REACH = "See whether it runs, and whether spark.sql.catalog.NAME.uri is its URL."
_SHOW = "Set spark.sql.catalog.NAME.token to a token that the node takes."
#: What it was about where a request without an answer can have changed nothing.
_READS = ("Failed to load table", "Failed to create staging table", "Credential fetch failed")
#: The client of schemas and lists: no connection, or one that broke.
_NO_CONNECTION = re.compile(
    r"ApiException: java\.net\.(?:http\.Http)?(?:Connect\w*|UnknownHost|NoRouteToHost)Exception"
)
_BROKEN = re.compile(r"unitycatalog\.client\.ApiException: java\.[\w.]+Exception")
_RAISED = re.compile(rf"sparktxlog\.errors\.\w+: \[({_CODES})\] (.*)(?:\nfields: ({{.*}}))?")

#: The way out for writes that go past the log.
_BY_LOG = (
    "Write with log.append(table, df) and the like, or df.write.format('txlog').mode('append')"
    ".save(table); new tables are made by log.create_table."
)
#: What Spark refuses by itself, without a way out: its words, the message, the hint.
_SPARK_REFUSES = (
    (
        re.escape(REPLACES_NOTHING),
        "CREATE OR REPLACE TABLE replaces nothing in a transaction: Delta compares columns only",
        REPLACE_HINT,
    ),
    (
        r'"txlog" cannot be written in the "(ErrorIfExists|Ignore)" mode',
        "the data source 'txlog' only appends",
        "Use .mode('append'), or log.overwrite(table, df) of sparktxlog.connect.",
    ),
    (
        # CREATE TABLE AS SELECT with a data source of Python, below Delta's catalog.
        r"AbstractDeltaCatalog\$BestEffortStagedTable",
        "'txlog' makes no tables of Spark's catalog",
        _BY_LOG,
    ),
    (
        r"DELTA_UNSUPPORTED_SOURCE.*View \(|EXPECT_TABLE_NOT_VIEW|VIEW_WRITE_NOT|into a view",
        "a view of a table of the log is only read",
        _BY_LOG,
    ),
    (
        "txlog does not support Update mode",
        "a stream into 'txlog' only appends, and the output mode 'update' replaces rows",
        FOREACH_BATCH,
    ),
    (
        "txlog does not support continuous processing",
        "'txlog' reads and writes micro-batches, and no Trigger.Continuous",
        "Use .trigger(processingTime='1 second'), or leave the trigger out.",
    ),
)


def errors_from_spark(error: BaseException) -> BaseException:
    """Return the typed error inside an error of Spark, or the error itself.

        try:
            df.write.format("txlog").option("table", "orders").mode("append").save()
        except Exception as error:
            raise sparktxlog.errors_from_spark(error) from error

    Spark keeps only the traceback of errors raised in data sources; their codes are stable.  Fields
    that were added to an error after it was made are lost.
    """
    text = f"{error}\n{java_cause(error)}"
    found = _RAISED.findall(text)
    if not found:
        if ONLY_READ in text:
            return RowTableError(ONLY_READ)
        for words, message, hint in _SPARK_REFUSES:
            if re.search(words, text, re.DOTALL):
                return InvalidRequestError(message, hint=hint)
        return _of_catalog(f"{error}\n{java_trace(error)}") or error
    code, text, fields = found[-1]
    message, _, hint = text.partition("  ")
    typed = ERROR_CLASSES[code](message, hint=hint)
    with suppress(ValueError):  # a message of several lines may look like fields
        typed.fields |= json.loads(fields or "{}")
    return typed


def _of_catalog(text: str) -> TxLogError | None:
    """Return the error of a catalog's node, which a client in Java has in its text; None = none."""
    begin = text.find(_ANSWER)
    if begin >= 0 and (answered := _of_answer(text[begin:])) is not None:
        return answered
    found = _STATUS.search(text)
    if found is not None:
        status, said = int(found[2] or found[3]), found[0][:200]
        if status in (401, 403):
            kind = UnauthorizedError if status == 401 else ForbiddenError
            return kind(f"the catalog's node refuses: {said}", hint=_SHOW)
        if status == 0:
            lost = UnreachableError if found[1] in _READS else TransportError
            return lost(f"the catalog's node does not answer: {said}", hint=_REACH)
        return None
    if _NO_CONNECTION.search(text):
        return UnreachableError("the catalog's node does not answer", hint=_REACH)
    if _BROKEN.search(text):
        return TransportError("the connection to the catalog's node broke", hint=_REACH)
    return None


def _of_answer(text: str) -> TxLogError | None:
    try:
        answer, _ = json.JSONDecoder().raw_decode(text)
        (detail,) = answer["details"]
        kind = ERROR_CLASSES[detail["reason"]]
        message, _, hint = str(answer["message"]).partition("  ")
        found = kind(message, hint=hint)
        found.fields |= detail["metadata"]
    except (ValueError, KeyError, TypeError):
        return None
    return found
