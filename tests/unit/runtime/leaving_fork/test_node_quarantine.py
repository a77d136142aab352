"""A stopped node leaves its fork: what is kept, and kills between any two steps (P28)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.parted_queues import LOG, Node, OtherNode, append_run, rows_of
from tests.support.storage_samples import (
    ORDERS,
    entries_of,
    ids_in,
    inline_block,
    parquet_bytes,
    run_of,
    staged_of,
)

from sparktxlog.attic.attic import Attic, Kind
from sparktxlog.codec.arrow import arrow_schema
from sparktxlog.errors import (
    ConfigError,
    LocalProtocolError,
)
from sparktxlog.model.tables.commit_table import (
    CommitKind,
    CommitOperation,
    commit_file_name,
    commit_file_prefix,
)
from sparktxlog.model.transactions.marks import Undecided
from sparktxlog.model.transactions.operation import Block, Mark, OperationKind
from sparktxlog.protocol.messages.posts import Rejection, Verdict
from sparktxlog.runtime.leaving_fork import giving_up
from sparktxlog.runtime.leaving_fork import node_quarantine as acting
from sparktxlog.runtime.leaving_fork.node_quarantine import quarantine_node
from sparktxlog.runtime.membership.join_orders import JoinOrder, join_order
from sparktxlog.storage.commit_tables.table_places import TablePlaces
from sparktxlog.storage.interfaces import (
    AppendQueue,
    ExpireLog,
    ForgetPayloads,
    PutAnnouncement,
    PutReservation,
    PutRun,
)
from sparktxlog.storage.journal import journal as journal_module
from sparktxlog.storage.journal.journal import Journal
from sparktxlog.storage.log_tables.quarantine_table import Quarantine
from sparktxlog.storage.log_tables.queue_table import QUEUE_NAME, QueueTable


def test_everything_behind_the_last_common_position_is_kept(node: Node, other: OtherNode) -> None:
    lost = [append_run(4, 2), append_run(6)]
    node.order(lost, rejections={0: (Rejection(index=1, code="unknown-table", text="gone"),)})
    waits = append_run(7, ts=90)
    foreign = append_run(7, 2, origin="C", ts=80)
    announced = append_run(1_000)
    node.write(
        waits,
        foreign,
        PutAnnouncement(ticket=1, digest=announced.header.digest, payload=announced.payload),
    )
    other.hold(lost[0])
    told: list[str] = []
    done = quarantine_node(node.config, other, told.append)
    assert (done.common, done.exact, done.followed, done.has_place) == (6, True, "A", True)
    assert (done.ordered, done.accepted, done.acquired) == (3, 2, 2)
    assert (done.surviving, done.incomplete, done.pruned) == (2, 0, 0)
    assert (done.log_id, done.incarnation) == ("forced", 2)
    assert told[-2:] == ["kept 7 of 7 transactions", "setting the journal aside"]
    rows = node.kept()
    assert [row["position"] for row in rows] == [7, 8, 9, 10, 11, 12, 13]
    assert [row["why"] for row in rows] == [
        *["ordered"] * 3,
        "acquired",
        "acquired",
        "accepted",
        "accepted",
    ]
    assert [row["outcome"] for row in rows] == ["committed", "rejected", "committed", *[None] * 4]
    assert [row["sequence"] for row in rows] == [4, 5, 6, 7, 8, 7, None]
    assert [row["survives"] for row in rows] == [True, True, *[False] * 5]
    # What was rejected has no rows; all others have theirs.
    assert [rows_of(row) for row in rows] == [[4], [], [6], [7], [8], [7], [1_000]]
    assert rows_of(rows[0], "amount") == [Decimal(4)]
    assert [row["transaction_id"] for row in rows[:2]] == [
        str(uuid.UUID(bytes=ids_in(lost[0])[16 * i : 16 * i + 16])) for i in (0, 1)
    ]
    assert {row["log_id"] for row in rows} == {LOG}
    assert {row["quarantine_id"] for row in rows} == {done.quarantine_id}
    assert rows[0]["chain_hash"] == node.entries[3].chain_hash.hex()
    assert rows[3]["chain_hash"] is None
    assert rows[-1]["epoch"] is None
    assert rows[0]["operations"][0] | {"bytes": 0} == {
        "op": 0,
        "table": "orders",
        "kind": "append",
        "rows": 1,
        "bytes": 0,
        "files": None,
        "predicate": None,
    }


def test_the_node_starts_as_one_that_joins(node: Node, other: OtherNode) -> None:
    node.order([append_run(4)])
    node.publish()
    (node.data_dir / "earlier").mkdir()
    attic = Attic.of_node(node.data_dir)
    attic.put(node.data_dir / "earlier", kind=Kind.QUEUE, mark="1", why="a summary")
    done = quarantine_node(node.config, other)
    fresh = Journal(node.data_dir)
    state = fresh.load(1_000)
    fresh.close()
    assert (state.core.base.position, state.core.view, "instance" in state.values) == (
        0,
        None,
        False,
    )
    assert join_order(state.values) == JoinOrder(log_id="forced", incarnation=2, log=LOG)
    # Nothing was deleted: the old journal still has the queue, its table and older ones are beside.
    old = Journal(done.directory)
    assert old.load(1_000).core.base.position == 7
    assert old.read_payload("B", 1, 4) == append_run(4).payload
    old.close()
    assert QueueTable(done.directory, LOG).position == 7
    assert (done.directory / "queue-1" / "content").is_dir()
    (kept,) = attic.entries()
    assert (kept.kind, kept.path, kept.at > 0) == (Kind.FORK, done.directory, True)
    assert not (node.data_dir / "log" / "synchronized_queue").exists()
    with pytest.raises(LocalProtocolError, match="has nothing"):
        quarantine_node(node.config, other)


def test_a_node_that_promised_too_much_joins_anew(node: Node, other: OtherNode) -> None:
    """Its queue is the beginning of the other's, and nobody can use its timestamps (C3)."""
    year_ahead = 1 << 51
    waits = append_run(7, ts=year_ahead)
    node.write(waits, PutReservation(counter=year_ahead + 1_000_000))
    with pytest.raises(LocalProtocolError, match="nothing to quarantine") as caught:
        quarantine_node(node.config, other)
    assert "--rejoin" in str(caught.value)
    done = quarantine_node(node.config, other, rejoin=True)
    assert (done.common, done.ordered, done.accepted, done.incarnation) == (6, 0, 1, 2)
    assert [row["sequence"] for row in node.kept()] == [7]
    state = Journal(node.data_dir).load(1_000)
    assert (state.core.reserved, list(state.core.incoming)) == (0, [])
    assert join_order(state.values) == JoinOrder(log_id="forced", incarnation=2, log=LOG)


