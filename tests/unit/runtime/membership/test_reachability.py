"""The matrix of addresses from the nodes' reports."""

from __future__ import annotations

from sparktxlog.runtime.membership.reachability import HEARD_US, AddressReports, differing_addresses

OWN = (("B", "http://b", True), ("B", "http://b2", False))


def test_the_matrix_has_what_was_told_lately_of_places() -> None:
    reports = AddressReports()
    assert reports.matrix("A", (), "ABC", 0) == {}
    reports.note("C", (("B", "http://b", False),), 5)
    reports.note(
        "C", (("B", "http://b", True), ("B", "http://b2", True), ("X", "http://x", True)), 7
    )
    reports.note("X", (("B", "http://b", False),), 7)
    rows = {
        "A": {"B": {"http://b": True, "http://b2": False}},
        "C": {"B": {"http://b": True, "http://b2": True}},
    }
    assert reports.matrix("A", OWN, ["A", "B", "C"], 7 + HEARD_US) == rows
    assert list(reports.matrix("A", OWN, ["C", "B", "A"], 7)) == ["C", "A"]
    assert list(reports.matrix("A", OWN, ["A", "B", "C"], 8 + HEARD_US)) == ["A"]
    reports.note("C", (), 9)
    assert list(reports.matrix("A", OWN, ["A", "B", "C"], 9)) == ["A"]


def test_observers_that_differ_about_an_address() -> None:
    matrix = {
        "A": {"B": {"http://b": True, "http://b2": False}, "C": {"http://c": False}},
        "B": {"C": {"http://c": False}},
        "C": {"B": {"http://b": True, "http://b2": True}, "A": {"http://a2": False}},
        "D": {"A": {"http://a2": True}},
    }
    assert differing_addresses(matrix) == {"A": ["http://a2"], "B": ["http://b2"]}
    assert differing_addresses({}) == {}


def test_a_report_without_end_is_cut() -> None:
    reports = AddressReports()
    reports.note("B", (("C", f"http://{number}", True) for number in range(10_000)), 0)
    assert len(reports.matrix("A", (), ["A", "B", "C"], 0)["B"]["C"]) == 4_096
