"""Which workers this node takes reports of: each replica of its site has a name and a lake.

The main replica is in the node's own lake.  Another one is registered with its first report, and
keeps its name and its lake until somebody forgets it: its worker holds the log back until then.

Where lakes are is looked at in threads: a mount that hangs holds up its own worker only.
"""

from __future__ import annotations

import os
from pathlib import Path

from sparktxlog.errors import ConfigError, InvalidRequestError, NotFoundError, StuckFilesError
from sparktxlog.model.buckets import bucket_url
from sparktxlog.model.replicas import (
    MAIN,
    MOST_REPLICAS,
    check_replica_name,
    replica_id,
    table_set,
)
from sparktxlog.model.report import OwnReport
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.leaving_fork.leftover_log import read_replica_state
from sparktxlog.runtime.replicas.judged_replicas import Replicas
from sparktxlog.storage.interfaces import Write

_SHOWN = 200
#: Most characters of a lake: that of a path.
_LONGEST_LAKE = 4_096


class Registration:
    """Checks name and lake of each report of this site; belongs to the event loop."""

    def __init__(self, base: Foundation, replicas: Replicas) -> None:
        self._base = base
        self._replicas = replicas
        self._dead_after_us = int(base.config.worker_dead_after * 1_000_000)
        #: Name → worker, lake and set of the last report that was found right.
        self._believed: dict[str, tuple[str, str, tuple[str, ...]]] = {}
        #: Name → machine and process that reported last.
        self._runs_on: dict[str, str] = {}
        #: Lake of this site → its path without links, as it was when it was looked at last.
        self._places: dict[str, str] = {}

    async def take(self, report: OwnReport) -> list[Write]:
        """Check a report, and register its replica; return the writes that keep that.

        Raises:
            InvalidRequestError: Its name or its lake is another worker's, its set of tables is
                none, or there are too many replicas (definite).
            StuckFilesError: The mount of its lake does not answer (definite).
        """
        given, writes = (report.worker_id, report.lake, report.only), list[Write]()
        if given != self._believed.get(report.name):
            if table_set(report.only) != report.only:
                raise _refused(report, "its set of tables is not as workers write it", "")
            if report.name == MAIN:
                if not report.lake:
                    return []
                await self._check_main(report)
            else:
                self._check_place(report)
                self._check_named(report, await self._look_at(report))
                writes = self._replicas.register(report.name, report.lake)
            self._believed[report.name] = given
        self._runs_on[report.name] = report.runs_on
        return writes

    async def _look_at(self, report: OwnReport) -> str:
        """Return where the lake of a report is; those of others are known then, too.

        Raises:
            StuckFilesError: The mount of its own one does not answer (definite).
        """
        place: str = await self._base.run_on_files(report.lake, _place, report.lake)
        # Others may be registered meanwhile; after the last look nothing is awaited.
        while unknown := [one for one in self._lakes().values() if one not in self._places]:
            for lake in unknown:
                try:
                    self._places[lake] = await self._base.run_on_files(lake, _place, lake)
                except StuckFilesError:  # as it is written: its own worker gets the error
                    self._places[lake] = os.path.normpath(lake)
        if report.lake in self._places:  # a link may lead elsewhere by now
            self._places[report.lake] = place
        return place

    def _lakes(self) -> dict[str, str]:
        """Return name and lake of each replica of this site."""
        config = self._base.config
        return {MAIN: config.lake_url or str(config.lake_dir), **self._replicas.lakes}

    def check_forgettable(self, name: str) -> None:
        """Refuse to forget a replica that is not known, or whose worker runs.

        Raises:
            InvalidNameError, NotFoundError, InvalidRequestError: That is so (definite).
        """
        check_replica_name(name)
        state = self._replicas.named(name)
        if state is None and name not in self._replicas.lakes:
            known = sorted(
                {*self._replicas.lakes, *(s.report.name for s in self._replicas.of_own_site())}
            )
            raise NotFoundError(
                f"site {self._base.config.node_id} has no replica {name!r}",
                hint=f"It has {', '.join(known)}." if known else "It has none.",
                name=name,
            )
        if state is not None and self._runs(name):
            heard = bool(state.heard_at)
            unheard = "may run, as this node has just started"
            raise InvalidRequestError(
                f"the worker of replica {name!r} {'runs' if heard else unheard}"
                f"{self._where(name)}: it would come back with its next report",
                hint="End it first."
                if heard
                else f"If it has ended, ask again after {self._base.config.worker_dead_after:g} s.",
                field="name",
                value=name,
            )
        self._believed.pop(name, None)
        self._runs_on.pop(name, None)

    # -- checks ------------------------------------------------------------------------------------

    async def _check_main(self, report: OwnReport) -> None:
        """Refuse a main replica whose tables are not those that this node shows and lends."""
        config = self._base.config
        if config.lake_url is not None:
            if _place(report.lake) != _place(config.lake_url):
                raise InvalidRequestError(
                    f"the worker applies the log to the lake {report.lake[:_SHOWN]}, and this node "
                    f"shows {config.lake_url}",
                    hint="Leave --lake out, or set lake-url of this node to the worker's lake.  A "
                    "further replica of this site needs a name: --name.",
                    field="lake",
                    value=report.lake[:_SHOWN],
                )
            return
        lake = config.lake_dir
        if not await self._base.run_on_files(lake, _is_same, report, lake):
            raise InvalidRequestError(
                f"worker {report.worker_id[:80]} applies the log to the lake "
                f"{report.lake[:_SHOWN]}, and this node shows and lends {lake}",
                hint="Leave --lake out, or name the node of that lake (--url).  A further replica "
                "of this site needs a name: --name.  If the lake was moved: set lake-dir of this "
                "node to its new place, and start the node again.",
                field="lake",
                value=report.lake[:_SHOWN],
            )

    def _check_named(self, report: OwnReport, place: str) -> None:
        """Refuse a replica whose name or lake is another one's.

        Args:
            place: Where its lake is.
        """
        name, lake, lakes = report.name, report.lake[:_SHOWN], self._replicas.lakes
        if (there := self._lake_of_another(report, place)) is not None:
            other, where = there
            raise _refused(
                report,
                f"its lake {lake} is that of replica {other!r}, or in or around it: "
                f"{where}{self._where(other)}",
                "Give it a lake of its own: --lake."
                + (f"  If it was renamed: sparktxlog workers forget {other}" * (other != MAIN)),
            )
        known = lakes.get(name)
        if known is not None and self._places[known] != place:
            raise _refused(
                report,
                f"its lake is {lake}, and the worker of that name has the lake "
                f"{known}{self._where(name)}",
                f"Choose another --name.  If the other lake is gone: sparktxlog workers forget "
                f"{name}",
            )
        if known is None and len(lakes) + 1 >= MOST_REPLICAS:
            raise _refused(
                report,
                f"this site has the replicas {', '.join((MAIN, *sorted(lakes)))}, and at most "
                f"{MOST_REPLICAS}",
                "sparktxlog workers forget NAME removes one whose worker has ended.",
            )
        state = self._replicas.named(name)
        if state is not None and state.report.worker_id != report.worker_id and self._runs(name):
            raise _refused(
                report,
                f"worker {state.report.worker_id} of that name and lake runs{self._where(name)}",
                "Choose another --name and --lake, or end that one.",
            )

    @staticmethod
    def _check_place(report: OwnReport) -> None:
        """Refuse a lake that is no place: it is kept, shown, and compared with others."""
        if not report.lake:
            raise _refused(report, "it says no lake", "Give it one of its own: --lake.")
        try:
            is_place = (
                bucket_url(report.lake, "lake") is not None or Path(report.lake).is_absolute()
            )
        except ConfigError as error:
            raise _refused(report, error.message, error.hint) from error
        if not is_place or len(report.lake) > _LONGEST_LAKE or "\0" in report.lake:
            raise _refused(
                report,
                f"its lake {report.lake[:_SHOWN]!r} is no absolute path of at most "
                f"{_LONGEST_LAKE:,} characters",
                "Workers say an absolute path, or a URL.",
            )

    def _lake_of_another(self, report: OwnReport, place: str) -> tuple[str, str] | None:
        """Return name and lake of the replica that has a lake, or one in or around it."""
        for name, lake in self._lakes().items():
            if name != report.name and _overlap(self._places[lake], place):
                return name, lake
        return None

    def _runs(self, name: str) -> bool:
        """Return whether a worker reported lately that it follows the log.

        One that did so before this node started may run until it has been silent for as long.
        """
        state = self._replicas.named(name)
        if state is None or not state.report.follows:
            return False
        return self._replicas.silence_us(state, self._base.clock.now()) <= self._dead_after_us

    def _where(self, name: str) -> str:
        """Return where a worker runs, as the end of a sentence."""
        runs_on = self._runs_on.get(name)
        return f" ({runs_on[:_SHOWN]})" if runs_on else ""


def _is_same(report: OwnReport, lake: Path) -> bool:
    """Return whether a report's lake is that of the node; blocks."""
    if _place(report.lake) == _place(str(lake)):
        return True
    if Path(report.lake).is_dir():
        return False
    # Perhaps the worker's machine has the lake at another place.
    there = read_replica_state(lake)
    return there is not None and there.worker_id == report.worker_id


def _place(lake: str) -> str:
    """Return a lake's path or URL in one form; blocks."""
    found = bucket_url(lake, "lake")
    return os.path.realpath(lake) if found is None else found.url


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _refused(report: OwnReport, why: str, hint: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"replica {replica_id(report.node_id, report.name)[:160]!r} is not taken: {why}",
        hint=hint,
        field="name",
        value=report.name[:80],
    )
