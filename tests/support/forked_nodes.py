"""Nodes and commands that begin with everything imported: forks of a process that did only that.

To import what a node needs takes a second of a processor, and tests start hundreds of nodes.  All
else is as if `python -m sparktxlog.cli …` had been started: arguments, environment, log, exit code;
only the seed of Python's hashes is one for all forks of a process of tests.

`python -m tests.support.forked_nodes` is the process that they are forks of.  It reads a line of
JSON for each request and answers with one.
"""

from __future__ import annotations

import gc
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from runpy import run_module
from tempfile import TemporaryDirectory
from typing import Any

from tests.architecture.source_tree import ROOT

#: All that a node has imported when it is ready; pyarrow imports pandas, where that is installed.
_IMPORTED = (
    "pandas", "sparktxlog.cli.command_line", "sparktxlog.cli.serve", "sparktxlog.runtime.node",
    "sparktxlog.runtime.process", "sparktxlog.service.application",
    "sparktxlog.service.connections.listener", "uvicorn.lifespan.off", "uvloop",
)  # fmt: skip
_PAUSE_S = 0.02


def node_environment() -> dict[str, str]:
    """Return the environment of a node of this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


def fork_node(log: Path, *arguments: str, program: str = "sparktxlog.cli") -> ForkedNode:
    """Start a program, as `python -m` does; what it says is appended to a file."""
    return _fork(program, arguments, log, log, {})


def run_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `sparktxlog` with these arguments, and return what it said."""
    with TemporaryDirectory(prefix="command-") as directory:
        said, errors = Path(directory, "stdout"), Path(directory, "stderr")
        command = _fork("sparktxlog.cli", arguments, said, errors, environment)
        try:
            code = command.wait(120)
        finally:
            command.kill()
        return subprocess.CompletedProcess(arguments, code, said.read_text(), errors.read_text())


def _fork(
    program: str, arguments: Sequence[str], said: Path, errors: Path, environment: dict[str, str]
) -> ForkedNode:
    # Who waits for it reads what it has said, be it nothing.
    for file in (said, errors):
        file.touch()
    request = {
        "program": program,
        "arguments": ["sparktxlog", *arguments],
        "said": str(said.absolute()),
        "errors": str(errors.absolute()),
        "directory": str(Path.cwd()),
        "environment": node_environment() | environment,
    }
    return ForkedNode(_origin().ask(request))


class ForkedNode:
    """A process that was forked, with what tests use of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self.returncode is None:
            self.returncode = _origin().ask({"ended": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return the exit code.

        Raises:
            subprocess.TimeoutExpired: It runs on.
        """
        longest = math.inf if timeout is None else timeout
        deadline = time.monotonic() + longest
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"node with pid {self.pid}", longest)
            time.sleep(_PAUSE_S)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class _Origin:
    """The process that is forked; it ends when this one does."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked_nodes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request, and return the answer."""
        asking, answering = self._process.stdin, self._process.stdout
        assert asking is not None and answering is not None
        with self._one_at_a_time:
            asking.write(json.dumps(request) + "\n")
            asking.flush()
            answer = answering.readline()
        assert answer, "the process that is forked has ended; what it said is on stderr"
        return json.loads(answer)


@cache
def _origin() -> _Origin:
    return _Origin()


# -- in the process that is forked -----------------------------------------------------------------


def _answer_requests() -> dict[str, Any] | None:
    """Answer requests until there are no more; in a fork return the request for it."""
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if "ended" in request:
            pid, status = os.waitpid(request["ended"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif (answer := os.fork()) == 0:
            return request
        print(json.dumps(answer), flush=True)
    return None


def _become(request: dict[str, Any]) -> None:
    """Be what a new process would be."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.argv[:] = request["arguments"]
    appending = os.O_WRONLY | os.O_APPEND
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["said"], appending),
        (2, request["errors"], appending),
    ):
        file = os.open(path, flags)
        os.dup2(file, number)
        os.close(file)


def _main() -> None:
    # Ctrl-C is for the one that asks, and for nodes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _IMPORTED:
        import_module(name)
    # What is there stays: no fork should copy it to look for garbage.
    gc.collect()
    gc.freeze()
    request = _answer_requests()
    if request is not None:
        _become(request)
        run_module(request["program"], run_name="__main__")


if __name__ == "__main__":
    _main()
