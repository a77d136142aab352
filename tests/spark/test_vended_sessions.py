"""A session without credentials of its own writes and reads a table by those of the catalog."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.architecture.source_tree import ROOT
from tests.support.java_programs import connector_jar
from tests.support.node_processes import MANUAL, NodeProcess, free_ports
from tests.support.store_servers import BUCKET, KEY, SECRET, StoreServer, seaweedfs

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(900)]
#: What other Spark processes of tests inherit: Delta's JARs on the class path of Java itself.
#: There they do not see the connector's, which come by `spark.jars`, as theirs do at users.
_OF_TESTS = ("SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH", "JDK_JAVA_OPTIONS")


def environment(server: StoreServer) -> dict[str, str]:
    """Return what a session needs besides the catalog: where the store is, and no key."""
    told = {name: server.environment()[name] for name in ("AWS_ENDPOINT_URL", "AWS_REGION")}
    rest = {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_TESTS and not name.startswith("AWS_")
    }
    return rest | told | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def test_a_session_without_credentials_writes_a_table(tmp_path: Path) -> None:
    jar = connector_jar(tmp_path)
    with seaweedfs(tmp_path / "bucket") as server:
        (port,) = free_ports(1)
        url = f'commit-table-url = "s3://{BUCKET}/a"'
        settings = (MANUAL, url, *server.node_settings(), *server.vending_settings())
        node = NodeProcess(tmp_path, "A", port, {}, settings=settings)
        node.start()
        try:
            node.wait_ready()
            done = subprocess.run(
                [
                    *(sys.executable, str(Path(__file__).with_name("vended_job.py"))),
                    *(str(jar), node.url),
                ],
                env=environment(server),
                capture_output=True,
                text=True,
                timeout=840,
                check=False,
            )
        finally:
            node.stop()
        assert done.returncode == 0, done.stderr[-3000:]
        assert json.loads(done.stdout) == {"rows": [[1, "x"], [2, "new"]]}
        said = done.stdout + done.stderr + node.log.read_text()
        assert "credentials given" in said
        assert SECRET not in said and KEY not in done.stdout + done.stderr
        assert [one.key for one in server.store("a").list() if "00001.json" in one.key]
