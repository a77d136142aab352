"""A worker on another machine than its node: all that both need is in the site's bucket.

The node's directories are hidden from the worker and its executors by an empty file system in
their place, which cannot be written.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.architecture.source_tree import ROOT
from tests.support.node_processes import MANUAL, NodeProcess, call, free_ports, wait_until
from tests.support.store_servers import BUCKET, SECRET, StoreServer, seaweedfs

from sparktxlog.worker.replica.bucket_replica import LOCK, STATE
from sparktxlog.worker.replica.state import decoded_state

pytestmark = [
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.privileged,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="hides directories by a mount, as root"),
]
CLIENT = "the token of the test's clients"


@dataclass(frozen=True)
class Sites:
    """A has staged files in the bucket and tables on its disk, B has all that can be in it."""

    server: StoreServer
    a: NodeProcess
    b: NodeProcess
    directory: Path

    def run(self, *command: str, hides: Path | None = None, code: int = 0, token: str = "") -> Any:
        """Run a program as on another machine; return the JSON that it prints."""
        hidden = ()
        if hides is not None:
            script = 'mount -t tmpfs -o ro none "$0" && exec "$@"'
            hidden = ("unshare", "--mount", "sh", "-c", script, str(hides))
        environment = os.environ | self.server.environment()
        environment |= {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= {"SPARKTXLOG_CLIENT_TOKEN": CLIENT, "SPARKTXLOG_WORKER_TOKEN": token}
        done = subprocess.run(
            [*hidden, sys.executable, *command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == code, done.stderr[-4000:]
        assert SECRET not in done.stdout + done.stderr
        return json.loads(done.stdout) if done.stdout else done.stderr

    def apply(self, node: NodeProcess, *options: str, far: bool, code: int = 0) -> Any:
        """Run a worker once."""
        data = node.directory / node.name
        token = (data / "worker.token").read_text().strip() if far else ""
        return self.run(
            *("-m", "sparktxlog.cli", "apply", "--url", node.url, "--json", *options),
            hides=data if far else None,
            code=code,
            token=token,
        )

    def signatures(self, node: NodeProcess) -> tuple[int, dict[str, str]]:
        """Return position and signatures of the site's last report."""
        shown = call(f"{node.url}/v1/status?tables=1", token=CLIENT)["replicas"]
        (own,) = (one for one in shown if one["node_id"] == node.name)
        tables = {name: table["signature"] for name, table in own["tables"].items()}
        return own["position"], tables


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    ports = dict(zip("AB", free_ports(2), strict=True))
    with seaweedfs(tmp_path / "bucket") as server, ExitStack() as running:
        settings = (*server.node_settings(), f'client-token = "{CLIENT}"', "inline-limit = 2000")
        nodes = []
        for name, port in ports.items():
            places = [f'payload-url = "s3://{BUCKET}/{name}/payloads"']
            if name == "B":
                places.append(f'lake-url = "s3://{BUCKET}/{name}/rows"')
            others = {other: ports[other] for other in ports if other != name}
            node = NodeProcess(tmp_path, name, port, others, settings=(MANUAL, *settings, *places))
            running.callback(node.stop)
            node.start()
            nodes.append(node)
        for node in nodes:
            wait_until(lambda node=node: call(f"{node.url}/v1/status", token=CLIENT))
        yield Sites(server, nodes[0], nodes[1], tmp_path)


def test_a_far_worker_has_what_a_near_one_has(sites: Sites) -> None:
    job = str(Path(__file__).with_name("far_worker_job.py"))
    position = str(sites.run(job, sites.a.url)["position"])
    near = sites.apply(sites.a, "--at-least", position, "--master", "local[2]", far=False)
    far = sites.apply(
        sites.b,
        *("--at-least", position, "--work-dir", str(sites.directory / "far")),
        *("--master", "local-cluster[1,2,1024]"),
        far=True,
    )
    assert not near["diverged"] and not far["diverged"]
    assert sites.signatures(sites.a) == sites.signatures(sites.b)
    assert sites.signatures(sites.b)[0] == int(position)
    for node in (sites.a, sites.b):
        staged = sites.server.store(f"{node.name}/payloads")
        names = [one.key for one in staged.list() if one.key.endswith(".parquet")]
        assert any(name.startswith("inline/") for name in names)
        assert any(not name.startswith("inline/") for name in names)
        left = list((node.directory / node.name / "payloads").rglob("*.parquet"))
        assert left == []
    counted = sites.run(
        *("-m", "sparktxlog.cli", "verify", "--url", sites.b.url, "--json"),
        *("--master", "local[2]"),
        hides=sites.b.directory / "B",
        token=(sites.b.directory / "B" / "worker.token").read_text().strip(),
    )
    assert all(table["sound"] for table in counted["tables"].values()), counted


def test_a_far_worker_without_its_directory_or_token_is_told_what_to_give(sites: Sites) -> None:
    rows = sites.server.store("B/rows")
    found = sites.apply(sites.b, "--master", "local[1]", far=True, code=1)
    assert "--work-dir" in str(found) and "SPARKTXLOG_WORK_DIR" in str(found)
    assert [*rows.list()] == []
    found = sites.run(
        *("-m", "sparktxlog.cli", "apply", "--url", sites.b.url, "--master", "local[1]"),
        *("--work-dir", str(sites.directory / "far")),
        hides=sites.b.directory / "B",
        code=5,
    )
    assert "SPARKTXLOG_WORKER_TOKEN" in str(found)
    # It took the lake before the node refused it, and applied nothing.
    assert {one.key for one in rows.list()} == {LOCK, STATE}
    assert decoded_state(rows.read(STATE), "B").position == 0
