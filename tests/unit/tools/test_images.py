"""Which program builds the images, how it is called, and what is refused of what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.architecture.source_tree import ROOT
from tools import images, release


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what a test puts there, and what that needs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def put(place: Path, name: str, body: str) -> None:
    program = place / name
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_without_docker_and_podman_the_check_is_left_out(programs: Path) -> None:
    with pytest.raises(release.LeftOutError, match="there is no docker, there is no podman"):
        release.check_image("1.0")
    put(programs, "docker", "exit 1")
    put(programs, "podman", "exit 125")
    with pytest.raises(release.LeftOutError, match=r"\(no daemon\), podman info fails"):
        release.check_image("1.0")


@pytest.mark.parametrize(
    "said",
    [
        "Get https://registry-1.docker.io/v2/: dial tcp: lookup registry-1.docker.io: no such host",
        "initializing source docker://python: pinging container registry: connection refused",
    ],
)
def test_without_a_registry_the_check_is_left_out(programs: Path, said: str) -> None:
    """A base that somebody names is another matter: that one must be there."""
    fails = f'echo "{said}" >&2; exit 1'
    put(programs, "docker", f'echo "$@" >>{programs}/calls; case "$1" in info);; *) {fails};; esac')
    with pytest.raises(
        release.LeftOutError, match=r"python:3\.11-slim.* is not here, and no .*BASE"
    ):
        release.check_image("1.0")
    with pytest.raises(images.ImageError, match="docker build"):
        release.check_image("1.0", "localhost/python")
    asked = [line.split()[0] for line in (programs / "calls").read_text().splitlines()]
    assert asked == ["info", "image", "pull", "info", "build"]


@pytest.mark.parametrize("said", ["manifest unknown", "pull access denied for python"])
def test_a_base_that_its_registry_does_not_have_is_a_failure(programs: Path, said: str) -> None:
    put(programs, "docker", f'[ "$1" = info ] || {{ echo "{said}" >&2; exit 1; }}')
    with pytest.raises(images.ImageError, match=said):
        release.check_image("1.0")


def test_docker_goes_before_podman_if_its_daemon_answers(programs: Path) -> None:
    put(programs, "podman", "exit 0")
    put(programs, "docker", "exit 1")
    builder = images.Builder.found()
    assert builder.program == str(programs / "podman")
    assert builder.build_options == ("--format", "docker"), "else it drops the health check"
    put(programs, "docker", "exit 0")
    builder = images.Builder.found()
    assert (builder.program, builder.build_options) == (str(programs / "docker"), ())


def test_a_build_takes_the_base_that_is_given_else_the_pinned_one(programs: Path) -> None:
    put(programs, "docker", f'echo "$@" >>{programs}/calls')
    builder = images.Builder.found()
    builder.build("node", "a:1-node", "localhost/python:3.11")
    builder.build("worker", "a:1-worker")
    _, given, pinned = (programs / "calls").read_text().splitlines()
    file = f"--file {ROOT}/deploy/Dockerfile {ROOT}"
    assert given == (
        f"build --build-arg BASE=localhost/python:3.11 --target node --tag a:1-node {file}"
    )
    assert pinned == f"build --target worker --tag a:1-worker {file}"


def test_a_failed_step_names_its_command_and_what_was_said(programs: Path) -> None:
    put(programs, "docker", '[ "$1" = info ] || { echo "no such target" >&2; exit 1; }')
    with pytest.raises(images.ImageError, match=r"docker build --target node .*no such target"):
        images.Builder.found().build("node", "a:1")


def test_an_image_of_another_version_is_refused(programs: Path) -> None:
    put(programs, "docker", "echo sparktxlog 0.0.9")
    with pytest.raises(images.ImageError, match=r"says 'sparktxlog 0.0.9', not 1.0"):
        release.check_image("1.0")


def test_a_container_that_does_not_end_with_0_is_refused_and_removed(programs: Path) -> None:
    put(programs, "docker", f'echo "$@" >>{programs}/calls; [ "$2" != inspect ] || echo 137')
    with (
        pytest.raises(images.ImageError, match="n1 ended with 137"),
        images.Builder.found().container("n1", "node", "a:1-node", "--env", "A=1") as container,
    ):
        container.end()
    calls = (programs / "calls").read_text().splitlines()
    limits = " ".join(images.limits("node"))
    assert calls[1] == f"run --detach --name n1 {limits} --env A=1 a:1-node"
    assert calls[-1] == "rm --force n1"


@pytest.mark.parametrize("target", images.TARGETS)
def test_containers_are_checked_with_the_limits_of_the_compose_file(target: str) -> None:
    service = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())[f"x-{target}"]
    (place,), (dropped,), (option,) = (
        service[key] for key in ("tmpfs", "cap_drop", "security_opt")
    )
    assert service["read_only"] and option == "no-new-privileges:true"
    expected = f"--read-only --tmpfs {place} --cap-drop {dropped}"
    assert " ".join(images.limits(target)) == f"{expected} --security-opt no-new-privileges"


def test_a_container_that_ended_is_not_waited_for(programs: Path) -> None:
    put(
        programs,
        "docker",
        'case "$*" in *Healthcheck*) echo \'["CMD","check"]\';; *Running*) echo false;;'
        ' exec*) exit 1;; logs*) echo "no space left";; esac',
    )
    container = images.Container(images.Builder.found(), "n1")
    with pytest.raises(
        images.ImageError, match=r"n1 is not ready: docker exec n1 check.* no space"
    ):
        container.wait_ready()
    put(programs, "docker", "echo null")
    with pytest.raises(images.ImageError, match="n1 has no health check that can be run: null"):
        container.wait_ready()
