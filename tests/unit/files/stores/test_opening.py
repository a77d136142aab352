"""Which store a path or a URL opens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparktxlog.errors import ConfigError, InvalidRequestError, MissingDependencyError
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.disk import DiskStore
from sparktxlog.files.stores.opening import store_at
from sparktxlog.files.stores.store_settings import StoreSettings


@pytest.mark.parametrize("scheme", ["", "file://", "file:"])
def test_a_path_opens_a_directory(tmp_path: Path, scheme: str) -> None:
    store = store_at(f"{scheme}{tmp_path}/x")
    assert isinstance(store, DiskStore)
    assert store.url == f"{tmp_path}/x"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "url", ["s3://lake/x", "gs://lake/x", "abfss://data@account.dfs.core.windows.net/x"]
)
def test_a_url_opens_a_bucket(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    settings = StoreSettings(endpoint="https://host:9000", region="here")
    store = store_at(url, settings)
    assert isinstance(store, BucketStore)
    assert store.url == url and store.url_of("a/b") == f"{url}/a/b"
    assert repr(store) == f"BucketStore({url!r})"


def test_a_relative_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="lake-dir is 'data'") as caught:
        store_at("data", field="lake-dir")
    assert caught.value.fields["key"] == "lake-dir"


def test_another_machine_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        store_at("file://host/x")


def test_what_is_not_installed_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sparktxlog.files.stores.bucket")
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingDependencyError, match="gs://lake") as caught:
        store_at("gs://lake/x")
    assert caught.value.hint == 'Run: pip install "sparktxlog[gcs]"'


def test_a_site_on_disks_needs_no_library_for_buckets() -> None:
    entries = (
        "cli.command_line",
        "api.jobs.upkeep",
        "worker.replica.replica_driver",
        "runtime.node",
    )
    imports = "; ".join(f"import sparktxlog.{name}" for name in entries)
    program = f"import sys; sys.modules['obstore'] = None; {imports}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_a_missing_file_of_credentials_is_named(tmp_path: Path) -> None:
    missing = StoreSettings(credentials_file=tmp_path / "missing")
    for url in ("s3://lake", "gs://lake"):
        with pytest.raises(ConfigError, match="missing"):
            store_at(url, missing)
