"""The demo's Spark jobs, one process for each site, driven by lines of JSON."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sparktxlog.api.jars import IVY_VARIABLE, JARS_VARIABLE, known_jars
from sparktxlog.cli.demo.demo_nodes import Child, Cluster, DemoError, ask_line, start_child

#: Called with site and the number of transactions committed since the last call.
OnProgress = Callable[[str, int], None]
_RESOLVE = """
from sparktxlog.api.session import build_session
build_session("local[1]", app_name="resolve").stop()
"""


def jar_environment() -> dict[str, str]:
    """Return the variables that let all Spark processes start from one resolved set of JARs.

    They are resolved before three processes would do it side by side in one cache.

    Raises:
        DemoError: Spark could not resolve them (definite).
    """
    if not known_jars():
        answer = subprocess.run(
            [sys.executable, "-c", _RESOLVE], capture_output=True, text=True, check=False
        )
        if answer.returncode or not known_jars():
            raise DemoError(
                f"Delta Lake's JARs could not be resolved: {answer.stderr.strip()[-600:]}",
                hint=f"Set {JARS_VARIABLE} to local JARs, or {IVY_VARIABLE} to a filled cache.",
            )
    return {JARS_VARIABLE: known_jars()}


class Sites:
    """The Spark processes of all sites."""

    def __init__(self, cluster: Cluster, scale: float, cores: int) -> None:
        self._cluster = cluster
        self._scale = scale
        self._cores = cores
        self._children: dict[str, Child] = {}
        self._pool = ThreadPoolExecutor(max_workers=len(cluster.sites))

    def start(self) -> None:
        """Start one Spark process for each site; they get ready side by side."""
        env = jar_environment()
        for site in self._cluster.sites:
            root = self._cluster.site_directory(site)
            arguments = [
                "sparktxlog.cli.demo.site_job",
                "--site", site,
                # Its own node first; the others' when that is lost.
                "--url", ",".join(map(self._cluster.url, sorted(
                    self._cluster.sites, key=lambda other: other != site
                ))),
                "--source", str(root / "source"),
                "--scale", str(self._scale),
                "--master", f"local[{self._cores}]",
            ]  # fmt: skip
            env = env | {"SPARK_LOCAL_DIRS": str(root / "spark")}
            self._children[site] = start_child(
                f"Spark job of site {site}", root / "spark.log", arguments, piped=True, env=env
            )

    def ask(
        self, site: str, do: str, on_progress: OnProgress | None = None, **command: Any
    ) -> dict[str, Any]:
        """Let one site do something; return its answer.

        Raises:
            DemoError: The site's job failed.
        """
        child = self._children[site]
        answer = ask_line(child, {"do": do, **command})
        while answer.get("event") == "progress":
            if on_progress is not None:
                on_progress(site, int(answer["transactions"]))
            answer = ask_line(child, None)
        if answer.get("event") == "error":
            raise DemoError(f"site {site}: {answer['text']}", hint=f"Its log: {child.log}")
        return answer

    def ask_all(
        self,
        do: str,
        commands: Mapping[str, Mapping[str, Any]] | None = None,
        on_progress: OnProgress | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Let all sites (or those in `commands`) do something side by side."""
        wanted = commands if commands is not None else {site: {} for site in self._children}
        futures = {
            site: self._pool.submit(self.ask, site, do, on_progress, **command)
            for site, command in wanted.items()
        }
        return {site: future.result() for site, future in futures.items()}

    def stop(self) -> None:
        """End all Spark processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for child in self._children.values():
            child.stop()
