"""A node's status that shows itself in words: lines in a terminal, a table in a notebook."""

from __future__ import annotations

from html import escape
from typing import Any

from sparktxlog.health.verdicts import (
    ClusterState,
    Judgement,
    alarms_of,
    judge,
    judge_sites,
    replica_lines,
)
from sparktxlog.model.shown import html_table
from sparktxlog.model.status_words import awaited_text, last_transfer_text

_COLUMNS = ("site", "worker", "state", "position", "behind", "plan", "catch-up")


class ClusterStatus(dict[str, Any]):
    """A node's status, as `GET /v1/status` has it; it shows itself in words."""

    @property
    def state(self) -> str:
        """`in sync`, `lagging` or `diverged`; of a witness `witness`."""
        return self.verdict.word

    @property
    def verdict(self) -> Judgement:
        """The verdict on the cluster: its state, what that means, and the way out."""
        return judge(self)

    @property
    def sites(self) -> dict[str, Judgement]:
        """The verdict on each site with data."""
        return judge_sites(self)

    @property
    def alarms(self) -> list[str]:
        """What a person must look at, in sentences; empty = nothing."""
        return [one["text"] for one in alarms_of(self)]

    @property
    def waits(self) -> list[str]:
        """Which nodes the order waits for, and why."""
        return [awaited_text(one) for one in self.get("waiting_for") or []]

    def _lines(self) -> list[str]:
        verdict = self.verdict
        place = f"position {self['position']:,}, published {self['published']:,}"
        waiting = f"{self['incoming_transactions']:,} transactions wait"
        return [
            f"Node {self['node_id']}: {verdict.word}, {place}, {waiting}",
            *([] if verdict.state is ClusterState.IN_SYNC else [verdict.sentence]),
            *(text for text in self.alarms if text != verdict.text),
            *(f"The order waits for node {text}" for text in self.waits),
        ]

    def __str__(self) -> str:
        return "\n".join([*self._lines(), *("  ".join(map(str, row)) for row in self._replicas())])

    def _replicas(self) -> list[tuple[object, ...]]:
        return [
            (
                one["node_id"],
                one["worker_id"] or "no worker yet",
                one["state"],
                one["position"],
                one["behind"],
                one.get("plan") or "",
                last_transfer_text(one),
            )
            for one in replica_lines(self)
        ]

    def _repr_html_(self) -> str:
        head, *rest = self._lines()
        more = "".join(f"<br>{escape(text)}" for text in rest)
        return f"<p><b>{escape(head)}</b>{more}</p>{html_table(_COLUMNS, self._replicas())}"
