"""`sparktxlog doctor`: each check finds what is wrong and says what mends it."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.architecture.source_tree import ROOT
from tests.support.command_line import invoke
from tests.support.node_processes import free_ports

from sparktxlog.cli.doctor import disks, software, ways
from sparktxlog.cli.doctor.findings import Grade
from sparktxlog.cli.doctor.store_checks import check_vending
from sparktxlog.config import load_config

OK, WARNING, PROBLEM = Grade.OK, Grade.WARNING, Grade.PROBLEM


def _program(path: Path, prints: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{prints}' >&2\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("prints", "grade"),
    [
        ('openjdk version "17.0.15" 2025-04-15', OK),
        ('openjdk version "21.0.1"', OK),
        ('java version "1.8.0_401"', PROBLEM),
        ("no such thing", PROBLEM),
    ],
)
def test_java_is_asked_for_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prints: str, grade: Grade
) -> None:
    _program(tmp_path / "bin" / "java", prints)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = software.check_java()
    assert found.grade is grade
    assert (found.fix != "") == (grade is PROBLEM)


def test_a_missing_java_names_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = software.check_java()
    assert found.grade is PROBLEM and f"JAVA_HOME={tmp_path} has no bin/java" in found.text


@pytest.mark.parametrize(
    ("name", "release", "grade"),
    [
        ("pyspark", "4.2.0", OK),
        ("pyspark", "4.1.1", OK),
        ("pyspark", "4.2.1", WARNING),
        ("pyspark", "4.3.0", PROBLEM),
        ("pyspark", "3.5.1", PROBLEM),
        ("pandas", "3.0.0", WARNING),
        ("pandas", "2.3.3", OK),
        ("pandas", "2.1", WARNING),
        ("delta-spark", None, PROBLEM),
        # Wanted by way of another extra.
        ("pyarrow", "17.0.0", WARNING),
        ("numpy", None, PROBLEM),
    ],
)
def test_releases_are_compared_with_those_that_are_wanted(
    monkeypatch: pytest.MonkeyPatch, name: str, release: str | None, grade: Grade
) -> None:
    # What the package asks for, not what an installation of an earlier state does.
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    asked = [f'{text}; extra == "{extra}"' for extra in extras for text in extras[extra]]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: asked)
    there = {"pyspark": "4.2.0", "delta-spark": "4.4.0", "deltalake": "1.6.6", "pandas": "2.3.3"}
    there |= {"numpy": "2.2.6", "pyarrow": "21.0.0", "rich": "14.0", "structlog": "25.1"}
    there |= {"typer": "0.20.0"}
    monkeypatch.setattr(software, "_installed", (there | {name: release}).get)
    found = [one for one in software.check_packages() if one.text.startswith(name)]
    assert [one.grade for one in found] == [grade]
    assert grade is OK or name in found[0].fix or "sparktxlog[spark]" in found[0].fix


def test_without_spark_nothing_of_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(software, "_installed", lambda _: None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    monkeypatch.delenv("SPARKTXLOG_URL", raising=False)
    assert invoke(monkeypatch, "doctor", "--json", "--url", url) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == 1  # no node is at the URL that was given
    assert {one["check"]: one["grade"] for one in found["findings"]} == {
        "python": "ok",
        "spark": "ok",
        "tokens": "ok",
        "node": "problem",
    }


def test_another_python_of_the_workers_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(_program(tmp_path / "python", "3 8")))
    assert software.check_python().grade is PROBLEM
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "none"))
    found = software.check_python()
    assert found.grade is PROBLEM and "cannot be started" in found.text
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert software.check_python().grade is OK


def test_another_spark_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "jars").mkdir()
    assert "has no Spark" in software.check_spark_home("4.2.0").text
    (tmp_path / "jars" / "spark-core_2.13-4.1.1.jar").touch()
    found = software.check_spark_home("4.2.0")
    assert found.grade is PROBLEM and "has Spark 4.1.1" in found.text
    assert software.check_spark_home("4.1.1").grade is OK


def test_jars_that_are_not_here_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = tmp_path / "delta.jar"
    monkeypatch.setenv("SPARKTXLOG_JARS", f"file://{jar}")
    assert software.check_jars().grade is PROBLEM
    jar.touch()
    assert software.check_jars().grade is OK
    monkeypatch.delenv("SPARKTXLOG_JARS")
    monkeypatch.setenv("SPARKTXLOG_IVY", str(tmp_path / "empty"))
    assert software.check_jars().grade is WARNING


@pytest.mark.parametrize(
    ("total", "free", "limit", "grade"),
    [
        (1 << 40, 1 << 39, 1 << 30, OK),
        (1 << 40, 1 << 39, 1 << 41, WARNING),
        (1 << 40, 1 << 36, None, WARNING),
        (1 << 40, 1 << 29, None, PROBLEM),
    ],
)
def test_space_is_judged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    total: int,
    free: int,
    limit: int | None,
    grade: Grade,
) -> None:
    usage = type("Usage", (), {"total": total, "free": free})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    places = {"data-dir": tmp_path, "lake-dir": tmp_path}
    (found,) = disks.check_space(places, limit)
    assert found.grade is grade and "(data-dir, lake-dir)" in found.text


@pytest.mark.parametrize(
    ("files", "free", "grade"),
    [
        (0, 0, None),
        (1_000_000, 9_999, Grade.PROBLEM),
        (1_000_000, 49_999, Grade.WARNING),
        (1_000_000, 50_000, None),
    ],
)
def test_inodes_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int, free: int, grade: Grade | None
) -> None:
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_files=files, f_favail=free))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(total=1 << 40, free=1 << 39))
    first, *rest = disks.check_space({"data-dir": tmp_path}, None)
    assert first.grade is (grade or Grade.OK) and bool(rest) is (grade is not None)
    assert ("inodes are free" in first.text) is (grade is not None)


def test_the_innermost_mount_counts(tmp_path: Path) -> None:
    mounts = [("/", "ext4"), (str(tmp_path.resolve()), "nfs"), (str(tmp_path.resolve()), "tmpfs")]
    assert disks.file_system_of(tmp_path / "a" / "b", mounts) == "tmpfs"
    assert disks.file_system_of(Path("/other"), mounts) == "ext4"
    assert disks.file_system_of(Path("/other"), []) == ""


def test_a_kind_of_file_system_that_loses_state_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "_mounts", lambda: [("/", "tmpfs")])
    found = disks.check_kind(tmp_path)
    assert found.grade is WARNING and "in memory" in found.text


def test_directories_without_hard_links_between_them_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {name: tmp_path / name for name in ("payload-dir", "lake-dir", "commit-table-dir")}
    for path in places.values():
        path.mkdir()
    assert [one.grade for one in disks.check_links(places)] == [OK]

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    (found,) = disks.check_links(places)
    assert found.grade is WARNING and "Invalid cross-device link" in found.text
    assert list(tmp_path.rglob("*doctor*")) == []


@pytest.mark.parametrize(
    ("seconds", "grade"), [(1e-6, WARNING), (2e-3, OK), (50e-3, WARNING), (0.5, PROBLEM)]
)
def test_what_an_fsync_takes_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, grade: Grade
) -> None:
    monkeypatch.setattr(disks, "measure_fsync", lambda _: (seconds, 2 * seconds))
    found = disks.check_fsync(tmp_path)
    assert found.grade is grade and "each commit waits" in found.text


def test_fsync_is_really_measured(tmp_path: Path) -> None:
    median, slowest = disks.measure_fsync(tmp_path)
    assert 0 < median <= slowest
    assert list(tmp_path.iterdir()) == []
    assert disks.check_fsync(tmp_path / "none").grade is WARNING


def test_open_secrets_are_found(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    secrets = {"client-token-file": token, "tls-key-file": tmp_path / "none"}
    assert [one.grade for one in disks.check_modes(secrets)] == [OK]
    token.chmod(0o640)
    assert [one.grade for one in disks.check_modes(secrets)] == [OK]
    token.chmod(0o604)
    (found,) = disks.check_modes(secrets)
    assert found.grade is PROBLEM and str(token) in found.text and "0604" in found.text


def test_a_port_of_somebody_else_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = ("127.0.0.1", other.getsockname()[1])
        assert ways.check_port(listen, answers=False).grade is PROBLEM
        assert ways.check_port(listen, answers=True).grade is OK
        # The URL of the node leads to a proxy, which does not answer here.
        found = ways.check_port(listen, answers=False, owner=4711)
        assert found.grade is OK and "the node runs as process 4711" in found.text
        url = f"http://127.0.0.1:{listen[1]}"
        assert [one.grade for one in ways.check_addresses({"B": [url]})] == [OK]
    assert ways.check_port(listen, answers=False).grade is OK
    (found,) = ways.check_addresses({"B": [url]})
    assert found.grade is WARNING and url in found.text
    assert ways.check_port(("192.0.2.1", 80), answers=False).grade is PROBLEM


def test_the_source_of_the_token_is_named() -> None:
    assert (
        "SPARKTXLOG_CLIENT_TOKEN" in ways.token_source("x", {"SPARKTXLOG_CLIENT_TOKEN": "x"}).text
    )
    assert "noted" in ways.token_source("x", {}).text
    assert "no token" in ways.token_source(None, {}).text


def test_a_configuration_is_examined_without_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own checks, directories that do not exist yet, the port, peers, and open secrets."""
    monkeypatch.setattr(software, "_installed", lambda _: None)
    monkeypatch.setattr(disks, "measure_fsync", lambda _: (1e-3, 2e-3))
    ports = free_ports(2)
    path = tmp_path / "a.toml"
    path.write_text(
        f'node-id = "A"\nmaster-url = "http://127.0.0.1:{ports[0]}"\n'
        f'data-dir = "{tmp_path}/data"\ncluster-secret = "0123456789abcdef"\n'
        f'[peer.1]\nid = "B"\nurl = "http://127.0.0.1:{ports[1]}"\n'
    )
    path.chmod(0o644)
    assert invoke(monkeypatch, "doctor", "--config", str(path)) == 1
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    found = {line[1]: line for line in lines}
    assert all(len(line) == 4 for line in lines)
    assert found["configuration"][0] == "ok"
    assert found["ports"][:3] == ["ok", "ports", f"127.0.0.1:{ports[0]} is free"]
    assert found["peers"][0] == "warning"
    assert found["modes"][0] == "problem" and str(path) in found["modes"][2]
    assert {"disk", "fsync", "links", "tokens", "node"} <= set(found)
    assert not (tmp_path / "data").exists()
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert invoke(monkeypatch, "doctor", "--config", str(path)) == 0
    path.write_text('node-id = "A"\nsignatur-interval = 5\n')
    assert invoke(monkeypatch, "doctor", "--config", str(path), "--json") == 1
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    wrong = [one for one in told["findings"] if one["grade"] == "problem"]
    assert [one["check"] for one in wrong] == ["configuration"]
    assert "Did you mean 'signature-interval'?" in wrong[0]["fix"]


def test_a_role_that_the_node_has_no_keys_for_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    config = tmp_path / "a.toml"
    config.write_text(
        f'node-id = "A"\nmaster-url = "http://127.0.0.1:7070"\ndata-dir = "{tmp_path}"\n'
        'commit-table-url = "s3://lake/a"\nstore-vend-role = "arn:aws:iam::1:role/r"\n'
    )
    (found,) = check_vending(load_config(config))
    assert found.grade is PROBLEM and "needs credentials" in found.text
    assert "store-credentials-file" in found.fix
