"""Which URLs name a bucket."""

from __future__ import annotations

import pytest

from sparktxlog.errors import ConfigError, InvalidNameError
from sparktxlog.model.buckets import Provider, bucket_url

AZURE = "abfss://data@acc0unt.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("url", "provider", "bucket", "prefix", "shown"),
    [
        ("s3://lake", Provider.S3, "lake", "", "s3://lake"),
        ("s3://lake/", Provider.S3, "lake", "", "s3://lake"),
        ("S3A://lake/a b/c/", Provider.S3, "lake", "a b/c", "s3://lake/a b/c"),
        ("gs://lake/x", Provider.GOOGLE, "lake", "x", "gs://lake/x"),
        (f"{AZURE}/x/y", Provider.AZURE, "data", "x/y", f"{AZURE}/x/y"),
        (AZURE.replace("abfss", "abfs"), Provider.AZURE, "data", "", AZURE),
    ],
)
def test_a_url_names_a_bucket(
    url: str, provider: Provider, bucket: str, prefix: str, shown: str
) -> None:
    found = bucket_url(url, "store")
    assert found is not None
    assert (found.provider, found.bucket, found.prefix, found.url) == (
        provider,
        bucket,
        prefix,
        shown,
    )


@pytest.mark.parametrize("url", ["/data/lake", "file:///data", "relative", "C:/x", ""])
def test_a_path_names_none(url: str) -> None:
    assert bucket_url(url, "store") is None


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("hdfs://name/x", "hdfs://"),
        ("http://host/x", "http://"),
        ("s3n://lake", "s3n://"),
        ("s3://", "no bucket"),
        ("s3:///x", "no bucket"),
        ("abfss://data/x", "no account"),
        ("abfss://data@elsewhere.example/x", "no account"),
    ],
)
def test_other_urls_are_refused_by_name(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        bucket_url(url, "commit-table-url")
    assert caught.value.fields["key"] == "commit-table-url"
    assert "s3://bucket/prefix" in caught.value.hint


def test_credentials_in_a_url_are_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        bucket_url("s3://key:secret@lake/x", "store")
    assert "secret" not in f"{caught.value} {caught.value.to_problem()}"


def test_a_prefix_stays_below_the_bucket() -> None:
    with pytest.raises(InvalidNameError):
        bucket_url("s3://lake/a/../b", "store")
