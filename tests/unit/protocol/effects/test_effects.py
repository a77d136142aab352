"""Effects of runs: what is rejected, with which code, and what comes into being (P25b)."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

from sparktxlog.model.tables.alteration import DROPPED, TableChange
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.operation import Acceptance, RunFacts, Touch
from sparktxlog.protocol.effects.effects import Effects
from sparktxlog.protocol.effects.idwindow import IdWindow
from sparktxlog.protocol.effects.last_writes import LastWrites


class Unscanned(dict[str, TableDefinition]):
    """Tables that may be looked up, and neither walked through nor copied."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("all tables are looked at")

    keys = values = items = copy = __iter__


T = TableDefinition(name="t", columns=(Column(name="c", type="bigint"),))
T_TEXT = TableDefinition(name="t", columns=(Column(name="c", type="string"),))
U = TableDefinition(name="u", columns=(Column(name="c", type="bigint"),))


def _effects(*tables: TableDefinition) -> Effects:
    return Effects(tables, IdWindow(100, max_run=50))


_made = 0


def _facts(
    n: int,
    touches: tuple[Touch, ...] = (),
    creates: tuple[tuple[int, TableDefinition], ...] = (),
    changes: tuple[tuple[int, str, TableChange], ...] = (),
) -> RunFacts:
    global _made
    _made += 1
    ids = b"".join((_made * 1_000 + i).to_bytes(16, "big") for i in range(n))
    return RunFacts(n=n, ids=ids, touches=touches, creates=creates, changes=changes)


def _codes(rejections: object) -> list[tuple[int, str]]:
    return [(r.index, r.code) for r in rejections]  # type: ignore[attr-defined]


def _touch(table: str, txs: tuple[int, ...] | None = None, version: int = 1) -> Touch:
    return Touch(table=table, schema_version=version, txs=txs)


def test_an_ordinary_write_to_a_synchronous_table_takes_no_effect() -> None:
    effects = _effects(T, replace(U, is_sync=True))
    plain = _facts(3, (_touch("t"), _touch("u", (1,))))
    rejections, _ = effects.apply(1, plain)
    assert _codes(rejections) == [(1, "stale-schema")]
    text = "table 'u' is synchronous, the transaction was taken as an ordinary one"
    assert [one.text for one in rejections] == [text]
    assert effects.apply(4, replace(_facts(3, plain.touches), holders=2)) == ((), ())
    made = replace(_facts(1, (_touch("v"),), ((0, replace(U, name="v", is_sync=True)),)), holders=0)
    assert _codes(effects.apply(7, made)[0]) == [(0, "stale-schema")]
    assert "v" not in effects.tables
    becomes = ((0, "t", TableChange(is_sync=True)),)
    assert effects.apply(8, _facts(1, (_touch("t"),), changes=becomes))[0] == ()
    assert _codes(effects.apply(9, _facts(1, (_touch("t", version=2),)))[0]) == [
        (0, "stale-schema")
    ]


def test_touching_a_known_table_is_accepted() -> None:
    assert _effects(T).apply(1, _facts(3, (_touch("t"),))) == ((), ())


def test_unknown_table_and_stale_version() -> None:
    effects = _effects(T)
    touches = (_touch("u", (1,)), _touch("t", (0, 2), version=2))
    rejections, _ = effects.apply(1, _facts(4, touches))
    assert _codes(rejections) == [
        (0, "stale-schema"),
        (1, "unknown-table"),
        (2, "stale-schema"),
    ]


def test_a_create_counts_for_itself_and_what_follows() -> None:
    effects = _effects()
    rejections, created = effects.apply(10 - 9, _facts(5, (_touch("t"),), ((2, T),)))
    assert _codes(rejections) == [(0, "unknown-table"), (1, "unknown-table")]
    assert created == ((3, T),)
    assert effects.tables == {"t": T}


def test_identical_create_is_a_commit_without_effect() -> None:
    assert _effects(T).apply(1, _facts(1, (), ((0, T),))) == ((), ())


