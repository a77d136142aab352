"""Names of the replicas of a site, and which row tables each of them holds.

A site may have several replicas, each with a worker, a lake and a name.  One without a name is the
main one.  Everywhere a replica is known by one text: `A` is the main one of site A, `A/reports` is
its replica `reports`.

A replica holds all row tables, or those whose names one of its patterns matches: `bronze.*`,
`orders`, `sales.order_?`.  A pattern without a schema means the schema `default`, as the name of a
table does.  Case does not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated

import msgspec

from sparktxlog.errors import InvalidNameError, InvalidRequestError
from sparktxlog.model.ids import full_table_name

#: Name of the replica of a worker that was given none.
MAIN = "main"
#: Most replicas of a site, and most patterns of one.
MOST_REPLICAS = 8
MOST_PATTERNS = 64
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
#: A name, as other processes send it.
ReplicaName = Annotated[str, msgspec.Meta(pattern=f"^{_NAME}$")]
_PATTERN = re.compile(r"([A-Za-z*?][A-Za-z0-9_*?]*\.)?[A-Za-z*?][A-Za-z0-9_*?]*")
_LONGEST_PATTERN = 128
#: A set of tables, as other processes send it.
TableSet = Annotated[
    tuple[Annotated[str, msgspec.Meta(max_length=_LONGEST_PATTERN)], ...],
    msgspec.Meta(max_length=MOST_PATTERNS),
]


def check_replica_name(text: str) -> str:
    """Return `text` if it can name a replica.

    Raises:
        InvalidNameError: It cannot (definite).
    """
    if not re.fullmatch(_NAME, text):
        raise InvalidNameError(
            f"{text[:80]!r} cannot name a replica",
            hint="Use letters, digits, - and _, 64 at most; it begins with a letter or a digit.",
            field="name",
            value=text[:80],
        )
    return text


def replica_id(site: str, name: str = MAIN) -> str:
    """Return the text by which a replica is known: no id of a site has a slash."""
    return site if name == MAIN else f"{site}/{name}"


def site_of(replica: str) -> str:
    """Return the site of a replica; empty for an empty text."""
    return replica.partition("/")[0]


def name_of(replica: str) -> str:
    """Return the name of a replica at its site."""
    return replica.partition("/")[2] or MAIN


def table_set(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return patterns as replicas keep them: `schema.table` in lower case, each once, ascending.

    Raises:
        InvalidRequestError: One of them matches no name that a table can have, or there are too
            many (definite).
    """
    found = set[str]()
    for pattern in patterns:
        full = full_table_name(pattern).lower()
        if len(full) > _LONGEST_PATTERN or not _PATTERN.fullmatch(pattern) or pattern == "*":
            raise InvalidRequestError(
                f"--tables {pattern[:80]!r} is no pattern for names of tables",
                hint="Write schema.table with * and ?, such as 'bronze.*', or a table of schema "
                "default, such as orders.  For all tables leave --tables out.",
                field="tables",
                value=pattern[:80],
            )
        found.add(full)
    if len(found) > MOST_PATTERNS:
        raise InvalidRequestError(
            f"--tables has {len(found):,} patterns, {MOST_PATTERNS} are allowed",
            hint="Use * and ?, such as 'bronze.*'.",
            field="tables",
            value=len(found),
        )
    return tuple(sorted(found))


@lru_cache(maxsize=1 << 16)
def holds(only: tuple[str, ...], table: str) -> bool:
    """Return whether a replica with these patterns holds a table; without any it holds all."""
    name = full_table_name(table).lower()
    return not only or any(fnmatchcase(name, pattern) for pattern in only)
