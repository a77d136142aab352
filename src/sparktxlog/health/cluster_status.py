"""A node's status that shows itself in words: lines in a terminal, a table in a notebook."""

from __future__ import annotations

from html import escape
from typing import Any

from sparktxlog.health.verdicts import alarms_of, judge_status
from sparktxlog.model.shown import html_table
from sparktxlog.model.status_words import awaited_text, last_transfer_text, verdict_text

_COLUMNS = ("site", "worker", "state", "position", "behind", "plan", "catch-up")


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