def test_a_node_that_only_promised_joins_anew_too(node: Node, other: OtherNode) -> None:
    for journal in node.data_dir.glob("journal.sqlite*"):
        journal.unlink()
    with pytest.raises(LocalProtocolError, match="has nothing"):
        node.write(PutReservation(counter=0))
        quarantine_node(node.config, other, rejoin=True)
    node.write(PutReservation(counter=1 << 51))
    done = quarantine_node(node.config, other, rejoin=True)
    assert (done.ordered, done.accepted, done.acquired, done.incarnation) == (0, 0, 0, 2)


def staged_run(seq: int, path: str, content: bytes, **options: Any) -> PutRun:
    """A run of one transaction that appends a staged file."""
    file = staged_of(path, content, **options)
    table = "cities" if file.partition else "orders"
    return run_of(
        seq=seq,
        origin="B",
        blocks=[Block(table=table, kind=OperationKind.APPEND, txs=(0,), files=(file,))],
    )


def test_staged_files_stay_when_the_payload_store_forgets_them(
    node: Node, other: OtherNode
) -> None:
    content = parquet_bytes()
    for name in ("a", "b"):
        node.payloads.write_file(f"{name}/orders/1.parquet", content)
    node.order(
        [
            staged_run(4, "a/orders/1.parquet", content),
            staged_run(5, "b/orders/1.parquet", content, partition={"land": "NO"}),
            staged_run(6, "gone/orders/1.parquet", content),
        ]
    )
    done = quarantine_node(node.config, other)
    assert done.incomplete == 1
    rows = node.kept()
    for row in rows[:2]:
        (name,) = row["operations"][0]["files"]
        Path(node.payloads.path(name)).unlink()
        assert (Path(row["files_root"]) / name).read_bytes() == content
    assert [row["remark"] for row in rows] == [
        None,
        None,
        "missing files: gone/orders/1.parquet",
    ]
    assert [row["partitions"] for row in rows] == [
        None,
        '{"b/orders/1.parquet":{"land":"NO"}}',
        None,
    ]


