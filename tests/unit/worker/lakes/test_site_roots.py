"""What is kept of a site, or given back by it, does not lie among its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparktxlog.errors import InvalidRequestError
from sparktxlog.worker.lakes.site_roots import check_apart, roots_of

INFO = {
    "lake_root": "/data/lake",
    "lake_url": "s3://bucket/rows",
    "payload_url": None,
    "replica_lakes": {"reports": "/data/reports"},
    "position": 7,
}
#: Two names of one account: for files and for blobs.
AZURE = "abfss://cont@name.{}.core.windows.net/site"


def test_roots_are_those_that_a_node_says() -> None:
    assert roots_of(INFO) == ["/data/lake", "s3://bucket/rows", "/data/reports"]
    assert roots_of({}) == []


@pytest.mark.parametrize(
    ("place", "root"),
    [
        ("s3://bu/a", "s3://bu/a"),
        ("s3://bu/a/x", "s3a://bu/a/"),
        ("S3://bu/a/x", "s3://bu"),
        (AZURE.format("dfs"), AZURE.format("blob")),
        (AZURE.format("blob") + "/x", AZURE.format("dfs")),
        ("abfs" + AZURE.format("dfs")[5:], AZURE.format("dfs")),
        ("/data/lake/../lake/x", "/data/lake"),
        ("file:///data/lake", "/data/lake/"),
    ],
)
def test_other_names_of_a_place_in_a_root_are_refused(place: str, root: str) -> None:
    with pytest.raises(InvalidRequestError, match="where files of the site lie") as caught:
        check_apart(place, ["/elsewhere", root])
    assert caught.value.definite and caught.value.fields["value"] == place


def test_what_is_next_to_a_root_or_around_it_is_not(tmp_path: Path) -> None:
    check_apart("s3://bu/a", ["s3://bu/ab", "s3://bu/a/x", "gs://bu/a", "s3://cu/a", "/b/a"])
    check_apart(str(tmp_path / "a"), [str(tmp_path / "ab"), str(tmp_path / "a" / "x")])
    check_apart(AZURE.format("dfs"), ["abfss://cont@other.dfs.core.windows.net/site"])


def test_a_link_into_a_root_is_looked_through(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "link").symlink_to("lake")
    with pytest.raises(InvalidRequestError):
        check_apart(str(tmp_path / "link" / "images"), [str(tmp_path / "lake")])
