"""A feed that cannot read the node's directory: on another machine, or as another user (V66, V69).

That directory is hidden from the feed by an empty file system in its place, or it belongs to
somebody else and the feed lacks the right of root to read it nevertheless.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.forked_nodes import node_environment
from tests.support.node_processes import NodeProcess, call, free_ports, wait_until

from sparktxlog import Client
from sparktxlog.worker.feed.feed_checks import check_feed
from sparktxlog.worker.feed.feed_store import FeedStore

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
APART = [
    pytest.param(
        how, marks=[pytest.mark.privileged, pytest.mark.skipif(os.geteuid() != 0, reason="root")]
    )
    for how in ("hidden", "forbidden")
]
CLIENT = "the token of the test's clients"
COLUMNS = "id bigint, v string"
#: Runs a program, and says last how many KiB of memory it took at most.  A process begins with what
#: its parent has, which is much here and little there.
MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""
#: Of a larger load: its files, and about the bytes of each.
FILES, FILE_BYTES = 48, 3_500_000


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    settings = (f'client-token = "{CLIENT}"', "inline-limit = 2000")
    made = NodeProcess(tmp_path / "site", "A", free_ports(1)[0], {}, settings=settings)
    made.start()
    try:
        wait_until(lambda: call(f"{made.url}/v1/status", token=CLIENT))
        yield made
    finally:
        made.stop()


def _commit(node: NodeProcess) -> int:
    """Write a row that travels in the request, and rows that do not; each is a published file."""
    with Client(node.url, token=CLIENT) as client:
        client.create_table("t", COLUMNS)
        for rows in ([{"id": 1, "v": "one"}], [{"id": n, "v": f"{n:09d}" * 9} for n in range(300)]):
            last = client.append("t", rows).position
            call(f"{node.url}/v1/published?at_least={last}&timeout=30", token=CLIENT)
    assert last is not None
    return last


def _apart(node: NodeProcess, how: str) -> tuple[str, ...]:
    """Return what runs a program that cannot read the node's directory."""
    data = node.directory / node.name
    if how == "near":
        return ()
    if how == "hidden":
        script = 'mount -t tmpfs -o ro none "$0" && exec "$@"'
        return ("unshare", "--mount", "sh", "-c", script, str(data))
    os.chown(data, 65_534, 65_534)
    data.chmod(0o700)
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


def _feed(
    node: NodeProcess, apart: tuple[str, ...], place: Path, token: str, code: int = 0
) -> dict[str, Any]:
    """Run a feed on one core; return what it prints, and `peak_bytes`, the memory that it took."""
    command = ("feed", "run", "--url", node.url, "--to", str(place), "--once", "--json")
    environment = node_environment() | {"SPARKTXLOG_CLIENT_TOKEN": CLIENT}
    if token:
        environment["SPARKTXLOG_WORKER_TOKEN"] = token
    run = ("taskset", "-c", "0", *apart, sys.executable, "-m", "sparktxlog.cli", *command)
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *run],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert CLIENT not in done.stdout
    lines = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(next(line for line in lines if line.startswith("{")))
    return found | {"peak_bytes": int(lines[-1]) * 1024}


@pytest.mark.parametrize("how", APART)
def test_a_feed_that_cannot_read_the_disk_gets_all_by_the_node(
    node: NodeProcess, tmp_path: Path, how: str
) -> None:
    last, place = _commit(node), tmp_path / "feed"
    apart = _apart(node, how)
    data = node.directory / node.name
    assert any((data / "payloads").rglob("*.parquet")), "there is something to fetch"
    refused = _feed(node, apart, place, "", code=5)
    assert refused["title"] in ("unauthorized", "forbidden") and refused["definite"]
    assert "SPARKTXLOG_WORKER_TOKEN" in refused["hint"]
    assert list(FeedStore(place).pages(0)) == []

    token = (data / "worker.token").read_text().strip()
    done = _feed(node, apart, place, token)
    assert (done["position"], done["node_id"]) == (last, "A") and done["size_bytes"] > 2000
    found = check_feed(FeedStore(place))
    assert found.damaged == [] and found.files >= 2
    for page in FeedStore(place).pages(0):
        for file, _ in page.files:
            kept = (data / "payloads" / file.path).read_bytes()
            assert FeedStore(place).store.read(FeedStore(place).content_key(file)) == kept


@pytest.mark.parametrize("how", ["near", *APART[:1]])
def test_one_core_and_little_memory_take_a_feed(
    node: NodeProcess, tmp_path: Path, how: str
) -> None:
    """V69: what it takes does not grow with the files; it runs in 256 MiB."""
    apart = _apart(node, how)
    token = (node.directory / node.name / "worker.token").read_text().strip()
    empty = _feed(node, apart, tmp_path / "empty", token)
    with Client(node.url, token=CLIENT) as client:
        client.create_table("t", COLUMNS)
        for _ in range(FILES):
            texts = [os.urandom(500).hex() for _ in range(FILE_BYTES // 1_000)]
            rows = pa.table({"id": range(len(texts)), "v": texts})
            last = client.append("t", rows, timeout=60).position
    done = _feed(node, apart, tmp_path / "feed", token)
    assert done["position"] == last and done["size_bytes"] > FILES * FILE_BYTES // 2
    assert done["peak_bytes"] < 1 << 28
    # Some files are on their way at once, never all of them.
    assert done["peak_bytes"] - empty["peak_bytes"] < FILES * FILE_BYTES * 3 // 4
