"""What is set aside in a lake in a bucket is listed, shown, taken back and removed."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from tests.support.command_line import invoke
from tests.support.store_servers import BUCKET, StoreServer

from sparktxlog.api.jobs.job import JobContext
from sparktxlog.api.jobs.upkeep import maintain
from sparktxlog.attic.attic import Entry, Kind
from sparktxlog.errors import InvalidRequestError
from sparktxlog.files.stores.part import PartOfStore
from sparktxlog.worker.backup.removal import SiteLog, Unwanted, remove_expired
from sparktxlog.worker.lakes.bucket_lake import BucketLake
from sparktxlog.worker.lakes.lake_places import attic_of, bucket_at

DAY_US = 86_400_000_000


@pytest.fixture
def lake(seaweedfs: StoreServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """A lake with a table, and a dropped one that a worker set aside."""
    for name, value in seaweedfs.environment().items():
        monkeypatch.setenv(name, value)
    store = bucket_at(f"s3://{BUCKET}/attics/{os.urandom(8).hex()}")
    for key in ("t/_delta_log/0.json", "t/p=a%20b/1.parquet", "kept/_delta_log/0.json"):
        store.create(key, key.encode())
    BucketLake(store, lambda: None).set_aside("t", "17", "the log dropped it")
    return store.url


def test_a_dropped_table_is_listed_shown_taken_back_and_removed(
    lake: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def said(*arguments: object, code: int = 0) -> dict[str, object]:
        assert invoke(monkeypatch, "attic", *map(str, arguments), "--lake", lake, "--json") == code
        answer: dict[str, object] = json.loads(capsys.readouterr().out)
        return answer

    (entry,) = said("list", "--kind", "dropped", "--table", "t")
    place = f"{lake}/_sparktxlog/attic/dropped-t-17/content"
    assert (entry["id"], entry["path"]) == ("dropped-t-17", place)  # type: ignore[index]
    assert said("list", "--kind", "rows") == []
    shown = said("show", "dropped-t-17")
    assert (shown["files"], shown["size_bytes"], shown["source"]) == (2, 38, f"{lake}/t")
    back = tmp_path / "back"
    assert said("restore", "dropped-t-17", back)["restored"] == str(back)
    found = {str(path.relative_to(back)) for path in back.rglob("*") if path.is_file()}
    assert found == {"_delta_log/0.json", "p=a%20b/1.parquet"}
    assert (back / "_delta_log" / "0.json").read_bytes() == b"t/_delta_log/0.json"
    assert said("restore", "dropped-t-17", back, code=2)["title"] == "invalid-request"
    assert said("remove", "dropped-t-17", "--dry-run")["dry_run"]
    assert len(said("list")) == 1
    said("remove", "dropped-t-17")
    assert [one.key for one in bucket_at(lake).list()] == ["kept/_delta_log/0.json"]
    assert said("show", "dropped-t-17", code=1)["title"] == "not-found"


def test_the_attic_is_emptied_by_age_and_what_a_kill_left_goes(lake: str) -> None:
    store, attic = bucket_at(lake), attic_of(lake)
    (entry,) = attic.entries()
    site = SiteLog(node_id="A", log_id="l", kept_after=0)
    place = "_sparktxlog/attic"
    # A removal that was broken off, a table that is being moved, and one that nobody can read.
    store.create(f"{place}/dropped-x-1/content/a", b"a")
    moving = Entry(id="dropped-y-2", kind=Kind.DROPPED, why="", table="y", at=1)
    store.create(f"{place}/dropped-y-2/manifest.json", msgspec.json.encode(moving))
    store.create(f"{place}/dropped-y-2/moving", b"")
    for key in ("y/a", f"{place}/dropped-y-2/content/a", f"{place}/dropped-y-2/content/b"):
        store.create(key, b"a")
    store.create(f"{place}/strange/manifest.json", b"?")
    assert [one.id for one in attic.entries()] == ["dropped-y-2", "strange", "dropped-t-17"]
    assert attic.entries()[1].kind is Kind.UNKNOWN
    young, old = entry.at + DAY_US - 1, entry.at + 2 * DAY_US
    (done,) = remove_expired(lake, Unwanted(attic_days=1), site, now_us=young)
    assert (done.removed, done.kept, done.failed) == ([], 3, "")
    (dry,) = remove_expired(lake, Unwanted(attic_days=1, dry_run=True), site, now_us=old)
    assert len(attic.entries()) == 3
    (done,) = remove_expired(lake, Unwanted(attic_days=1), site, now_us=old)
    assert done.removed == dry.removed == ["dropped-t-17"]
    assert (done.kept, done.files, done.size_bytes) == (2, 2, 38)
    left = {one.key.removeprefix(f"{place}/") for one in store.list(place)}
    parts = ("content/a", "content/b", "manifest.json", "moving")
    assert left == {"strange/manifest.json", *(f"dropped-y-2/{part}" for part in parts)}
    for act in (attic.remove, lambda one: attic.restore(one, Path("/nowhere/back"))):
        with pytest.raises(InvalidRequestError, match="a worker is moving"):
            act(attic.entries()[0])


def test_backups_of_the_lake_go_by_age_however_it_is_named(lake: str) -> None:
    BucketLake(bucket_at(lake), lambda: None).back_up("kept", "c", "a copy", Path("/nowhere"))
    old = next(one for one in attic_of(lake).entries() if one.kind is Kind.BACKUP).at + 2 * DAY_US
    site = SiteLog(node_id="A", log_id="l", kept_after=0)
    for name in (lake, f"{lake}/", lake.replace("s3://", "s3a://")):
        wanted = Unwanted(attic_days=1, dry_run=True)
        (done,) = remove_expired(name, wanted, site, now_us=old)
        assert sorted(done.removed) == ["backup-kept-c", "dropped-t-17"]


@pytest.mark.parametrize("again", [False, True])
def test_a_worker_that_was_killed_when_a_table_was_gone_bars_no_entry(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """No worker goes on with a table that is not there, or is another one by now."""
    store, attic, remove = bucket_at(lake), attic_of(lake), PartOfStore.remove

    class Killed(Exception):
        pass

    def killed(part: PartOfStore, keys: list[str]) -> None:
        if keys == ["moving"]:
            raise Killed
        remove(part, keys)

    monkeypatch.setattr(PartOfStore, "remove", killed)
    with pytest.raises(Killed):
        BucketLake(store, lambda: None).set_aside("kept", "18", "the log dropped it")
    monkeypatch.setattr(PartOfStore, "remove", remove)
    if again:
        store.create("kept/_delta_log/0.json", b"of a table that was made later")
    entry = next(one for one in attic.entries() if one.table == "kept")
    assert entry.at > 0
    attic.restore(entry, tmp_path / "back")
    assert (tmp_path / "back/_delta_log/0.json").read_bytes() == b"kept/_delta_log/0.json"
    attic.remove(entry)
    assert [*store.list("_sparktxlog/attic/dropped-kept-18")] == []


def test_a_part_of_an_entry_is_not_restored_and_can_be_removed(lake: str, tmp_path: Path) -> None:
    """Killed workers left them, and none goes on: a repair has other marks the next time."""
    store, attic = bucket_at(lake), attic_of(lake)
    for name in ("table-kept-a", "table-gone-b"):
        part = Entry(id=name, kind=Kind.TABLE, why="", table=name.split("-")[1], mark=name[-1])
        place = f"_sparktxlog/attic/{name}"
        store.create(f"{place}/manifest.json", msgspec.json.encode(part))
        store.create(f"{place}/content/data", b"a part")
    store.create("_sparktxlog/attic/table-gone-b/moving", b"")
    found = {entry.id: entry for entry in attic.entries(Kind.TABLE)}
    assert len(found) == 2
    for entry in found.values():
        with pytest.raises(InvalidRequestError, match="is not whole"):
            attic.restore(entry, tmp_path / "back")
        attic.remove(entry)
    assert [one.id for one in attic.entries()] == ["dropped-t-17"]


def test_maintain_empties_the_attic_of_a_lake_in_a_bucket(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (entry,) = attic_of(lake).entries()
    old = msgspec.json.encode(msgspec.structs.replace(entry, at=1, directory=""))
    bucket_at(lake).replace("_sparktxlog/attic/dropped-t-17/manifest.json", old)
    info: dict[str, Any] = {"node_id": "A", "log_id": "l", "kept_after": 0}
    info |= {name: str(tmp_path / name) for name in ("lake_root", "log_root", "commit_table_root")}
    source = Mock()
    source.info.return_value = Mock(
        lake=lake, lake_root=info["lake_root"], disk_of=Mock(return_value=info["lake_root"])
    )
    source.document.return_value, source.maintain_log.return_value = info, {}
    monkeypatch.setattr(JobContext, "open_source", lambda context: source)
    wanted = {"images": None, "keep_images": 3, "empty_attic_older_than": 1, "dry_run": False}
    arguments = Namespace(lake=None, no_optimize=True, no_vacuum=True, **wanted)
    code, found = maintain(JobContext(arguments=arguments, tell=lambda line: None))
    assert code == 0 and found["removed"][0]["removed"] == ["dropped-t-17"]
    assert attic_of(lake).entries() == []


def test_an_entry_that_loses_its_manifest_while_it_is_removed_is_not_listed(
    lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attic = attic_of(lake)
    (entry,) = attic.entries()
    removed = list[list[str]]()

    class Killed(Exception):
        pass

    def remove(store: object, keys: list[str]) -> None:
        removed.append(list(keys))
        if len(removed) == 2:
            raise Killed
        bucket_at(lake).remove(f"_sparktxlog/attic/{key}" for key in keys)

    monkeypatch.setattr("sparktxlog.files.stores.part.PartOfStore.remove", remove)
    with pytest.raises(Killed):
        attic.remove(entry)
    assert attic.entries() == []
    monkeypatch.undo()
