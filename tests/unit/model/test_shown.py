"""How values show themselves."""

from __future__ import annotations

from sparktxlog.model.shown import html_table, time_text, utc_text


def test_times_and_cells() -> None:
    assert time_text(1_700_000_000_999_999) == "2023-11-14 22:13:20"
    assert time_text(None) == time_text(0) == time_text("x") == "-"
    assert utc_text(1_700_000_000_123_456) == "2023-11-14 22:13:20.123 UTC"
    assert html_table(("a",), [(1_234,), (True,), ("<",)]).count("<tr>") == 4
    assert "<td>1,234</td>" in html_table(("a",), [(1_234,)])
