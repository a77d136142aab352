"""Build the images of deploy/Dockerfile with Docker or Podman, and run them as compose.yaml does.

`make release` and a test of `tests/packages` do it:

    check_images(Builder.found(), "sparktxlog:0.1.0", "0.1.0", base="localhost/python:3.11")
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGETS = ("node", "worker")
#: Target → its /tmp: Java runs libraries from there, and Docker forbids that by itself.
_TEMPORARY = {"node": "/tmp", "worker": "/tmp:exec"}  # noqa: S108 - in a container
_STATE = "/var/lib/sparktxlog"
#: The numbers are those of the chart, and of volumes that other releases wrote.
_USER = "uid=10001(sparktxlog) gid=10001(sparktxlog)"
#: Of the node in its container, and of the worker that shares its network.
_URL = "http://127.0.0.1:7070"
_READY_S = 600.0
_END_S = 120
#: Commits a row, and says its position; the table is made once.
_COMMIT = """
import sparktxlog
client = sparktxlog.Client({url!r})
if not client.tables():
    client.create_table("orders", "id bigint, customer string", keys=["id"])
receipt = client.upsert("orders", [{{"id": 1, "customer": "ada"}}])
receipt = client.wait(receipt, {level!r}, timeout=600)
assert not receipt.late, receipt
print(receipt.position)
"""


def limits(target: str) -> tuple[str, ...]:
    """Return the options by which compose.yaml runs an image of this target.

    Nothing but the volume and /tmp can be written, and there is no capability.
    """
    return (
        *("--read-only", "--tmpfs", _TEMPORARY[target], "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges"),
    )


#: What the pinned base of deploy/Dockerfile is called there.
_PINNED = re.compile(r"^ARG BASE=(\S+)$", re.MULTILINE)
#: How a registry that was reached says that it does not give an image.
_REFUSED = re.compile(r"manifest|not found|denied|unauthorized|toomanyrequests", re.IGNORECASE)


class NoBuilderError(Exception):
    """Neither Docker nor Podman can build here; says why."""


class ImageError(Exception):
    """An image cannot be built, or does not do what it must."""


@dataclass(frozen=True, slots=True)
class Builder:
    """A program that builds images and runs containers, called as Docker is."""

    program: str
    #: Podman keeps a health check only in images of Docker's format.
    build_options: tuple[str, ...] = ()

    @classmethod
    def found(cls) -> Builder:
        """Return Docker if its daemon answers, else Podman, which needs none.

        Raises:
            NoBuilderError: Neither is there, or works.
        """
        reasons = []
        for name, options in (("docker", ()), ("podman", ("--format", "docker"))):
            program = shutil.which(name)
            if program is None:
                reasons.append(f"there is no {name}")
            elif subprocess.run([program, "info"], capture_output=True, check=False).returncode:
                reasons.append(f"{name} info fails" + " (no daemon)" * (name == "docker"))
            else:
                return cls(program, options)
        raise NoBuilderError(", ".join(reasons))

    def run(self, *arguments: str, given: str | None = None) -> str:
        """Run one command with `given` as its input, and return its output.

        Raises:
            ImageError: It fails; the end of what it said.
        """
        done = subprocess.run(
            [self.program, *arguments], input=given, capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = (done.stdout + done.stderr)[-2000:]
            raise ImageError(f"{Path(self.program).name} {' '.join(arguments)[:120]}: {said}")
        return done.stdout.strip()

    def build(self, target: str, tag: str, base: str = "") -> None:
        """Build a target of deploy/Dockerfile.

        Args:
            base: Image to begin with; empty: the pinned one, which a registry must have.
        """
        options = ("--build-arg", f"BASE={base}") if base else ()
        file = str(ROOT / "deploy" / "Dockerfile")
        self.run(
            *("build", *self.build_options, *options),
            *("--target", target, "--tag", tag, "--file", file, str(ROOT)),
        )

    def get_pinned(self) -> None:
        """Get the pinned base, if it is not here.

        Raises:
            NoBuilderError: It is not here, and no registry can be reached.
            ImageError: The registry does not give it.
        """
        (base,) = _PINNED.findall((ROOT / "deploy" / "Dockerfile").read_text())
        try:
            self.run("image", "inspect", base)
            return
        except ImageError:
            pass
        try:
            self.run("pull", base)
        except ImageError as error:
            if _REFUSED.search(str(error).replace(base, "")):
                raise
            said = " ".join(str(error).split())[-200:]
            raise NoBuilderError(
                f"{base.partition('@')[0]} is not here, and no registry gives it ({said}): "
                "BASE=IMAGE names another one"
            ) from error

    @contextmanager
    def container(self, name: str, target: str, image: str, *options: str) -> Iterator[Container]:
        """Start a container as compose.yaml does, and remove it at the end."""
        self.run("run", "--detach", "--name", name, *limits(target), *options, image)
        try:
            yield Container(self, name)
        finally:
            self.run("rm", "--force", name)


@dataclass(frozen=True, slots=True)
class Container:
    """A container that was started."""

    builder: Builder
    name: str

    def python(self, program: str) -> str:
        """Run a program with the interpreter of the image, and return what it prints."""
        return self.builder.run("exec", "--interactive", self.name, "python", "-", given=program)

    def wait_ready(self) -> None:
        """Wait until the health check of the image is content.

        It is run from here: Podman has systemd call it, which not each machine has.

        Raises:
            ImageError: The container ended, or is not ready in time; the end of its log.
        """
        said = self._inspect("{{json .Config.Healthcheck.Test}}")
        kind, *command = json.loads(said) or ["NONE"]
        if kind != "CMD":
            raise ImageError(f"{self.name} has no health check that can be run: {said}")
        until = time.monotonic() + _READY_S
        while True:
            try:
                self.builder.run("exec", self.name, *command)
            except ImageError as error:
                if time.monotonic() > until or self._inspect("{{.State.Running}}") != "true":
                    log = self.builder.run("logs", self.name)
                    raise ImageError(f"{self.name} is not ready: {error}; {log}") from error
            else:
                return
            time.sleep(0.2)

    def commit(self, level: str) -> int:
        """Commit a row in the container of a node; return its position."""
        return int(self.python(_COMMIT.format(url=_URL, level=level)))

    def user(self) -> str:
        """Return user and group of its processes, numbers and names, as `id` shows them."""
        return self.builder.run("exec", self.name, "id").partition(" groups=")[0]

    def end(self) -> None:
        """Stop it by its signal.

        Raises:
            ImageError: It did not end with 0.
        """
        self.builder.run("stop", "--time", str(_END_S), self.name)
        if (code := self._inspect("{{.State.ExitCode}}")) != "0":
            raise ImageError(
                f"{self.name} ended with {code}: {self.builder.run('logs', self.name)}"
            )

    def start(self) -> None:
        """Start it once more."""
        self.builder.run("start", self.name)

    def _inspect(self, what: str) -> str:
        return self.builder.run("container", "inspect", "--format", what, self.name)


def check_images(builder: Builder, name: str, version: str, base: str = "") -> str:
    """Build the images of node and worker, run both, and return what was seen.

    The node becomes ready, orders a commit, ends with 0, and has its log when it starts again; the
    worker applies what comes then, and ends with 0.

    Args:
        name: Of the images, `NAME-node` and `NAME-worker`, with a colon for the tag; they stay.
        version: What both must say.
        base: See `Builder.build`.

    Raises:
        ImageError: Something of that is not so.
    """
    images = {target: f"{name}-{target}" for target in TARGETS}
    for target, image in images.items():
        builder.build(target, image, base)
    _must_say(version, builder.run("run", "--rm", *limits("node"), images["node"], "--version"))
    command = (images["worker"], "sparktxlog", "--version")
    _must_say(version, builder.run("run", "--rm", *limits("worker"), *command))
    own = f"sparktxlog-check-{os.getpid()}"
    volume = f"{own}-state"
    builder.run("volume", "create", volume)
    try:
        return _run_both(builder, own, images, ("--volume", f"{volume}:{_STATE}"))
    finally:
        builder.run("volume", "rm", volume)


def _run_both(builder: Builder, own: str, images: dict[str, str], volume: Sequence[str]) -> str:
    name = f"{own}-node"
    settings = ("--env", "SPARKTXLOG_NODE_ID=A", "--env", f"SPARKTXLOG_MASTER_URL={_URL}")
    with builder.container(name, "node", images["node"], *settings, *volume) as node:
        node.wait_ready()
        user, first = node.user(), node.commit("ordered")
        node.end()
        node.start()
        node.wait_ready()
        kept = node.commit("ordered")
        if kept <= first:
            raise ImageError(f"position {kept} follows {first}: the volume was not kept")
        shared = ("--network", f"container:{name}", "--env", f"SPARKTXLOG_URL={_URL}")
        other, image = f"{own}-worker", images["worker"]
        with builder.container(other, "worker", image, *shared, *volume) as worker:
            applied = node.commit("applied")
            users = {user, worker.user()}
            worker.end()
        node.end()
    if users != {_USER}:
        raise ImageError(f"they ran as {sorted(users)}, not as {_USER}")
    return f"positions {first} and {kept} ordered, {applied} applied"


def _must_say(version: str, said: str) -> None:
    if version not in said:
        raise ImageError(f"it says {said!r}, not {version}")
