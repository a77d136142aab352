"""Rings of samples, and quantiles of buckets."""

from __future__ import annotations

import statistics
from math import inf

import pytest

from sparktxlog.runtime.history.node_history import Ring, quantile


def test_a_ring_keeps_the_last_samples_in_their_order() -> None:
    ring = Ring(3)
    assert ring.show() == {"at": [], "series": {}}
    for number in range(2):
        ring.add(number, {"x": number})
    assert ring.show() == {"at": [0.0, 1.0], "series": {"x": [0.0, 1.0]}}
    for number in range(2, 8):
        ring.add(number, {"x": number})
        shown = ring.show()
        assert shown["at"] == shown["series"]["x"] == [number - 2, number - 1, number]


def test_a_series_has_gaps_and_goes_when_nothing_of_it_is_left() -> None:
    ring = Ring(3)
    ring.add(0, {"a": 1})
    ring.add(1, {"b": 2})
    assert ring.show()["series"] == {"a": [1, None], "b": [None, 2]}
    ring.add(2, {"b": 3})
    assert ring.show()["series"]["a"] == [1, None, None]
    ring.add(3, {"b": 4})
    assert ring.show()["series"] == {"b": [2, 3, 4]}
    ring.add(4, {"a": 5})
    assert ring.show()["series"] == {"a": [None, None, 5], "b": [3, 4, None]}


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_quantile_is_in_the_bucket_that_has_it(share: float) -> None:
    times = [number / 1_000 for number in range(1, 1_001)]
    bounds = (0.05, 0.1, 0.25, 0.5, 1.0, inf)
    buckets = [(top, float(sum(one <= top for one in times))) for top in bounds]
    exact = statistics.quantiles(times, n=100)[round(share * 100) - 1]
    assert quantile(buckets, share) == pytest.approx(exact, abs=0.01)


def test_a_quantile_above_all_bounds_is_the_last_bound() -> None:
    assert quantile([(0.1, 0.0), (1.0, 0.0), (inf, 7.0)], 0.5) == 1.0
    assert quantile([(0.1, 4.0), (1.0, 4.0), (inf, 4.0)], 0.5) == 0.05