def test_commit_tables_of_the_abandoned_side_are_no_longer_shown(
    node: Node, other: OtherNode
) -> None:
    table = str(uuid.UUID(int=7))
    raw, identity = b"the commit", bytes(16)
    path = commit_file_prefix(identity, table) + commit_file_name(1)
    node.payloads.take_in({path: raw})
    operation = CommitOperation(kind=CommitKind.COMMIT, uuid=table, version=1, timestamp=5)
    file = staged_of(path, raw, rows=0)
    node.order(
        [run_of(seq=4, origin="B", ids=identity, commits=((0, operation),), commit_files=(file,))]
    )
    root = node.config.commit_table_dir
    placed = root / table / commit_file_name(1)
    placed.parent.mkdir(parents=True)
    placed.write_bytes(raw)
    (root / "notes").mkdir()
    places = TablePlaces(root)
    places.keep_commits(table, None)
    kept = Path(places.kept_commit(table, 1).path)
    assert kept.samefile(placed)
    done = quarantine_node(node.config, other)
    assert not (root / table).exists() and not kept.exists()
    aside = Attic.of_commit_tables(root).place(Kind.FORK, table, done.quarantine_id)
    assert (aside / commit_file_name(1)).read_bytes() == raw
    assert (root / "notes").is_dir(), "what is no table stays"
    (row,) = node.kept()
    assert row["remark"] is None
    Path(node.payloads.path(path)).unlink()
    assert (Path(row["files_root"]) / path).read_bytes() == raw


