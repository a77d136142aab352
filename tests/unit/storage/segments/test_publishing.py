"""From queue entries to segments, inline files and queue rows."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.storage_samples import (
    ORDERS,
    TemporaryStore,
    entries_of,
    ids_of,
    inline_block,
    parquet_bytes,
    run_of,
    staged_of,
    stored_of,
)

from sparktxlog.codec.containers.assembly import uuid_texts
from sparktxlog.codec.partitions import partition_texts
from sparktxlog.errors import CorruptLogError, InvariantViolation, SchemaMismatchError
from sparktxlog.model.restore_point import RESTORE_POINTS
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import (
    IN_ROWS,
    OP_COLUMN,
    POSITION_COLUMN,
    Block,
    Mark,
    OperationKind,
)
from sparktxlog.protocol.messages.posts import Rejection, Verdict
from sparktxlog.storage.interfaces import AppendQueue, PutRun, StoredEntry, TableEffect
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.log_tables.log_schemas import SYNCHRONIZED_QUEUE
from sparktxlog.storage.log_tables.queue_table import QueueTable
from sparktxlog.storage.payloads.local_store import LocalPayloadStore
from sparktxlog.storage.segments.publishing import (
    build_segment,
    plan_segments,
    publish,
    restored_rows,
)

TABLES = {"orders": ORDERS}
NO = Rejection(index=1, code="schema-mismatch", text="column gone")


def orders(*ids: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "city": pa.array([f"city {i}" for i in ids]),
            "amount": pa.array([Decimal(i) for i in ids], pa.decimal128(10, 2)),
        }
    )


def append_run(seq: int, n: int, **options: Any) -> PutRun:
    """A run of n transactions of one appended row each; the row's id is the sequence number."""
    block, section = inline_block(
        "orders", OperationKind.APPEND, orders(*range(seq, seq + n)), 0, tx=range(n)
    )
    return run_of(seq=seq, n=n, blocks=[block], sections=[section], **options)


def read(store: LocalPayloadStore, path: str) -> pa.Table:
    return pq.read_table(store.path(path))


def test_segments_end_at_the_first_run_end_at_or_after_a_boundary() -> None:
    lengths = [4, 6, 3, 9, 25, 1, 2]
    runs, seq = [], 1
    for n in lengths:
        runs.append(run_of(seq=seq, n=n))
        seq += n
    pieces = plan_segments(stored_of(runs), 10)
    ends = [(piece[0].entry.position, piece[-1].entry.end) for piece in pieces]
    # 10 is a run end itself; 20 lies in the run 14…22, 30 and 40 in 23…47; 50 is the last end.
    assert ends == [(1, 10), (11, 22), (23, 47), (48, 50)]
    assert plan_segments([], 10) == []


def test_a_segment_ends_at_a_restore_point() -> None:
    made = Block(
        table=RESTORE_POINTS,
        kind=OperationKind.ALTER_TABLE,
        txs=(0,),
        change=TableChange(properties=(("point.p", "{}"),)),
    )
    runs = [append_run(1, 2), run_of(seq=3, n=1, blocks=[made]), append_run(4, 2)]
    pieces = plan_segments(stored_of(runs), 100)
    assert [piece[-1].entry.end for piece in pieces] == [3, 5]


def test_a_segments_epoch_is_that_of_its_last_run() -> None:
    """So it is a function of the position, the same at every site, and never falls (P30)."""
    runs, seqs = [], {"a": 0, "b": 0}
    for i, epoch in enumerate([1, 1, 2, 2, 2, 4, 4, 5]):
        origin = "ab"[i % 2]
        runs.append(append_run(seqs[origin] + 1, 2, origin=origin, ts=10 + i, epoch=epoch))
        seqs[origin] += 2
    entries = stored_of(runs)
    epoch_at = {item.entry.end: item.entry.header.epoch for item in entries}
    # Sites cut the same queue in different places, as their publishes come.
    for cuts in ([8], [1, 3, 8], [2, 5, 6, 8], range(1, 9)):
        found, start = [], 0
        for end in cuts:
            for piece in plan_segments(entries[start:end], 5):
                segment, rows = build_segment(piece, TABLES, TemporaryStore())
                found.append(segment)
                wanted = [e for item in piece for e in [item.entry.header.epoch] * 2]
                assert rows.column("epoch").to_pylist() == wanted
            start = end
        assert [segment.epoch for segment in found] == [epoch_at[s.last] for s in found]
        assert sorted(segment.epoch for segment in found) == [s.epoch for s in found]
        assert all(a.to_hash == b.from_hash for a, b in pairwise(found))


