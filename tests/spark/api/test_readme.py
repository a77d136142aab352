"""The README's quickstart, word for word: init, serve, and the Python block, twice.

Only the first run is a process of its own, with a JVM of its own: the second is the tests'.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from time import monotonic

import pytest
from tests.architecture.source_tree import ROOT

from sparktxlog.cli.common_options import NodeApi
from sparktxlog.errors import TransportError

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

_README = (ROOT / "README.md").read_text()


def _cli(line: str, port: int) -> list[str]:
    """Turn a `sparktxlog …` line of the README into a call of this checkout, on a free port."""
    words = shlex.split(line.removesuffix("&"))[1:]
    return [sys.executable, "-m", "sparktxlog.cli", *(w.replace("7070", str(port)) for w in words)]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Do what the README's shell block does; give the node's URL and the environment."""
    from examples.demo.demo_nodes import free_ports

    (port,) = free_ports(1)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    shell = re.search(r"```sh\nmake setup\n(.*?)```", _README, re.DOTALL)
    assert shell is not None
    init, serve = (line for line in shell[1].splitlines() if line.startswith("sparktxlog "))
    subprocess.run(_cli(init, port), cwd=tmp_path, env=env, check=True, timeout=60)
    with (tmp_path / "node.log").open("w") as log:
        process = subprocess.Popen(_cli(serve, port), cwd=tmp_path, env=env, stderr=log, stdout=log)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url, process, tmp_path / "node.log")
        yield url, env
    finally:
        process.terminate()
        assert process.wait(30) == 0


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = monotonic() + 60
    while True:
        assert process.poll() is None, log.read_text()
        try:
            NodeApi(url).get("/v1/info")
        except TransportError:
            assert monotonic() < deadline
            Event().wait(0.1)
        else:
            return


def _alone(script: Path, env: dict[str, str]) -> str:
    """Run a script as users do; return what it prints."""
    answer = subprocess.run(
        [sys.executable, str(script)],
        cwd=script.parent,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=560,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    return answer.stdout


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("jobs_share_spark")
def test_the_quickstart_runs_twice_as_it_stands(
    node: tuple[str, dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, env = node
    block = re.search(r"```python\n(.*?)```", _README, re.DOTALL)
    assert block is not None
    script = tmp_path / "quickstart.py"
    script.write_text(block[1].replace("http://127.0.0.1:7070", url))
    for run in (1, 2):
        if run == 1:
            said = _alone(script, env)
        else:
            capsys.readouterr()
            runpy.run_path(str(script), run_name="__main__")
            said = capsys.readouterr().out
        # Both are upserts: the second run leaves one row of each key.
        assert len(re.findall(r"\|\s*2\|\s*bob\|\s*25\.0\|", said)) == 1, said
        assert len(re.findall(r"\|\s*1\|\s*ada\|\s*10\.0\|", said)) == 1
        status = NodeApi(url).get("/v1/status")
        assert status["position"] == status["published"] == 2 * run
        assert [replica["verdict"] for replica in status["replicas"]] == ["IN_SYNC"]
