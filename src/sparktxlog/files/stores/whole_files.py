"""Whole files between a directory of this machine and a store, some at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Lock, Thread
from typing import TypeVar

from sparktxlog.errors import FileChangedError
from sparktxlog.files.durability import storing
from sparktxlog.files.foreign_files import with_progress
from sparktxlog.files.stores.store import Created, Found, Store

T = TypeVar("T")

#: Objects that travel, or are copied in a bucket, at the same time.
AT_ONCE = 8
_PART = ".part"


def in_parallel(act: Callable[[T], object], items: Iterable[T]) -> None:
    """Do something with each item, some at a time; of failures the first in their order is raised.

    After a failure no further one is begun.  A process that ends waits for none: a bucket that is
    away answers after minutes.
    """
    todo = list(items)
    if len(todo) < 2:
        for item in todo:
            act(item)
        return
    shared, failures = with_progress(act), dict[int, BaseException]()
    numbers, taking = iter(range(len(todo))), Lock()
    is_over = False

    def work() -> None:
        while not failures and not is_over:
            with taking:
                number = next(numbers, None)
            if number is None:
                return
            try:
                shared(todo[number])
            except BaseException as error:  # noqa: BLE001 - the caller gets it
                failures[number] = error

    threads = [
        Thread(target=work, name=f"whole-files_{number}", daemon=True)
        for number in range(min(AT_ONCE, len(todo)))
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:  # perhaps somebody interrupts this thread
        is_over = True
    if failures:
        raise failures[min(failures)]


def files_below(directory: Path) -> dict[str, Path]:
    """Return the files below a directory: relative path, with slashes → file."""
    with storing(directory):
        found = (path for path in directory.rglob("*") if path.is_file())
        return {path.relative_to(directory).as_posix(): path for path in sorted(found)}


def put_files(store: Store, files: Mapping[str, Path]) -> None:
    """Put whole files under keys that nobody else writes; what has other bytes is replaced.

    It may be repeated.

    Raises:
        StorageError: As `Store`; some are there.
    """
    in_parallel(lambda key: put_file(store, key, files[key]), files)


def put_file(store: Store, key: str, file: Path) -> None:
    """Put one file as `put_files` does."""
    # A creation first: who was overtaken finds the other one's object, with equal bytes.
    if store.create(key, file, alone=True) is Created.OTHER:
        store.replace(key, file)


def bring_down(store: Store, found: Found, to: Path) -> None:
    """Read an object into a file, which has its name when it is whole; it is not synced.

    Raises:
        FileChangedError: It is another object by now (definite).
        StorageError: As `Store`, or the disk fails.
    """
    part = to.with_name(to.name + _PART)
    content = store.open(found.key)
    try:
        with storing(to):
            to.parent.mkdir(parents=True, exist_ok=True)
            if content.found.mark != found.mark:
                raise FileChangedError(f"{store.url_of(found.key)} was replaced meanwhile")
            with part.open("wb") as file:
                file.writelines(content.pieces)
            part.replace(to)
    finally:
        content.pieces.close()
