"""Servers of buckets on loopback: SeaweedFS, which is right; moto and rclone, which are not.

And Azure's emulator, or another server of S3, where somebody has it.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from examples.demo.bucket_server import WEED_PORTS, weed_command
from tests.support.node_processes import free_ports

from sparktxlog.errors import BucketMissingError
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.credentials.vending import VendingRole
from sparktxlog.files.stores.opening import store_at
from sparktxlog.files.stores.store_settings import StoreSettings

_INSTALLED = Path(__file__).parents[2] / ".venv" / "test-stores"
BUCKET = "lake"
KEY, SECRET = "a-key-of-tests", "a-secret-of-tests"
_PATIENCE_S = 120.0
#: Of SeaweedFS: it may do all in the bucket, and all that have credentials may assume it.
ROLE = "arn:aws:iam::role/lake"
_ALL: dict[str, Any] = {
    "Effect": "Allow",
    "Action": ["s3:*"],
    "Resource": [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"],
}
_TRUST = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": ["sts:AssumeRole"]}
_ROLES = {
    "sts": {
        "tokenDuration": "1h",
        "maxSessionLength": "12h",
        "issuer": "tests",
        "signingKey": base64.b64encode(
            b"the key of a server of tests, of 32 bytes or more"
        ).decode(),
    },
    "policy": {"defaultEffect": "Deny", "storeType": "memory"},
    "policies": [{"name": "all", "document": {"Version": "2012-10-17", "Statement": [_ALL]}}],
    "roles": [
        {
            "roleName": "lake",
            "roleArn": ROLE,
            "attachedPolicies": ["all"],
            "trustPolicy": {"Version": "2012-10-17", "Statement": [_TRUST]},
        }
    ],
}


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

    def role(self, lasts_s: int = 900) -> VendingRole:
        """Return the role of SeaweedFS, whose sessions may do all in the bucket."""
        keys = self.settings().s3_keys
        return VendingRole(
            arn=ROLE, endpoint=self.endpoint, region="us-east-1", lasts_s=lasts_s, keys=keys
        )

    def allowed(self, prefix: str, *actions: str) -> BucketStore:
        """Open a prefix by a session that may do these actions of S3, and no other."""
        objects = [one for one in actions if one != "s3:ListBucket"]
        statements: list[dict[str, Any]] = [_ALL | {"Action": objects}] if objects else []
        statements += [_ALL | {"Action": ["s3:ListBucket"]}] if "s3:ListBucket" in actions else []
        given = self.role().session(json.dumps({"Version": "2012-10-17", "Statement": statements}))
        settings = replace(self.settings(), keys=given.keys, credentials_file=None)
        return opened(f"s3://{BUCKET}/{prefix}", settings)

    def vending_settings(self) -> tuple[str, ...]:
        """Return further lines, with which the node gives credentials to clients."""
        return (f'store-vend-role = "{ROLE}"', f'store-sts-endpoint = "{self.endpoint}"')

    def environment(self) -> dict[str, str]:
        """Return what tells Spark, delta-rs and jobs where the bucket is."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ALLOW_HTTP": "true",
        }

    def node_settings(self, endpoint: str = "") -> tuple[str, ...]:
        """Return lines of a node's configuration that say the same, perhaps by way of a relay."""
        return (
            f'store-endpoint = "{endpoint or self.endpoint}"',
            'store-region = "us-east-1"',
            "store-allow-http = true",
            f'store-credentials-file = "{self.credentials_file}"',
        )

    def store(self, prefix: str, *, bucket: str = BUCKET, endpoint: str = "") -> BucketStore:
        """Open a prefix in it."""
        return opened(f"s3://{bucket}/{prefix}", self.settings(endpoint))


def opened(url: str, settings: StoreSettings) -> BucketStore:
    """Open a bucket, or a prefix of one."""
    store = store_at(url, settings)
    assert isinstance(store, BucketStore)
    return store


@contextmanager
def seaweedfs(directory: Path) -> Iterator[StoreServer]:
    """Run SeaweedFS, with its state in a directory."""
    ports, roles = free_ports(WEED_PORTS), directory.with_name(f"{directory.name}-roles.json")
    roles.parent.mkdir(parents=True, exist_ok=True)
    roles.write_text(json.dumps(_ROLES))
    command = weed_command(str(packages() / "bin" / "weed"), directory, BUCKET, ports)
    command.append(f"-s3.iam.config={roles}")
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


#: Path of `azurite-blob` of Azure's emulator, which is on npm only; tests of it run if it is set.
AZURITE = os.environ.get("SPARKTXLOG_AZURITE", "")
#: URL of a server of S3 that runs, with a bucket `lake` and the keys of tests.
GIVEN = os.environ.get("SPARKTXLOG_TEST_S3", "")


def given(directory: Path) -> StoreServer:
    """Return the server that somebody named; a directory is for its credentials."""
    return StoreServer(GIVEN, _credentials(directory / "credentials"))


def _credentials(path: Path) -> Path:
    path.write_text(f"AWS_ACCESS_KEY_ID={KEY}\nAWS_SECRET_ACCESS_KEY={SECRET}\n")
    path.chmod(0o600)
    return path


@contextmanager
def azurite(directory: Path) -> Iterator[AzureServer]:
    """Run Azure's emulator, with the account and the container `lake`."""
    directory.mkdir(parents=True, exist_ok=True)
    (port,), key = free_ports(1), base64.b64encode(os.urandom(32)).decode()
    credentials = directory.with_name(f"{directory.name}-credentials")
    credentials.write_text(f"AZURE_STORAGE_ACCOUNT_KEY={key}\n")
    options = ("--silent", "--skipApiVersionCheck", "--disableTelemetry", "--location")
    command = [AZURITE, "--blobHost", "127.0.0.1", "--blobPort", str(port), *options]
    log = directory.with_name(f"{directory.name}.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, str(directory)],
            stdout=output,
            stderr=output,
            env=os.environ | {"AZURITE_ACCOUNTS": f"{BUCKET}:{key}"},
        )
    try:
        server = AzureServer(f"http://127.0.0.1:{port}/{BUCKET}", credentials)
        _await(server, process, log)
        server.make_container(key)
        yield server
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class AzureServer:
    """Azure's emulator, running.

    Args:
        endpoint: Its URL, with the account.
        credentials_file: What `StoreSettings` takes.
    """

    endpoint: str
    credentials_file: Path

    def store(self, prefix: str) -> BucketStore:
        """Open a prefix of the container."""
        settings = StoreSettings(
            endpoint=self.endpoint, allow_http=True, credentials_file=self.credentials_file
        )
        return opened(f"abfss://{BUCKET}@{BUCKET}.dfs.core.windows.net/{prefix}", settings)

    def make_container(self, key: str) -> None:
        """Make the container; the library of buckets cannot."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        said = "".join(f"{name}:{value}\n" for name, value in headers.items())
        place = f"/{BUCKET}/{BUCKET}/{BUCKET}\nrestype:container"
        to_sign = f"PUT{chr(10) * 12}{said}{place}".encode()
        signature = hmac.digest(base64.b64decode(key), to_sign, "sha256")
        shared = f"SharedKey {BUCKET}:{base64.b64encode(signature).decode()}"
        url = f"{self.endpoint}/{BUCKET}?restype=container"
        request = urllib.request.Request(
            url, method="PUT", headers=headers | {"Authorization": shared}
        )
        with urllib.request.urlopen(request, timeout=10):
            pass


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
    credentials = _credentials(directory.with_name(f"{directory.name}-credentials"))
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


def _await(server: StoreServer | AzureServer, process: subprocess.Popen[bytes], log: Path) -> None:
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
