"""The README's quickstart, word for word: two sites, and the Python block, twice.

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
from tests.support.node_processes import ports_in_a_row

from sparktxlog.cli.common_options import NodeApi
from sparktxlog.errors import TransportError

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.slow, pytest.mark.thorough]

_README = (ROOT / "README.md").read_text()


def _moved(text: str, port: int) -> str:
    """Put the two sites of the README on free ports."""
    return text.replace("7071", str(port + 1)).replace("7070", str(port))


def _cli(line: str) -> list[str]:
    """Turn a `sparktxlog …` line of the README into a call of this checkout."""
    return [sys.executable, "-m", "sparktxlog.cli", *shlex.split(line.removesuffix("&"))[1:]]


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, dict[str, str]]]:
    """Do what the README's shell block does; give the first port and the environment."""
    port = ports_in_a_row(2)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))  # where nodes note their tokens
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    shell = re.search(r"```sh\npip install .*?\n(.*?)```", _README, re.DOTALL)
    assert shell is not None
    init, *serves = shell[1].splitlines()
    init += f" --port {port}"
    subprocess.run(_cli(init), cwd=tmp_path, env=env, check=True, timeout=60)
    nodes = []
    for number, line in enumerate(serves):
        log = tmp_path / f"{number}.log"
        with log.open("w") as target:
            nodes.append(subprocess.Popen(_cli(line), cwd=tmp_path, env=env, stderr=target))
    try:
        for number, node in enumerate(nodes):
            _wait_for(f"http://127.0.0.1:{port + number}", node, tmp_path / f"{number}.log")
        yield port, env
    finally:
        for node in nodes:
            node.terminate()
        assert [node.wait(30) for node in nodes] == [0, 0]


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
    sites: tuple[int, dict[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    port, env = sites
    block = re.search(r"```python\n(.*?)```", _README, re.DOTALL)
    assert block is not None
    script = tmp_path / "quickstart.py"
    script.write_text(_moved(block[1], port))
    for run in (1, 2):
        if run == 1:
            said = _alone(script, env)
        else:
            capsys.readouterr()
            runpy.run_path(str(script), run_name="__main__")
            said = capsys.readouterr().out
        # All are upserts: the second run leaves one row of each key, too; each site shows both.
        assert len(re.findall(r"\|\s*1\|\s*ada\|\s*10\.0\|", said)) == 2, said
        assert len(re.findall(r"\|\s*2\|\s*bob\|\s*20\.0\|", said)) == 2
        assert "equal: True" in said
        for number in (0, 1):
            status = NodeApi(f"http://127.0.0.1:{port + number}").get("/v1/status")
            assert status["position"] == 3 * run
            assert {replica["verdict"] for replica in status["replicas"]} == {"IN_SYNC"}
    compared = subprocess.run(
        [*_cli("sparktxlog verify --compare"), "--url", f"http://127.0.0.1:{port}"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "A and B: up to position 6" in compared.stdout and "not asked" not in compared.stdout


def test_the_quickstart_is_short() -> None:
    blocks = re.findall(r"```(?:sh|python)\n(.*?)```", _README, re.DOTALL)[:2]
    lines = [line for line in "\n".join(blocks).splitlines() if line.strip()]
    assert len(lines) <= 20
