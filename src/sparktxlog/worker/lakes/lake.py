"""What a worker asks of the place where its tables lie."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Protocol

from sparktxlog.attic.attic import Entry, Kind
from sparktxlog.delta.log_files import TablePlace
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.worker.apply.batches import Batch
from sparktxlog.worker.lakes.payload_files import PayloadFiles


class Lake(Protocol):
    """The tables of a replica, by name; methods block.

    Errors of all methods, in addition to those that they name:
        LockedError: Another worker has the lake by now; nothing was changed (definite).
        StorageError: As `Store`.
        OSError: The disk fails.
    """

    @property
    def url(self) -> str:
        """Where it is: an absolute path, or the URL of a bucket and prefix."""

    def table(self, name: str) -> TablePlace:
        """Return where a table is, or will be."""

    def url_of(self, name: str) -> str:
        """Return where a table is, as Spark and messages name it."""

    def has(self, name: str) -> bool:
        """Return whether anything is where a table would be."""

    def identity(self, name: str, version: int) -> Hashable:
        """Return what distinguishes a version's commit from that of a replaced table."""

    def undo_torn(self, name: str, recorded: int, log_id: str, batch: Batch | None) -> bool:
        """Remove all versions after the recorded one if one of them is torn.

        Args:
            batch: The batch under way, whose commits are expected; None = none are.

        Returns:
            Whether some were.

        Raises:
            DivergedError: Another writer made a whole one: nothing is removed (definite).
        """

    def settle(self, name: str, first: int, last: int, *, found: bool = False) -> None:
        """Make commits `first … last` of a table durable, with the files that they add.

        Args:
            found: They were found after a failure.
        """

    def bring(self, name: str, path: str, file: StagedFile, payloads: PayloadFiles) -> int:
        """Put a payload file below a table, once it was compared with its manifest.

        It may be repeated.

        Args:
            path: Below the table.

        Returns:
            When it was changed last, milliseconds since 1970 UTC.

        Raises:
            ApplyError: It is missing, or not what its manifest says (definite).
        """

    def drops_of(self, name: str) -> set[str]:
        """Return the ids of the entries in the attic with dropped tables of a name."""

    def set_aside(
        self,
        name: str,
        mark: str,
        why: str,
        kind: Kind = Kind.DROPPED,
        facts: dict[str, Any] | None = None,
    ) -> str:
        """Move a table to the attic, and return where it is now; it may be repeated.

        Args:
            mark: Distinguishes it from others of that name.
            kind: What the entry is: a table that the log dropped, or that something replaces.
            facts: What else is known of it.
        """

    def keep(self, name: str, mark: str, why: str, facts: dict[str, Any]) -> Entry:
        """Put the files of a table into the attic, too; it stays where it is."""

    def put_rows(self, name: str, rows: Path, mark: str, why: str, facts: dict[str, Any]) -> Entry:
        """Move a directory of this machine with rows of a table to the attic.

        Args:
            rows: In the attic of this machine's directory of the lake, durable.
        """

    def kept(self, name: str) -> list[Entry]:
        """Return what the attic has of a table, oldest first."""

    def forget(self, entry: Entry) -> None:
        """Remove an entry of the attic for ever."""

    def back_up(self, name: str, mark: str, why: str, attic: Path) -> None:
        """Keep the files of a table before a copy replaces it, once for each mark.

        Args:
            attic: Directory for what lies on a disk.

        Raises:
            OSError, StorageError: They are not kept; repeat it.
        """

    def bring_own(self, name: str, files: Mapping[str, int], to: Path) -> bool:
        """Bring own files of a table to where a copy looks for what is here already.

        **Before calling** check that the disk has room for all of them.

        Args:
            files: Path → size in bytes.
            to: A directory of this machine; what is there stays.

        Returns:
            Whether there were any.
        """

    def add_files(self, name: str, files: Mapping[str, Path]) -> None:
        """Give a table files of this machine, durably; no version names them yet.

        Another file of the same name is damaged, and replaced: names of data files are never used
        again.

        Args:
            files: Path below the table → whole file, of the same disk.
        """

    def take_over(self, name: str, directory: Path, mark: str) -> None:
        """Let a directory of this machine become a table that is not there; it may be repeated.

        Args:
            directory: Of the same disk, durable; it may be gone afterwards.
            mark: Of the copy that does it.
        """

    def is_begun(self, name: str, mark: str) -> bool:
        """Return whether `take_over` was broken off, so that a part of a table is there."""
