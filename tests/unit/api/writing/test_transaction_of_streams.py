"""A stream of Arrow has its rows once, and a commit may have to look at them twice."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from sparktxlog.api.client import Client
from sparktxlog.api.connect import TxLog
from sparktxlog.api.site_session import SiteSession
from sparktxlog.api.staging.frame_staging import StagingPlace
from sparktxlog.api.writing import transaction as spark_transaction
from sparktxlog.codec.submits.transactions import Session
from sparktxlog.http.link import Http
from sparktxlog.model.tables.table import Column, TableDefinition, VersionedTable
from sparktxlog.model.tables.table_kind import TableDescription, TableKind
from sparktxlog.model.transactions.receipt import Level, Receipt

ID, NOTE = Column(name="id", type="bigint"), Column(name="note", type="string")
OLD = TableDefinition(name="t", columns=(ID,), keys=("id",))
NEW = VersionedTable(name="t", columns=(ID, NOTE), keys=("id",), schema_version=2, version=1)
ROWS = pa.table({"id": [1, 2], "note": ["x", "y"]})


class Link:
    """Takes every submit; its table has got another column."""

    position = 5

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def commit(self, body: bytes, *_: Any, **__: Any) -> Receipt:
        self.bodies.append(json.loads(body))
        return Receipt(
            transaction_id="x", n=1, level=Level.ORDERED, position=9, outcome="committed"
        )

    def table(self, name: str, timeout_s: float | None = None) -> VersionedTable:
        return NEW

    def describe(self, name: str) -> TableDescription:
        return TableDescription(name=name, kind=TableKind.ROW_TABLE)

    def after(self, position: int) -> None:
        pass

    def sent(self) -> list[dict[str, Any]]:
        """Return the rows of all operations."""
        found = []
        for body in self.bodies:
            for operation in body["operations"]:
                with pa.ipc.open_stream(base64.b64decode(operation["arrow"])) as reader:
                    found += reader.read_all().to_pylist()
        return found


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def log(link: Link, tmp_path: Path) -> TxLog:
    site = SiteSession(
        cast(Any, None),
        cast(Any, link),
        Http("http://127.0.0.1:1"),
        StagingPlace(root=tmp_path, inline_limit_bytes=1 << 20),
        session=Session("s"),
        timeout_s=5,
    )
    # As it was when the session used the table first.
    site._definitions["t"] = OLD
    return TxLog(site)


@pytest.mark.parametrize("kind", ["append", "upsert", "overwrite"])
def test_rows_for_a_table_that_has_changed_meanwhile_are_all_sent(
    log: TxLog, link: Link, kind: str
) -> None:
    """An overwrite by no rows would empty the table."""
    with log.transaction() as t:
        getattr(t, kind)("t", ROWS.to_reader())
    assert link.sent() == ROWS.to_pylist()


def test_rows_whose_keys_are_looked_up_first_are_all_sent(
    log: TxLog, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Keys:
        columns = ("id",)

        def join(self, *_: Any, **__: Any) -> Keys:
            return self

        def first(self) -> None:
            return None

    def keys_of(spark: object, rows: Any, definition: object) -> Keys:
        assert pa.RecordBatchReader.from_stream(rows).read_all().num_rows == 2
        return Keys()

    monkeypatch.setattr(spark_transaction, "keys_of", keys_of)
    with log.transaction() as t:
        monkeypatch.setattr(t, "_unwritten", lambda *_: (NEW, None))
        t.append("t", ROWS.to_reader(), on_duplicate="error")
    assert link.sent() == ROWS.to_pylist()


def test_rows_to_which_the_table_is_made_to_fit_are_all_sent(link: Link) -> None:
    client = Client("http://127.0.0.1:1")
    client._link = cast(Any, link)
    client.append("t", ROWS.to_reader(), merge_schema=True)
    assert link.sent() == ROWS.to_pylist()
