"""The replica's own state: one owner, old or new after a crash, bounded history."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.segments import segment
from tests.support.worker_log import table

from sparktxlog.errors import (
    CorruptLogError,
    InvalidNameError,
    InvalidRequestError,
    LockedError,
)
from sparktxlog.model.signature import TableSignature
from sparktxlog.worker.apply.batches import plan_batch
from sparktxlog.worker.apply.cutting import Cut
from sparktxlog.worker.replica.state import (
    ReplicaDirectory,
    ReplicaState,
    ReplicaTable,
    read_state,
)

TABLE = ReplicaTable(
    definition=table("t", "id bigint, p decimal(3,1)", keys=["id"], partition_by=["p"]),
    version=7,
    signature=TableSignature(rows=2, lane0=2**64 - 1, lane1=3),
)


def test_a_state_is_read_back_and_keeps_its_id(tmp_path: Path) -> None:
    batch = plan_batch([segment(1, 4)], lambda _: pytest.fail("no rows"))
    with closing(ReplicaDirectory(tmp_path)) as directory:
        fresh = directory.load()
        begun = fresh.begin(batch, "l")
        directory.save(begun)
        assert directory.load() == begun and begun.pending is not None
        assert begun.position == 0 and begun.pending.last == 4
        done = begun.finish(batch, "l", {"t": TABLE})
        directory.save(done)
    with closing(ReplicaDirectory(tmp_path)) as directory:
        assert directory.load() == done
    assert done.position == 4 and done.pending is None and done.worker_id == fresh.worker_id
    assert done.tables["t"].to_report().signature == TABLE.signature


def test_a_cut_counts_until_a_batch_ends_at_the_next_one() -> None:
    batch = plan_batch([segment(1, 4)], lambda _: pytest.fail("no rows"))
    first, second = (Cut(position=at, chain_hash="h", epoch=1) for at in (2, 4))
    begun = ReplicaState(worker_id="w", position=2, cut=first)
    assert begun.finish(batch, "l", {}).cut == first
    assert begun.finish(batch, "l", {}, second).cut == second


def test_a_second_owner_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    first = ReplicaDirectory(tmp_path)
    with pytest.raises(LockedError, match=rf"another worker \(process {os.getpid()}\)"):
        ReplicaDirectory(tmp_path)
    (first.own / "lock").unlink()
    with pytest.raises(LockedError, match="another worker"):
        ReplicaDirectory(tmp_path)
    first.close()
    ReplicaDirectory(tmp_path).close()


def test_what_was_registered_is_released_in_reverse(tmp_path: Path) -> None:
    directory, released = ReplicaDirectory(tmp_path), list[int]()
    directory.on_close(lambda: released.append(1))
    directory.on_close(lambda: released.append(2))
    directory.close()
    directory.close()
    assert released == [2, 1]


def test_a_damaged_state_is_an_error_and_none_is_not(tmp_path: Path) -> None:
    assert read_state(tmp_path) is None
    with closing(ReplicaDirectory(tmp_path)) as directory:
        directory.load()
        (directory.own / "state.json").write_text('{"worker_id": 3')
        with pytest.raises(CorruptLogError, match="cannot be read"):
            directory.load()


def test_a_replica_keeps_its_name_and_its_set_of_tables() -> None:
    """They are remembered with the replica; what it lacks cannot come later."""
    fresh = ReplicaState(worker_id="w")
    assert (fresh.name, fresh.only) == ("main", ())
    made = fresh.named("reports", ["Bronze.*"], "/lake")
    assert (made.name, made.only, made.worker_id) == ("reports", ("bronze.*",), "w")
    assert made.named("other", ["gold.*"], "/lake").only == ("gold.*",), "nothing is applied yet"
    made = replace(made, node_id="A", position=10)
    assert made.named(None, [], "/lake") == made.named("reports", ["bronze.*"], "/lake") == made
    with pytest.raises(
        InvalidRequestError, match=r"holds bronze\.\*, and --tables says"
    ) as failure:
        made.named(None, ["bronze.*", "gold.*"], "/lake")
    assert failure.value.fields["field"] == "tables" and "--name" in str(failure.value.hint)
    whole = replace(fresh, node_id="A", position=10)
    with pytest.raises(InvalidRequestError, match="holds all tables"):
        whole.named(None, ["gold.*"], "/lake")
    with pytest.raises(InvalidRequestError, match=r"has the name 'reports'") as failure:
        made.named("other", [], "/lake")
    assert "--take-lake" in str(failure.value.hint)
    taken = made.named("other", [], "/lake", takes=True)
    assert (taken.name, taken.only) == ("other", ("bronze.*",)) and taken.worker_id != "w"
    assert made.named("reports", [], "/lake", takes=True) == made
    with pytest.raises(InvalidNameError):
        fresh.named("a/b", [], "/lake")