def test_planning_again_from_a_segment_end_gives_the_same_cuts() -> None:
    runs = [run_of(seq=1 + 7 * i, n=7) for i in range(30)]
    entries = stored_of(runs)
    whole = [piece[-1].entry.end for piece in plan_segments(entries, 20)]
    rest = [piece[-1].entry.end for piece in plan_segments(entries[6:], 20)]
    assert [end for end in whole if end > 42] == rest


def test_appended_rows_of_many_runs_become_one_file() -> None:
    store = TemporaryStore()
    entries = stored_of([append_run(1, 3), append_run(4, 2)])
    segment, rows = build_segment(entries, TABLES, store)
    (effect,) = segment.effects
    assert (segment.first, segment.last, segment.transactions) == (1, 5, 5)
    assert segment.from_hash == "00" * 32
    assert segment.to_hash == entries[-1].entry.chain_hash.hex()
    assert (effect.table, effect.kind, effect.first, effect.last) == ("orders", "append", 1, 5)
    assert effect.inline
    (file,) = effect.files
    assert file.path == "inline/1-5/orders-append.parquet"
    store.verify(file)
    written = read(store, file.path)
    assert written.column_names == ["id", "city", "amount", POSITION_COLUMN, OP_COLUMN]
    assert written.column("id").to_pylist() == [1, 2, 3, 4, 5]
    assert written.column(POSITION_COLUMN).to_pylist() == [1, 2, 3, 4, 5]
    assert written.schema.field("amount").type == pa.decimal128(10, 2)
    stats = json.loads(file.stats)
    assert stats["numRecords"] == 5
    assert stats["minValues"]["id"] == 1
    assert not {POSITION_COLUMN, OP_COLUMN} & set(stats["minValues"])
    assert rows.column("inline").to_pylist() == [[file.path]] * 5


def test_queue_rows_say_everything_about_a_transaction() -> None:
    runs = [append_run(1, 2), run_of(origin="b", seq=1, n=1, blocks=[_where()])]
    entries = stored_of(runs, rejections={0: (NO,)})
    _, rows = build_segment(entries, TABLES, TemporaryStore())
    assert rows.schema.equals(SYNCHRONIZED_QUEUE)
    rows.validate(full=True)
    first, second, third = rows.to_pylist()
    ids = ids_of(1 + 1_000_000 * ord("a"), 2)
    assert first == {
        "position": 1,
        "run_seq": 1,
        "run_n": 2,
        "epoch": 1,
        "timestamp": 10,
        "origin": "a",
        "incarnation": 1,
        "sequence": 1,
        "transaction_id": str(uuid.UUID(bytes=ids[:16])),
        "outcome": "committed",
        "reason": None,
        "operations": [
            {
                "op": 0,
                "table": "orders",
                "kind": "append",
                "rows": 1,
                "bytes": first["operations"][0]["bytes"],
                "files": None,
                "predicate": None,
            }
        ],
        "inline": ["inline/1-3/orders-append.parquet"],
        "digest": runs[0].header.digest.hex(),
        "chain_hash": entries[0].entry.chain_hash.hex(),
        "submitted_at": datetime(2023, 11, 14, 22, 13, 20, 1, UTC),
        "ordered_at": datetime(2023, 11, 14, 22, 13, 21, tzinfo=UTC),
    }
    assert (second["position"], second["sequence"], second["outcome"]) == (2, 2, "rejected")
    assert second["reason"] == "schema-mismatch: column gone"
    assert second["inline"] is None
    assert second["operations"][0]["rows"] == 1
    assert (third["origin"], third["run_seq"], third["inline"]) == ("b", 1, None)
    assert third["operations"][0]["predicate"] == "id > 3"
    assert third["operations"][0]["rows"] is None


