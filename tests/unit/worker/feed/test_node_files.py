"""Files of a site by way of its node: transfers that break, and files that are not there."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from sparktxlog.errors import ApplyError, NotFoundError, TransportError, UnauthorizedError
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.store import Created
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.worker.feed import node_files
from sparktxlog.worker.feed.feed_store import content_name
from sparktxlog.worker.feed.node_files import NodeFiles
from sparktxlog.worker.feed.shipped_files import WantedFile, ship_files

CONTENT = bytes(range(250)) * 4
FILE = StagedFile(
    path="a/b", size_bytes=len(CONTENT), rows=0, digest=hashlib.sha256(CONTENT).hexdigest()
)


class Node:
    """Sends a file, piece by piece, and breaks off after so many bytes each time.

    Args:
        breaks: Bytes of each attempt before it breaks; the attempts after these are whole.
    """

    def __init__(self, *breaks: int, content: bytes = CONTENT) -> None:
        self._breaks, self._content = list(breaks), content
        self.asked = list[tuple[str, int]]()
        self.closed = threading.Event()
        self.refusal: Exception | None = None

    def file(self, where: str, file: StagedFile, offset: int) -> Iterator[bytes]:
        self.asked.append((where, offset))
        if self.refusal is not None:
            raise self.refusal
        if self._breaks:
            yield self._content[offset : offset + self._breaks.pop(0)]
            raise TransportError("the line is cut")
        yield self._content[offset:]


@pytest.fixture
def into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PartOfStore:
    monkeypatch.setattr(node_files, "_PAUSE_S", 0.0)
    return PartOfStore(DiskStore(tmp_path / "feed"), "contents")


def _put(node: Node, into: PartOfStore) -> Created:
    source: Any = node
    return NodeFiles(source, "payloads").put(FILE, into, "k")


def test_a_transfer_goes_on_where_it_broke(into: PartOfStore) -> None:
    """As often as it brings bytes; what is there already does not travel."""
    node = Node(300, 0, 200, 0, 0, 100)
    assert _put(node, into) is Created.NEW
    assert into.read("k") == CONTENT
    assert [offset for _, offset in node.asked] == [0, 300, 300, 500, 500, 500, 600]
    assert {where for where, _ in node.asked} == {"payloads"}
    assert _put(node, into) is Created.EQUAL and len(node.asked) == 7


def test_what_the_feed_has_with_other_bytes_is_put_again(into: PartOfStore) -> None:
    """It has the size of the file, so only its bytes say that it is damaged."""
    node, kept = Node(), content_name(FILE)
    into.create(kept, CONTENT[:-1] + b"?")
    source: Any = node
    assert NodeFiles(source, "payloads").put(FILE, into, kept) is Created.OTHER
    assert node.asked == [], "the node is asked once, when it is put again"
    writer: Any = Mock(contents=into)
    ship_files(writer, [WantedFile(FILE, ((NodeFiles(source, "payloads"), FILE.path),))])
    assert into.read(kept) == CONTENT and len(node.asked) == 1


def test_a_node_that_is_away_ends_it(into: PartOfStore) -> None:
    node = Node(300, 0, 0, 0)
    with pytest.raises(TransportError, match="is cut"):
        _put(node, into)
    assert len(node.asked) == 4 and into.find("k") is None
    node = Node(300)
    node.closed.set()
    with pytest.raises(TransportError):
        _put(node, into)
    assert len(node.asked) == 1


def test_what_the_node_does_not_have_whole_is_never_put(into: PartOfStore) -> None:
    with pytest.raises(ApplyError, match="payload file"):
        _put(Node(content=CONTENT[:-1] + b"?"), into)
    with pytest.raises(ApplyError, match="payload file"):
        _put(Node(content=CONTENT + b"more"), into)
    node = Node()
    node.refusal = NotFoundError("no such file", hint="Look.")
    with pytest.raises(ApplyError, match="no such file") as caught:
        _put(node, into)
    assert caught.value.fields["path"] == "a/b" and caught.value.hint == "Look."
    node.refusal = UnauthorizedError("a worker's token is needed")
    node.asked.clear()
    with pytest.raises(UnauthorizedError):
        _put(node, into)
    assert len(node.asked) == 1, "no second attempt helps"
    assert into.find("k") is None
