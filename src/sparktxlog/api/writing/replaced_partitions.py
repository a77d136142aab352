"""Which partitions the rows of an append touch, as a predicate: `replace_partitions` deletes them.

The partitions are taken from what is staged, not from the DataFrame, which Spark could compute in
another way the next time.
"""

from __future__ import annotations

from sparktxlog.codec.lexer import quoted_name, string_literal
from sparktxlog.codec.partitions import canonical_value, partition_texts
from sparktxlog.codec.submits.transactions import PreparedOperation
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.tables.table import TableDefinition

#: A predicate takes 1,000 comparisons.
_MOST_TESTS = 900


def partitions_predicate(definition: TableDefinition, operation: PreparedOperation) -> str:
    """Return a predicate that is true for the rows of all partitions of an append.

    Raises:
        InvalidRequestError: There are too many (definite).
    """
    stored = dict(
        zip(definition.partition_by, definition.in_files(definition.partition_by), strict=True)
    )
    found: dict[tuple[str | None, ...], None] = {}
    for file in operation.files:
        given = file.partition or {}
        found[tuple(given[name] for name in stored.values())] = None
    if operation.rows is not None:
        texts = [partition_texts(operation.rows[name]).to_pylist() for name in stored]
        found |= dict.fromkeys(zip(*texts, strict=True))
    if len(found) * len(stored) > _MOST_TESTS:
        raise InvalidRequestError(
            f"the rows are of {len(found):,} partitions of table {definition.name!r}, "
            f"{_MOST_TESTS // len(stored):,} can be replaced at once",
            hint="Make it several transactions, or overwrite the table.",
            table=definition.name,
        )
    return " OR ".join(
        " AND ".join(_test(definition, *pair) for pair in zip(stored, one, strict=True))
        for one in found
    )


def _test(definition: TableDefinition, name: str, text: str | None) -> str:
    column = definition.column(name)
    assert column is not None
    value = canonical_value(definition.name, column, text)
    if value is None:
        return f"{quoted_name(name)} IS NULL"
    return f"{quoted_name(name)} = {_literal(column.type, value)}"


def _literal(kind: str, value: str) -> str:
    if kind in ("date", "timestamp", "timestamp_ntz"):
        return f"{kind.upper()} '{value}'"
    if kind == "string":
        return string_literal(value)
    return f"{value}BD" if kind.startswith("decimal") else value
