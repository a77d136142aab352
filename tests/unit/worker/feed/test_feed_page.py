"""What a page of a feed must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.feed_pages import SmallLog

from sparktxlog.errors import CorruptLogError
from sparktxlog.worker.backup.image import sealed
from sparktxlog.worker.feed.feed_page import FeedPage, page_bytes, page_of


@pytest.fixture
def page(tmp_path: Path) -> FeedPage:
    """Positions 7 to 12: two runs, each with a segment."""
    log = SmallLog(tmp_path)
    log.page()
    return log.page()


def test_a_page_is_read_as_it_was_written(page: FeedPage) -> None:
    found = page_of(page_bytes(page), "place", 7)
    assert found == page and not found.problem()
    assert [end.position for end in found.ends] == [9, 12]
    assert (found.end.position, found.end.chain_hash) == (12, page.to_hash)
    assert found.end_at(9) == found.ends[0] and found.end_at(10) is None
    assert [(file.path, at) for file, at in found.files] == [
        ("inline/9.parquet", 7),
        ("inline/12.parquet", 10),
    ]


def test_a_first_segment_may_begin_before_the_page(page: FeedPage) -> None:
    """Nodes cut the log in different places, and the feed goes on with another one."""
    first, second = page.segments
    assert not replace(page, segments=(replace(first, first=5), second)).problem()
    assert (
        "a hole or an overlap"
        in replace(page, segments=(replace(first, first=8), second)).problem()
    )


def _without_a_run(page: FeedPage) -> FeedPage:
    return replace(page, runs=page.runs[1:])


def _runs_in_another_order(page: FeedPage) -> FeedPage:
    return replace(page, runs=page.runs[::-1])


def _segments_in_another_order(page: FeedPage) -> FeedPage:
    return replace(page, segments=page.segments[::-1])


def _without_a_segment(page: FeedPage) -> FeedPage:
    return replace(page, segments=page.segments[:1])


def _a_segment_twice(page: FeedPage) -> FeedPage:
    return replace(page, segments=(*page.segments, page.segments[1]))


def _half_a_run(page: FeedPage) -> FeedPage:
    """A run of which only a part came: its transactions have one place."""
    cut = replace(page.segments[1], last=11)
    return replace(page, last=11, segments=(page.segments[0], cut))


def _another_segment(page: FeedPage) -> FeedPage:
    other = replace(page.segments[0], to_hash="00" * 32)
    return replace(page, segments=(other, page.segments[1]))


def _another_start(page: FeedPage) -> FeedPage:
    return replace(page, from_hash="11" * 32)


def _nothing(page: FeedPage) -> FeedPage:
    return replace(page, runs=(), segments=())


def _no_digest(page: FeedPage) -> FeedPage:
    return replace(page, runs=(replace(page.runs[0], digest="x"), page.runs[1]))


def _later_format(page: FeedPage) -> FeedPage:
    return replace(page, format_version=2)


@pytest.mark.parametrize(
    "change",
    [
        _without_a_run,
        _runs_in_another_order,
        _segments_in_another_order,
        _without_a_segment,
        _a_segment_twice,
        _half_a_run,
        _another_segment,
        _another_start,
        _nothing,
        _no_digest,
        _later_format,
    ],
)
def test_what_was_not_published_so_is_refused(
    page: FeedPage, change: Callable[[FeedPage], FeedPage]
) -> None:
    """V67: a run counts whole or not at all, and in its place."""
    with pytest.raises(CorruptLogError, match="from position 7 on, is damaged") as caught:
        page_of(sealed(change(page)), "place", 7)
    assert caught.value.fields == {"path": "place", "position": 7}
    assert "--at 6" in caught.value.hint


def test_bytes_that_changed_are_refused(page: FeedPage) -> None:
    content = page_bytes(page)
    for broken in (content[:-1], b"", content.replace(b'"last":12', b'"last":11')):
        with pytest.raises(CorruptLogError):
            page_of(broken, "place", 7)
    with pytest.raises(CorruptLogError, match="it begins at position 7"):
        page_of(content, "place", 8)
