"""Charts of growth: which points, and that they lie where they should."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from benchmarks.plots import charts_of, file_name, svg, table

CPU = "CPU of servers and client for 1,000 transactions, ms"
VALUES = {
    f"growth, batch 8,192: {CPU}: sparktxlog": 20.0,
    f"growth, batch 1: {CPU}: sparktxlog": 900.0,
    f"growth, batch 1: {CPU}: Kafka, fsync": 400.0,
    "growth, delay 0: commit, p50, ms: etcd": 2.0,
    "growth, delay 200: commit, p50, ms: etcd": 402.0,
    "commit, three sites 20 ms apart, spaced: p50": 43.0,
    "commit, three sites 20 ms apart, spaced: p50, in delays of one way": 2.1,
    "ordering: rows": 1.0,
}


def test_names_of_figures_make_charts() -> None:
    found = charts_of(VALUES)
    assert found[("batch", CPU)] == {
        "sparktxlog": [(1, 900), (8_192, 20)],
        "Kafka, fsync": [(1, 400)],
    }
    assert found[("delay", "commit, p50, ms")] == {
        "etcd": [(0, 2), (200, 402)],
        "sparktxlog, spaced": [(20, 43)],
    }
    assert len(found) == 2


def test_a_chart_is_drawn_from_left_to_right_and_larger_is_higher() -> None:
    for (kind, quantity), series in charts_of(VALUES).items():
        drawn = svg(kind, quantity, series)
        ET.fromstring(drawn)
        assert quantity in drawn
        for name, points in series.items():
            assert name in drawn
            assert all(y > 0 for _, y in points)
    drawn = svg("batch", CPU, charts_of(VALUES)[("batch", CPU)])
    places = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawn)
    (left, high), (right, low), (_, between) = ((float(x), float(y)) for x, y in places)
    assert left < right
    assert high < between < low


def test_a_chart_with_one_point_or_equal_ones_is_drawn() -> None:
    ET.fromstring(svg("log", "q", {"a": [(10.0, 5.0)]}))
    ET.fromstring(svg("tables", "q", {"a": [(10.0, 0.0), (100.0, 0.0)]}))


def test_points_are_printed_and_gaps_stay_empty() -> None:
    text = table("batch", charts_of(VALUES)[("batch", CPU)])
    assert "| Kafka, fsync | 400 |  |" in text
    assert file_name("batch", CPU) == (
        "batch-cpu-of-servers-and-client-for-1-000-transactions-ms.svg"
    )
