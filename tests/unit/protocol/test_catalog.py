"""The catalog fold: who is rejected, with which code, and what comes into being (P25b)."""

from __future__ import annotations

from sparktxlog.model.operation import RunFacts, Touch
from sparktxlog.model.table import Column, TableDefinition
from sparktxlog.protocol.catalog import Catalog
from sparktxlog.protocol.idwindow import IdWindow

T = TableDefinition(name="t", columns=(Column(name="c", type="bigint"),))
T_TEXT = TableDefinition(name="t", columns=(Column(name="c", type="string"),))
U = TableDefinition(name="u", columns=(Column(name="c", type="bigint"),))


def _catalog(*tables: TableDefinition) -> Catalog:
    return Catalog(tables, IdWindow(100, max_run=50))


_made = 0


def _facts(
    n: int, touches: tuple[Touch, ...] = (), creates: tuple[tuple[int, TableDefinition], ...] = ()
) -> RunFacts:
    global _made
    _made += 1
    ids = b"".join((_made * 1_000 + i).to_bytes(16, "big") for i in range(n))
    return RunFacts(n=n, ids=ids, touches=touches, creates=creates)


def _codes(rejections: object) -> list[tuple[int, str]]:
    return [(r.index, r.code) for r in rejections]  # type: ignore[attr-defined]


def _touch(table: str, txs: tuple[int, ...] | None = None, version: int = 1) -> Touch:
    return Touch(table=table, schema_version=version, txs=txs)


def test_touching_a_known_table_is_accepted() -> None:
    assert _catalog(T).fold(1, _facts(3, (_touch("t"),))) == ((), ())


def test_unknown_table_and_stale_version() -> None:
    catalog = _catalog(T)
    touches = (_touch("u", (1,)), _touch("t", (0, 2), version=2))
    rejections, _ = catalog.fold(1, _facts(4, touches))
    assert _codes(rejections) == [
        (0, "schema-mismatch"),
        (1, "unknown-table"),
        (2, "schema-mismatch"),
    ]


def test_a_create_counts_for_itself_and_what_follows() -> None:
    catalog = _catalog()
    rejections, created = catalog.fold(10 - 9, _facts(5, (_touch("t"),), ((2, T),)))
    assert _codes(rejections) == [(0, "unknown-table"), (1, "unknown-table")]
    assert created == ((3, T),)
    assert catalog.tables == {"t": T}


def test_identical_create_is_a_commit_without_effect() -> None:
    assert _catalog(T).fold(1, _facts(1, (), ((0, T),))) == ((), ())


def test_other_definition_is_rejected_and_the_first_of_a_run_wins() -> None:
    rejections, created = _catalog().fold(1, _facts(3, (), ((0, T), (1, T_TEXT), (2, T))))
    assert _codes(rejections) == [(1, "schema-mismatch")]
    assert created == ((1, T),)


def test_names_that_differ_in_case_only_collide() -> None:
    upper = TableDefinition(name="T", columns=T.columns)
    rejections, created = _catalog(T).fold(1, _facts(2, (_touch("T", (1,)),), ((0, upper),)))
    assert _codes(rejections) == [(0, "schema-mismatch"), (1, "unknown-table")]
    assert created == ()


def test_a_transaction_is_rejected_as_a_whole() -> None:
    """Its create has no effect if another part of it fails, for itself or its followers."""
    catalog = _catalog()
    facts = _facts(2, (_touch("u", (0,)), _touch("t", (1,))), ((0, T),))
    rejections, created = catalog.fold(1, facts)
    assert _codes(rejections) == [(0, "unknown-table"), (1, "unknown-table")]
    assert created == () and catalog.tables == {}


def test_two_creates_in_one_transaction() -> None:
    facts = _facts(1, (_touch("t"), _touch("u")), ((0, T), (0, U)))
    assert _catalog().fold(1, facts) == ((), ((1, T), (1, U)))


def test_a_repeated_id_is_rejected_with_its_create() -> None:
    catalog = _catalog()
    first = _facts(1)
    catalog.fold(1, first)
    rejections, created = catalog.fold(2, RunFacts(n=1, ids=first.ids, creates=((0, T),)))
    assert _codes(rejections) == [(0, "duplicate-transaction")]
    assert created == ()
    assert catalog.locate(first.ids) == 1


def test_the_tables_view_is_a_snapshot() -> None:
    catalog = _catalog()
    before = catalog.tables
    catalog.fold(1, _facts(1, (), ((0, T),)))
    assert dict(before) == {} and dict(catalog.tables) == {"t": T}
