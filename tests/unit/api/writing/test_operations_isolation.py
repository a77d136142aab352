"""Transactions with conditions, without Spark and nodes: what is refused, and what is sent."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from sparktxlog.api.client import Client
from sparktxlog.api.connect import TxLog
from sparktxlog.api.site_session import SiteSession
from sparktxlog.api.staging.frame_staging import StagingPlace
from sparktxlog.codec.submits import transactions
from sparktxlog.errors import (
    ConflictError,
    InvalidNameError,
    InvalidRequestError,
    LocalProtocolError,
    NotAppliedError,
    UnreachableError,
)
from sparktxlog.model.tables.table import Column, TableDefinition, VersionedTable
from sparktxlog.model.tables.table_kind import TableDescription, TableKind
from sparktxlog.model.transactions.receipt import Level, Receipt

IDS = StructType([StructField("id", LongType())])


class Link:
    """Takes every submit at position 9, or lets it lose."""

    def __init__(self) -> None:
        self.position = 5
        self.bodies: list[dict[str, Any]] = []
        self.after_: list[int | None] = []
        self.conflict: ConflictError | None = None
        self.tables: list[tuple[str, float | None]] = []

    def commit(self, body: bytes, *_: Any, after: int | None = None, **__: Any) -> Receipt:
        self.bodies.append(json.loads(body))
        self.after_.append(after)
        if self.conflict is not None:
            raise self.conflict
        return Receipt(
            transaction_id="x", n=1, level=Level.ORDERED, position=9, outcome="committed"
        )

    def after(self, position: int) -> None:
        self.position = max(self.position, position)

    def table(self, name: str, timeout_s: float | None = None) -> None:
        self.tables.append((name, timeout_s))

    def describe(self, name: str) -> TableDescription:
        return TableDescription(name=name, kind=TableKind.ROW_TABLE)


class Home:
    """The home node: its replica stands at position 7."""

    url = "http://a"

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.failures: list[Exception] = []

    def get(self, path: str, **query: Any) -> Any:
        assert path == "/v1/snapshot"
        self.asked.append(query)
        if self.failures:
            raise self.failures.pop(0)
        table = {"version": 3, "signature": "0:0:0", "uri": "/lake/t"}
        return {"position": 7, "chain_hash": "", "tables": {"t": table, "u": table}}


class Session:
    """A Spark session that only says which version of which table it would read."""

    def __init__(self) -> None:
        self.version: Any = None
        self.read = SimpleNamespace(format=lambda _: self)

    def option(self, name: str, value: Any) -> Session:
        assert name == "versionAsOf"
        self.version = value
        return self

    def load(self, location: str) -> Any:
        return location, self.version


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def client(link: Link) -> Client:
    client = Client("http://127.0.0.1:1")
    client._link = cast(Any, link)
    return client


@pytest.fixture
def home() -> Home:
    return Home()


@pytest.fixture
def log(link: Link, home: Home, tmp_path: Path) -> TxLog:
    site = SiteSession(
        cast(Any, Session()),
        cast(Any, link),
        cast(Any, home),
        StagingPlace(root=tmp_path, inline_limit_bytes=1),
        session=transactions.Session("s"),
        timeout_s=5,
    )
    return TxLog(site)


def test_an_unknown_isolation_is_refused(client: Client, log: TxLog) -> None:
    for begin in (client.transaction, log.transaction):
        with pytest.raises(InvalidRequestError, match="'snapshot' is unknown") as caught:
            begin(isolation=cast(Any, "snapshot"))
        assert caught.value.fields == {
            "field": "isolation",
            "value": "snapshot",
            "allowed": ["serializable"],
        }


@pytest.mark.parametrize("level", ["accepted", "acquired"])
def test_a_level_that_cannot_tell_a_conflict_is_refused(
    client: Client, log: TxLog, level: str
) -> None:
    for begin in (client.transaction, log.transaction):
        with pytest.raises(InvalidRequestError, match="cannot say whether") as caught:
            begin(isolation="serializable", level=level)
        assert (caught.value.fields["field"], caught.value.fields["value"]) == ("level", level)
        with pytest.raises(InvalidRequestError, match="cannot say whether"):
            begin(level=level).expect_version("t", 1)


def test_a_client_sends_what_was_read_and_what_is_expected(client: Client, link: Link) -> None:
    with client.transaction(isolation="serializable") as t:
        t.read_at(8, "t", "u")
        t.read_at(6, "t", "v")
        t.expect_version("w", 0)
        t.append("t", [{"id": 1}])
    assert link.bodies[0]["conditions"] == {
        "read_position": 6,
        "reads": ["t", "u", "v"],
        "versions": {"w": 0},
    }
    assert link.after_ == [6]
    with client.transaction() as t:
        t.expect_version("w", 3)
        t.append("t", [])
    assert link.bodies[1]["conditions"] == {"versions": {"w": 3}}
    assert link.bodies[1]["transaction_id"] == t.id
    client.append("t", [{"id": 1}])
    assert "conditions" not in link.bodies[2] and link.after_[1:] == [None, None]


def test_a_client_that_only_read_has_nothing_to_submit(client: Client, link: Link) -> None:
    with client.transaction(isolation="serializable", level="applied") as t:
        t.read_at(8, "t")
    assert t.receipt == Receipt.of_nothing(Level.APPLIED) and link.bodies == []


@pytest.mark.parametrize(
    ("position", "tables", "error"),
    [
        (-1, ("t",), InvalidRequestError),
        (True, ("t",), InvalidRequestError),
        ("8", ("t",), InvalidRequestError),
        (8, (), InvalidRequestError),
        (8, ("a b",), InvalidNameError),
    ],
)
def test_reads_that_cannot_be(client: Client, position: Any, tables: Any, error: Any) -> None:
    t = client.transaction(isolation="serializable")
    with pytest.raises(error) as caught:
        t.read_at(position, *tables)
    assert caught.value.definite and t._condition() is None


@pytest.mark.parametrize("version", [-1, True, "3", None, 1.0])
def test_versions_that_cannot_be(client: Client, version: Any) -> None:
    t = client.transaction()
    with pytest.raises(InvalidRequestError) as caught:
        t.expect_version("t", version)
    assert (caught.value.fields["field"], caught.value.fields["value"]) == ("version", version)
    t.expect_version("t", 3)
    t.expect_version("t", 3)
    with pytest.raises(InvalidRequestError, match="not 3, which is expected"):
        t.expect_version("t", 4)


def test_reads_are_recorded_in_serializable_transactions_only(client: Client, log: TxLog) -> None:
    with pytest.raises(LocalProtocolError, match="records no reads") as caught:
        client.transaction().read_at(8, "t")
    assert "client.transaction(isolation='serializable')" in caught.value.hint
    with pytest.raises(LocalProtocolError, match="records no reads") as caught:
        log.transaction().read("t")
    assert "log.transaction(isolation='serializable')" in caught.value.hint


def test_nothing_is_added_after_the_submit(client: Client, log: TxLog) -> None:
    t = client.transaction(isolation="serializable")
    t.append("t", [{"id": 1}])
    t.commit()
    with pytest.raises(LocalProtocolError, match="no more operations"):
        t.read_at(8, "t")
    with pytest.raises(LocalProtocolError, match="no more operations"):
        t.expect_version("t", 1)
    s = log.transaction(isolation="serializable")
    s.create_table("t", IDS)
    s.commit()
    with pytest.raises(LocalProtocolError, match="no more operations"):
        s.read("t")


def test_all_reads_show_one_position_and_are_sent_with_it(
    log: TxLog, link: Link, home: Home
) -> None:
    with log.transaction(isolation="serializable", timeout=3) as t:
        assert cast(Any, t.read("t")) == ("file:///lake/t", 3)
        t.read("u")
        t.expect_version("v", 2)
        t.create_table("w", IDS)
    assert link.bodies[0]["conditions"] == {
        "read_position": 7,
        "reads": ["t", "u"],
        "versions": {"v": 2},
    }
    assert link.after_ == [7]
    (asked,) = home.asked
    # After what this log was told of: its own commits would make it lose.
    assert (asked["at_least"], asked["waits"]) == (5, True) and 2 < asked["timeout_s"] <= 3


def test_a_transaction_that_only_read_is_not_submitted(log: TxLog, link: Link) -> None:
    with log.transaction(isolation="serializable") as t:
        t.read("t")
    assert t.receipt == Receipt.of_nothing(Level.ORDERED) and link.bodies == []


def test_a_conflict_stays_the_outcome_of_its_transaction(
    log: TxLog, link: Link, tmp_path: Path
) -> None:
    for position, stays in ((9, True), (None, False)):
        link.conflict = ConflictError("lost", position=position, table="t", winner=8, origin="B")
        t = log.transaction(isolation="serializable")
        staged = tmp_path / t.id / "0-t"
        staged.mkdir(parents=True)
        t._staging._written.append(staged)
        t.read("t")
        t.create_table("w", IDS)
        link.bodies.clear()
        for _ in range(2):
            with pytest.raises(ConflictError) as caught:
                t.commit()
            assert caught.value is link.conflict
        assert len(link.bodies) == 1
        # Other sites may still ask for the files of what is ordered.
        assert staged.is_dir() is stays


def test_retry_waits_until_the_replica_has_what_it_lost_to(
    log: TxLog, link: Link, home: Home
) -> None:
    link.conflict = ConflictError("lost", transaction_id="x", table="t", winner=40, origin="B")

    @log.retry(timeout=20)
    def change() -> int:
        with log.transaction(isolation="serializable") as t:
            t.read("t")
            t.create_table("w", IDS)
        return len(link.bodies)

    first = home.get

    def caught_up(path: str, **query: Any) -> Any:
        if query["at_least"] == 40:
            link.conflict = None
        return first(path, **query)

    home.get = caught_up  # type: ignore[method-assign]
    assert change() == 2
    before, between, after = home.asked
    assert (before["at_least"], between["at_least"], after["at_least"]) == (5, 40, 40)
    assert between["waits"] and 18 < between["timeout_s"] <= 20


def test_retry_ends_where_the_replica_does_not_get_there(
    log: TxLog, link: Link, home: Home
) -> None:
    link.conflict = ConflictError("lost", table="t", winner=40)

    @log.retry
    def change() -> None:
        with log.transaction(isolation="serializable") as t:
            t.read("t")
            home.failures = [NotAppliedError("no", applied=7), UnreachableError("no node")]
            t.create_table("w", IDS)

    log.site.position = lambda: 41  # type: ignore[method-assign]
    with pytest.raises(ConflictError, match="1 attempt: position 40 is not applied here yet"):
        change()


def test_retry_of_a_client_waits_for_the_node(client: Client, link: Link) -> None:
    link.conflict = ConflictError("lost", table="t", winner=40)

    @client.retry(attempts=2, timeout=7)
    def change() -> None:
        client.append("t", [{"id": 1}])

    with pytest.raises(ConflictError, match="given up after 2 attempts"):
        change()
    ((table, left),) = link.tables
    assert (table, link.position) == ("t", 40) and left is not None and 6 < left <= 7


def test_a_state_is_a_definition_that_knows_its_version() -> None:
    columns = (Column(name="id", type="bigint"),)
    states = [VersionedTable(name="t", columns=columns, version=n, last_write=n) for n in (1, 2)]
    assert states[0] == states[1] and len(set(states)) == 1
    assert isinstance(states[0], TableDefinition)
    assert states[0] != VersionedTable(name="t", columns=columns, keys=("id",))
