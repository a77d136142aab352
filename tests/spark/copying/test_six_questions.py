"""Six questions of people who run a log, asked of three real sites: by command, SQL and page alike.

docs/state.md shows the same commands, queries and pages; `ASKED` is compared with it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from tests.architecture.source_tree import ROOT
from tests.spark.copying.test_majority import Sites
from tests.support.command_line import invoke
from tests.support.node_processes import TABLE, NodeProcess, append, call, wait_until
from tests.support.site_links import ways_between

from sparktxlog.api.reading.sql_views import register
from sparktxlog.worker.apply.steps import TableSteps

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(600)]

#: Question → command, query and page.
ASKED = {
    "behind": (
        "sparktxlog workers",
        "SELECT node_id, behind FROM txlog.workers",
        "/dashboard/overview",
    ),
    "waits": (
        "sparktxlog status",
        "SELECT node_id, awaited FROM txlog.masters WHERE size(awaited) > 0",
        "/dashboard/rounds",
    ),
    "copy": (
        "sparktxlog transfers",
        "SELECT reason, estimated_s, actual_s FROM txlog.transfers WHERE kind = 'copy'",
        "/dashboard/transfers",
    ),
    "differs": (
        "sparktxlog view signatures",
        (
            "SELECT node_id AS site, table, difference.* FROM txlog.signatures "
            "WHERE difference IS NOT NULL"
        ),
        "/dashboard/tables",
    ),
    "happened": (
        "sparktxlog why ID",
        "SELECT position, outcome FROM txlog.queue WHERE transaction_id = 'ID'",
        "/dashboard/transactions/ID",
    ),
    "survives": (
        "sparktxlog survival B",
        (
            "SELECT survives, ordered, accepted_only_there, held_by FROM txlog.survival "
            "WHERE site = 'B'"
        ),
        "/dashboard/overview",
    ),
}


class Asker:
    """Asks one node in the three ways."""

    def __init__(
        self,
        node: NodeProcess,
        spark: SparkSession,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self._node, self._monkeypatch, self._capsys = node, monkeypatch, capsys
        self._spark, self._schema = spark.newSession(), f"txlog_{node.name.lower()}"
        register(self._spark, node.url, schema=self._schema)

    def ask(self, question: str, id_: str = "") -> tuple[Any, list[Row], Any]:
        """Return what the command, the query and the page's twin say."""
        command, query, page = (text.replace("ID", id_) for text in ASKED[question])
        self._capsys.readouterr()
        invoke(self._monkeypatch, *command.split()[1:], "--url", self._node.url, "--json")
        told = json.loads(self._capsys.readouterr().out)
        rows = self._spark.sql(query.replace("txlog.", f"{self._schema}.")).collect()
        return told, rows, call(f"{self._node.url}{page}.json")

    def agreed(self, question: str, of: Callable[..., list[Any]], wanted: Any, **more: str) -> None:
        """Wait until the three answers, of different moments, are one: what is wanted."""
        wait_until(lambda: of(*self.ask(question, **more)) == [wanted] * 3, 60.0, question)


@pytest.fixture
def sites(tmp_path: Path, spark: SparkSession) -> Iterator[Sites]:
    """Three sites that are equal, with three positions."""
    made = Sites(tmp_path, spark)
    try:
        made.cluster.start()
        made.a.commit(TABLE)
        made.commit()
        for node in made.cluster.nodes.values():
            made.work(node, made.commit())
        position = made.commit()
        for node in made.cluster.nodes.values():
            made.work(node, position)
        made.await_peace(position)
        yield made
    finally:
        made.cluster.stop()


def test_the_page_has_what_is_asked_here() -> None:
    text = (ROOT / "docs" / "state.md").read_text()
    for command, query, page in ASKED.values():
        for asked in (command, query, page):
            assert asked in text, asked


