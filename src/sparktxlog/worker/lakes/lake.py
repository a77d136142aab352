"""What a worker asks of the place where its tables lie."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from sparktxlog.delta.log_files import TablePlace
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.worker.apply.batches import Batch
from sparktxlog.worker.lakes.payload_files import PayloadFiles


class Lake(Protocol):
    """The tables of a replica, by name; methods block.

    Errors of all methods, besides those that they name:
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

    def set_aside(self, name: str, mark: str, why: str) -> str:
        """Move a dropped table to the attic, and return where it is now; it may be repeated.

        Args:
            mark: Distinguishes it from others of that name.
        """
