"""The demo with followers and a feed: both are killed, and have in the end what the sites have."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.test_demo import run_demo

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.slow, pytest.mark.faults]


@pytest.mark.timeout(1000)
def test_followers_and_a_new_cluster_of_the_feed_have_the_tables(tmp_path: Path) -> None:
    place = tmp_path / "feed"
    found = run_demo(
        tmp_path / "demo",
        *("--scale", "0.006", "--followers", "2", "--feed", str(place)),
        timeout_s=980,
    )
    tables = found["signatures"]["A"]
    assert set(tables) == {"aircraft_position", "flights", "planes", "weather"}
    assert found["killed_off_site"] == ["F", "feed"]
    assert set(found["followers"]) == {"F", "G"} and found["off_site_differs"] == []
    end = found["positions"]["A"]
    for name, upstreams in (("F", "ABC"), ("G", "F")):
        follower = found["followers"][name]
        assert follower["position"] == end and follower["queue_equal"]
        assert follower["upstream"] in upstreams
        assert follower["signatures"] == tables and follower["unsound"] == []
    feed = found["feed"]
    assert feed["signatures"] == tables and feed["position"] == end
    assert feed["pages"] >= 1 and feed["log_id"].startswith("restored")
    assert found["files_shared_between_sites"] == 0
