"""Gives a row table back: the log drops it, and each site keeps it as a plain Delta table."""

from __future__ import annotations

import os
import shutil
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparktxlog.api.site_session import SiteSession
from sparktxlog.api.transaction import SparkTransaction
from sparktxlog.errors import ApplyError, InvalidRequestError
from sparktxlog.model.ids import local_path
from sparktxlog.storage.dropped_tables import dropped_path
from sparktxlog.storage.durability import link_or_copy, storing, sync_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRelease:
    """A row table that was given back."""

    #: Name that it had in the log.
    table: str
    #: Where this site has it: the given directory, or the one that the worker puts it into.
    path: str
    #: Where the log dropped it; each site's worker puts its own aside there.
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
            message of the worker's state, and the table is in the worker's directory (definite).
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
    aside = dropped_path(lake, name, receipt.position)
    if target is not None:
        site.snapshot(at_least=receipt)
        _link(aside, target)
    return RowRelease(table=name, path=str(target or aside), position=receipt.position)


def _link(aside: Path, target: Path) -> None:
    """Give all files of a table a second name; the directory appears when it is whole."""
    if not aside.is_dir():
        raise ApplyError(
            f"this process does not see {aside}, where this site's worker puts the table",
            hint="The table is dropped.  Copy that directory on the worker's machine.",
            path=str(aside),
        )
    beside = target.with_name(f".{target.name}.{uuid.uuid4().hex}.releasing")

    def link(source: str, placed: str) -> None:
        link_or_copy(Path(source), Path(placed))

    try:
        with storing(target):
            shutil.copytree(aside, beside, copy_function=link)
            for directory, _, _ in os.walk(beside):
                sync_directory(directory)
            beside.rename(target)
            sync_directory(target.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