def test_other_definition_is_rejected_and_the_first_of_a_run_wins() -> None:
    rejections, created = _effects().apply(1, _facts(3, (), ((0, T), (1, T_TEXT), (2, T))))
    assert _codes(rejections) == [(1, "schema-mismatch")]
    assert created == ((1, T),)


def test_names_that_differ_in_case_only_collide() -> None:
    upper = TableDefinition(name="T", columns=T.columns)
    rejections, created = _effects(T).apply(1, _facts(2, (_touch("T", (1,)),), ((0, upper),)))
    assert _codes(rejections) == [(0, "schema-mismatch"), (1, "unknown-table")]
    assert created == ()


def test_a_transaction_is_rejected_as_a_whole() -> None:
    """Its create has no effect if another part of it fails, for itself or its followers."""
    effects = _effects()
    facts = _facts(2, (_touch("u", (0,)), _touch("t", (1,))), ((0, T),))
    rejections, created = effects.apply(1, facts)
    assert _codes(rejections) == [(0, "unknown-table"), (1, "unknown-table")]
    assert created == () and effects.tables == {}


def test_two_creates_in_one_transaction() -> None:
    facts = _facts(1, (_touch("t"), _touch("u")), ((0, T), (0, U)))
    assert _effects().apply(1, facts) == ((), ((1, T), (1, U)))


def test_another_property_is_another_table_and_another_comment_is_not() -> None:
    commented = replace(
        T, comment="c", columns=(replace(T.columns[0], comment="c"), *T.columns[1:])
    )
    other = replace(T, properties=(("team", "a"),))
    clustered = replace(T, cluster_by=(T.columns[0].name,))
    creates = tuple(enumerate((T, commented, other, clustered)))
    rejections, created = _effects().apply(1, _facts(4, (), creates))
    assert _codes(rejections) == [(2, "schema-mismatch"), (3, "schema-mismatch")]
    assert created == ((1, T),)


def test_a_repeated_id_is_rejected_with_its_create() -> None:
    effects = _effects()
    first = _facts(1)
    effects.apply(1, first)
    rejections, created = effects.apply(2, RunFacts(n=1, ids=first.ids, creates=((0, T),)))
    assert _codes(rejections) == [(0, "duplicate-transaction")]
    assert created == ()
    assert effects.locate(first.ids) == 1


def test_the_view_of_the_tables_grows_and_may_be_walked_through_meanwhile() -> None:
    effects = _effects(U)
    tables, walk = effects.tables, iter(effects.tables)
    effects.apply(1, _facts(1, (), ((0, T),)))
    assert list(walk) == ["u"] and dict(tables) == {"u": U, "t": T}


def test_a_creation_looks_at_no_other_table() -> None:
    """Nor does a view of the tables: there may be tens of thousands."""
    effects = _effects(T)
    tables = effects.tables
    effects._tables = tables._by_lower = Unscanned({"t": T})
    rejections, created = effects.apply(1, _facts(3, (_touch("t"), _touch("u", (1, 2))), ((1, U),)))
    assert (rejections, created) == ((), ((2, U),))
    # A transaction that fails takes its creations with it.
    w, stale = replace(U, name="w"), (_touch("w", (0,)), _touch("t", (0,), version=2))
    rejections, created = effects.apply(4, _facts(1, stale, ((0, w),)))
    assert (_codes(rejections), created) == ([(0, "stale-schema")], ())
    assert (tables["u"], tables.alike("U"), tables.get("U")) == (U, U, None)
    assert "w" not in tables


class _Older:
    """Ids at positions before the window."""

    def __init__(self, **places: int) -> None:
        self.places = {name.encode() * 16: at for name, at in places.items()}
        self.asked: list[int] = []

    def appended(self, position: int, ids: bytes) -> None:
        pass

    def find(self, ids: bytes, after: int) -> list[tuple[int, int]]:
        self.asked.append(after)
        held = [self.places.get(ids[at : at + 16], 0) for at in range(0, len(ids), 16)]
        return [(index, at) for index, at in enumerate(held) if at > after]


