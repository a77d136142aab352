"""A file comes from another site's bucket by a copy of the service, or else through the nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
import structlog
from tests.support import store_servers
from tests.support.faulty_way import Fault, faulty_way
from tests.support.storage_samples import parquet_bytes, staged_of
from tests.support.store_servers import BUCKET, StoreServer, opened

from sparktxlog.files.stores import donor_buckets
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.counting import RequestKind
from sparktxlog.files.stores.credentials.aws_requests import AwsService
from sparktxlog.files.stores.donor_buckets import DonorBuckets
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.model.buckets import bucket_url
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.commit_tables.bucket_places import BucketPlaces
from sparktxlog.storage.payloads.bucket_payloads import BucketPayloads
from sparktxlog.storage.site_bucket import SiteBucket

NAME = "0a0a0a0a-0000-4000-8000-000000000000/orders/part 0.parquet"


def make_bucket(server: StoreServer) -> None:
    """Make the bucket of the other site; the library of buckets cannot."""
    settings = server.settings()
    service = AwsService(settings.endpoint, "us-east-1", "s3", settings.s3_keys)
    assert service.ask("PUT", "/donor", total_s=60).status == 200


@pytest.fixture(scope="module")
def donor(seaweedfs: StoreServer) -> BucketStore:
    """A bucket of another site at the same service."""
    make_bucket(seaweedfs)
    return seaweedfs.store("payloads", bucket="donor")


@pytest.fixture(autouse=True)
def clean(donor: BucketStore) -> None:
    donor.remove([found.key for found in donor.list()])


class Site:
    """The site that receives.

    Args:
        settings: How it reaches its bucket.
        donors: URLs of what it may copy from.
    """

    def __init__(self, directory: Path, settings: StoreSettings, *donors: str) -> None:
        url = f"s3://{BUCKET}/{uuid4()}"
        self.store, place = opened(url, settings), bucket_url(url, "store")
        found = [bucket_url(donor, "store-copy-from") for donor in donors]
        assert place is not None
        #: Whether the service copied each file.
        self.noted = list[bool]()
        self.donors = DonorBuckets(
            self.store, place, [*filter(None, found)], settings, self.noted.append
        )
        bucket = SiteBucket(self.store, lambda: None, "payload-url", "the files")
        self.payloads = BucketPayloads(bucket, directory / "payloads", donors=self.donors)
        #: Bytes that came through the nodes.
        self.sent = 0

    def fetch(self, file: StagedFile, content: bytes) -> None:
        """Get a file, whose bytes the node of the other site would send."""

        def sent(offset: int) -> Iterable[bytes]:
            self.sent += len(content) - offset
            yield content[offset:]

        self.payloads.fetch(file, sent)

    def copied(self, content: bytes) -> bool:
        """Return whether the service copied the only file, and it is there once, and right."""
        assert [found.key for found in self.store.list()] == [NAME]
        assert self.store.read(NAME) == content
        return self.noted == [True] and not self.sent


def test_a_copied_file_does_not_pass_the_nodes(
    seaweedfs: StoreServer, donor: BucketStore, tmp_path: Path
) -> None:
    content = parquet_bytes()
    donor.create(NAME, content)
    site = Site(tmp_path, seaweedfs.settings(), donor.url)
    file = staged_of(NAME, content)
    site.fetch(file, content)
    asked = site.store.counts.now()
    assert site.copied(content)
    assert asked[RequestKind.COPY].requests == 1
    assert asked[RequestKind.PUT].requests == 0
    # It counts as compared, and no part of it was on the disk.
    before = site.store.counts.now()[RequestKind.GET]
    site.payloads.verify(file)
    assert site.store.counts.now()[RequestKind.GET] == before
    assert not [path for path in (tmp_path / "payloads").rglob("*") if path.is_file()]


def test_a_copy_whose_answer_is_lost_is_there_once(
    seaweedfs: StoreServer, donor: BucketStore, tmp_path: Path
) -> None:
    content = parquet_bytes()
    donor.create(NAME, content)

    def choose(method: str) -> Fault:
        return Fault.LOST if method == "PUT" else Fault.NONE

    with faulty_way(seaweedfs.endpoint, choose) as way:
        site = Site(tmp_path, seaweedfs.settings(way.url), donor.url)
        site.fetch(staged_of(NAME, content), content)
        assert way.happened[Fault.LOST] == 1
        assert site.copied(content)


@pytest.mark.parametrize("fault", [Fault.THROTTLED, Fault.FAILED, Fault.CUT])
def test_a_copy_that_fails_is_no_failure_of_the_transfer(
    seaweedfs: StoreServer, donor: BucketStore, tmp_path: Path, fault: Fault
) -> None:
    content = parquet_bytes()
    donor.create(NAME, content)
    begun = list[str]()

    def choose(method: str) -> Fault:
        begun.extend([method] * (method == "PUT"))
        return fault if begun == ["PUT"] and method == "PUT" else Fault.NONE

    with faulty_way(seaweedfs.endpoint, choose) as way:
        site = Site(tmp_path, seaweedfs.settings(way.url), donor.url)
        site.fetch(staged_of(NAME, content), content)
    assert site.store.read(NAME) == content
    assert site.noted == [fault is not Fault.THROTTLED]


def limited(server: StoreServer) -> StoreSettings:
    """Return how a node reaches its own bucket, and no other one."""
    keys = (
        server.role()
        .session(
            '{"Version":"2012-10-17","Statement":[{"Effect":"Allow",'
            f'"Action":["s3:*"],"Resource":["arn:aws:s3:::{BUCKET}","arn:aws:s3:::{BUCKET}/*"]}}]}}'
        )
        .keys
    )
    return replace(server.settings(), keys=keys, credentials_file=None)


@pytest.mark.parametrize("why", ["denied", "no such bucket"])
def test_a_donor_that_gives_nothing_is_named_once(
    seaweedfs: StoreServer,
    donor: BucketStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    why: str,
) -> None:
    monkeypatch.setattr(donor_buckets, "_PAUSE_S", 0)
    content = parquet_bytes()
    names = [NAME, f"{NAME}2"]
    for name in names:
        donor.create(name, content)
    settings = limited(seaweedfs) if why == "denied" else seaweedfs.settings()
    url = donor.url if why == "denied" else "s3://bucket-of-another-service/payloads"
    site = Site(tmp_path, settings, url)
    with structlog.testing.capture_logs() as logs:
        for name in names:
            site.fetch(staged_of(name, content), content)
    assert site.sent == 2 * len(content)
    assert site.noted == [False, False]
    assert [log["donor"] for log in logs if "gives no copies" in log["event"]] == [url]
    assert [site.store.read(name) for name in names] == [content, content]


def test_the_next_donor_is_asked_for_what_one_does_not_have(
    seaweedfs: StoreServer, donor: BucketStore, tmp_path: Path
) -> None:
    content = parquet_bytes()
    donor.create(NAME, content)
    site = Site(tmp_path, seaweedfs.settings(), f"{donor.url}-of-c", donor.url)
    with structlog.testing.capture_logs() as logs:
        site.fetch(staged_of(NAME, content), content)
    assert site.copied(content)
    assert not logs


def test_a_donor_with_other_bytes_is_not_believed(
    seaweedfs: StoreServer, donor: BucketStore, tmp_path: Path
) -> None:
    content = parquet_bytes()
    donor.create(NAME, content[:-1] + b"?")
    site = Site(tmp_path, seaweedfs.settings(), donor.url)
    site.fetch(staged_of(NAME, content), content)
    assert site.store.read(NAME) == content
    assert site.noted == [False]
    assert site.sent == len(content)


def test_what_a_service_copies_at_most_is_its_limit(
    seaweedfs: StoreServer, donor: BucketStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = parquet_bytes()
    monkeypatch.setattr(donor_buckets, "MOST_COPIED", len(content) - 1)
    donor.create(NAME, content)
    site = Site(tmp_path, seaweedfs.settings(), donor.url)
    site.fetch(staged_of(NAME, content), content)
    assert site.noted == [False]
    assert site.sent == len(content)


def test_a_file_of_a_commit_table_gets_its_place_by_a_copy(
    seaweedfs: StoreServer, donor: BucketStore, tmp_path: Path
) -> None:
    uuid, content = str(uuid4()), b"rows"
    donor.create(f"{uuid}/part-0", content)
    site = Site(tmp_path, seaweedfs.settings(), donor.url)
    places = BucketPlaces(site.store, tmp_path / "tables", lambda: None, site.donors)
    digest = hashlib.sha256(content).hexdigest()
    file = StagedFile(path="part-0", size_bytes=len(content), rows=0, digest=digest)
    assert places.copies(uuid, file)
    assert places.holds(uuid, file)
    assert not places.copies(uuid, replace(file, path="part-1"))


def test_what_the_service_says_of_its_copy_is_not_read(tmp_path: Path) -> None:
    """moto says the SHA-256 of a copy, as AWS does; SeaweedFS does not."""
    with store_servers.moto(tmp_path / "moto") as server:
        make_bucket(server)
        donor, content = server.store("payloads", bucket="donor"), b"bytes of a commit" * 1000
        site = Site(tmp_path, server.settings(), donor.url)
        digest = hashlib.sha256(content).hexdigest()
        file = StagedFile(path=NAME, size_bytes=len(content), rows=0, digest=digest)
        donor.create(NAME, content)
        site.fetch(file, content)
        asked = site.store.counts.now()
        assert site.copied(content)
        assert (asked[RequestKind.GET].bytes, asked[RequestKind.PUT].bytes) == (0, 0)
        # Other bytes are not believed, and not read either.
        other = replace(file, path=f"{NAME}2", digest="0" * 64)
        donor.create(other.path, content)
        before = site.store.counts.now()[RequestKind.GET]
        assert site.donors.copy(other.path, len(content), other.digest) is None
        assert site.store.counts.now()[RequestKind.GET] == before
