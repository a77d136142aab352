"""What a store refuses: each permission alone, ended credentials, a wrong clock or region, a quota.

SeaweedFS refuses by itself what it can: permissions, by policies of sessions, and the clock.  The
rest is said on the way to it, in the words of the stores that say it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import store_servers
from tests.support.faulty_way import Answer, Fault, faulty_way
from tests.support.store_servers import BUCKET, StoreServer

from sparktxlog.errors import (
    DiskFullError,
    LyingStoreError,
    StorageError,
    StoreForbiddenError,
    StoreUnavailableError,
)
from sparktxlog.files.foreign_files import INCOMING
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.credentials import vending
from sparktxlog.files.stores.credentials.aws_requests import aws_url
from sparktxlog.files.stores.credentials.aws_signature import S3Keys
from sparktxlog.files.stores.credentials.azure_sas import AccountSigner, AzureSas
from sparktxlog.files.stores.credentials.vended_keys import VendedKeys
from sparktxlog.files.stores.credentials.vending import Vendor, policy_of
from sparktxlog.files.stores.proof import prove
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.model.buckets import BucketUrl, bucket_url

LARGE = b"p" * (40 << 20)
_CALLS: dict[str, Callable[[BucketStore], object]] = {
    "find": lambda store: store.find("there"),
    "read": lambda store: store.read("there"),
    "list": lambda store: [*store.list()],
    "names": lambda store: store.names("d"),
    "create": lambda store: store.create("new", b"x"),
    "replace": lambda store: store.replace("new", b"x"),
    "in parts": lambda store: store.in_parts().replace("new", b"x" * (9 << 20)),
    "copy": lambda store: store.copy("there", "new"),
    "remove": lambda store: store.remove(["there"]),
}
_ALL = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket")
_REFUSED = {
    "s3:GetObject": {"find", "read", "copy"},
    "s3:PutObject": {"create", "replace", "in parts", "copy"},
    "s3:DeleteObject": {"remove"},
    "s3:ListBucket": {"list", "names"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with store_servers.seaweedfs(tmp_path_factory.mktemp("seaweedfs") / "state") as server:
        yield server


@pytest.fixture
def prefix() -> str:
    return f"tests/{os.urandom(8).hex()}"


@pytest.mark.parametrize("permission", _ALL)
def test_each_permission_that_is_missing_is_named(
    server: StoreServer, prefix: str, permission: str
) -> None:
    own = server.store(prefix)
    store = server.allowed(prefix, *(one for one in _ALL if one != permission))
    for name, call in _CALLS.items():
        own.create("there", b"bytes")
        own.remove(["new"])
        if name not in _REFUSED[permission]:
            call(store)
            continue
        with pytest.raises(StoreForbiddenError) as caught:
            call(store)
        error = caught.value
        assert permission in error.hint and permission in error.fields["permission"]
        assert prefix in error.message and error.definite
        # Nothing happened; what a trial of copies could not remove, the bucket's own rules do.
        assert {
            one.key: own.read(one.key)
            for one in own.list()
            if not one.key.startswith(f"{INCOMING}/")
        } == {"there": b"bytes"}
    with pytest.raises(StorageError, match=permission):
        prove(store, racers=2, races=1)


def test_what_is_there_and_cannot_be_read_may_be_ours(server: StoreServer, prefix: str) -> None:
    server.store(prefix).create("there", b"bytes")
    with pytest.raises(StorageError, match="whose it is cannot be seen") as caught:
        server.allowed(prefix, "s3:PutObject").create("there", b"bytes")
    assert not caught.value.definite and "s3:GetObject" in caught.value.hint


@pytest.mark.parametrize(
    ("answer", "kind", "told"),
    [
        (Answer(400, "ExpiredToken"), StoreForbiddenError, "expired"),
        (Answer(403, "QuotaExceeded"), DiskFullError, "no room left"),
        (Answer(301, "PermanentRedirect"), StoreForbiddenError, "another region"),
    ],
)
def test_an_upload_that_ends_in_the_middle_leaves_nothing(
    server: StoreServer, prefix: str, answer: Answer, kind: type[StorageError], told: str
) -> None:
    """The first request, and two parts, are taken."""
    direct, puts = server.store(prefix), 0

    def choose(method: str) -> Fault | Answer:
        nonlocal puts
        puts += method == "PUT"
        return answer if puts > 2 else Fault.NONE

    with faulty_way(server.endpoint, choose) as way:
        store = server.store(prefix, endpoint=way.url)
        with pytest.raises(kind, match=told) as caught:
            store.replace("k", LARGE)
        assert caught.value.definite and caught.value.hint
        assert store.url_of("k") in caught.value.message
        assert direct.find("k") is None and [*direct.list()] == []
        way.choose = lambda method: Fault.NONE
        store.replace("k", LARGE)
    assert direct.read("k") == LARGE


_WRITES: dict[str, tuple[str, Callable[[BucketStore], object]]] = {
    "create": ("PUT", lambda store: store.create("new", b"bytes")),
    "replace": ("PUT", lambda store: store.replace("new", b"bytes")),
    "copy": ("PUT", lambda store: store.copy("there", "new")),
    "exchange": ("PUT", lambda store: store.exchange("new", b"bytes", _mark_of(store, "new"))),
    "remove": ("POST", lambda store: store.remove(["new"])),
}


def _mark_of(store: BucketStore, key: str) -> str:
    found = store.find(key)
    assert found is not None
    return found.mark


@pytest.mark.parametrize("looks", [True, False], ids=["seen", "unseen"])
@pytest.mark.parametrize(
    "answer",
    [Answer(403, "AccessDenied"), Answer(400, "ExpiredToken"), Answer(403, "QuotaExceeded")],
)
@pytest.mark.parametrize("name", _WRITES)
def test_what_is_refused_after_a_lost_answer_may_be_done(
    server: StoreServer, prefix: str, name: str, answer: Answer, looks: bool
) -> None:
    """Credentials that end, or a quota that is used up, after the store took the first attempt."""
    direct, (method, call) = server.store(prefix), _WRITES[name]
    direct.create("there", b"bytes")
    if name in ("exchange", "remove"):
        direct.create("new", b"before")
    told = [Fault.LOST, answer]

    def choose(asked: str) -> Fault | Answer:
        if len(told) == 2 or asked == method:
            return told.pop(0) if told and asked == method else Fault.NONE
        return Fault.NONE if looks else answer

    with faulty_way(server.endpoint, lambda method: Fault.NONE) as way:
        store = server.store(prefix, endpoint=way.url)
        if name == "copy":  # finds out which way the server has for it
            store.copy("there", "before")
        way.choose = choose
        if looks and name != "remove":
            call(store)  # the object says that it was done
        else:
            with pytest.raises(StorageError, match="may have been carried out") as caught:
                call(store)
            assert not caught.value.definite
    there = direct.find("new")
    assert there is None if name == "remove" else direct.read("new") == b"bytes"


@pytest.mark.parametrize("looks", [True, False], ids=["seen", "unseen"])
def test_an_upload_whose_last_answer_is_cut_and_that_is_refused_then_may_be_done(
    server: StoreServer, prefix: str, looks: bool
) -> None:
    """The library does not ask again for what was cut: the store does."""
    posts = 0

    def choose(method: str) -> Fault | Answer:
        nonlocal posts
        posts += method == "POST"  # the first begins the upload, the second one ends it
        if posts == 2 and method == "POST":
            return Fault.CUT
        is_refused = posts > 2 and (method == "POST" or not looks)
        return Answer(403, "AccessDenied") if is_refused else Fault.NONE

    with faulty_way(server.endpoint, choose) as way:
        settings = server.settings(way.url, patience_s=0.0)
        store = store_servers.opened(f"s3://{BUCKET}/{prefix}", settings).in_parts()
        if looks:
            store.replace("new", b"bytes")
        else:
            with pytest.raises(StorageError, match="may have been carried out") as caught:
                store.replace("new", b"bytes")
            assert not caught.value.definite
    assert posts > 2 and server.store(prefix).read("new") == b"bytes"


@pytest.mark.parametrize(
    "answer", [Answer(301, "PermanentRedirect"), Answer(400, "AuthorizationHeaderMalformed")]
)
def test_a_wrong_region_is_named(server: StoreServer, prefix: str, answer: Answer) -> None:
    with faulty_way(server.endpoint, lambda method: answer) as way:
        store = server.store(prefix, endpoint=way.url)
        for name, call in _CALLS.items():
            with pytest.raises(StoreForbiddenError, match="region") as caught:
                call(store)
            assert caught.value.definite and "region" in caught.value.hint, name


# Rust's library asks the C library for the time.
_CLOCK = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec -= 20 * 60;
  return failed;
}
"""
_ASK = """
import sys
from dataclasses import replace
from pathlib import Path
from sparktxlog.errors import StoreForbiddenError
from sparktxlog.files.stores.opening import store_at
from sparktxlog.files.stores.store_settings import StoreSettings
settings = StoreSettings(
    endpoint=sys.argv[1], allow_http=True, region="us-east-1", credentials_file=Path(sys.argv[2])
)
store = store_at(sys.argv[3], settings)
asks = (store.read, store.find, lambda key: store.create(key, b"x"), store.list)
for ask in asks:
    try:
        [*(ask("k") or ())]
    except StoreForbiddenError as error:
        print(error.definite, error)
"""