def _at(position: int, older: _Older | None = None) -> Effects:
    """Return effects whose queue ends before a position; its window has 100."""
    window = IdWindow(100, max_run=50)
    window.recover([(1, b"".join((1 << 64 | at).to_bytes(16, "big") for at in range(1, position)))])
    return Effects((), window, older, window_us=1_000)


def _run(*names: str, **given: object) -> RunFacts:
    return RunFacts(n=len(names), ids=b"".join(n.encode() * 16 for n in names), **given)  # type: ignore[arg-type]


def test_what_the_accepting_node_found_is_a_repeat() -> None:
    accepted = Acceptance(position=495, ts=0, repeats=((1, 7),))
    rejections, _ = _at(500).apply(500, _run("a", "b", acceptance=accepted), ts=9_999)
    assert [(r.index, r.code, r.first) for r in rejections] == [(1, "duplicate-transaction", 7)]


def test_a_run_ordered_late_is_looked_up_in_what_is_older() -> None:
    older = _Older(a=300, b=200)
    accepted = Acceptance(position=250, ts=0)
    rejections, _ = _at(500, older).apply(500, _run("a", "b", "c", acceptance=accepted), ts=1_000)
    # Up to 250 the accepting node had looked itself.
    assert [(r.index, r.code, r.first) for r in rejections] == [(0, "duplicate-transaction", 300)]
    assert older.asked == [250]


def test_nothing_older_is_asked_while_the_window_reaches() -> None:
    older = _Older(a=1)
    accepted = Acceptance(position=400, ts=0)
    assert _at(500, older).apply(500, _run("a", acceptance=accepted), ts=9_999) == ((), ())
    assert older.asked == []


def test_an_id_expires_by_positions_and_time_together() -> None:
    accepted = Acceptance(position=398, ts=0)
    run = _run("a", "b", acceptance=accepted)
    assert _at(497).apply(497, run, ts=9_999) == ((), ())
    assert _at(498).apply(498, run, ts=1_000) == ((), ())
    assert _codes(_at(498).apply(498, run, ts=1_001)[0]) == [(1, "expired-id")]
    assert _codes(_at(499).apply(499, run, ts=1_001)[0]) == [(0, "expired-id"), (1, "expired-id")]


def test_a_transaction_takes_no_effect_after_the_time_it_is_valid_until() -> None:
    run = _run("a", "b", valid_until=((0, 50), (1, 49)))
    assert _codes(_effects().apply(1, run, ts=50)[0]) == [(1, "expired-transaction")]


def test_the_first_place_of_an_id_is_kept_along_a_chain_of_repeats() -> None:
    effects = _at(1)
    for start in (1, 81, 161):
        names = ["x"]
        rejections, _ = effects.apply(start, _run(*names))
        assert [r.first for r in rejections] == ([] if start == 1 else [1])
        filler = b"".join((1 << 80 | start << 20 | n).to_bytes(16, "big") for n in range(79))
        effects.apply(start + 1, RunFacts(n=79, ids=filler))
    # The first one has left the window, and two repeats of it are in there.
    assert effects.locate(b"x" * 16) == 1


def test_a_void_run_takes_no_effect_and_keeps_its_ids() -> None:
    effects = _effects(T)
    first = _facts(1, (Touch(table="t", schema_version=1),))
    assert not effects.apply(1, first)[0]
    lost = _facts(2)
    void = replace(lost, n=3, ids=lost.ids[:16] + first.ids + lost.ids[16:], voided=True)
    # A repeat in it stays one of the first, which took effect.
    assert _codes(effects.apply(2, void)[0]) == [
        (0, "voided"),
        (1, "duplicate-transaction"),
        (2, "voided"),
    ]
    again = _facts(1)
    assert _codes(effects.apply(5, replace(again, ids=lost.ids[:16]))[0]) == [
        (0, "duplicate-transaction")
    ]


