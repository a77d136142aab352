"""A site of `sparktxlog demo`: its node as a process, and a client of it.

A node ends with the demo that started it, also where that is killed: it reads from a pipe that
only the demo can write to, and stops when the pipe is closed.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from threading import Thread
from time import monotonic

from sparktxlog.api.client import Client
from sparktxlog.cli.common_options import NodeApi
from sparktxlog.cli.example import ExampleSite
from sparktxlog.codec.problems import ERROR_CLASSES
from sparktxlog.config.node_config import ENV_PREFIX
from sparktxlog.errors import ConfigError, PeerTimeoutError, TxLogError, UnreachableError
from sparktxlog.files.durability import storing
from sparktxlog.http.link import GrowingPause

#: A machine that has other work takes minutes to start a node.
_START_S, _STOP_S = 300.0, 30.0
#: How a command ends with an error of sparktxlog: code, message, hint.
_ERROR = re.compile(r"\[([a-z-]+)\] (.+?)(?:  (.*))?")


def free_port(count: int, wanted: int | None = None) -> int:
    """Return the first of so many free ports of loopback that follow each other.

    Args:
        wanted: The first one, if somebody chose it.

    Raises:
        ConfigError: One of those that somebody chose is in use (definite).
    """
    with socket.create_server(("127.0.0.1", 0)) as one:
        first = wanted or one.getsockname()[1]
    for port in range(first, first + count):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except (OSError, OverflowError) as error:
            if wanted is None:
                return free_port(count)
            text = f"port {port} of 127.0.0.1: {getattr(error, 'strerror', None) or error}"
            hint = f"Name the first of {count} free ports with --port, or leave it out."
            raise ConfigError(text, hint=hint, key="port", value=port) from error
    return first


def end_with_demo() -> None:
    """Have this process, a node of a demo, stop as after SIGTERM once its input is closed."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=wait, name="end-of-demo", daemon=True).start()


class DemoSite:
    """A site whose configuration is written.

    Args:
        site: What `init` wrote of it.
        root: The directory of both sites.
    """

    def __init__(self, site: ExampleSite, root: Path) -> None:
        self.name, self.url, self.config = site.node_id, site.url, site.path
        self._token_file, self._root = site.token_file, root
        self._log = root / f"node-{site.node_id.lower()}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def token(self) -> str:
        """The token that its clients show."""
        return self._token_file.read_text().strip()

    @cached_property
    def client(self) -> Client:
        """A client of its node."""
        return Client(self.url, self.token, timeout=60.0)

    def start(self) -> None:
        """Start the node, in a session of its own: Ctrl-C reaches the demo alone."""
        # Settings and notes of this user are of other nodes.
        kept = {name: v for name, v in os.environ.items() if not name.startswith(ENV_PREFIX)}
        kept["XDG_CONFIG_HOME"] = str(self._root / "notes")
        program = (
            f"from {__name__} import end_with_demo; end_with_demo(); "
            f"from sparktxlog.cli import main; main('serve', '--config', {str(self.config)!r})"
        )
        with storing(self._log), self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                cwd=self._root,
                env=kept,
                stdin=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Wait until the node can serve.

        Raises:
            TxLogError: The node ended with this error.
            PeerTimeoutError: It is not ready in time (not definite).
        """
        assert self._process is not None
        until, pause = monotonic() + _START_S, GrowingPause(0.05, 0.5)
        api = NodeApi(self.url, token=self.token)
        while True:
            try:
                api.request("GET", "/readyz")
                return
            except TxLogError as error:  # nothing answers yet, or it is not ready
                if self._process.poll() is not None:
                    raise self._last_words() from error
                if monotonic() > until:
                    text = f"node {self.name} is not ready after {_START_S:g} s: {error.message}"
                    raise PeerTimeoutError(text, hint="With --keep its log stays.") from error
            pause.wait()

    def _last_words(self) -> TxLogError:
        last = self._log.read_text(errors="replace").strip().rpartition("\n")[2]
        said = _ERROR.fullmatch(last)
        code, text, hint = said.groups() if said else ("unreachable", f"it ended: {last}", "")
        kind = ERROR_CLASSES.get(code, UnreachableError)
        return kind(f"node {self.name}: {text}", hint=hint or "", node=self.name)

    def kill(self) -> None:
        """End the node by SIGKILL, as a loss of power does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._close_pipe()

    def stop(self) -> int | None:
        """Stop the node; return its exit code, None if it was never started."""
        if self._process is None:
            return None
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close_pipe()
        return self._process.returncode

    def _close_pipe(self) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
