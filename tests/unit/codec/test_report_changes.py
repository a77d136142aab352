"""Reports of many tables: only what changed travels, and who lost the rest gets it all."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from sparktxlog.codec.report_changes import ReportReceiver, ReportSender
from sparktxlog.model.copying import ReplicaSize, Transfer
from sparktxlog.model.report import Recount, TableState, WorkerReport
from sparktxlog.model.signature import TableSignature


def state(version: int) -> TableState:
    return TableState(
        version=version, signature=TableSignature(rows=version, lane0=1, lane1=2), schema="s"
    )


REPORT = WorkerReport(
    worker_id="w",
    node_id="A",
    log_id="l",
    epoch=1,
    position=1,
    chain_hash="h",
    tables={f"t{number}": state(1) for number in range(100)},
)


class Way:
    """A sender and a receiver, which may be an old one that knows of no labels."""

    def __init__(self, *, old: bool = False) -> None:
        self.sender, self.receiver, self.old = ReportSender(), ReportReceiver(), old
        #: Tables that travelled with each message.
        self.sizes: list[int] = []

    def tell(self, report: WorkerReport) -> WorkerReport:
        """Send a report until it is taken; return it as it arrived."""
        while True:
            sent = self.sender.shortened(report)
            self.sizes.append(len(sent.tables))
            whole = replace(sent, label="") if self.old else self.receiver.complete(sent)
            kept = () if self.old or whole is None else (sent.label,)
            if self.sender.answered(report, sent, kept):
                assert whole is not None
                return whole


def test_only_what_changed_travels() -> None:
    way = Way()
    tables = {**REPORT.tables, "t7": state(2), "new": state(1)}
    changed = replace(REPORT, position=2, tables=tables)
    fewer = replace(changed, tables={n: t for n, t in tables.items() if n not in ("t1", "t2")})
    for report in (REPORT, replace(REPORT, reported_at=5), changed, changed, fewer, REPORT):
        assert way.tell(report) == report
    assert way.sizes == [100, 0, 2, 0, 0, 3]


def test_a_receiver_that_lost_the_tables_gets_them_all() -> None:
    way = Way()
    way.tell(REPORT)
    way.receiver = ReportReceiver()  # it has restarted
    assert way.tell(REPORT) == REPORT
    assert way.tell(replace(REPORT, epoch=2)) == replace(REPORT, epoch=2)
    way.sender.forget()  # another one may be there
    assert way.tell(REPORT) == REPORT
    assert way.sizes == [100, 0, 100, 0, 100]


def test_an_answer_that_is_lost_costs_no_table() -> None:
    way = Way()
    way.tell(REPORT)
    changed = replace(REPORT, tables={**REPORT.tables, "t1": state(2)})
    assert way.receiver.complete(way.sender.shortened(changed)) == changed  # nobody is told
    again = replace(changed, tables={**changed.tables, "t2": state(2)})
    assert way.tell(again) == again
    assert way.sizes == [100, 2, 100]


def test_who_knows_of_no_labels_gets_whole_reports() -> None:
    way = Way(old=True)
    for _ in range(3):
        assert way.tell(REPORT) == REPORT
    assert way.sizes == [100, 100, 100]


def test_reports_of_several_workers_do_not_mix() -> None:
    way = Way()
    other = replace(REPORT, worker_id="v", tables={"t1": state(9)})
    for report in (REPORT, other, REPORT, other):
        assert way.tell(report) == report
    assert way.sizes == [100, 1, 0, 0]


def test_a_number_that_no_table_can_keep_is_refused() -> None:
    """Reports and transfers are kept as 64-bit numbers: a larger one stopped the publisher."""
    for kind, text in (
        (WorkerReport, '{"worker_id":"w","node_id":"A","log_id":"","position":1,"chain_hash":"h"'),
        (TableState, '{"signature":{},"schema":"s"'),
        (
            Transfer,
            (
                '{"transfer_id":"t","worker_id":"w","node_id":"A","kind":"replay","to_position":1,'
                '"started_at":1,"finished_at":1,"estimated_s":null,"actual_s":1.0'
            ),
        ),
    ):
        field = {WorkerReport: "epoch", TableState: "version", Transfer: "from_position"}[kind]
        msgspec.json.decode(f'{text},"{field}":{(1 << 63) - 1}}}', type=kind)
        with pytest.raises(msgspec.ValidationError, match=field):
            msgspec.json.decode(f'{text},"{field}":{1 << 63}}}', type=kind)


@pytest.mark.parametrize("position", [-(1 << 63), -1, 1 << 62])
@pytest.mark.parametrize("kind", [WorkerReport, Recount, ReplicaSize])
def test_a_position_that_the_journal_cannot_look_up_is_refused(kind: type, position: int) -> None:
    """The numbers beside the least position overflowed in the journal: an answer 500."""
    names = {"worker_id": "w", "node_id": "A", "log_id": "l", "chain_hash": "h"}
    body = {**names, "epoch": 1, "copied_from": "", "position": position}
    msgspec.convert({**body, "position": 0}, type=kind)
    with pytest.raises(msgspec.ValidationError, match="position"):
        msgspec.convert(body, type=kind)