NOTE = TableChange(add=(Column(name="note", type="string"),))
T_NOTE = NOTE.applied_to(T)


def test_a_change_counts_for_later_transactions_only() -> None:
    """Those before it were made for the table as it was; those after it must know the change."""
    effects = _effects(T)
    touches = (_touch("t", (0, 1, 2)), _touch("t", (3,), version=2))
    rejections, changed = effects.apply(1, _facts(4, touches, changes=((1, "t", NOTE),)))
    assert _codes(rejections) == [(2, "stale-schema")]
    assert rejections[0].table == "t" and "schema version 2" in rejections[0].text
    assert changed == ((2, T_NOTE),)
    assert effects.tables["t"] == T_NOTE and T_NOTE.schema_version == 2


def test_of_two_changes_for_one_schema_version_the_first_wins() -> None:
    effects, rank = _effects(T), TableChange(add=(Column(name="rank", type="int"),))
    facts = _facts(2, (_touch("t"),), changes=((0, "t", NOTE), (1, "t", rank)))
    rejections, changed = effects.apply(1, facts)
    assert _codes(rejections) == [(1, "stale-schema")]
    assert changed == ((1, T_NOTE),)


def test_a_rejected_transaction_changes_nothing() -> None:
    effects = _effects(T)
    touches = (_touch("t", (0,)), _touch("nowhere", (0,)), _touch("t", (1,)))
    rejections, changed = effects.apply(1, _facts(2, touches, changes=((0, "t", NOTE),)))
    assert _codes(rejections) == [(0, "unknown-table")]
    assert changed == () and effects.tables == {"t": T}


def test_a_changed_table_is_created_again_only_as_it_is_now() -> None:
    effects = _effects(T_NOTE)
    again = replace(T_NOTE, schema_version=1)
    rejections, created = effects.apply(1, _facts(2, (), ((0, T), (1, again))))
    assert _codes(rejections) == [(0, "schema-mismatch")]
    assert created == ()


def test_a_change_is_a_write_to_its_table() -> None:
    """Whoever read the table before, and rests on that, has lost."""
    writes = LastWrites({}, 1_000)
    effects = Effects([T], IdWindow(100, max_run=50), writes=writes)
    read = Condition(read_position=0, reads=("t",))
    facts = _facts(2, (_touch("t", (0,)),), changes=((0, "t", NOTE),))
    rejections, _ = effects.apply(1, replace(facts, conditions=((1, read),)))
    assert _codes(rejections) == [(1, "conflict")]
    assert rejections[0].winner == 1 and writes.of("t").version == 1


def test_a_change_that_does_not_fit_is_rejected_alike() -> None:
    """No node accepts it; should it be ordered all the same, it is an outcome, not an accident."""
    twice = TableChange(add=(Column(name="C", type="string"),))
    facts = _facts(1, (_touch("t"),), changes=((0, "t", twice),))
    rejections, changed = _effects(T).apply(1, facts)
    assert _codes(rejections) == [(0, "schema-mismatch")]
    assert changed == ()


DROP = ((0, "t", DROPPED),)


def test_a_drop_counts_for_later_transactions_only() -> None:
    """Those before it take effect; those after it find no table, whichever schema they know."""
    effects = _effects(T)
    touches = (_touch("t", (0, 1, 2)), _touch("t", (3,), version=2))
    rejections, changed = effects.apply(1, _facts(4, touches, changes=((1, "t", DROPPED),)))
    assert _codes(rejections) == [(2, "unknown-table"), (3, "unknown-table")]
    assert changed == ((2, T.dropped()),)
    assert dict(effects.tables) == {} and len(effects.tables) == 0
    assert "t" not in effects.tables and effects.tables.alike("T") is None
    rejections, changed = effects.apply(5, _facts(1, (_touch("t", version=2),)))
    assert (_codes(rejections), changed) == ([(0, "unknown-table")], ())


