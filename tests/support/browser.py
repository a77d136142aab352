"""A headless Chromium, driven by its own protocol of developers (CDP)."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-port=0",
    "about:blank",
)


class Page:
    """One page of the browser, and what it did."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        #: Addresses that it asked for, and errors of scripts and of its content policy.
        self.asked: list[str] = []
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """Call a method of the protocol; return its result."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": values}))
        while True:
            message = json.loads(self._connection.recv(timeout=60))
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        values = message.get("params") or {}
        if message["method"] == "Network.requestWillBeSent":
            self.asked.append(values["request"]["url"])
        elif message["method"] == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(values["exceptionDetails"]))
        elif message["method"] == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.errors.append(values["entry"]["text"])

    def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str, timeout: float = 60) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + timeout
        while not self.value(expression):
            if time.monotonic() > end:  # a page that is loaded again has no body for a moment
                text = self.value("document.body && document.body.innerText")
                raise AssertionError(f"not so: {expression}\n{text}")
            time.sleep(0.05)

    def open(self, url: str) -> None:
        """Open an address; return when its scripts have run."""
        self.call("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href.startsWith({url!r})")


def find_browser() -> str | None:
    """Return the program, None = there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def browser_page(profile: Path) -> Iterator[Page]:
    """Run a browser with one page; skip the test where there is none, but not in CI."""
    if find_browser() is None:
        if os.environ.get("CI"):
            pytest.fail("CI has no Chromium: .ci/run installs it")
        pytest.skip(f"needs one of {', '.join(_NAMES)}")
    with open_page(profile) as page:
        yield page


@contextmanager
def open_page(profile: Path) -> Iterator[Page]:
    """Run the browser that there is, with one page."""
    program = find_browser()
    assert program is not None
    process = subprocess.Popen(
        [program, f"--user-data-dir={profile}", *_OPTIONS],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = next(line for line in process.stderr if "DevTools listening on " in line)
        root = said.split("listening on ")[1].strip()
        with connect(root, max_size=None, open_timeout=60) as whole:
            whole.send(json.dumps({"id": 1, "method": "Target.getTargets"}))
            while (answer := json.loads(whole.recv(timeout=60))).get("id") != 1:
                pass
        (target,) = [
            one["targetId"] for one in answer["result"]["targetInfos"] if one["type"] == "page"
        ]
        address = root.split("/devtools/")[0]
        with connect(f"{address}/devtools/page/{target}", max_size=None) as connection:
            yield Page(connection)
    finally:
        process.kill()
        process.communicate()
