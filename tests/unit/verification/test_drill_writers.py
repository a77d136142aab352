"""How long a writer waited."""

from __future__ import annotations

from tests.verification.rehearsal.drill_writers import Ordered, Writer


def test_the_longest_time_without_a_commit_counts_within_the_window() -> None:
    writer = Writer("A", ["http://127.0.0.1:1"])
    writer.ordered = [Ordered("x", n, at) for n, at in enumerate((1.0, 2.0, 7.0, 8.0, 30.0))]
    assert writer.longest_gap_s(1.5, 9.0) == 5.0
    assert writer.longest_gap_s(2.5, 9.5) == 4.5
    assert writer.longest_gap_s(8.0, 20.0) == 12.0, "it still waits"
