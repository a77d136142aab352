"""What a store of bytes promises: a directory, and a bucket at servers of two makers.

moto ignores `If-None-Match` of a copy, and keeps it at the end of an upload in parts, as some
servers do that users run; it is no store for commits, for of two that create at once both may be
first.  rclone overwrites all that should be created, and is refused.
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from tests.support import store_servers
from tests.support.command_line import invoke
from tests.support.faulty_way import Answer, Fault, FaultyWay, by_chance, faulty_way
from tests.support.node_processes import free_ports
from tests.support.store_servers import AzureServer, StoreServer

from sparktxlog.errors import (
    BucketMissingError,
    InvalidNameError,
    LyingStoreError,
    ObjectMissingError,
    StoreForbiddenError,
    StoreUnavailableError,
    TxLogError,
)
from sparktxlog.files.stores.bucket import PART_BYTES, BucketStore
from sparktxlog.files.stores.counting import RequestKind
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.opening import store_at
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.files.stores.proof import prove
from sparktxlog.files.stores.store import Created, Store
from sparktxlog.files.stores.store_settings import StoreSettings

MIB = 1 << 20


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with store_servers.moto(tmp_path_factory.mktemp("moto") / "state") as server:
        yield server


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    with store_servers.azurite(tmp_path_factory.mktemp("azurite") / "state") as server:
        yield server


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> StoreServer:
    return store_servers.given(tmp_path_factory.mktemp("given"))


#: Servers by which of several that create at once one is first; where nobody has Azure's emulator,
#: or names another server of S3, there is no such test.
RIGHT = [
    "seaweedfs",
    *(["given"] if store_servers.GIVEN else []),
    *(["azurite"] if store_servers.AZURITE else []),
]


@pytest.fixture
def prefix() -> str:
    """A place of its own for each test."""
    return f"tests/{os.urandom(8).hex()}"


def _store(kind: str, prefix: str, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if kind == "disk":
        return DiskStore(tmp_path / prefix)
    server: StoreServer | AzureServer = request.getfixturevalue(kind)
    return server.store(prefix)


@pytest.fixture(params=["disk", "moto", *RIGHT])
def store(request: pytest.FixtureRequest, prefix: str, tmp_path: Path) -> Store:
    return _store(request.param, prefix, request, tmp_path)


@pytest.fixture(params=["disk", *RIGHT])
def racing_store(request: pytest.FixtureRequest, prefix: str, tmp_path: Path) -> Store:
    return _store(request.param, prefix, request, tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "given"
    path.write_bytes(os.urandom(3 * MIB + 17))
    return path


@pytest.fixture
def large_file(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(PART_BYTES + MIB))
    return path


# -- one store -------------------------------------------------------------------------------------


def test_what_was_put_is_found_read_and_listed(store: Store) -> None:
    assert store.find("a/b") is None
    assert store.create("a/b", b"bytes") is Created.NEW
    assert store.read("a/b") == b"bytes"
    found = store.find("a/b")
    assert found is not None
    assert (found.key, found.size_bytes) == ("a/b", 5)
    assert abs(found.changed_s - time.time()) < 60
    assert list(store.list()) == list(store.list("a")) == [found]


def test_a_file_of_this_machine_is_put(store: Store, file: Path) -> None:
    content = file.read_bytes()
    assert store.create("made", file) is Created.NEW
    store.replace("replaced", b"before")
    store.replace("replaced", file)
    assert store.read("made") == store.read("replaced") == content
    assert file.read_bytes() == content


def test_a_large_file_is_put(store: Store, large_file: Path) -> None:
    content = large_file.read_bytes()
    assert store.create("made", large_file) is Created.NEW
    assert store.create("made", large_file) is Created.EQUAL
    store.replace("replaced", large_file)
    assert store.read("made") == store.read("replaced") == content
    other = content[:-1] + bytes([content[-1] ^ 1])
    assert store.create("made", other) is Created.OTHER
    assert {found.key for found in store.list()} == {"made", "replaced"}


def test_what_is_there_is_not_created_again(store: Store, file: Path) -> None:
    assert store.create("k", b"one") is Created.NEW
    assert store.create("k", b"one") is Created.EQUAL
    assert store.create("k", b"two") is Created.OTHER
    assert store.create("k", b"longer") is Created.OTHER
    assert store.create("k", file) is Created.OTHER
    assert store.read("k") == b"one"
    assert store.create("f", file) is Created.NEW
    assert store.create("f", file) is Created.EQUAL
    assert store.create("f", file.read_bytes()) is Created.EQUAL


def test_nothing_is_bytes_too(store: Store) -> None:
    assert store.create("k", b"") is Created.NEW
    assert store.create("k", b"") is Created.EQUAL
    assert store.create("k", b"x") is Created.OTHER
    assert store.read("k") == store.read("k", offset=1) == store.read("k", size=9) == b""
    assert list(store.open("k").pieces) == list(store.open("k", offset=3).pieces) == []


def test_another_mark_says_that_bytes_were_written_again(store: Store) -> None:
    store.create("k", b"one")
    first = store.find("k")
    store.replace("k", b"two")
    second = store.find("k")
    assert first is not None and second is not None and first.mark != second.mark
    assert store.open("k").found == second
    assert store.read("k") == b"two"


@pytest.mark.parametrize(
    ("offset", "size"), [(0, None), (0, 3), (4, None), (4, 3), (9, 5), (10, None), (11, 1), (3, 0)]
)
def test_bytes_are_read_from_an_offset_on(store: Store, offset: int, size: int | None) -> None:
    store.create("k", content := b"0123456789")
    end = None if size is None else offset + size
    assert store.read("k", offset=offset, size=size) == content[offset:end]
    assert b"".join(store.open("k", offset=offset).pieces) == content[offset:]


def test_bytes_come_in_pieces(store: Store, file: Path) -> None:
    content = file.read_bytes()
    store.create("k", file)
    for offset in (0, MIB + 5):
        opened = store.open("k", offset=offset)
        assert opened.found == store.find("k")
        pieces = list(opened.pieces)
        assert max(map(len, pieces)) <= MIB
        assert b"".join(pieces) == content[offset:]
    opened = store.open("k")
    assert content.startswith(next(opened.pieces))
    opened.pieces.close()
    assert list(opened.pieces) == []


@pytest.mark.parametrize("read", [{}, {"offset": 1}, {"size": 0}, {"offset": 1, "size": 2}])
def test_what_is_missing_cannot_be_read(store: Store, read: dict[str, int]) -> None:
    store.create("there/k", b"x")
    with pytest.raises(ObjectMissingError) as caught:
        store.read("missing", **read)
    assert caught.value.definite and store.url_of("missing") in str(caught.value)
    with pytest.raises(ObjectMissingError):
        store.open("missing")
    # A directory has no bytes.
    assert store.find("there") is None


def test_a_copy_is_made_once(store: Store, file: Path) -> None:
    store.create("from", file)
    assert store.copy("from", "d/to") is Created.NEW
    assert store.copy("from", "d/to") is Created.EQUAL
    store.create("equal", file.read_bytes())
    assert store.copy("equal", "d/to") is Created.EQUAL
    store.create("other", b"other")
    assert store.copy("other", "d/to") is Created.OTHER
    assert store.read("d/to") == file.read_bytes()
    with pytest.raises(ObjectMissingError, match="missing"):
        store.copy("missing", "new")
    assert store.find("new") is None
    store.remove(["from"])
    assert store.read("d/to") == file.read_bytes()


def test_a_list_is_of_a_directory(store: Store) -> None:
    keys = {"d/a", "d/a-b", "d/e/f/g", "d-e/x", "dx", "é/ü", "d/.hidden"}
    for key in keys:
        store.create(key, key.encode())
    assert {found.key: found.size_bytes for found in store.list()} == {
        key: len(key.encode()) for key in keys
    }
    assert {found.key for found in store.list("d")} == {"d/a", "d/a-b", "d/e/f/g", "d/.hidden"}
    assert {found.key for found in store.list("d/e")} == {"d/e/f/g"}
    assert list(store.list("none")) == list(store.list("d/e/f/g")) == []


@pytest.mark.parametrize(
    "key",
    ["x=2026-01-01 10%3A00%3A00/part 1.parquet", "a+b", "ü/日本", "q?x=1&y#z", "a%20b", "~'()"],
)
def test_keys_stay_as_they_are(store: Store, key: str) -> None:
    store.create(key, b"x")
    assert [found.key for found in store.list()] == [key]
    assert store.read(key) == b"x"
    assert store.url_of(key) == f"{store.url}/{key}"
    store.remove([key])
    assert store.find(key) is None


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/./b", "a\\b", "a\0b"])
def test_other_keys_are_refused(store: Store, key: str) -> None:
    for call in (
        lambda: store.find(key),
        lambda: store.read(key),
        lambda: store.open(key),
        lambda: store.create(key, b""),
        lambda: store.replace(key, b""),
        lambda: store.copy(key, "x"),
        lambda: store.copy("x", key),
        lambda: store.remove([key]),
    ):
        with pytest.raises(InvalidNameError):
            call()


def test_what_is_removed_is_gone(store: Store) -> None:
    for n in range(5):
        store.create(f"d/{n}", b"x")
    store.remove([])
    store.remove([f"d/{n}" for n in range(1, 9)])
    assert [found.key for found in store.list()] == ["d/0"]
    store.remove(["d/0", "missing/key"])
    assert list(store.list()) == []
    assert store.create("d/0", b"y") is Created.NEW


@pytest.fixture(params=["moto", *RIGHT])
def bucket(request: pytest.FixtureRequest, prefix: str, tmp_path: Path) -> BucketStore:
    found = _store(request.param, prefix, request, tmp_path)
    assert isinstance(found, BucketStore)
    return found


def test_what_has_a_mark_is_exchanged(bucket: BucketStore) -> None:
    assert bucket.exchange("k", b"none is there", "0" * 32) is None
    bucket.create("k", b"one")
    found = bucket.find("k")
    assert found is not None
    second = bucket.exchange("k", b"two", found.mark)
    assert second and bucket.read("k") == b"two"
    assert bucket.exchange("k", b"three", found.mark) is None and bucket.read("k") == b"two"
    again = bucket.find("k")
    assert again is not None and again.mark == second
    assert bucket.exchange("k", b"three", second) and bucket.read("k") == b"three"


def test_of_several_that_exchange_at_once_one_does(bucket: BucketStore) -> None:
    bucket.create("k", b"0")
    found, racers = bucket.find("k"), 8
    assert found is not None
    ready = Barrier(racers)

    def race(number: int) -> bool:
        ready.wait()
        return bucket.exchange("k", b"of %d" % number, found.mark) is not None

    with ThreadPoolExecutor(racers) as threads:
        assert sum(threads.map(race, range(racers))) == 1


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.FAILED])
def test_an_exchange_whose_answer_is_lost_was_made(
    seaweedfs: StoreServer, prefix: str, fault: Fault
) -> None:
    store, left = seaweedfs.store(prefix), [fault]
    store.create("k", b"one")
    found = store.find("k")
    assert found is not None

    def lose(method: str) -> Fault:
        return left.pop() if method == "PUT" and left else Fault.NONE

    with faulty_way(seaweedfs.endpoint, lose) as way:
        mark = seaweedfs.store(prefix, endpoint=way.url).exchange("k", b"two", found.mark)
    again = store.find("k")
    assert again is not None and mark == again.mark and store.read("k") == b"two"


def test_names_are_those_of_a_directory(store: Store) -> None:
    for key in ("d/a", "d/e/b", "d/b c%20", "dd/x"):
        store.create(key, b"")
    assert sorted(store.names("d")) == ["a", "b c%20"]
    assert list(store.names("none")) == []


def test_directories_are_those_of_a_directory(store: Store) -> None:
    for key in ("d/a", "d/e/b", "d/e/f/c", "d/x y/z", "dd/x/y"):
        store.create(key, b"")
    assert sorted(store.directories("d")) == ["e", "x y"]
    assert [*store.directories("none")] == [*store.directories("d/x y")] == []
    part = PartOfStore(store, "d")
    assert sorted(part.directories()) == ["e", "x y"] and [*part.directories("e")] == ["f"]


def test_a_reader_jumps(store: Store, file: Path) -> None:
    content = file.read_bytes()
    store.create("k", file)
    with store.reader("k") as found:
        assert found.seek(-9, os.SEEK_END) == len(content) - 9 and found.readall() == content[-9:]
        found.seek(100)
        assert found.read(5) == content[100:105]
    with pytest.raises(ObjectMissingError):
        store.reader("none")


def test_a_part_of_a_store_is_one(store: Store) -> None:
    part = PartOfStore(store, "t/u")
    assert part.create("d/a", b"x") is Created.NEW and part.create("d/a", b"y") is Created.OTHER
    part.replace("b", b"yy")
    store.create("t/other", b"")
    assert {found.key: found.size_bytes for found in part.list()} == {"d/a": 1, "b": 2}
    assert [found.key for found in part.list("d")] == ["d/a"] and list(part.names("d")) == ["a"]
    found = part.find("b")
    assert found is not None and found.key == "b" and part.open("b").found == found
    assert part.url_of("b") == f"{part.url}/b" == f"{store.url}/t/u/b"
    with part.reader("b") as content:
        assert content.readall() == part.read("b") == b"yy"
    part.remove(["b"])
    assert part.find("b") is None and store.find("t/other") is not None


def test_a_part_asks_before_it_writes(tmp_path: Path) -> None:
    def refuse() -> None:
        raise PermissionError("not yours")

    store = DiskStore(tmp_path)
    store.create("t/a", b"x")
    part = PartOfStore(store, "t", refuse)
    assert part.read("a") == b"x"
    writes: list[Callable[[], object]] = [
        lambda: part.create("b", b""),
        lambda: part.replace("a", b""),
        lambda: part.copy("a", "b"),
        lambda: part.remove(["a"]),
    ]
    for write in writes:
        with pytest.raises(PermissionError):
            write()
    assert [found.key for found in store.list()] == ["t/a"] and store.read("t/a") == b"x"


def test_of_several_that_create_at_once_one_is_first(racing_store: Store) -> None:
    # moto looks for an object and puts it in two steps: under load two creators are the first.
    for race in range(6):
        at_once = Barrier(5)

        def create(number: int, race: int = race, at_once: Barrier = at_once) -> Created:
            at_once.wait()
            return racing_store.create(f"r/{race}", b"same" if race % 2 else b"%d" % number)

        with ThreadPoolExecutor(5) as writers:
            results = list(writers.map(create, range(5)))
        assert results.count(Created.NEW) == 1, results
        others = Created.EQUAL if race % 2 else Created.OTHER
        assert results.count(others) == 4
        if not race % 2:
            assert racing_store.read(f"r/{race}") == b"%d" % results.index(Created.NEW)


# -- buckets ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", RIGHT)
def test_a_store_that_is_right_passes_the_proof(
    kind: str, prefix: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = _store(kind, prefix, request, tmp_path)
    assert isinstance(store, BucketStore)
    store.create("mine", b"x")
    proof = prove(store)
    assert proof.url == store.url and len(proof.checks) == 11
    assert abs(proof.clock_ahead_s) < 60
    assert [found.key for found in store.list()] == ["mine"]


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with store_servers.rclone(tmp_path_factory.mktemp("rclone") / "state") as server:
        yield server


def test_a_store_that_overwrites_copies_makes_none(rclone: StoreServer, prefix: str) -> None:
    store = rclone.store(prefix)
    store.replace("from", b"new")
    store.replace("to", b"old")
    for target in ("to", "nothing-there"):
        with pytest.raises(LyingStoreError) as caught:
            store.copy("from", target)
        assert caught.value.fields["check"] == "copying" and caught.value.definite
        assert "If-None-Match" in str(caught.value) and store.url in str(caught.value)
    assert {found.key: store.read(found.key) for found in store.list()} == {
        "from": b"new",
        "to": b"old",
    }


def test_a_store_that_overwrites_all_is_refused(rclone: StoreServer, prefix: str) -> None:
    store = rclone.store(prefix)
    with pytest.raises(LyingStoreError) as caught:
        prove(store)
    assert caught.value.fields["check"] == "creating"
    assert caught.value.fields["header"] == "If-None-Match: *"
    assert caught.value.definite and caught.value.hint
    assert list(store.list()) == []


def test_a_copy_is_tried_once(seaweedfs: StoreServer, moto: StoreServer, prefix: str) -> None:
    """Which way keeps the condition is found before the first copy, and asked for once."""
    for server, asked in ((seaweedfs, 2 + 1), (moto, 2 + 2)):
        store = server.store(prefix)
        store.create("from", b"x")
        before = store.counts.now()[RequestKind.COPY].requests
        assert [store.copy("from", name) for name in "ab"] == [Created.NEW] * 2
        assert store.counts.now()[RequestKind.COPY].requests - before == asked
        assert {found.key for found in store.list()} == {"from", "a", "b"}


@pytest.mark.slow
def test_doctor_tries_the_stores_that_are_named(
    seaweedfs: StoreServer,
    rclone: StoreServer,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store_servers.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store_servers.SECRET)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")

    def tried(endpoint: str, *urls: str) -> list[dict[str, str]]:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        stores = [word for url in urls for word in ("--store", url)]
        code = invoke(monkeypatch, "doctor", "--json", *stores)
        found = json.loads(capsys.readouterr().out)
        assert (code == 1) == (found["problems"] > 0)
        return [one for one in found["findings"] if one["check"] == "store"]

    url = f"s3://lake/{prefix}"
    good, directory, refused = tried(seaweedfs.endpoint, url, str(tmp_path), "ftp://host/x")
    assert (good["grade"], directory["grade"], refused["grade"]) == ("ok", "ok", "problem")
    assert url in good["text"] and "racing creates" in good["text"]
    assert "ftp://" in refused["text"] and "s3://bucket/prefix" in refused["fix"]
    (lying,) = tried(rclone.endpoint, url)
    assert lying["grade"] == "problem" and "If-None-Match" in lying["text"] and lying["fix"]


@pytest.mark.slow
def test_doctor_tries_a_node_s_bucket_by_the_node_s_settings(
    seaweedfs: StoreServer,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        f'node-id = "A"\nmaster-url = "http://127.0.0.1:1"\ndata-dir = "{tmp_path}/data"\n'
        f'commit-table-url = "s3://lake/{prefix}"\nstore-endpoint = "{seaweedfs.endpoint}"\n'
        f'store-allow-http = true\nstore-credentials-file = "{seaweedfs.credentials_file}"\n'
        + "\n".join(seaweedfs.vending_settings())
    )
    invoke(monkeypatch, "doctor", "--json", "--config", str(path), "--store", "s3://none-such/x")
    findings = json.loads(capsys.readouterr().out)["findings"]
    own, other, vending = [one for one in findings if one["check"] == "store"]
    assert vending["grade"] == "ok" and store_servers.ROLE in vending["text"]
    assert own["grade"] == "ok" and f"s3://lake/{prefix} keeps what it promises" in own["text"]
    assert "s3://none-such/x" in other["text"] and "credentials" not in other["text"]


def test_what_was_asked_for_is_counted(seaweedfs: StoreServer, prefix: str, file: Path) -> None:
    store = seaweedfs.store(prefix)
    store.create("a", b"12345")
    store.replace("b", file)
    store.read("a", size=2)
    store.find("b")
    store.copy("a", "c")
    list(store.list())
    store.remove(["a", "b", "c"])
    counts = store.counts.now()
    size = file.stat().st_size
    # The first copy puts two objects, tries a copy from one to the other, and removes both.
    put = (2 + 2, 5 + size + 2 * len(b"tried"))
    assert (counts[RequestKind.PUT].requests, counts[RequestKind.PUT].bytes) == put
    assert (counts[RequestKind.GET].requests, counts[RequestKind.GET].bytes) == (1, 2)
    asked = {kind: counts[kind].requests for kind in RequestKind}
    assert asked[RequestKind.HEAD] == 1
    assert asked[RequestKind.COPY] == asked[RequestKind.DELETE] == 1 + 1
    # The answer, and that it was all.
    assert asked[RequestKind.LIST] <= 2


def _without_secrets(error: TxLogError, *secrets: str) -> None:
    shown = f"{error} {error!r} {error.to_problem()} {error.__cause__!r}"
    assert not any(secret in shown for secret in secrets)
    assert error.__suppress_context__


def test_marks_of_directories_are_no_objects(moto: StoreServer, prefix: str) -> None:
    """Spark puts them; moto takes them unsigned."""
    store = moto.store(prefix)
    store.create("t/_delta_log/0.json", b"x")
    store.create("t/empty", b"")
    for directory in ("t", "t/_delta_log", "t/without-files"):
        url = f"{moto.endpoint}/lake/{prefix}/{directory}/"
        with urllib.request.urlopen(urllib.request.Request(url, b"", method="PUT"), timeout=10):
            pass
    assert {found.key for found in store.list()} == {"t/_delta_log/0.json", "t/empty"}
    assert {found.key for found in store.list("t/_delta_log")} == {"t/_delta_log/0.json"}
    assert store.find("t/_delta_log") is None


def test_a_missing_bucket_is_named(moto: StoreServer, prefix: str) -> None:
    store = moto.store(prefix, bucket="no-such-bucket")
    for call in (
        lambda: store.find("k"),
        lambda: store.read("k"),
        lambda: store.create("k", b"x"),
        lambda: store.replace("k", b"x"),
        lambda: list(store.list()),
    ):
        with pytest.raises(BucketMissingError, match="no-such-bucket") as caught:
            call()
        assert caught.value.definite and caught.value.hint


def test_a_bucket_that_is_gone_since_is_no_missing_object(
    seaweedfs: StoreServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = seaweedfs.store(prefix)
    direct.create("k", b"x")
    answers: list[Answer | Fault] = [Fault.NONE]
    with faulty_way(seaweedfs.endpoint, lambda method: answers[0]) as way:
        store = seaweedfs.store(prefix, endpoint=way.url)
        assert store.read("k") == b"x" and store.find("none") is None
        answers[0] = Answer(404, "NoSuchBucket")
        for call in (
            lambda: store.read("k"),
            lambda: store.open("k"),
            lambda: store.copy("k", "new"),
            lambda: store.exchange("k", b"y", "mark"),
            lambda: store.remove(["k"]),
        ):
            with pytest.raises(BucketMissingError, match="no such bucket"):
                call()
        # A look has no answer that says why: the bucket is asked for, if it said nothing for long.
        monkeypatch.setattr("sparktxlog.files.stores.bucket._SEEN_S", 0.0)
        with pytest.raises(BucketMissingError, match="no such bucket"):
            store.find("k")
    assert direct.read("k") == b"x"


def test_wrong_credentials_are_refused_and_not_shown(
    seaweedfs: StoreServer, prefix: str, tmp_path: Path
) -> None:
    wrong = tmp_path / "credentials"
    wrong.write_text("AWS_ACCESS_KEY_ID=another-key\nAWS_SECRET_ACCESS_KEY=another-secret\n")
    settings = StoreSettings(
        endpoint=seaweedfs.endpoint, region="x", allow_http=True, credentials_file=wrong
    )
    store = store_at(f"s3://lake/{prefix}", settings)
    for call in (
        lambda: store.find("k"),
        lambda: store.read("k"),
        lambda: store.create("k", b"x"),
        lambda: list(store.list()),
        lambda: store.remove(["k"]),
    ):
        with pytest.raises(StoreForbiddenError) as caught:
            call()
        assert store.url in str(caught.value) and caught.value.definite and caught.value.hint
        _without_secrets(caught.value, "another-key", "another-secret")
    assert "another" not in f"{store!r} {settings!r}"


def test_a_file_of_credentials_is_read_again(
    seaweedfs: StoreServer, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparktxlog.files.stores.bucket_clients._CREDENTIALS_S", 0)
    given = tmp_path / "credentials"
    given.write_bytes(seaweedfs.credentials_file.read_bytes())
    settings = StoreSettings(endpoint=seaweedfs.endpoint, allow_http=True, credentials_file=given)
    store = store_at(f"s3://lake/{prefix}", settings)
    store.create("k", b"x")
    given.write_text("AWS_ACCESS_KEY_ID=another-key\nAWS_SECRET_ACCESS_KEY=another-secret\n")
    with pytest.raises(StoreForbiddenError):
        store.read("k")


def test_a_store_that_is_down_is_tried_again(seaweedfs: StoreServer, prefix: str) -> None:
    def down(_: str) -> Fault:
        return Fault.THROTTLED

    with faulty_way(seaweedfs.endpoint, down) as way:
        settings = seaweedfs.settings(way.url, patience_s=0.5)
        store = store_at(f"s3://lake/{prefix}", settings)
        for call in (lambda: store.create("k", b"x"), lambda: store.read("k")):
            with pytest.raises(StoreUnavailableError, match="503 SlowDown") as caught:
                call()
            assert caught.value.retryable and not caught.value.definite
        assert way.happened[Fault.THROTTLED] > 4
        way.choose = by_chance(0, 0)
        assert store.find("k") is None


def test_a_server_that_is_not_there_is_named(seaweedfs: StoreServer, prefix: str) -> None:
    (port,) = free_ports(1)
    settings = seaweedfs.settings(f"http://127.0.0.1:{port}", patience_s=0.5)
    with pytest.raises(StoreUnavailableError, match="no connection") as caught:
        store_at(f"s3://lake/{prefix}", settings).read("k")
    assert caught.value.fields["action"] == "read it"


# -- faults on the way -----------------------------------------------------------------------------


@pytest.fixture
def way(seaweedfs: StoreServer) -> Iterator[FaultyWay]:
    with faulty_way(seaweedfs.endpoint, by_chance(0.3, seed=7)) as way:
        yield way
        by_request = set(Fault) - {Fault.STALE, Fault.AWAY}
        assert min(way.happened[fault] for fault in by_request) > 0 or not way.happened


@pytest.mark.slow
def test_faults_lose_double_and_mix_up_nothing(
    way: FaultyWay, seaweedfs: StoreServer, prefix: str
) -> None:
    store, direct = seaweedfs.store(prefix, endpoint=way.url), seaweedfs.store(prefix)
    contents = {f"k/{n}": os.urandom(1 + n * 97) for n in range(300)}

    def put(key: str) -> Created:
        number = int(key[2:])
        to = store.in_parts() if number % 10 == 0 else store
        if number % 3 == 0:
            to.replace(key, contents[key])
            return Created.NEW
        return to.create(key, contents[key])

    with ThreadPoolExecutor(8) as writers:
        assert set(writers.map(put, contents)) == {Created.NEW}
        assert {found.key for found in direct.list()} == contents.keys()
        assert list(writers.map(store.read, contents)) == list(contents.values())
        assert all(direct.read(key) == content for key, content in contents.items())
        again = list(writers.map(lambda key: store.create(key, contents[key]), contents))
        assert set(again) == {Created.EQUAL}
        others = list(writers.map(lambda key: store.create(key, contents[key] + b"x"), contents))
        assert set(others) == {Created.OTHER}
    assert {found.key for found in store.list()} == contents.keys()


@pytest.mark.slow
def test_faults_let_one_of_several_be_first(
    way: FaultyWay, seaweedfs: StoreServer, prefix: str
) -> None:
    store, direct = seaweedfs.store(prefix, endpoint=way.url), seaweedfs.store(prefix)
    with ThreadPoolExecutor(4) as writers:
        for race in range(20):
            # Equal bytes of different writers are no sign of who was first.
            contents = [b"same" if race % 2 else b"%d" % n for n in range(4)]
            results = list(
                writers.map(lambda content, key=f"r/{race}": store.create(key, content), contents)
            )
            assert results.count(Created.NEW) == 1, results
            assert direct.read(f"r/{race}") == contents[results.index(Created.NEW)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["seaweedfs", "moto"], ids=["by a header", "in parts"])
def test_faults_let_a_copy_be_made_once(
    kind: str, prefix: str, request: pytest.FixtureRequest
) -> None:
    server: StoreServer = request.getfixturevalue(kind)
    with faulty_way(server.endpoint, by_chance(0.3, seed=7)) as way:
        store, direct = server.store(prefix, endpoint=way.url), server.store(prefix)
        direct.create("a", b"a")
        direct.create("b", b"b")
        for n in range(30):
            assert store.copy("a", f"to/{n}") is Created.NEW
            assert store.copy("b", f"to/{n}") is Created.OTHER
            assert direct.read(f"to/{n}") == b"a"
        large = os.urandom(100)
        for n in range(10):
            assert store.in_parts().create(f"large/{n}", large) is Created.NEW
            assert direct.read(f"large/{n}") == large
        assert min(way.happened[fault] for fault in (Fault.LOST, Fault.CUT, Fault.THROTTLED)) > 0


def test_an_answer_that_is_cut_is_asked_for_again(seaweedfs: StoreServer, prefix: str) -> None:
    """Also where the library has no time left to do it."""
    seaweedfs.store(prefix).create("k", content := os.urandom(2_000))
    cuts = 3

    def cut(method: str) -> Fault:
        nonlocal cuts
        cuts -= method == "GET"
        return Fault.CUT if method == "GET" and cuts >= 0 else Fault.NONE

    with faulty_way(seaweedfs.endpoint, cut) as way:
        settings = seaweedfs.settings(way.url, patience_s=0.0)
        store = store_at(f"s3://lake/{prefix}", settings)
        assert store.read("k") == content and cuts < 0
        cuts = 99
        with pytest.raises(StoreUnavailableError, match="the answer broke off"):
            store.read("k")


def test_a_body_that_is_cut_goes_on(seaweedfs: StoreServer, prefix: str, large_file: Path) -> None:
    seaweedfs.store(prefix).replace("k", large_file)
    content, cuts = large_file.read_bytes(), 6

    def cut(method: str) -> Fault:
        nonlocal cuts
        cuts -= method == "GET"
        return Fault.CUT if method == "GET" and cuts >= 0 else Fault.NONE

    with faulty_way(seaweedfs.endpoint, cut) as way:
        store: BucketStore = seaweedfs.store(prefix, endpoint=way.url)
        assert b"".join(store.open("k", offset=5).pieces) == content[5:]
        assert way.happened[Fault.CUT] == 6
