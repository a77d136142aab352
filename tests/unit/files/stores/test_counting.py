"""Counts of requests, by several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from sparktxlog.files.stores.counting import RequestCounts, Requested, RequestKind


def test_requests_and_bytes_are_counted_by_kind() -> None:
    counts = RequestCounts()
    before = counts.now()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: counts.add(RequestKind.PUT, 2, 10), range(1000)))
    counts.add(RequestKind.GET)
    found = counts.now()
    assert found[RequestKind.PUT] == Requested(2000, 10_000)
    assert found[RequestKind.GET] == Requested(1, 0)
    assert found[RequestKind.LIST] == Requested() == before[RequestKind.PUT]
