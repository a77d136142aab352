"""Gives a commit table in a bucket back: the same files and versions, below another prefix of it.

Files are copied within the bucket.  The log comes after them, its versions in their order, so what
is there is always a table.  A bucket keeps no times of files that somebody else sets, so commits
keep their in-commit timestamps.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparktxlog.delta.checkpoints import newest_of_twin, take_checkpoint
from sparktxlog.delta.commit_contents import LiveFiles, read_commit_file
from sparktxlog.delta.commit_files import commit_bytes
from sparktxlog.delta.log_files import commits_among, commits_in
from sparktxlog.errors import CorruptLogError, InvalidRequestError
from sparktxlog.files.stores.store import Created, Store
from sparktxlog.files.stores.whole_files import in_parallel
from sparktxlog.model.buckets import bucket_url, whole_bucket
from sparktxlog.model.tables.commit_table import COMMIT_LOG, UUID_NAME, commit_file_name
from sparktxlog.storage.commit_tables.bucket_tables import LogCopy
from sparktxlog.storage.commit_tables.released_log import IN_COMMIT_TIMES, drop_unused_features
from sparktxlog.storage.commit_tables.twin import without_feature
from sparktxlog.worker.tables.places_of_tables import store_of_job

_LOG = COMMIT_LOG.rstrip("/")
#: Where a table lies, or what is the node's own, below the prefix of all tables.
_OF_TABLES = re.compile(rf"(?:{UUID_NAME.pattern}|\..*)/")


@dataclass(frozen=True, slots=True)
class BucketRelease:
    """What is given back, and where it goes.

    Args:
        bucket: All of the bucket.
        source: Key of the commit table.
        target: Of the plain table.
    """

    bucket: Store
    source: str
    target: str

    @classmethod
    def of(cls, location: str, path: str) -> BucketRelease:
        """Return that of a table into a prefix that has nothing.

        Args:
            location: Of the table, in a bucket.
            path: What the user named.

        Raises:
            InvalidRequestError: It is not in the table's bucket, is in a commit table, or has
                something (definite).
        """
        source, target = bucket_url(location, "location"), bucket_url(path, "path")
        assert source is not None, "the caller looked"
        if target is None or not target.prefix or whole_bucket(target) != whole_bucket(source):
            raise InvalidRequestError(
                f"{path} is no prefix in the bucket of the table, which lies at {location}",
                hint=f"Name one: {whole_bucket(source)}/… .  Files are copied within the bucket.",
                field="path",
                value=path,
            )
        root = source.prefix.rpartition("/")[0]
        below = f"/{target.prefix}/".removeprefix(f"/{root}/" if root else "/")
        if not below.startswith("/") and _OF_TABLES.match(below):
            raise InvalidRequestError(
                f"{path} is in a commit table, or among the node's own objects: upkeep removes "
                "there what no version names",
                hint=f"Name a prefix of no table, such as {whole_bucket(source)}/back/orders.",
                field="path",
                value=path,
            )
        bucket = store_of_job(whole_bucket(source))
        if next(iter(bucket.list(target.prefix)), None) is not None:
            raise InvalidRequestError(
                f"{path} has objects already", hint="Name a new prefix.", field="path", value=path
            )
        return cls(bucket, source.prefix, target.prefix)

    @property
    def url(self) -> str:
        """Where it goes."""
        return self.bucket.url_of(self.target)

    def newest(self) -> int:
        """Return the newest version of the commit table that is published here."""
        log = self.bucket.list(f"{self.source}/{_LOG}")
        return max(commits_among(one.key.rpartition("/")[2] for one in log), default=-1)

    def bring(self, version: int, *, keep_features: bool) -> tuple[str, ...] | None:
        """Bring all versions up to one; again, after it was brought up to an older one.

        Returns:
            The features that the newest version has then, None = all.

        Raises:
            CorruptLogError: The table lacks a version, or a file that this one needs.
            StorageError: A part may be there; remove it.
        """
        log = LogCopy(self.bucket, self.source)
        with _directory() as twin:
            self._make_log(log.back_to(version, -1), version, twin)
            features = None
            self._copy_files(log.directory, commits_in(twin), version)
            if not keep_features:
                features = drop_unused_features(twin, kept=IN_COMMIT_TIMES)
            self._send_log(twin)
        return features

    def _make_log(self, log: Path, version: int, twin: Path) -> None:
        """Make the log of a plain twin, without its files."""
        (twin / COMMIT_LOG).mkdir()
        first = 0
        if not (log / commit_file_name(0)).exists():  # Delta has cleaned it up
            base = newest_of_twin(log, version)
            if base is None:
                url = self.bucket.url_of(f"{self.source}/{commit_file_name(0)}")
                raise CorruptLogError(f"{url} is missing, and no checkpoint is there", path=url)
            take_checkpoint(base, twin, without_feature)
            first = base.version
        for number in range(first, version + 1):
            name = commit_file_name(number)
            (twin / name).write_bytes(without_feature(commit_bytes(log, number)))

    def _copy_files(self, log: Path, versions: list[int], version: int) -> None:
        """Copy the files of versions that are still there; those of the newest one must be."""
        live, paths = LiveFiles(), set[str]()
        base = newest_of_twin(log, versions[0]) if versions[0] else None
        if base is not None:
            live.begin(base.adds())
            paths |= live.needed.keys()
        for number in versions:
            content = read_commit_file(commit_bytes(log, number))
            if base is None or number > base.version:
                live.follow(content)
            paths |= {file.path for file in content.files}
        there = {one.key.removeprefix(f"{self.source}/") for one in self.bucket.list(self.source)}
        for path in sorted(live.needed.keys() - there):
            url = self.bucket.url_of(f"{self.source}/{path}")
            raise CorruptLogError(
                f"{url} is missing, and version {version} needs it",
                hint="`sparktxlog repair NAME` gets it from another site.",
                path=url,
            )
        in_parallel(self._copy, paths & there)

    def _copy(self, path: str) -> None:
        made = self.bucket.copy(f"{self.source}/{path}", f"{self.target}/{path}")
        if made is Created.OTHER:
            url = self.bucket.url_of(f"{self.target}/{path}")
            raise CorruptLogError(f"{url} is another file: somebody wrote there", path=url)

    def _send_log(self, twin: Path) -> None:
        files = sorted(path for path in (twin / COMMIT_LOG).rglob("*") if path.is_file())
        # What checkpoints name comes before them, and what names the newest one last.
        files.sort(key=lambda path: (path.name[:1] == "_", path.parent.name == _LOG, path.name))
        sent = set[str]()
        for path in files:
            key = f"{self.target}/{path.relative_to(twin).as_posix()}"
            self.bucket.replace(key, path)
            sent.add(key)
        there = {one.key for one in self.bucket.list(f"{self.target}/{_LOG}")}
        self.bucket.remove(there - sent)


@contextmanager
def _directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="sparktxlog-release-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