def test_three_sites_answer_six_questions(
    sites: Sites,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    at_a, at_b, at_c = (
        Asker(node, sites.spark, monkeypatch, capsys) for node in (sites.a, sites.b, sites.c)
    )
    start = sites.cluster.publish()
    sites.commit()
    position = sites.commit()
    for node in (sites.a, sites.b):
        sites.work(node, position)
    at_a.agreed("behind", _behind, {"A": 0, "B": 0, "C": 2})

    # B is cut off: the order waits for it, and what it accepts is only there.
    sites.cluster.links.refuse(ways_between("B", "AC"))
    waiting = str(uuid.uuid4())
    sites.a.commit(append(77, waiting), level="accepted")
    at_a.agreed("waits", _waits, {"B"})
    sites.b.commit(append(78), level="accepted")
    at_b.agreed("survives", _only_there, 1)
    sites.cluster.links.heal()
    wait_until(sites.cluster.all_linked, what="the links are back")
    position = sites.cluster.publish()
    at_a.agreed("survives", _survives, (True, position, 0, ("A", "C")))

    receipt = call(f"{sites.a.url}/v1/transactions/{waiting}")
    for node in (sites.a, sites.b, sites.c):
        sites.work(node, position)
    sites.await_peace(position)
    at_a.agreed("happened", _happened, (receipt["position"], "committed"), id_=waiting)
    assert start < receipt["position"] <= position

    # C loses an update, and reports success.
    run_step = TableSteps.run_step

    def lose(self: TableSteps, batch: Any, step: Any, progress: Any, *rest: Any) -> None:
        progress.done = step.number
        monkeypatch.setattr(TableSteps, "run_step", run_step)

    lost = str(uuid.uuid4())
    sites.a.commit(append(99, lost))
    wrong = sites.cluster.publish()
    monkeypatch.setattr(TableSteps, "run_step", lose)
    for node in (sites.c, sites.a, sites.b):
        sites.work(node, wrong)
    at_a.agreed("differs", _differs, ("C", "t", position, wrong, (lost,)))
    (alarm, *_) = call(f"{sites.a.url}/dashboard/overview.json")["alarms"]
    assert alarm["text"].startswith("Table t of site C differs from that of A and B: most sites")
    assert f"equal at position {position:,}, different at {wrong:,}." in alarm["text"]

    wait_until(lambda: call(f"{sites.c.url}/v1/worker/plan")["plan"] == "copy", what="a plan")

    def copied() -> bool:
        return bool(sites.work(sites.c).copies)

    wait_until(copied, what="C has copied")
    sites.await_peace(wrong)
    told, *_ = at_c.ask("copy")
    (copy,) = (one for one in told if one["kind"] == "copy")
    assert f"at position {wrong} table 't'" in copy["reason"] and copy["actual_s"] > 0
    at_c.agreed("copy", _copies, [tuple(copy[name] for name in _OF_A_COPY)])


def _behind(told: Any, rows: list[Row], page: Any) -> list[Any]:
    return [
        {one["node_id"]: one["behind"] for one in told},
        {row.node_id: row.behind for row in rows},
        {one["node_id"]: one["behind"] for one in page["replicas"]},
    ]


def _waits(told: Any, rows: list[Row], page: Any) -> list[Any]:
    lasting = (one for one in page["rounds"] if not one["ended_at"])
    return [
        {one["peer"] for one in told["waiting_for"]},
        {row.node_id for row in rows},
        {peer for one in lasting for peer in one["held_up_by"]},
    ]


def _only_there(told: Any, rows: list[Row], page: Any) -> list[Any]:
    return [one[2] for one in _survives(told, rows, page)]


def _survives(told: Any, rows: list[Row], page: Any) -> list[Any]:
    names = ("survives", "ordered", "accepted_only_there", "held_by")
    (one,), (row,) = told, rows
    other = next(one for one in page["survival"] if one["site"] == "B")
    return [
        tuple(tuple(v) if isinstance(v := found[name], list) else v for name in names)
        for found in (one, row.asDict(), other)
    ]


def _happened(told: Any, rows: list[Row], page: Any) -> list[Any]:
    return [
        (told["position"], told["outcome"]) if all(o["applied"] for o in told["sites"]) else None,
        next(((row.position, row.outcome) for row in rows), None),
        (page["receipt"]["position"], page["receipt"]["outcome"])
        if all(o["applied"] for o in page["at"])
        else None,
    ]


def _differs(told: Any, rows: list[Row], page: Any) -> list[Any]:
    named = [
        {"site": one["node_id"], "table": one["table"], **one["difference"]}
        for one in told
        if one["difference"]
    ]
    found = []
    for listed in (named, [row.asDict(recursive=True) for row in rows], page["differences"]):
        names = ("site", "table", "equal_to", "position")
        one = next(iter(listed), None)
        found.append(
            one
            and (
                *(one[name] for name in names),
                tuple(writer["transaction_id"] for writer in one["transactions"]),
            )
        )
    return found


_OF_A_COPY = ("reason", "estimated_s", "actual_s")


def _copies(told: Any, rows: list[Row], page: Any) -> list[Any]:
    return [
        [tuple(one[name] for name in _OF_A_COPY) for one in listed]
        for listed in (
            [one for one in told if one["kind"] == "copy"],
            [row.asDict() for row in rows],
            [one for one in page["ended"] if one["kind"] == "copy"],
        )
    ]
