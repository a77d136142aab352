"""An object as a file: a reader that goes away does not wait for a piece that is on its way."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.objects import ObjectReader
from sparktxlog.files.stores.store import OpenContent


class Slow(DiskStore):
    """Gives a piece once that is allowed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked, self.allowed, self.ended = Event(), Event(), Event()

    def open(self, key: str, *, offset: int = 0) -> OpenContent:
        found = super().open(key, offset=offset)

        def pieces() -> Generator[bytes, None, None]:
            try:
                self.asked.set()
                assert self.allowed.wait(30)
                yield from found.pieces
            finally:
                found.pieces.close()
                self.ended.set()

        return OpenContent(found.found, pieces())


def test_what_another_thread_reads_can_be_closed(tmp_path: Path) -> None:
    """A peer that breaks off a download does not see the error of the store's request."""
    store = Slow(tmp_path)
    store.create("a", b"bytes")
    reader = ObjectReader(store, "a")
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(reader.readinto, bytearray(5))
        assert store.asked.wait(30)
        reader.close()
        assert reader.closed and not store.ended.is_set()
        store.allowed.set()
        reading.exception(30)
    del reading, reader
    assert store.ended.wait(30), "the request ends with the piece that was on its way"
