"""Gives a row table in a bucket back: what the attic of the lake has of it, as a table elsewhere.

Below another prefix of the bucket it is copied there, data first and the log's versions in their
order, so what is there is always a table; a directory appears when it is whole.
"""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from sparktxlog.delta.log_files import in_order
from sparktxlog.errors import ApplyError, InvalidRequestError, StorageError
from sparktxlog.files.durability import move_durably, storing, sync_tree
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.store import Created, Store
from sparktxlog.files.stores.whole_files import bring_down, in_parallel
from sparktxlog.model.buckets import bucket_url, whole_bucket
from sparktxlog.worker.lakes.bucket_lake import attic_key
from sparktxlog.worker.tables.places_of_tables import store_of_job


@dataclass(frozen=True, slots=True)
class BucketRowRelease:
    """Where a row table goes.

    Args:
        bucket: All of the bucket of the lake.
        lake: Key of the lake; empty = all of the bucket.
        target: Key below which the table goes, or a directory that does not exist.
    """

    bucket: Store
    lake: str
    target: str | Path

    @classmethod
    def of(cls, lake: str, target: str | Path) -> BucketRowRelease:
        """Return that into a prefix that has nothing, or a directory; nothing is changed yet.

        **Before calling** look whether it is among the files of the site.

        Args:
            lake: URL of the lake.
            target: What the user named, a URL or a directory that does not exist.

        Raises:
            InvalidRequestError: It is not in the lake's bucket, or has something (definite).
            StorageError: As `Store`.
        """
        root = bucket_url(lake, "lake")
        assert root is not None, "the caller looked"
        bucket = store_of_job(whole_bucket(root))
        if isinstance(target, Path):
            return cls(bucket, root.prefix, target)
        found = bucket_url(target, "path")
        if found is None or not found.prefix or whole_bucket(found) != whole_bucket(root):
            raise InvalidRequestError(
                f"{target} is no prefix in the bucket of the table, which lies in {lake}",
                hint=f"Name one: {whole_bucket(root)}/… .  Files are copied within the bucket.",
                field="path",
                value=target,
            )
        if next(iter(bucket.list(found.prefix)), None) is not None:
            raise InvalidRequestError(
                f"{target} has objects already",
                hint="Name a new prefix.",
                field="path",
                value=target,
            )
        return cls(bucket, root.prefix, found.prefix)

    @property
    def place(self) -> str:
        """Where it goes: a path or a URL."""
        target = self.target
        return str(target) if isinstance(target, Path) else self.bucket.url_of(target)

    def bring(self, name: str, position: int) -> None:
        """Bring a table that the worker has put into the attic; again, it goes on.

        Args:
            position: Of its drop.

        Raises:
            ApplyError: The attic does not have it (definite).
            DiskFullError, StorageError: The directory is not there; below a prefix a part may be.
        """
        key = attic_key(name, str(position))
        kept = PartOfStore(self.bucket, f"{self.lake}/{key}" if self.lake else key)
        there = {found.key: found for found in kept.list()}
        if not there:
            raise ApplyError(
                f"nothing is below {kept.url}, where this site's worker puts the table",
                hint="The table is dropped.  Look there later, and copy it.",
                path=kept.url,
            )
        if isinstance(self.target, str):
            data, log, commits = in_order(there)
            in_parallel(lambda one: self._copy(kept, one), (*data, *log))
            for one in commits:
                self._copy(kept, one)
            return
        fresh = self.target.with_name(f".{self.target.name}.{uuid.uuid4().hex}.releasing")
        try:
            in_parallel(lambda one: bring_down(kept, one, fresh / one.key), there.values())
            with storing(self.target):
                sync_tree(fresh)
                move_durably(fresh, self.target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _copy(self, kept: PartOfStore, key: str) -> None:
        target = f"{self.target}/{key}"
        if self.bucket.copy(f"{kept.directory}/{key}", target) is Created.OTHER:
            url = self.bucket.url_of(target)
            raise StorageError(
                f"{url} is another object: somebody wrote there",
                hint=f"The table is dropped, and whole in {kept.url}: copy it from there.",
                url=url,
            )
