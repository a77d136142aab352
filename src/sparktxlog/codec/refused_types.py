"""Types of Spark that no table of the log holds: why, and what to do instead.

Each would lose something on one of its ways: JSON and Arrow to the node, the hash of a row, the
Delta table of a site.  So a table with such a column is refused when it is created.
"""

from __future__ import annotations

from typing import NamedTuple

from sparktxlog.errors import SchemaMismatchError


class RefusedType(NamedTuple):
    """Why a type is refused, and the way out."""

    #: As Spark writes it.
    example: str
    reason: str
    way_out: str


#: First word of a type in DDL → why no table holds it.
REFUSED_TYPES: dict[str, RefusedType] = {
    "variant": RefusedType(
        "variant",
        "Spark cannot hash its values, so sites could not be compared",
        "Keep the JSON text in a string: to_json(v), and parse_json(v) or v:field where it is "
        "read; or cast it to a struct.",
    ),
    "interval": RefusedType(
        "interval day to second",
        "Delta stores no intervals",
        "Keep a bigint of months, or of microseconds.",
    ),
    "time": RefusedType(
        "time(6)",
        "Delta stores no times of day",
        "Keep a bigint of microseconds since midnight, or a string.",
    ),
    "geometry": RefusedType(
        "geometry(4326)",
        "Delta stores no geometries",
        "Keep their WKB in a binary: ST_AsBinary(g).",
    ),
    "geography": RefusedType(
        "geography(4326)",
        "Delta stores no geographies",
        "Keep their WKB in a binary: ST_AsBinary(g).",
    ),
    "char": RefusedType(
        "char(5)",
        "nobody would check its length, or fill it with blanks",
        "Use string.",
    ),
    "varchar": RefusedType("varchar(5)", "nobody would check its length", "Use string."),
    "void": RefusedType("void", "it has no values", "Give the column the type that it will have."),
    "udt": RefusedType(
        "a class of your own (UserDefinedType)",
        "other sites do not have its class",
        "Use the plain type that it consists of; of a vector vector_to_array(v).",
    ),
    "collate": RefusedType(
        "string collate UNICODE_CI",
        "keys, predicates and partitions would compare texts by their bytes all the same",
        "Use string, and collate where it is read: SELECT name COLLATE UNICODE_CI.",
    ),
}


def check_not_refused(word: str, ddl: str) -> None:
    """Refuse a type that no table holds.

    Args:
        word: First word of the type, or `collate`, in lower case.
        ddl: Whole type, for the message.

    Raises:
        SchemaMismatchError: It is one of them (definite).
    """
    found = REFUSED_TYPES.get(word)
    if found is not None:
        raise SchemaMismatchError(
            f"no table can hold the type {ddl[:140]!r}: {found.reason}",
            hint=found.way_out,
            type=ddl[:140],
        )