def test_a_table_that_is_created_again_is_another_one() -> None:
    """What was made for the first one does not fit it, however often it changed."""
    effects = _effects(T)
    effects.apply(1, _facts(1, (_touch("t"),), changes=DROP))
    stale = (_touch("t", (1,)), _touch("t", (2,), version=2), _touch("t", (3,), version=3))
    rejections, changed = effects.apply(2, _facts(4, stale, ((0, T_TEXT),)))
    assert _codes(rejections) == [(1, "stale-schema"), (2, "stale-schema")]
    again = replace(T_TEXT, schema_version=3, first_version=3)
    assert changed == ((2, again),) and effects.tables["t"] == again
    # Who creates it with rows, and did not know of the drop, made the rows for the first one.
    effects.apply(6, _facts(1, (_touch("t", version=3),), changes=DROP))
    rejections, changed = effects.apply(7, _facts(1, (_touch("t", version=3),), ((0, T_TEXT),)))
    assert (_codes(rejections), changed) == ([(0, "stale-schema")], ())
    assert "t" not in effects.tables


def test_a_start_remembers_what_was_dropped() -> None:
    """Also in another case: Spark and many file systems ignore it."""
    upper = replace(T, name="T")
    effects = _effects(T, U, T.dropped())
    assert set(effects.tables) == {"u"}
    made = replace(upper, schema_version=3, first_version=3)
    assert effects.apply(1, _facts(1, (), ((0, upper),))) == ((), ((1, made),))


def test_a_created_table_is_the_same_at_the_accepting_node_and_at_others() -> None:
    """That node has the definition as it knew the table: with names in files, and its versions."""
    renamed = TableChange(rename=(("c", "d"),)).applied_to(T)
    told = replace(renamed, columns=(Column(name="d", type="bigint"),), first_version=1)
    for gone in ((), (renamed, renamed.dropped())):
        outcomes = [_effects(*gone).apply(1, _facts(1, (), ((0, d),))) for d in (renamed, told)]
        assert outcomes[0] == outcomes[1]
        assert outcomes[0][1][0][1].columns == told.columns


def test_conditions_on_a_dropped_table_never_hold_again() -> None:
    writes = LastWrites({}, 1_000)
    effects = Effects([], IdWindow(100, max_run=50), writes=writes)
    effects.apply(1, _facts(2, (_touch("t", (1,)),), ((0, T),)))
    read = Condition(read_position=2, reads=("t",))
    expected = [Condition(versions=(("t", version),)) for version in (0, 1, 2, 3)]
    conditions = tuple(enumerate([read, *expected]))
    effects.apply(3, _facts(1, (_touch("t"),), changes=DROP))
    rejections, _ = effects.apply(4, replace(_facts(5), conditions=conditions))
    assert {r.code for r in rejections} == {"unknown-table"}
    effects.apply(9, _facts(1, (), ((0, T),)))
    rejections, _ = effects.apply(10, replace(_facts(5), conditions=conditions))
    # Version 3 is that of the new table: write, drop, creation.
    assert _codes(rejections) == [(index, "conflict") for index in range(4)]
    assert {r.winner for r in rejections} == {9}
    assert writes.of("t").version == 3


def test_who_drops_a_table_may_rest_on_what_it_read_of_it() -> None:
    """So a table is copied to another name and dropped, and no row of others is lost."""
    writes = LastWrites({}, 1_000)
    effects = Effects([], IdWindow(100, max_run=50), writes=writes)
    effects.apply(1, _facts(1, (_touch("t"),), ((0, T),)))
    copy = _facts(1, (_touch("t"), _touch("u")), ((0, U),), changes=DROP)
    for read, codes in ((0, [(0, "conflict")]), (1, [])):
        copy = replace(copy, conditions=((0, Condition(read_position=read, reads=("t",))),))
        copy = replace(copy, ids=(7_000_000 + read).to_bytes(16, "big"))
        rejections, _ = effects.apply(2 + read, copy)
        assert _codes(rejections) == codes
    assert set(effects.tables) == {"u"}
