"""Where two queues part, what is pruned at either side, and who is not followed (P28)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.parted_queues import LOG, Node, OtherNode, append_run
from tests.support.storage_samples import (
    entries_of,
)

from sparktxlog.errors import (
    CorruptLogError,
    LocalProtocolError,
    LockedError,
    NotFoundError,
    RemoteProtocolError,
    StorageError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.view import Seat, View
from sparktxlog.runtime.leaving_fork.node_quarantine import GaveWay, quarantine_node
from sparktxlog.storage.interfaces import (
    ForgetPayloads,
    PutView,
)
from sparktxlog.storage.journal import journal as journal_module
from sparktxlog.storage.journal.journal import Journal

# -- where the queues part -------------------------------------------------------------------------


def test_few_questions_find_the_common_position_of_long_queues(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.order([append_run(1 + i) for i in range(700)])
    common = list(node.entries)
    node.order([append_run(701 + i) for i in range(300)])
    more = entries_of(
        [append_run(1 + i, origin="A") for i in range(200)],
        after=700,
        previous=common[-1].chain_hash,
    )
    other = OtherNode([*common, *more])
    planned = quarantine_node(node.config, other, dry_run=True)
    assert (planned.common, planned.ordered) == (700, 300)
    assert not planned.table.exists() and not planned.directory.exists()
    other.asked.clear()
    done = quarantine_node(node.config, other)
    assert replace(done, incomplete=0) == planned
    assert done.table.exists() and done.directory.exists()
    assert other.asked.count("/v1/queue") <= 12
    assert sum(path.startswith("/v1/transactions") for path in other.asked) <= 10


@pytest.mark.parametrize(
    ("kept_after", "begins_after", "common", "exact"),
    [
        (4, 0, 6, True),
        (6, 6, 6, True),
        # Behind 7 nothing is comparable: 0 is certain, and where its epoch began.
        (7, 0, 0, False),
        (7, 5, 5, False),
        (9, 6, 6, False),
    ],
)
def test_what_is_pruned_there_gives_the_best_bound(
    node: Node, other: OtherNode, kept_after: int, begins_after: int, common: int, exact: bool
) -> None:
    node.order([append_run(4), append_run(5)])
    other.kept_after = kept_after
    ends = {0: bytes(32)} | {entry.end: entry.chain_hash for entry in node.entries}
    other.begins_after = (begins_after, ends[begins_after])
    done = quarantine_node(node.config, other)
    assert (done.common, done.exact, done.pruned) == (common, exact, 0)
    assert [row["position"] for row in node.kept()] == list(range(common + 1, 9))


def test_what_is_pruned_here_is_said(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.config = replace(node.config, id_window=3)
    node.order([append_run(1 + i) for i in range(8)])
    node.publish()
    node.write(ForgetPayloads(position=8))
    done = quarantine_node(node.config, OtherNode([]))
    assert (done.common, done.ordered, done.pruned) == (0, 3, 5)
    assert [row["position"] for row in node.kept()] == [6, 7, 8]


def test_what_cannot_be_compared_at_all_is_given_up_by_who_asks_for_it(
    node: Node, other: OtherNode
) -> None:
    """A keeps nothing that B has: B would come back by a summary in any case."""
    other.kept_after = 8
    done = quarantine_node(node.config, other)
    assert (done.common, done.exact, done.ordered) == (0, False, 6)


def test_a_node_that_may_only_be_behind_is_not_followed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.config = replace(node.config, id_window=3)
    node.order([append_run(1 + i) for i in range(8)])
    node.publish()
    node.write(ForgetPayloads(position=8))
    # What B still keeps begins behind A's end, so nothing says that A has another queue.
    behind = OtherNode(
        node.entries[:4], changed={"log_id": LOG, "epoch": 1, "ancestors": []}, kept_after=2
    )
    refused(node, behind, LocalProtocolError, "A is behind, its queue ends at 4, the one here at 8")


# -- refusals --------------------------------------------------------------------------------------


def refused(node: Node, other: OtherNode, error: type[TxLogError], text: str) -> None:
    """Nothing may change, whatever the reason."""
    before = sorted(path for path in node.data_dir.rglob("*") if path.name != "lock")
    with pytest.raises(error, match=text) as caught:
        quarantine_node(node.config, other)
    assert caught.value.hint
    assert sorted(path for path in node.data_dir.rglob("*") if path.name != "lock") == before


def test_a_node_that_only_has_to_be_started_is_left_alone(node: Node, other: OtherNode) -> None:
    node.write(append_run(4, ts=90))
    refused(node, other, LocalProtocolError, "nothing to quarantine: the queue here ends at 6")
    # The other one is behind, in the same epoch of the same log.
    behind = OtherNode(node.entries[:2], changed={"log_id": LOG, "epoch": 1, "ancestors": []})
    refused(node, behind, LocalProtocolError, "A is behind, its queue ends at 5")


@pytest.mark.parametrize("waits", [True, False])
def test_a_fork_without_a_transaction_of_its_own_gives_way_too(
    node: Node, other: OtherNode, waits: bool
) -> None:
    forced = View(
        log_id="forced by B",
        epoch=2,
        roster=(Seat(node_id=NodeId("B")),),
        members=(NodeId("B"),),
        ancestors=((LOG, 1),),
    )
    node.write(PutView(view=forced, node_id=NodeId("B"), incarnation=1))
    if waits:
        node.write(append_run(4, epoch=2))
    done = quarantine_node(node.config, other)
    assert (done.ordered, done.accepted) == (0, int(waits))
    assert [row["log_id"] for row in node.kept()] == ["forced by B"] * waits


def test_a_shorter_queue_of_a_forced_log_id_is_another_one(node: Node) -> None:
    other = OtherNode(list(node.entries[:2]))
    done: GaveWay = quarantine_node(node.config, other)
    assert (done.common, done.ordered) == (5, 1)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"node_id": "B"}, "this node itself"),
        ({"phase": "JOINING"}, "A is JOINING"),
        ({"halted": "a contradiction"}, "it does not take part itself"),
    ],
)
def test_a_node_that_does_not_go_on_is_not_followed(
    node: Node, other: OtherNode, changed: dict[str, Any], text: str
) -> None:
    node.order([append_run(4)])
    other.changed = changed
    refused(node, other, LocalProtocolError, text)


def test_another_log_is_not_followed(node: Node, other: OtherNode) -> None:
    node.order([append_run(4)])
    node.config = replace(node.config, first_log_id="another log")
    refused(node, other, LocalProtocolError, "is of another log")


def test_an_answer_of_something_else_changes_nothing(
    node: Node, other: OtherNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.order([append_run(4)])
    other.changed = {"ancestors": None}
    refused(node, other, RemoteProtocolError, "does not answer like a node")

    def closed(path: str, **query: Any) -> Any:
        raise UnauthorizedError("the client token is wrong", hint="Set it.")

    monkeypatch.setattr(other, "get", closed)
    refused(node, other, UnauthorizedError, "token")


def test_a_running_node_and_a_missing_or_damaged_journal_are_refused(
    node: Node, other: OtherNode
) -> None:
    node.order([append_run(4)])
    running = Journal(node.data_dir)
    with pytest.raises(LockedError, match="in use by process"):
        quarantine_node(node.config, other)
    running.close()
    journal = node.data_dir / "journal.sqlite"
    journal.write_bytes(b"no database" * 100)
    refused(node, other, CorruptLogError, "damaged")
    journal.unlink()
    refused(node, other, NotFoundError, "no node ran there")
    witness = replace(node.config, roles=("witness",))
    with pytest.raises(LocalProtocolError, match="witness"):
        quarantine_node(witness, other)


def test_a_journal_that_another_program_holds_is_left_in_place(tmp_path: Path) -> None:
    for name in ("journal.sqlite", "journal.sqlite-wal", "next.sqlite"):
        (tmp_path / name).write_bytes(name.encode())
    with pytest.raises(StorageError, match="another program"):
        journal_module.swap_journal(
            tmp_path / "journal.sqlite", tmp_path / "next.sqlite", tmp_path / "kept.sqlite"
        )
    assert (tmp_path / "journal.sqlite").read_bytes() == b"journal.sqlite"