def _where() -> Block:
    return Block(table="orders", kind=OperationKind.DELETE_WHERE, txs=(0,), predicate="id > 3")


def test_rejected_transactions_leave_no_rows() -> None:
    store = TemporaryStore()
    refused = tuple(Rejection(index=i, code="x", text="y") for i in (0, 2))
    entries = stored_of([append_run(1, 4), append_run(5, 2)], rejections={0: refused})
    segment, rows = build_segment(entries, TABLES, store)
    (effect,) = segment.effects
    assert read(store, effect.files[0].path).column("id").to_pylist() == [2, 4, 5, 6]
    assert (effect.first, effect.last, segment.rejected) == (2, 6, 2)
    assert rows.column("outcome").to_pylist().count("rejected") == 2


def test_a_segment_of_rejected_transactions_has_no_effect() -> None:
    store = TemporaryStore()
    refused = tuple(Rejection(index=i, code="unknown-table", text="y") for i in range(2))
    entries = stored_of([append_run(1, 2)], rejections={0: refused})
    segment, rows = build_segment(entries, {}, store)
    assert segment.effects == ()
    assert rows.num_rows == 2
    with pytest.raises(CorruptLogError, match="has no table"):
        build_segment(stored_of([append_run(1, 2)]), {}, store)


def test_rejected_rows_need_not_fit_the_table() -> None:
    """Two sites create a table of one name, with rows: those of the one that is later lose."""
    other = pa.table({"number": pa.array([7], pa.int64())})
    block, section = inline_block("orders", OperationKind.APPEND, other, 0, tx=[0])
    lost = run_of(origin="b", seq=1, blocks=[block], sections=[section])
    refused = (Rejection(index=0, code="schema-mismatch", text="y"),)
    for runs, at in (([append_run(1, 2), lost], 1), ([lost], 0)):
        segment, rows = build_segment(
            stored_of(runs, rejections={at: refused}), TABLES, TemporaryStore()
        )
        assert [effect.last for effect in segment.effects] == [2][:at]
        assert rows.column("outcome").to_pylist()[-1] == "rejected"


def test_blocks_become_effects_in_queue_order() -> None:
    file = staged_of("0a/orders/p.parquet", parquet_bytes(), rows=3)
    claim = TableSignature(rows=3, lane0=1, lane1=2)
    staged = Block(
        table="orders", kind=OperationKind.OVERWRITE, txs=(0,), op=1, files=(file,), claim=claim
    )
    create = Block(table="orders", kind=OperationKind.CREATE_TABLE, txs=(0,), definition=ORDERS)
    keys, section = inline_block(
        "orders", OperationKind.DELETE_KEYS, orders(7, 8).select(["id"]), 0, tx=[0, 0], op=[0, 1]
    )
    runs = [
        run_of(seq=1, blocks=[staged, create]),
        run_of(seq=2, blocks=[keys], sections=[section]),
        run_of(seq=3, blocks=[_where()]),
        run_of(seq=4, blocks=[_where()]),
    ]
    refused = {3: (Rejection(index=0, code="x", text="y"),)}
    store = TemporaryStore()
    segment, rows = build_segment(stored_of(runs, rejections=refused), TABLES, store)
    assert [(e.kind, e.first, e.op) for e in segment.effects] == [
        ("create_table", 1, 0),
        ("overwrite", 1, 1),
        ("delete_keys", 2, 0),
        ("delete_where", 3, 0),
    ]
    assert segment.effects[0].definition == ORDERS
    assert segment.effects[1].files == (file,)
    assert segment.effects[1].claim == claim.to_text()
    assert not segment.effects[1].inline
    deleted = read(store, segment.effects[2].files[0].path)
    assert deleted.column_names == ["id", POSITION_COLUMN, OP_COLUMN]
    operations = rows.column("operations").to_pylist()
    assert [o["kind"] for o in operations[0]] == ["create_table", "overwrite"]
    assert operations[0][1]["files"] == [file.path]
    assert operations[0][1]["bytes"] == file.size_bytes
    assert [(o["op"], o["rows"]) for o in operations[1]] == [(0, 1), (1, 1)]