def test_a_clock_that_is_20_minutes_behind_is_named(
    server: StoreServer, prefix: str, tmp_path: Path
) -> None:
    source, shim = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(_CLOCK)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(shim), str(source)], check=True)
    except OSError:
        pytest.skip("there is no compiler of C")
    url = f"s3://{BUCKET}/{prefix}"
    done = subprocess.run(
        [sys.executable, "-c", _ASK, server.endpoint, str(server.credentials_file), url],
        env=os.environ | {"LD_PRELOAD": str(shim)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = done.stdout.splitlines()
    assert len(said) == 4, done.stdout + done.stderr
    for line in said:
        assert line.startswith(f"True [store-forbidden] {url}") and "clock" in line


# -- credentials for others ------------------------------------------------------------------------


def vendor(server: StoreServer, prefix: str, **changed: str) -> Vendor:
    place = bucket_url(f"s3://{BUCKET}/{prefix}", "test")
    assert place is not None
    return Vendor(replace(server.role(), **changed), place, server.settings())


@pytest.mark.parametrize("writes", [False, True])
def test_credentials_are_for_one_prefix(server: StoreServer, prefix: str, writes: bool) -> None:
    own = server.store(prefix)
    for key in ("a/there", "ab/there", "a-b"):
        own.create(key, b"bytes")
    given = vendor(server, prefix).give("a", writes=writes)
    settings = StoreSettings(
        endpoint=server.endpoint, region="us-east-1", allow_http=True, keys=given.keys
    )
    store = store_servers.opened(f"s3://{BUCKET}/{prefix}", settings)
    assert store.read("a/there") == b"bytes"
    assert [one.key for one in store.list("a")] == ["a/there"]
    own_part: list[Callable[[], object]] = [
        lambda: store.create("a/new", b"x"),
        lambda: store.remove(["a/there"]),
    ]
    for call in (
        lambda: store.read("ab/there"),
        lambda: store.read("a-b"),
        lambda: [*store.list("ab")],
        lambda: [*store.list()],
        lambda: store.create("ab/new", b"x"),
        lambda: store.remove(["a-b"]),
        *(own_part if not writes else ()),
    ):
        with pytest.raises(StoreForbiddenError):
            call()
    if writes:
        store.create("a/new", b"x")
        store.in_parts().replace("a/new", LARGE)
        store.remove(["a/there"])
    assert own.find("a-b") is not None
    shown = f"{given!r} {settings!r} {store!r}"
    assert isinstance(given.keys, S3Keys)
    assert given.keys.secret not in shown and given.keys.token not in shown


def test_credentials_are_given_again_until_a_third_of_their_time_is_left(
    server: StoreServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = vendor(server, prefix)
    first = role.give("a", writes=True)
    assert role.give("a", writes=True) is first
    assert role.give("a", writes=False) is not first and role.give("b", writes=True) is not first
    now = first.ends_ms / 1000
    monkeypatch.setattr("sparktxlog.files.stores.credentials.vending.time.time", lambda: now - 301)
    assert role.give("a", writes=True) is first
    monkeypatch.setattr("sparktxlog.files.stores.credentials.vending.time.time", lambda: now - 299)
    second = role.give("a", writes=True)
    assert second is not first and second.ends_ms >= first.ends_ms


def test_a_role_that_may_not_be_assumed_is_named(server: StoreServer, prefix: str) -> None:
    given = vendor(server, prefix, arn="arn:aws:iam::role/another")
    with pytest.raises(StoreForbiddenError, match="role/another: 403 AccessDenied") as caught:
        given.give("a", writes=False)
    assert "trust policy" in caught.value.hint and caught.value.definite


def test_a_service_that_is_down_is_named(server: StoreServer, prefix: str) -> None:
    given = vendor(server, prefix, endpoint="http://127.0.0.1:9")
    with pytest.raises(StoreUnavailableError, match="gave no credentials"):
        given.give("a", writes=False)


def test_a_service_that_does_not_answer_is_no_disk_that_hangs(
    server: StoreServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = list[tuple[str, float]]()

    def goes_on(place: str, may_take_s: float = 0.0) -> None:
        noted.append((place, may_take_s))

    monkeypatch.setattr(vending, "goes_on", goes_on)
    monkeypatch.setattr(vending, "_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(StoreUnavailableError, match="gave no credentials"):
            vendor(server, prefix, endpoint=url).give("a", writes=False)
    assert noted == [(url, 0.2), (url, 0.0)]


def test_a_server_that_ignores_the_policy_gives_nothing_away(tmp_path: Path, prefix: str) -> None:
    with store_servers.moto(tmp_path / "moto") as server:
        given = vendor(server, prefix, arn="arn:aws:iam::123456789012:role/lake")
        with pytest.raises(LyingStoreError, match="does more: it ") as caught:
            given.give("a", writes=False)
        assert caught.value.fields["header"] == "Policy"
        assert [*server.store(prefix).list()] == []


def test_a_policy_is_short() -> None:
    """AWS takes 2,048 characters."""
    assert len(policy_of("b" * 63, f"{'p' * 200}/{'u' * 36}", writes=True)) < 1_700


def test_a_policy_is_of_the_partition_of_its_role() -> None:
    """China and GovCloud have names of their own."""
    policy = policy_of("lake", "site-a/uuid", writes=False, partition="aws-cn")
    assert "arn:aws-cn:s3:::lake/site-a/uuid/*" in policy and "arn:aws:" not in policy
    assert aws_url("sts", "cn-north-1") == "https://sts.cn-north-1.amazonaws.com.cn"


def test_the_region_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert StoreSettings().s3_region() == "us-east-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert StoreSettings().s3_region() == "eu-west-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    assert StoreSettings().s3_region() == "eu-west-3"
    assert StoreSettings(region="eu-west-2").s3_region() == "eu-west-2"


class _OfTheContainer(AccountSigner):
    """Signs for all of a container."""

    def give(self, place: BucketUrl, prefix: str, *, writes: bool) -> VendedKeys[AzureSas]:
        ends_s = int(time.time()) + self.lasts_s
        token = self.signed(place.bucket, "c", "racwdl" if writes else "rl", ends_s)
        return VendedKeys(AzureSas(token), ends_s * 1000)


@pytest.mark.packages
@pytest.mark.skipif(not store_servers.AZURITE, reason="Azure's emulator is on npm only")
def test_a_server_of_azure_that_knows_no_directories_gives_nothing_away(tmp_path: Path) -> None:
    """As an account without a hierarchical namespace; the emulator knows none."""
    with store_servers.azurite(tmp_path / "azurite") as server:
        settings = StoreSettings(
            endpoint=server.endpoint, allow_http=True, credentials_file=server.credentials_file
        )
        url = f"abfss://{BUCKET}@{BUCKET}.dfs.core.windows.net/site-a"
        place = bucket_url(url, "test")
        assert place is not None
        signer = AccountSigner(place.account, settings.azure_key, 900, "https,http")
        with pytest.raises(LyingStoreError, match="does not do this: it reads") as caught:
            Vendor(signer, place, settings).give("a", writes=False)
        assert caught.value.fields["header"] == "sr=d, sdd"
        assert "hierarchical namespace" in caught.value.hint
        # One for the container is signed in the same way: the emulator takes it, and it is refused.
        signer = _OfTheContainer(place.account, settings.azure_key, 900, "https,http")
        with pytest.raises(LyingStoreError, match="does more: it reads another prefix"):
            Vendor(signer, place, settings).give("a", writes=False)
        assert [*server.store("site-a").list()] == []
