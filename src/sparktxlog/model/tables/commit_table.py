"""Commit tables: Delta tables whose next version the log decides (protocol P36).

A commit of one table is one transaction; its id is the UUID in the name of the staged commit file.
Commits of several tables are one transaction, too, all or none.  A table is known by its own UUID,
because another one may get its name once it is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from sparktxlog.errors import InvalidNameError, InvalidRequestError
from sparktxlog.model.ids import LARGEST, check_name_part, transaction_id_to_text

#: Where a table has its commit files, below its directory.
COMMIT_LOG = "_delta_log/"
#: What the columns of a transaction's plain twins say, for errors of Delta that show them.
REPLACES_NOTHING = "sparktxlog: CREATE OR REPLACE TABLE does nothing to a table by path"
#: The way out for what replaces a table in a transaction.
REPLACE_HINT = (
    "In a transaction use t.overwrite for the rows, and ALTER TABLE for the columns; a statement "
    "of its own may replace the table by its name in the catalog."
)
#: The UUID of a commit table, which names its directory.
UUID_NAME = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class CommitKind(str, Enum):
    """What a transaction does to a commit table."""

    CREATE = "create"
    COMMIT = "commit"
    DROP = "drop"
    RENAME = "rename"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOperation:
    """What a transaction does to one commit table."""

    kind: CommitKind
    #: Of the table, lower-case text with hyphens.
    uuid: str
    #: Of a table that is created or renamed: `schema.table`, from then on; else empty.
    name: str = ""
    #: For a commit, the version that it wants to be; for a created table, its first one; else 0.
    version: int = 0
    #: In-commit timestamp of that version, milliseconds since 1970 UTC; else 0.
    timestamp: int = 0

    @property
    def is_version(self) -> bool:
        """Whether it gives the table a version, whose files come with it."""
        return self.kind in (CommitKind.CREATE, CommitKind.COMMIT)

    @property
    def problem(self) -> str:
        """What no release writes about it, empty = nothing."""
        if not UUID_NAME.fullmatch(self.uuid):
            return f"{self.uuid[:80]!r} is not the UUID of a table"
        if self.kind in (CommitKind.CREATE, CommitKind.RENAME):
            try:
                check_commit_table_name(self.name)
            except InvalidNameError as error:
                return error.message
        elif self.name:
            return "only a commit that creates or renames a table names it"
        if not (0 <= self.version <= LARGEST and 0 <= self.timestamp <= LARGEST):
            return "a version and a timestamp are numbers from 0 on"
        if self.kind is CommitKind.COMMIT and not self.version:
            return "version 0 comes with the table"
        if not self.is_version and (self.version or self.timestamp):
            return f"a {self.kind.value} has neither version nor timestamp"
        return ""

    def checked(self) -> CommitOperation:
        """Return it if it can be committed.

        Raises:
            InvalidRequestError: A field has a value that it cannot have (definite).
        """
        if problem := self.problem:
            raise InvalidRequestError(problem, field=self.kind.value, value=self.uuid[:80])
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTable:
    """A commit table at a position of the log."""

    #: Lower-case text with hyphens; no other table ever has it.
    uuid: str
    #: `schema.table`, as it was created or renamed; two tables never differ in case only.
    name: str
    #: Its newest version, and the in-commit timestamp of that, milliseconds since 1970 UTC.
    version: int
    timestamp: int
    #: Transaction that committed that version, 16 bytes, and its position; of a dropped table, the
    #: one that dropped it.
    transaction_id: bytes
    position: int
    #: It is remembered, so that nobody commits to it or takes its UUID; its name is free.
    is_dropped: bool = False
    #: Where it was renamed last; 0 = it never was.
    renamed: int = 0

    @property
    def changed(self) -> int:
        """The position of its last change."""
        return max(self.position, self.renamed)


class CommitTables(Mapping[str, CommitTable]):
    """The commit tables that exist, by UUID, ascending by name.

    A holder of this mapping sees what is created, committed and dropped later.  A look-up takes
    constant time, and may be done in any thread.

    Args:
        by_uuid: Dropped tables among them are not shown.
        uuids: UUID by lower-case name, of those that exist.
        newest: UUIDs, ascending by the position of their tables; dropped ones too.
    """

    __slots__ = ("_by_uuid", "_newest", "_uuids")

    def __init__(
        self,
        by_uuid: Mapping[str, CommitTable],
        uuids: Mapping[str, str],
        newest: dict[str, None],
    ) -> None:
        self._by_uuid = by_uuid
        self._uuids = uuids
        self._newest = newest

    def named(self, name: str) -> CommitTable | None:
        """Return the table with a name, whose case is ignored."""
        uuid = self._uuids.get(name.lower())
        return None if uuid is None else self._by_uuid[uuid]

    def dropped(self, name: str) -> CommitTable | None:
        """Return the latest dropped table of a name, whose case is ignored; looks at all."""
        lower = name.lower()
        gone = [one for one in self._by_uuid.values() if one.is_dropped]
        named = [one for one in gone if one.name.lower() == lower]
        return max(named, key=lambda one: one.position, default=None)

    def names_after(self, name: str) -> list[str]:
        """Return the lower-case names after one, ascending; empty = all of them."""
        return sorted(one for one in self._uuids if one > name)

    def changed_after(self, position: int) -> list[CommitTable]:
        """Return the tables whose versions came after a position, newest first.

        That takes no longer if there are others; only in the thread that changes tables.
        """
        found = list[CommitTable]()
        for table in map(self._by_uuid.__getitem__, reversed(self._newest)):
            if table.position <= position:
                break
            if not table.is_dropped:
                found.append(table)
        return found

    def __getitem__(self, uuid: str) -> CommitTable:
        found = self._by_uuid[uuid]
        if found.is_dropped:
            raise KeyError(uuid)
        return found

    def __iter__(self) -> Iterator[str]:
        # In one step: another thread may add tables meanwhile.
        return iter([uuid for _, uuid in sorted(self._uuids.items())])

    def __len__(self) -> int:
        return len(self._uuids)


def commit_file_name(version: int) -> str:
    """Return the path of the commit file of a version, below its table's directory."""
    return f"{COMMIT_LOG}{version:020}.json"


def commit_file_prefix(transaction_id: bytes, uuid: str) -> str:
    """Return where the payload store has the files of a commit, below what paths as in the table.

    Args:
        uuid: Of the table.
    """
    return f"{transaction_id_to_text(transaction_id)}/{uuid}/"


def check_commit_table_name(name: str) -> str:
    """Return `name` if it may name a commit table, else raise InvalidNameError.

    A name has two parts: `schema.table`.
    """
    schema, dot, table = name.partition(".")
    if not dot:
        raise InvalidNameError(
            f"{name[:140]!r} cannot name a commit table",
            hint="Use 'schema.table'.",
            value=name[:140],
        )
    check_name_part(schema)
    check_name_part(table)
    return name