def test_staged_files_of_many_transactions_have_one_effect() -> None:
    """P41: what was rejected is named; whose rows are where, only the files say."""
    claim = TableSignature(rows=3, lane0=5, lane1=6)
    file = staged_of("x/orders/rows.parquet", parquet_bytes(orders(1, 2, 3)))
    all_of_it = Block(
        table="orders", kind=OperationKind.APPEND, op=IN_ROWS, files=(file,), claim=claim
    )
    some = replace(all_of_it, txs=(1, 2), claim=None)
    runs = [append_run(1, 4)]
    for seq, block in ((5, all_of_it), (8, all_of_it), (11, some), (14, all_of_it)):
        runs.append(run_of(seq=seq, n=3, blocks=[block]))
    refused = {
        2: (replace(NO, index=0),),
        3: (NO, replace(NO, index=2)),
        4: tuple(replace(NO, index=index) for index in range(3)),
    }
    segment, rows = build_segment(stored_of(runs, rejections=refused), TABLES, TemporaryStore())
    _, whole, part = segment.effects
    assert (whole.first, whole.last, whole.run, whole.left_out) == (5, 7, 5, ())
    assert whole.files == (file,) and whole.claim == claim.to_text() and whole.says_places
    assert (part.first, part.last, part.run, part.left_out, part.claim) == (9, 10, 8, (8,), "")
    operations = rows.column("operations").to_pylist()
    assert [len(one) for one in operations] == [1] * 10 + [0, 1, 1, 1, 1, 1]
    assert operations[4][0]["files"] == [file.path] and operations[4][0]["rows"] is None


def test_rows_are_sorted_by_position_and_operation_and_stay_in_order() -> None:
    block, section = inline_block(
        "orders",
        OperationKind.UPSERT,
        orders(1, 2, 3, 4, 5),
        0,
        tx=[1, 0, 1, 0, 1],
        op=[0, 3, 0, 1, 2],
    )
    store = TemporaryStore()
    segment, rows = build_segment(
        stored_of([run_of(seq=1, n=2, blocks=[block], sections=[section])]), TABLES, store
    )
    written = read(store, segment.effects[0].files[0].path)
    assert written.column("id").to_pylist() == [4, 2, 1, 3, 5]
    assert written.column(OP_COLUMN).to_pylist() == [1, 3, 0, 0, 2]
    counts = [[(o["op"], o["rows"]) for o in ops] for ops in rows.column("operations").to_pylist()]
    assert counts == [[(1, 1), (3, 1)], [(0, 2), (2, 1)]]


def test_claims_add_up_unless_one_is_missing_or_covers_rejected_rows() -> None:
    def claimed(seq: int, claim: TableSignature | None) -> PutRun:
        block, section = inline_block(
            "orders", OperationKind.APPEND, orders(seq, seq + 1), 0, tx=[0, 1], claim=claim
        )
        return run_of(seq=seq, n=2, blocks=[block], sections=[section])

    def claim_of(runs: list[PutRun], **options: Any) -> str:
        segment, _ = build_segment(stored_of(runs, **options), TABLES, TemporaryStore())
        return segment.effects[0].claim

    one = TableSignature(rows=2, lane0=5, lane1=(1 << 64) - 1)
    assert claim_of([claimed(1, one), claimed(3, one)]) == (one + one).to_text()
    assert claim_of([claimed(1, one), claimed(3, None)]) == ""
    assert claim_of([claimed(1, one)], rejections={0: (NO,)}) == ""


