"""Lost or damaged data: runs that no node can deliver, and damaged files of this node.

The core asks again at growing intervals, and orders nothing after such a run.  So it is reported to
the operator: in the log, in `status` and by a metric.  Only a damaged file makes a node unready,
and only the node that has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from sparktxlog.model.answers import DamagedFile, OperatorWarning, UndeliveredRun
from sparktxlog.protocol.messages.posts import Announcement, RunHeader

_log = structlog.get_logger("sparktxlog.damage")

#: A run is undelivered after so many failures of its data, not of the link; a power of two.
_ALARMING = 4
#: Seconds without a request after which data is no longer wanted; the core's pauses are shorter.
_FORGOTTEN_S = 600.0
#: Most damaged files that are remembered.
_MAX_FILES = 1_000


@dataclass(slots=True)
class _Run:
    origin: str
    #: None = not stamped yet.
    seq: int | None
    since_s: float
    last_s: float
    times: int = 0
    reason: str = ""


class Damage:
    """What this node knows of data that is damaged or gone; belongs to the event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runs: dict[bytes, _Run] = {}
        #: Path → (when it was asked for last, what is wrong with it).
        self._files: dict[str, tuple[float, str]] = {}

    def failed(self, run: RunHeader | Announcement, reason: str) -> None:
        """Note that no node that should have a run's data could supply it."""
        now = self._clock()
        seq = run.seq if isinstance(run, RunHeader) else None
        found = self._runs.setdefault(
            run.digest, _Run(origin=run.origin, seq=seq, since_s=now, last_s=now)
        )
        found.seq, found.last_s = seq, now
        found.times, found.reason = found.times + 1, reason
        if found.times >= _ALARMING and found.times.bit_count() == 1:
            _log.error(
                "run cannot be delivered",
                run=run.digest.hex()[:12],
                origin=found.origin,
                seq=seq,
                times=found.times,
                reason=reason,
            )

    def concerns(self, digest: bytes) -> bool:
        """Return whether the last attempt to get a run's data failed."""
        return digest in self._runs

    def arrived(self, digest: bytes) -> None:
        """Note that a run's data is here, or no longer wanted."""
        self._runs.pop(digest, None)

    def unreadable(self, path: str, reason: str) -> None:
        """Note that a file of this node's payload store differs from its manifest."""
        if path not in self._files:
            _log.error("staged file is damaged", path=path, reason=reason)
            if len(self._files) >= _MAX_FILES:
                del self._files[next(iter(self._files))]
        self._files[path] = (self._clock(), reason)

    def readable(self, path: str) -> None:
        """Note that a file of this node is whole."""
        self._files.pop(path, None)

    def runs(self) -> list[UndeliveredRun]:
        """Return the runs that cannot be delivered, as `status` shows them."""
        now = self._clock()
        for digest, run in list(self._runs.items()):
            if now - run.last_s > _FORGOTTEN_S:
                del self._runs[digest]
        return [
            {
                "digest": digest.hex(),
                "origin": run.origin,
                "seq": run.seq,
                "since_s": round(now - run.since_s, 3),
                "times": run.times,
                "reason": run.reason,
            }
            for digest, run in self._runs.items()
            if run.times >= _ALARMING
        ]

    def files(self) -> list[DamagedFile]:
        """Return the own files that are damaged, as `status` shows them."""
        now = self._clock()
        for path, (at, _) in list(self._files.items()):
            if now - at > _FORGOTTEN_S:
                del self._files[path]
        return [{"path": path, "reason": reason} for path, (_, reason) in self._files.items()]

    def warnings(self) -> list[OperatorWarning]:
        """Return warnings for operators, each with a code and a sentence."""
        found: list[OperatorWarning] = [
            {
                "code": "undelivered-run",
                "text": f"a run of {run['origin']} cannot be delivered, so nothing after it is "
                f"ordered: {run['reason']}  If no copy of it exists, run `sparktxlog void "
                f"{run['digest'][:16]}` at {run['origin']}.",
            }
            for run in self.runs()
        ]
        found += [
            {
                "code": "damaged-file",
                "text": f"the staged file {file['path']} of this node is damaged: "
                f"{file['reason']}  Replace it by a good copy.",
            }
            for file in self.files()
        ]
        return found