def test_the_tables_of_another_site_are_not_set_aside(
    node: Node, other: OtherNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OfAnother(TablePlaces):
        def take(self, owner: str) -> None:
            raise ConfigError(f"the prefix is not that of {owner}")

    node.order([append_run(4)])
    node.publish()
    monkeypatch.setattr(acting, "places_of", lambda config: OfAnother(config.commit_table_dir))
    with pytest.raises(ConfigError, match=f"not that of {node.config.cluster}/"):
        quarantine_node(node.config, other)
    assert (node.data_dir / "log" / QUEUE_NAME).exists(), "nothing was moved"
    monkeypatch.undo()
    assert quarantine_node(node.config, other).ordered == 1


def city_run(seq: int) -> PutRun:
    """A run that adds a row to a partitioned table."""
    rows = pa.table({"id": pa.array([seq], pa.int64()), "land": ["NO"]})
    block, section = inline_block("cities", OperationKind.APPEND, rows, 0, tx=[0])
    return run_of(seq=seq, origin="B", blocks=[block], sections=[section])


def test_rows_of_partitioned_tables_are_whole(node: Node, other: OtherNode) -> None:
    node.order([city_run(4)])
    quarantine_node(node.config, other)
    (row,) = node.kept()
    assert rows_of(row, "land") == ["NO"]
    assert row["partitions"] is None


def test_what_is_forgotten_is_taken_from_what_was_published(node: Node, other: OtherNode) -> None:
    created = replace(ORDERS, name="more")
    block = Block(table="more", kind=OperationKind.CREATE_TABLE, txs=(0,), definition=created)
    node.order([append_run(4, 2), city_run(6), run_of(seq=7, origin="B", blocks=[block])])
    node.publish()
    node.write(ForgetPayloads(position=10))
    node.order([append_run(8)])
    done = quarantine_node(node.config, other)
    rows = node.kept()
    assert [rows_of(row) for row in rows] == [[4], [5], [6], [], [8]]
    assert json.loads(rows[2]["partitions"]) == {rows[2]["inline"][0]: {"land": "NO"}}
    assert json.loads(rows[3]["creates"])[0]["name"] == "more"
    assert done.incomplete == 0


def test_what_is_nowhere_any_more_keeps_header_and_id(node: Node, other: OtherNode) -> None:
    node.order([append_run(4, 2)])
    node.publish()
    node.write(
        ForgetPayloads(position=8), ExpireLog(position=8, chain_hash=node.entries[-1].chain_hash)
    )
    (node.data_dir / "log" / "synchronized_queue").rename(node.data_dir / "elsewhere")
    done = quarantine_node(node.config, other)
    assert (done.ordered, done.incomplete) == (2, 2)
    rows = node.kept()
    assert [row["sequence"] for row in rows] == [4, 5]
    assert {row["remark"] for row in rows} == {
        "its payload is missing: only header and id are left"
    }
    assert [row["operations"] for row in rows] == [None, None]


def test_a_damaged_payload_costs_only_its_own_rows(node: Node, other: OtherNode) -> None:
    block, _ = inline_block(
        "orders", OperationKind.APPEND, pa.table({"id": pa.array([5], pa.int64())}), 0, tx=[0]
    )
    damaged = run_of(seq=5, origin="B", blocks=[block], sections=[b"no Arrow"])
    node.order([append_run(4), damaged, append_run(6)])
    done = quarantine_node(node.config, other)
    rows = node.kept()
    assert done.incomplete == 1
    assert [row["remark"] is None for row in rows] == [True, False, True]
    assert [rows_of(row) for row in rows] == [[4], [], [6]]


@pytest.mark.parametrize("published", [0, 1, 2])
def test_what_was_prepared_is_kept(node: Node, other: OtherNode, published: int) -> None:
    """P35: where it was decided, or where it stands if it is undecided.

    Args:
        published: 1 = the decision is; 2 = and the containers are forgotten.
    """
    names, held = (b"x" * 16, b"y" * 16), []
    for number, name in enumerate(names, start=4):
        rows = pa.table({"id": pa.array([number], pa.int64())})
        for column in ("city", "amount"):
            field = arrow_schema(ORDERS).field(column)
            rows = rows.append_column(field, pa.nulls(1, field.type))
        block, section = inline_block("orders", OperationKind.APPEND, rows, 0, tx=[0])
        said: dict[str, Any] = {"participants": ("p",), "valid_until": ((0, 9),), "ids": name}
        held.append(run_of(seq=number, origin="B", blocks=[block], sections=[section], **said))
    mark = Mark(transaction_id=names[0], participant="p", yes=True)
    runs = [*held, run_of(seq=6, origin="B", marks=((0, mark),))]
    waits = (Rejection(index=0, code="prepared", text="it takes effect later"),)
    last = node.entries[-1]
    entries = list(
        entries_of(runs, after=last.end, previous=last.chain_hash, rejections={0: waits, 1: waits})
    )
    verdict = Verdict(transaction_id=names[0], position=entries[0].position, index=0)
    entries[2] = replace(entries[2], verdicts=(verdict,))
    changes = [
        Undecided(transaction_id=name, position=at, participants=("p",), valid_until=9)
        for at, name in enumerate(names, start=entries[0].position)
    ]
    node.write(
        *runs,
        AppendQueue(
            entries=tuple(entries),
            ordered_at=1,
            undecided=(
                *((one.position, one.transaction_id, one) for one in changes),
                (entries[2].position, names[0], None),
            ),
        ),
    )
    node.entries.extend(entries)
    if published:
        node.publish()
    if published == 2:
        node.write(ForgetPayloads(position=entries[-1].end))
    done = quarantine_node(node.config, other)
    kept = node.kept()
    assert [row["outcome"] for row in kept] == ["prepared", "prepared", "committed"]
    assert [rows_of(row) for row in kept] == [[], [5], [4]]
    assert done.incomplete == 0


# -- kills -----------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ended here."""


def _patch(
    patch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool, times: int = 1
) -> None:
    """Kill at the n-th call of a function, before or after it did its work."""
    original: Callable[..., Any] = getattr(owner, name)
    left = [times]

    def killing(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0]:
            return original(*arguments, **options)
        if after:
            original(*arguments, **options)
        raise Killed

    patch.setattr(owner, name, killing)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("owner", "name", "times"),
    [
        (Quarantine, "append", 1),
        (Quarantine, "append", 2),
        (Quarantine, "incomplete", 1),
        (Path, "rename", 1),
        (acting, "keep_order", 1),
        (Journal, "replace_by", 1),
        (journal_module, "link_or_copy", 1),
        (Attic, "begin", 1),
        (Attic, "finish", 1),
        # Two manifests, a kept staged file and the kept journal take their names by `replace` too.
        (Path, "replace", 5),
    ],
)
def test_a_kill_between_any_two_steps_keeps_everything_once(
    node: Node,
    other: OtherNode,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    times: int,
    after: bool,
) -> None:
    monkeypatch.setattr(giving_up, "_PAGE_RUNS", 2)
    content = parquet_bytes()
    node.payloads.write_file("a/orders/1.parquet", content)
    node.order([append_run(4), append_run(5, 2), staged_run(7, "a/orders/1.parquet", content)])
    node.publish()
    node.write(append_run(8, ts=99))
    with monkeypatch.context() as patch:
        _patch(patch, owner, name, after=after, times=times)
        with pytest.raises(Killed):
            quarantine_node(node.config, other)
    gave_way = after and name in ("replace_by", "replace")
    if gave_way:
        with pytest.raises(LocalProtocolError, match="has nothing"):
            quarantine_node(node.config, other)
    else:
        done = quarantine_node(node.config, other)
        assert (done.ordered, done.accepted, done.incomplete) == (4, 1, 0)
    rows = node.kept()
    assert [row["position"] for row in rows] == [7, 8, 9, 10, 11]
    assert [rows_of(row) for row in rows] == [[4], [5], [6], [], [8]]
    assert len({row["quarantine_id"] for row in rows}) == 1
    (kept,) = Attic.of_node(node.data_dir).entries()
    old = Journal(kept.path)
    assert old.load(1_000).core.base.position == 10
    old.close()