def test_added_rows_of_a_partitioned_table_are_split() -> None:
    definition = TableDefinition(
        name="orders", columns=ORDERS.columns, keys=("id",), partition_by=("city", "amount")
    )
    table = pa.table(
        {
            "id": pa.array([1, 2, 3, 4], pa.int64()),
            "city": ["b", None, "b", ""],
            "amount": pa.array([Decimal(1), None, Decimal(1), Decimal(2)], pa.decimal128(10, 2)),
        }
    )
    blocks, sections = [], []
    for index, kind in enumerate((OperationKind.APPEND, OperationKind.UPSERT)):
        block, section = inline_block("orders", kind, table, index, tx=[0, 1, 2, 3], op=[index] * 4)
        blocks.append(block)
        sections.append(section)
    store = TemporaryStore()
    run = run_of(seq=1, n=4, blocks=blocks, sections=sections)
    segment, rows = build_segment(stored_of([run]), {"orders": definition}, store)
    append, upsert = segment.effects
    assert [file.partition for file in append.files] == [
        {"city": "b", "amount": "1.00"},
        {"city": None, "amount": None},
        {"city": None, "amount": "2.00"},
    ]
    contents = [read(store, file.path) for file in append.files]
    assert [c.column("id").to_pylist() for c in contents] == [[1, 3], [2], [4]]
    assert contents[0].column_names == ["id", POSITION_COLUMN, OP_COLUMN]
    assert contents[0].column(POSITION_COLUMN).to_pylist() == [1, 3]
    assert [file.partition for file in upsert.files] == [None]
    assert "city" in read(store, upsert.files[0].path).column_names
    paths = rows.column("inline").to_pylist()
    assert paths[0] == [append.files[0].path, upsert.files[0].path]
    assert paths[1] == [append.files[1].path, upsert.files[0].path]


@pytest.mark.parametrize(
    ("values", "kind", "texts"),
    [
        ([1, None, -5], pa.int64(), ["1", None, "-5"]),
        ([True, False], pa.bool_(), ["true", "false"]),
        ([date(2024, 2, 29)], pa.date32(), ["2024-02-29"]),
        (["a b", ""], pa.string(), ["a b", None]),
        ([Decimal("1E+3"), Decimal("0.10")], pa.decimal128(9, 2), ["1000.00", "0.10"]),
        ([1.5, float("nan"), float("-inf")], pa.float64(), ["1.5", "NaN", "-Infinity"]),
        ([1], pa.timestamp("us", tz="UTC"), ["1970-01-01T00:00:00.000001Z"]),
        ([1_500_000], pa.timestamp("us"), ["1970-01-01 00:00:01.500000"]),
    ],
)
def test_partition_values_have_deltas_text_form(
    values: list[Any], kind: pa.DataType, texts: list[str | None]
) -> None:
    assert partition_texts(pa.chunked_array([pa.array(values, kind)])).to_pylist() == texts


def test_a_table_cannot_be_partitioned_by_bytes() -> None:
    with pytest.raises(SchemaMismatchError):
        partition_texts(pa.chunked_array([pa.array([b"x"])]))


def test_senders_may_use_other_arrow_forms() -> None:
    rows = pa.table(
        {
            "amount": pa.array([Decimal(1)], pa.decimal128(10, 2)),
            "id": pa.array([9], pa.int64()),
            "city": pa.array(["x"], pa.large_string()),
        }
    )
    block, section = inline_block("orders", OperationKind.APPEND, rows, 0, tx=[0])
    store = TemporaryStore()
    run = run_of(seq=2, blocks=[block], sections=[section])
    segment, _ = build_segment(stored_of([append_run(1, 1), run]), TABLES, store)
    assert read(store, segment.effects[0].files[0].path).column("id").to_pylist() == [1, 9]


