"""Removes payload files of expired positions, and those that no transaction names.

If a worker linked a file into a table, the file stays there: only its name in the payload store is
removed.  A removal is repeated after a crash, so nothing here needs to be fsynced.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from time import time

import structlog

from sparktxlog.codec.containers.payload import read_manifest
from sparktxlog.errors import StorageError
from sparktxlog.files.durability import storage_error
from sparktxlog.files.foreign_files import INCOMING
from sparktxlog.files.last_use import KEPT_S
from sparktxlog.storage.interfaces import Segment
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.payloads.local_store import LocalPayloadStore
from sparktxlog.storage.payloads.payload_store import PayloadUpkeep
from sparktxlog.storage.segments.publishing import INLINE_DIRECTORY

_log = structlog.get_logger("sparktxlog.storage")

_PAGE = 500
_RANGE = re.compile(r"([0-9]+)-([0-9]+)")
#: Seconds within which a submit names the files that it verified.
SUBMIT_S = KEPT_S


def named_files(journal: Journal, kept_after: int) -> set[str]:
    """Return the staged files that unexpired, unpublished, waiting or unstamped runs name."""
    named: set[str] = set()
    after = kept_after
    while page := journal.read_segments(after, _PAGE):
        for segment in page:
            named.update(staged_files(segment))
        after = page[-1].last
    for payload in journal.read_waiting_payloads():
        named.update(file.path for file in read_manifest(payload).staged_files)
    for commit in journal.read_kept_commits():
        named.update(file.path for file in commit.files)
    return named


def staged_files(segment: Segment) -> Iterator[str]:
    """Yield the staged files of a segment."""
    for effect in segment.effects:
        if not effect.inline:
            yield from (file.path for file in effect.files)


def inline_files(segment: Segment) -> Iterator[str]:
    """Yield the files of a segment's inline rows."""
    for effect in segment.effects:
        if effect.inline:
            yield from (file.path for file in effect.files)


def named_tops(journal: Journal, kept_after: int) -> set[str]:
    """Return the directories below the root that have such files."""
    return {path.split("/", 1)[0] for path in named_files(journal, kept_after)}


def is_expired(name: str, kept_after: int) -> bool:
    """Return whether a directory of inline files has only expired positions."""
    found = _RANGE.fullmatch(name)
    return found is not None and int(found[2]) <= kept_after


class PayloadExpiry(PayloadUpkeep):
    """Removes files of a payload store; used by one thread.

    Args:
        store: The store.
    """

    def __init__(self, store: LocalPayloadStore) -> None:
        self._store = store
        self._root = store.root

    def remove(self, relatives: Iterable[str], *, used_before: float = math.inf) -> int:
        removed = 0
        parents: set[Path] = set()
        for relative in relatives:
            removed += self._store.remove_unused(relative, used_before)
            parents.add(Path(self._store.path(relative)).parent)
        for parent in sorted(parents, reverse=True):
            self._remove_empty(parent)
        return removed

    def remove_inline(self, kept_after: int) -> int:
        removed = 0
        for entry in _entries(self._root / INLINE_DIRECTORY):
            if is_expired(entry.name, kept_after):
                shutil.rmtree(entry.path, ignore_errors=True)
                removed += 1
        return removed

    def remove_unnamed(
        self,
        journal: Journal,
        kept_after: int,
        older_than_s: float,
        *,
        unfinished_s: float | None = None,
        given_up: Collection[str] = (),
    ) -> int:
        before = time() - older_than_s
        old = [
            entry
            for entry in _entries(self._root)
            if entry.name not in (INCOMING, INLINE_DIRECTORY)
            and (entry.name in given_up or self._is_old(entry, before))
        ]
        removed = 0
        if old:
            # Read after the ages: files of later submits were verified a moment ago.
            tops = named_tops(journal, kept_after)
            for entry in old:
                if entry.name not in tops and (away := self._taken_away(entry)) is not None:
                    self._remove_tree(away)
                    removed += 1
        if unfinished_s is not None:
            before = max(before, time() - unfinished_s)
        for entry in _entries(self._root / INCOMING):
            if self._is_old(entry, before):
                removed += self._remove_tree(Path(entry.path))
        if removed:
            _log.info("files that no transaction names were removed", count=removed)
        return removed

    def size_bytes(self) -> int:
        return size_of(self._root)

    def _is_old(self, entry: os.DirEntry[str], before: float) -> bool:
        try:
            return all(
                found.stat(follow_symlinks=False).st_mtime < before for found in _walk(entry)
            )
        except FileNotFoundError:
            return False  # somebody is at work there

    def _taken_away(self, entry: os.DirEntry[str]) -> Path | None:
        """As `Arrivals.take_away`; what cannot be moved stays, and keeps no others."""
        try:
            return self._store.take_away(entry.name, SUBMIT_S)
        except StorageError as error:  # a directory of another user, say
            _log.warning("files stay that no transaction names", reason=error.message)
            return None

    def _remove_tree(self, path: Path) -> int:
        if path.is_symlink() or not path.is_dir():
            return self._unlink(path)
        shutil.rmtree(path, ignore_errors=True)
        return 1

    def _unlink(self, path: Path) -> int:
        self._store.forget(path)
        try:
            path.unlink()
        except FileNotFoundError:
            return 0  # removed before a crash
        except OSError as error:
            raise storage_error(error, path) from error
        return 1

    def _remove_empty(self, directory: Path) -> None:
        while directory != self._root:
            with suppress(OSError):  # not empty, or gone
                directory.rmdir()
            if directory.exists():
                return
            directory = directory.parent


def size_of(directory: Path, without: Collection[str] = ()) -> int:
    """Return the bytes of all files below a directory, 0 if it does not exist.

    Args:
        without: Names of entries at the top that are left out.
    """
    total = 0
    for entry in _entries(directory):
        if entry.name not in without:
            for found in _walk(entry):
                with suppress(FileNotFoundError):  # removed meanwhile
                    total += found.stat(follow_symlinks=False).st_size
    return total


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return list(found)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error(error, directory) from error


def _walk(entry: os.DirEntry[str]) -> Iterator[os.DirEntry[str]]:
    """Yield the entry and, if it is a directory, all below it."""
    yield entry
    if entry.is_dir(follow_symlinks=False):
        for below in _entries(Path(entry.path)):
            yield from _walk(below)
