"""Gives a row table back: the log drops it, and each site keeps it as a plain Delta table."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparktxlog.api.site_session import SiteSession
from sparktxlog.api.writing.transaction import SparkTransaction
from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.errors import ApplyError, InvalidRequestError
from sparktxlog.model.ids import local_path


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRelease:
    """A row table that was given back."""

    #: Name that it had in the log.
    table: str
    #: Where this site has it: the given directory, or the one that the worker puts it into.
    path: str
    #: Where the log dropped it; each site's worker puts its own files into the attic of the lake.
    position: int

    def to_document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def release_rows(site: SiteSession, name: str, path: str | None, timeout_s: float) -> RowRelease:
    """Drop a row table from the log; its files stay at every site.

    Args:
        path: A directory of this site that does not exist: it gets the files, once this site's
            worker has applied the drop; None = they stay where the worker puts them.
        timeout_s: Seconds for the drop, and for the worker.

    Raises:
        UnknownTableError: There is no such table (definite).
        InvalidRequestError: The directory exists (definite).
        NotAppliedError: The worker is behind.  Before the drop: nothing happened.  After it: the
            message gives the worker's state, and the table is in the worker's directory (definite).
        DiskFullError, StorageError: The directory is not there, the table is in the worker's.
    """
    name = site.definition(name, newest=True).name
    target = None if path is None else Path(local_path(path)).absolute()
    if target is not None:
        if os.path.lexists(target):
            raise InvalidRequestError(
                f"{target} exists already", hint="Name a new directory.", field="path", value=path
            )
        site.latest_snapshot(timeout_s)
    with SparkTransaction(site, timeout=timeout_s) as t:
        t.drop_table(name)
    receipt = t.receipt
    assert receipt.position is not None, "a drop is ordered"
    lake = Path(site.home.get("/v1/info")["lake_root"])
    attic, dropped = Attic.of_lake(lake), (Kind.DROPPED, name, str(receipt.position))
    if target is not None:
        site.snapshot(at_least=receipt)
        found = attic.newest(*dropped)
        if found is None:
            raise ApplyError(
                f"this process does not see {attic.place(*dropped)}, where this site's worker puts "
                "the table",
                hint="The table is dropped.  Copy that directory on the worker's machine.",
                path=str(attic.place(*dropped)),
            )
        attic.restore(found, target)
    place = str(target or attic.place(*dropped))
    return RowRelease(table=name, path=place, position=receipt.position)