def test_damaged_payloads_are_named() -> None:
    gone = [StoredEntry(entry=e, ids=ids_of(0, 1), ordered_at=1) for e in _one_entry()]
    with pytest.raises(CorruptLogError, match="position 1"):
        build_segment(gone, TABLES, TemporaryStore())
    block, section = inline_block("orders", OperationKind.APPEND, orders(1), 0, tx=[0])
    torn = run_of(seq=1, blocks=[block], sections=[section[:50]])
    with pytest.raises(CorruptLogError, match="orders"):
        build_segment(stored_of([torn]), TABLES, TemporaryStore())
    shared = Block(table="orders", kind=OperationKind.DELETE_WHERE, predicate="id = 1")
    with pytest.raises(InvariantViolation):
        build_segment(stored_of([run_of(seq=1, blocks=[shared])]), TABLES, TemporaryStore())


def _one_entry() -> Any:
    return entries_of([run_of(seq=1)])


def test_uuid_texts() -> None:
    ids = ids_of(5, 100)
    expected = [str(uuid.UUID(bytes=ids[16 * i : 16 * i + 16])) for i in range(100)]
    assert uuid_texts(ids).to_pylist() == expected
    assert uuid_texts(b"").to_pylist() == []


def test_restored_rows_know_what_the_queue_knows() -> None:
    entries = stored_of([append_run(1, 2)], rejections={0: (NO,)})
    rows = restored_rows(entries).to_pylist()
    assert [row["outcome"] for row in rows] == ["committed", "rejected"]
    assert [row["operations"] for row in rows] == [None, None]
    assert rows[0]["submitted_at"] is None
    assert rows[1]["sequence"] == 2


def test_publishing_again_after_a_kill_adds_nothing_twice(tmp_path: Path) -> None:
    store = LocalPayloadStore(tmp_path / "payloads")
    queue = QueueTable(tmp_path / "log", "log_id")
    entries = stored_of([append_run(1 + 4 * i, 4) for i in range(6)])

    def call(table: QueueTable, upto: int) -> list[Any]:
        return publish(
            entries[:upto], signature_interval=10, tables=TABLES, payloads=store, queue=table
        )

    first = call(queue, 4)
    assert [mark.position for mark in first] == [12, 16]
    assert {mark.version for mark in first} == {1}
    for mark in first:
        for effect in mark.segment.effects:
            for file in effect.files:
                store.verify(file)
    # Killed before the journal heard of it; meanwhile more was ordered.
    again = call(QueueTable(tmp_path / "log", "log_id"), 6)
    assert [mark.segment for mark in again[:2]] == [mark.segment for mark in first]
    assert [mark.position for mark in again] == [12, 16, 20, 24]
    rows = pa.concat_tables(
        [pq.read_table(path) for path in sorted((tmp_path / "log").rglob("part-*.parquet"))]
    )
    assert rows.column("position").to_pylist() == list(range(1, 25))
    named = {path for paths in rows.column("inline").to_pylist() for path in paths}
    assert named == {f.path for m in again for e in m.segment.effects for f in e.files}
    assert publish([], signature_interval=10, tables={}, payloads=store, queue=queue) == []


def creating_run(seq: int, *tables: TableDefinition) -> PutRun:
    """A run of one transaction per table, each of which creates it."""
    blocks = [
        Block(table=made.name, kind=OperationKind.CREATE_TABLE, txs=(index,), definition=made)
        for index, made in enumerate(tables)
    ]
    return run_of(seq=seq, n=len(tables), blocks=blocks)


def test_to_create_a_table_again_is_no_effect_of_a_segment(tmp_path: Path) -> None:
    """Protocol P25b: within a run, within a segment, and in a later one."""
    runs = [creating_run(1, ORDERS, ORDERS), creating_run(3, ORDERS), creating_run(4, ORDERS)]
    journal = Journal(tmp_path)
    journal.write(runs)
    journal.write([AppendQueue(entries=entries_of(runs), ordered_at=1, tables=((1, ORDERS),))])
    entries = journal.read_queue(0, 10, payloads=True)
    store = TemporaryStore()
    found = [
        build_segment(part, TABLES, store, journal.read_created)
        for part in (entries[:2], entries[2:])
    ]
    journal.close()
    assert [len(segment.effects) for segment, _ in found] == [1, 0]
    assert found[0][0].effects[0].first == 1
    # The table came into being there with another schema version: one of its name was dropped.
    again = replace(ORDERS, schema_version=3, first_version=3)
    for tables, count in (((1, again),), 1), ((), 0):

        def created(first: int, last: int, made: Any = tables) -> dict[tuple[int, str], Any]:
            return {(at, one.name): one for at, one in made}

        segment, _ = build_segment(entries[:1], {"orders": again}, store, created)
        assert len(segment.effects) == count
        for one in segment.effects:
            assert (one.definition, one.schema_version) == (again, 3)
    # The queue tells what was committed, with effect or without.
    operations = [rows.column("operations").to_pylist() for _, rows in found]
    assert all(len(one) == 1 for listed in operations for one in listed)


