"""The demo's Spark jobs, one process for each site, driven by lines of JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from examples.demo.children import Child, DemoError
from examples.demo.demo_nodes import Cluster

from sparktxlog.api.session import SPARK_RELEASE
from sparktxlog.api.spark_jars import JARS_VARIABLE, resolved_jars


class Sites:
    """The Spark processes of all sites.

    Args:
        cluster: The nodes.
        scale: Part of the year.
        job: Module of this package that runs inside each of them.
        connector: JARs beside Delta's, with commas between them.
    """

    def __init__(
        self, cluster: Cluster, scale: float, *, job: str = "site_job", connector: str = ""
    ) -> None:
        self._cluster = cluster
        self._scale = scale
        self._job = job
        self._connector = connector
        self._jars = ""
        self._children: dict[str, Child] = {}
        self._pool = ThreadPoolExecutor(max_workers=len(cluster.sites))

    def start(self) -> None:
        """Start one Spark process for each site, all at the same time."""
        # Once, before several processes use the same cache.
        stores = () if self._cluster.bucket is None else ("s3",)
        jars = resolved_jars(SPARK_RELEASE, stores)
        self._jars = ",".join(filter(None, (jars, self._connector)))
        for site in self._cluster.sites:
            self.start_site(site)

    def start_site(self, site: str) -> None:
        """Start a Spark process that does not run."""
        cluster = self._cluster
        root, bucket = cluster.site_directory(site), cluster.bucket
        # Its own node first; the others if that is lost.
        urls = [cluster.url(s) for s in sorted(cluster.sites, key=lambda other: other != site)]
        settings = {
            "site": site,
            "urls": urls,
            "source": str(root / "source"),
            "scale": self._scale,
            "cores": max(1, (os.cpu_count() or 2) // 2),
        }
        self._children[site] = Child(
            f"Spark job of site {site}",
            root / "spark.log",
            [f"examples.demo.{self._job}", json.dumps(settings)],
            answers=True,
            env={
                JARS_VARIABLE: self._jars,
                "SPARK_LOCAL_DIRS": str(root / "spark"),
                **({} if bucket is None else bucket.environ()),
            },
        )

    def kill(self, site: str) -> None:
        """Kill a Spark process with SIGKILL; what it is asked for fails."""
        self._children[site].kill()

    def restart(self, site: str) -> None:
        """Start a Spark process again that was killed."""
        self._children.pop(site).stop()
        self.start_site(site)

    def ask(self, site: str, do: str, **command: Any) -> dict[str, Any]:
        """Let one site do something; return its answer.

        Raises:
            DemoError: The site's job failed.
        """
        child = self._children[site]
        answer = child.ask({"do": do, **command})
        if "error" in answer:
            raise DemoError(f"site {site}: {answer['error']}", hint=f"Its log: {child.log}")
        return answer

    def ask_all(
        self, do: str, commands: Mapping[str, Mapping[str, Any]] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Let all sites (or those in `commands`) do something side by side."""
        wanted = commands if commands is not None else {site: {} for site in self._children}
        futures = {
            site: self._pool.submit(self.ask, site, do, **command)
            for site, command in wanted.items()
        }
        return {site: future.result() for site, future in futures.items()}

    def stop(self) -> None:
        """End all Spark processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for child in self._children.values():
            child.stop()
