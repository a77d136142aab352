"""Child processes of the demo: each has a log file, and some answer lines of JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparktxlog.errors import TxLogError

_STOP_TIMEOUT_S = 20.0
#: There `examples` is found.
ROOT = Path(__file__).resolve().parents[2]


class DemoError(TxLogError, code="demo"):
    """A process of the demo failed; the hint names its log."""


class Child:
    """A process whose stderr goes to a log file.

    It runs in its own session: Ctrl-C reaches the demo, which then stops it in order.

    Args:
        name: For messages.
        log: The log file.
        arguments: Of the program; of Python, a module and its arguments.
        program: Its path; empty = this Python.
        answers: Whether it answers lines on stdin by lines on stdout; else stdout is logged, too.
        env: Variables besides those of the demo.
    """

    def __init__(
        self,
        name: str,
        log: Path,
        arguments: Sequence[str],
        *,
        program: str = "",
        answers: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            self.process = subprocess.Popen(
                [program, *arguments] if program else [sys.executable, "-m", *arguments],
                stdin=subprocess.PIPE if answers else subprocess.DEVNULL,
                stdout=subprocess.PIPE if answers else file,
                stderr=file,
                text=True,
                cwd=ROOT,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )

    def fail_if_dead(self) -> None:
        """Raise DemoError with the end of the log if the process has ended."""
        if self.process.poll() is not None:
            lines = self.log.read_text(errors="replace").splitlines()[-12:]
            raise DemoError(
                f"{self.name} ended with exit code {self.process.returncode}:\n" + "\n".join(lines),
                hint=f"Its log: {self.log}",
            )

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send a line of JSON, and return the next line it answers."""
        stdin = self.process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(command) + "\n")
            stdin.flush()
        except BrokenPipeError:
            self.process.wait(_STOP_TIMEOUT_S)
            self.fail_if_dead()
            raise
        return self.read_answer()

    def read_answer(self) -> dict[str, Any]:
        """Return the next line of JSON; Spark may write other lines between them."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        self.process.wait(_STOP_TIMEOUT_S)
        self.fail_if_dead()
        raise DemoError(f"{self.name} closed its output", hint=f"Its log: {self.log}")

    def kill(self) -> None:
        """End the process, and those that it started, by SIGKILL; `stop` closes what is left."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Ask the process to end, and kill it if it does not."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(_STOP_TIMEOUT_S)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
