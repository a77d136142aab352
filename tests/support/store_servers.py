"""Servers of buckets on loopback: SeaweedFS, which is right; moto and rclone, which are not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from examples.demo.bucket_server import WEED_PORTS, weed_command
from tests.support.node_processes import free_ports

from sparktxlog.errors import BucketMissingError
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.opening import store_at
from sparktxlog.files.stores.store_settings import StoreSettings

_INSTALLED = Path(__file__).parents[2] / ".venv" / "test-stores"
BUCKET = "lake"
KEY, SECRET = "a-key-of-tests", "a-secret-of-tests"
_PATIENCE_S = 120.0


def packages() -> Path:
    """Return where the servers are; skip the test where they are not installed.

    A skip fails a run with CI=true.
    """
    given = os.environ.get("SPARKTXLOG_TEST_STORES")
    if given:
        return Path(given)
    if not (_INSTALLED / ".installed").exists():
        pytest.skip("servers of buckets are not installed: make test does it")
    return _INSTALLED


@dataclass(frozen=True, slots=True)
class StoreServer:
    """A server that runs, with the bucket `lake`.

    Args:
        endpoint: Its URL.
        credentials_file: What `StoreSettings` takes.
    """

    endpoint: str
    credentials_file: Path

    def settings(self, endpoint: str = "", patience_s: float = 60.0) -> StoreSettings:
        """Return how to reach it, perhaps by way of a relay."""
        return StoreSettings(
            patience_s=patience_s,
            endpoint=endpoint or self.endpoint,
            region="us-east-1",
            allow_http=True,
            credentials_file=self.credentials_file,
        )

    def environment(self) -> dict[str, str]:
        """Return what tells Spark, delta-rs and jobs where the bucket is."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ALLOW_HTTP": "true",
        }

    def node_settings(self) -> tuple[str, ...]:
        """Return lines of a node's configuration that say the same."""
        return (
            f'store-endpoint = "{self.endpoint}"',
            'store-region = "us-east-1"',
            "store-allow-http = true",
            f'store-credentials-file = "{self.credentials_file}"',
        )

    def store(self, prefix: str, *, bucket: str = BUCKET, endpoint: str = "") -> BucketStore:
        """Open a prefix in it."""
        store = store_at(f"s3://{bucket}/{prefix}", self.settings(endpoint))
        assert isinstance(store, BucketStore)
        return store


@contextmanager
def seaweedfs(directory: Path) -> Iterator[StoreServer]:
    """Run SeaweedFS, with its state in a directory."""
    ports = free_ports(WEED_PORTS)
    command = weed_command(str(packages() / "bin" / "weed"), directory, BUCKET, ports)
    environ = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    with _served(command, ports[0], directory, environ) as server:
        # It answers before it has made the bucket.
        deadline = time.monotonic() + _PATIENCE_S
        while not _has_bucket(server):
            assert time.monotonic() < deadline, "SeaweedFS has made no bucket"
            time.sleep(0.1)
        yield server


def _has_bucket(server: StoreServer) -> bool:
    try:
        return server.store("any").find("any") is None
    except BucketMissingError:
        return False


@contextmanager
def moto(directory: Path) -> Iterator[StoreServer]:
    """Run moto, which takes any credentials."""
    (port,) = free_ports(1)
    command = [sys.executable, "-P", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    environ = {"PYTHONPATH": str(packages())}
    with (
        _served(command, port, directory, environ) as server,
        urllib.request.urlopen(
            urllib.request.Request(f"{server.endpoint}/{BUCKET}", method="PUT"), timeout=10
        ),
    ):
        yield server


@contextmanager
def rclone(directory: Path) -> Iterator[StoreServer]:
    """Run rclone, which overwrites what should be created."""
    (port,) = free_ports(1)
    (directory / BUCKET).mkdir(parents=True)
    command = [
        str(packages() / "bin" / "rclone"),
        *("serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"),
        *("--config", os.devnull, "--vfs-cache-mode", "off", str(directory)),
    ]
    with _served(command, port, directory, {}) as server:
        yield server


@contextmanager
def _served(
    command: Sequence[str], port: int, directory: Path, environ: Mapping[str, str]
) -> Iterator[StoreServer]:
    directory.mkdir(parents=True, exist_ok=True)
    credentials = directory.with_name(f"{directory.name}-credentials")
    credentials.write_text(f"AWS_ACCESS_KEY_ID={KEY}\nAWS_SECRET_ACCESS_KEY={SECRET}\n")
    credentials.chmod(0o600)
    log = directory.with_name(f"{directory.name}.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | environ, cwd=directory.parent
        )
    try:
        server = StoreServer(f"http://127.0.0.1:{port}", credentials)
        _await(server, process, log)
        yield server
    finally:
        process.kill()
        process.wait()


def _await(server: StoreServer, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers anything that is no failure of its own."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            with urllib.request.urlopen(f"{server.endpoint}/{BUCKET}", timeout=5):
                return
        except urllib.error.HTTPError as error:
            if error.code < 500:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"{server.endpoint} did not answer: {log.read_text()[-3000:]}")
