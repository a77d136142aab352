"""What images and machines are made of: the installation, run; their files, checked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.architecture.source_tree import ROOT, committed_files
from tests.support.node_processes import call, free_ports, wait_until
from tests.support.package_tools import check, checker, system_program

pytestmark = pytest.mark.packages

CONF, DEPLOY = ROOT / "conf", ROOT / "deploy"


def _copy_context(target: Path) -> None:
    """Copy what Dockerfile.dockerignore leaves of the repository."""
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    kept = [ROOT / line[1:] for line in lines if line.startswith("!")]
    for path in committed_files():
        if any(path.is_relative_to(place) for place in kept):
            copy = target / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


@pytest.mark.timeout(900)
def test_an_installation_has_locked_versions_and_its_node_becomes_ready(tmp_path: Path) -> None:
    """The step of both images, in the context that they get; then what the unit starts."""
    prefix, data, source = tmp_path / "opt", tmp_path / "data", tmp_path / "source"
    _copy_context(source)
    before = sorted(source.rglob("*"))
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    script = [str(source / "deploy" / "install.sh"), "--extras", "node", str(prefix)]
    done = subprocess.run(script, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(source.rglob("*")) == before, "the source stays as it was"
    listed = subprocess.run(
        [prefix / "venv" / "bin" / "python", "-m", "pip", "freeze", "--all"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    locked = (ROOT / "constraints.txt").read_text()
    found = re.findall(r"^([\w.-]+)==(\S+)", listed, re.MULTILINE)
    versions = {name.lower().replace("_", "-"): version for name, version in found}
    assert {"deltalake", "fastapi", "httptools"} <= set(versions)
    assert "pyspark" not in versions
    others = {name for name, version in versions.items() if f"\n{name}=={version} " not in locked}
    assert others <= {"pip", "setuptools"}
    unit = (CONF / "sparktxlog-node.service").read_text()
    (started,) = re.findall(r"^ExecStart=/opt/sparktxlog/(\S+) serve --config", unit, re.MULTILINE)
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    settings = {"SPARKTXLOG_NODE_ID": "A", "SPARKTXLOG_MASTER_URL": url}
    node = subprocess.Popen(
        [prefix / started, "serve"],
        env=kept | settings | {"SPARKTXLOG_DATA_DIR": str(data)},
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    try:
        status = wait_until(lambda: call(f"{url}/v1/status"), what="the installed node is up")
    finally:
        node.terminate()
        code = node.wait(60)
    assert (status["phase"], code) == ("NORMAL", 0)


def test_jobs_of_an_installation_take_its_interpreter_and_package(tmp_path: Path) -> None:
    """Where there is no clone: the script beside `venv`, the package in it."""
    for name in ("jobs", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name)
    script = shutil.copy(ROOT / "spark-submit.sh", tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{ROOT / ".venv/bin/python"}" "$@"\n')
    python.chmod(0o755)
    jar = tmp_path / "delta.jar"
    jar.touch()
    done = subprocess.run(
        [script, "--print-command", "--master", "spark://h:7077", "jobs/verify.py"],
        env={
            "PATH": os.environ["PATH"],
            "SPARKTXLOG_JARS": str(jar),
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT / "src"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"--py-files {tmp_path}/.cache/sparktxlog/ivy/sparktxlog.zip" in done.stdout


def test_the_dockerfile_has_nothing_that_hadolint_knows_better() -> None:
    done = subprocess.run(
        [checker("hadolint"), str(DEPLOY / "Dockerfile")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_compose_files_fit_the_schema_of_compose_files(tmp_path: Path) -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    files = [str(DEPLOY / name) for name in ("compose.yaml", "compose.s3.yaml")]
    done = check("check_jsonschema", *schema, *files)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((DEPLOY / "compose.yaml").read_text().replace("cap_drop:", "cap-drop:"))
    assert "cap-drop" in check("check_jsonschema", *schema, str(wrong)).stdout


def test_systemd_reads_the_units_without_a_complaint(tmp_path: Path) -> None:
    """And finds what the node's service may do to a machine small: 10 is everything, 0 nothing."""
    analyze = system_program("systemd-analyze")
    prefix = tmp_path / "opt"
    for name in ("venv/bin/sparktxlog", "spark-submit.sh"):
        program = prefix / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.touch(mode=0o755)
    units = []
    for path in sorted([*CONF.glob("*.service"), *CONF.glob("*.timer")]):
        unit = tmp_path / path.name
        unit.write_text(path.read_text().replace("/opt/sparktxlog", str(prefix)))
        units.append(str(unit))
    known = [unit for unit in units if "@." not in unit]
    done = subprocess.run(
        [analyze, "verify", "--man=no", *known], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    node = str(tmp_path / "sparktxlog-node.service")
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=20", node],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-300:]