def prepared(seq: int, *ids: int) -> PutRun:
    """A prepared transaction that appends inline rows, and deletes others."""
    inline, section = inline_block(
        "orders", OperationKind.APPEND, orders(*ids), 0, tx=[0] * len(ids), op=[1] * len(ids)
    )
    delete = Block(table="orders", kind=OperationKind.DELETE_WHERE, txs=(0,), predicate="id < 0")
    return run_of(
        seq=seq,
        ids=b"x" * 16,
        blocks=[delete, inline],
        sections=[section],
        participants=("p",),
        valid_until=((0, 9),),
    )


def marked(verdict: Rejection | None) -> tuple[list[StoredEntry], PutRun]:
    """A prepared transaction at 1, rows of others at 2 … 4, and marks at 5 … 7; 6 decides."""
    held = prepared(1, 70, 71)
    yes = Mark(transaction_id=b"x" * 16, participant="p", yes=True)
    runs = [held, append_run(2, 3), run_of(seq=5, n=3, marks=((1, yes),))]
    waits = Rejection(index=0, code="prepared", text="it takes effect where 'p' says YES")
    first, second, third = stored_of(runs, rejections={0: (waits,)})
    decided = Verdict(transaction_id=b"x" * 16, position=1, index=1, rejection=verdict)
    third = replace(third, entry=replace(third.entry, verdicts=(decided,)))
    return [first, second, third], held


def test_what_was_prepared_takes_effect_in_the_place_of_the_mark_that_decides() -> None:
    entries, held = marked(None)
    for pieces in ([entries], [entries[:1], entries[1:]], [entries[:2], entries[2:]]):
        store, rows = TemporaryStore(), list[dict[str, Any]]()
        effects: list[TableEffect] = []
        for piece in pieces:
            segment, table = build_segment(
                piece, TABLES, store, prepared={b"x" * 16: held.payload}.get
            )
            effects += segment.effects
            rows += table.to_pylist()
        assert [row["outcome"] for row in rows] == ["prepared", *["committed"] * 6]
        assert [op["kind"] for op in rows[5]["operations"]] == ["delete_where", "append"]
        (delete,) = [effect for effect in effects if effect.kind == "delete_where"]
        assert (delete.first, delete.predicate) == (6, "id < 0")
        found = [
            (row[POSITION_COLUMN], row["id"])
            for effect in effects
            if effect.inline
            for row in read(store, effect.files[0].path).to_pylist()
        ]
        assert found == [(2, 2), (3, 3), (4, 4), (6, 70), (6, 71)]


def test_what_is_rejected_in_the_end_leaves_no_rows() -> None:
    entries, held = marked(Rejection(index=1, code="conflict", text="no"))
    segment, rows = build_segment(entries, TABLES, TemporaryStore(), prepared=lambda _: None)
    assert [(effect.first, effect.last) for effect in segment.effects] == [(2, 4)]
    assert rows.column("outcome").to_pylist()[0] == "prepared"
    assert held.payload


def test_a_decision_without_its_container_is_damage() -> None:
    entries, _ = marked(None)
    with pytest.raises(CorruptLogError, match="prepared at position 1 is missing"):
        build_segment(entries, TABLES, TemporaryStore(), prepared=lambda _: None)
