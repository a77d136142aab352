"""Commit tables as jobs of their site reach them: by the storage that the node shares with Spark.

Delta refuses much to a table that a catalog manages, so statements of a transaction and upkeep run
on a plain twin of it: `twin` makes one in a directory, `bucket_twin` in a bucket.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from typing import Protocol

from sparktxlog.delta.commit_contents import NeededFile
from sparktxlog.storage.commit_tables.twin import TwinCommit

#: Where upkeep has its twins, next to the tables.
UPKEEP_TWINS = ".twins"


class Unneeded(Protocol):
    """Files of a table that nobody needs."""

    @property
    def count(self) -> int:
        """How many there are."""

    @property
    def size_bytes(self) -> int:
        """Their bytes."""

    def remove(self) -> None:
        """Remove them; one that is gone already counts as removed.

        Raises:
            StorageError: Some may be left; try again.
        """


class Twin(ABC):
    """A plain twin of a table, with one user; errors of the methods are those of its store."""

    @property
    @abstractmethod
    def path(self) -> str:
        """Its path or URL, as Spark opens it."""

    @abstractmethod
    def newest(self) -> int:
        """Return its newest version."""

    @abstractmethod
    def follow(self) -> None:
        """Add the versions that its table got meanwhile.

        Raises:
            CorruptLogError: It has a version of its own, or the table lacks a file.
        """

    @abstractmethod
    def own_version(self) -> int | None:
        """Return the first version that was made on it, None = all are the table's."""

    @abstractmethod
    def add_unchanged_version(self) -> None:
        """Add a version without changes: its committer has read the version before."""

    @abstractmethod
    def stage(self, version: int, last: int | None = None) -> TwinCommit:
        """Stage what was committed on it in its table, durably, as one commit.

        To do it again stages the same.  Nothing is a version until the node says so.

        Args:
            version: Its next one after those of the table.
            last: Its versions up to this one become one of the table; None = that one.

        Raises:
            StagedCommitError: It is no commit for a table of a catalog (definite).
            InvalidRequestError: It replaces the table, or see `merged_commits` (definite).
            CorruptLogError: It has no such version, or the table another file of a name.
        """

    @abstractmethod
    def remove(self) -> None:
        """Remove it, as far as that goes: what is left is swept later."""


class SharedTable(ABC):
    """A commit table; errors of the methods are those of its store."""

    @property
    @abstractmethod
    def path(self) -> str:
        """Where it is, for messages."""

    @abstractmethod
    def data(self, version: int) -> list[NeededFile]:
        """Return the data files of a version.

        Raises:
            CorruptLogError: The log lacks the version, or cannot be read.
        """

    @abstractmethod
    def twin(self, version: int, place: str, *, guarded: bool = False) -> Twin:
        """Make a twin of a version; **after calling** remove it.

        Args:
            place: The directory for twins, next to the tables.
            guarded: For statements of users: CREATE OR REPLACE TABLE, which would do nothing,
                fails.  `follow` and `own_version` are not for this one.

        Raises:
            CorruptLogError: The log lacks the version, or a file that the version needs.
        """

    @abstractmethod
    def checkpointed(self, version: int) -> int:
        """Return the newest version up to this one that has a checkpoint, -1 = none."""

    @abstractmethod
    def log_twin(self, version: int, place: str) -> Twin:
        """Make a twin to write a checkpoint of; as `twin`, but its files are not read."""

    @abstractmethod
    def take_checkpoint(self, twin: Twin, version: int) -> None:
        """Give the table the checkpoint that Delta wrote of its twin.

        Raises:
            CorruptLogError: There is none.
        """

    @abstractmethod
    def withdraw(self, commit: TwinCommit) -> None:
        """Remove a staged commit that lost, and the files that the table got with it."""

    @abstractmethod
    def unneeded(self, version: int, *, now_ms: int, keep_ms: int) -> Unneeded:
        """Return the files that no version needs which was the newest one lately.

        Args:
            version: The newest version; all are placed.
            now_ms: Milliseconds since 1970 UTC.
            keep_ms: The table's retention.

        Raises:
            CorruptLogError: The log lacks a version.
        """

    @abstractmethod
    def decided(self, version: int, *, now_ms: int) -> Unneeded:
        """Return the staged commits of versions that are decided, as `unneeded`."""


class SharedTables(ABC):
    """The commit tables of a site, and what lies next to them."""

    @abstractmethod
    def table(self, name: str, location: str) -> SharedTable:
        """Return a table.

        Args:
            name: `schema.table`.
            location: Its URL, as the catalog says it.

        Raises:
            NotOfferedError: It is in no place of this site's tables (definite).
        """

    @abstractmethod
    def begin(self) -> None:
        """Remove what upkeep that was killed left, if no other may run."""

    @abstractmethod
    def now_ms(self) -> int:
        """Return the time, milliseconds since 1970 UTC; where clocks differ, the earlier one."""

    @abstractmethod
    def unused(self, known: Collection[str], *, now_ms: int, dry_run: bool) -> list[str]:
        """Return the places that have had no table for long enough.

        One that has none for the first time is remembered, and forgotten if it gets one.

        Args:
            known: UUIDs of all tables of the log.
        """

    @abstractmethod
    def remove_unused(self, places: Iterable[str]) -> None:
        """Remove places that have no table."""

    @abstractmethod
    def abandoned(self, *, now_ms: int) -> list[str]:
        """Return what jobs and transfers left, and nobody wrote to for long enough."""

    @abstractmethod
    def remove_abandoned(self, places: Iterable[str]) -> None:
        """Remove what jobs and transfers left."""
