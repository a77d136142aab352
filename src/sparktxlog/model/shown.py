"""How values show themselves: lines in a terminal, a table in a notebook."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

import numpy as np

from sparktxlog.model.status_words import (
    alarms_of,
    awaited_text,
    judge_status,
    last_transfer_text,
    verdict_text,
)

_COLUMNS = ("site", "worker", "state", "position", "behind", "plan", "catch-up")


def utc_text(micros: int) -> str:
    """Return the time of microseconds since 1970 UTC, to the millisecond."""
    return str(np.datetime64(micros // 1000, "ms")).replace("T", " ") + " UTC"


def time_text(micros: Any) -> str:
    """Return the UTC time of microseconds since 1970, to the second; a dash for none."""
    if not isinstance(micros, (int, float)) or micros <= 0:
        return "-"
    return str(np.datetime64(int(micros) // 1_000_000, "s")).replace("T", " ")


def html_table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table for a notebook; numbers have thousands separators."""
    lines = ["".join(f"<th>{escape(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{_cell(cell)}</td>" for cell in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _cell(value: object) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return escape(f"{value:,}" if is_number else str(value))


class ClusterStatus(dict[str, Any]):
    """A node's status, as `GET /v1/status` has it; it shows itself in words."""

    @property
    def state(self) -> str:
        """`in sync`, `lagging` or `diverged`."""
        return judge_status(self).value

    @property
    def alarms(self) -> list[str]:
        """What a person must look at, in sentences; empty = nothing."""
        return [one["text"] for one in alarms_of(self)]

    @property
    def waits(self) -> list[str]:
        """Which nodes the order waits for, and why."""
        return [awaited_text(one) for one in self.get("waiting_for") or []]

    def __str__(self) -> str:
        place = f"position {self['position']:,}, published {self['published']:,}"
        waiting = f"{self['incoming_transactions']:,} transactions wait"
        lines = [
            f"Node {self['node_id']}: {self.state}, {place}, {waiting}",
            *self.alarms,
            *(f"The order waits for node {text}" for text in self.waits),
        ]
        return "\n".join([*lines, *("  ".join(map(str, row)) for row in self._replicas())])

    def _replicas(self) -> list[tuple[object, ...]]:
        return [
            (
                one["node_id"],
                one["worker_id"] or "no worker yet",
                verdict_text(one),
                one["position"],
                max(0, self["published"] - one["position"]),
                one.get("plan") or "",
                last_transfer_text(one),
            )
            for one in self.get("replicas") or []
        ]

    def _repr_html_(self) -> str:
        head, *rest = str(self).split("\n")[: 1 + len(self.alarms) + len(self.waits)]
        told = "".join(f"<br>{escape(text)}" for text in rest)
        return f"<p><b>{escape(head)}</b>{told}</p>{html_table(_COLUMNS, self._replicas())}"
