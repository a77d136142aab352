"""Directed traces of runs of groups (protocol P41)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.verification.mutation.lone import SECOND_US, Lone, next_view, queued

from sparktxlog.model.tables.alteration import DROPPED
from sparktxlog.model.tables.groups import CopiesNeeded
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.tables.table_properties import SITES_OF_TABLE
from sparktxlog.model.transactions.operation import Touch
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import (
    Action,
    CheckUnstamped,
    PersistAnnouncement,
    PersistOwnRun,
    PersistWithdrawal,
    SendAnnouncement,
    TellRejected,
)
from sparktxlog.protocol.messages.events import FilesHeld, PostReceived
from sparktxlog.protocol.messages.view import View

_TABLE = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))


def _rejected(actions: list[Action]) -> list[str]:
    """Return the codes of what the appended runs reject."""
    entries = [entry for appended in queued(actions) for entry in appended.entries]
    return [one.code for entry in entries for one in entry.rejections]


def _group(*sites: str, copies: int = 1, name: str = "eu") -> CopiesNeeded:
    return CopiesNeeded(group=name, sites=sites, copies=copies, tables=("t",))


def _stamped(actions: list[Action]) -> list[int]:
    return [action.ticket for action in actions if isinstance(action, PersistOwnRun)]


def _refused(actions: list[Action]) -> list[tuple[int, str]]:
    """Return tickets and codes of what is refused, durably first."""
    gone = [run.ticket for a in actions if isinstance(a, PersistWithdrawal) for run in a.runs]
    told = [(a.ticket, a.code) for a in actions if isinstance(a, TellRejected)]
    assert gone == [ticket for ticket, _ in told]
    return told


def _holds(node: Lone, sender: str, *tickets: int, epoch: int = 1) -> list[Action]:
    """Let another member say which announced runs it holds the files of."""
    node.now += SECOND_US // 100
    held = tuple(sorted(node.submits[ticket].digest for ticket in tickets))
    post = replace(node.post_of(sender, node.now + SECOND_US), held=held, epoch=epoch)
    return node.feed(PostReceived(post=post))


def _decided(node: Lone, view: View) -> list[Action]:
    return node.hear(node.letter_of_decision("b", view))


def a_run_waits_for_the_sites_of_its_group(core: type[Master]) -> None:
    """P41: others that hold its files do not count, a quorum does not suffice, others go on."""
    node = Lone(core)
    actions = node.submit(staged_bytes=10, copies=(_group("b", "c", copies=2),))
    assert not _stamped(actions)
    assert [a.ticket for a in actions if isinstance(a, PersistAnnouncement)] == [1]
    assert {a.peer for a in actions if isinstance(a, SendAnnouncement)} == {"b", "c"}
    assert _stamped(node.submit()) == [2]
    assert not _stamped(_holds(node, "b", 1))
    assert _stamped(_holds(node, "c", 1)) == [1]


def the_origin_is_a_copy_only_in_its_own_group(core: type[Master]) -> None:
    """P41: what it has of another group is on its way, and no copy."""
    node = Lone(core)
    assert _stamped(node.submit(copies=(_group("a"),))) == [1]
    assert not _stamped(node.submit(copies=(_group("b"),)))
    assert not _stamped(node.submit(copies=(_group("a", "c", copies=2),)))
    assert _stamped(_holds(node, "b", 2, 3)) == [2]
    assert _stamped(_holds(node, "c", 3)) == [3]


def a_transaction_over_two_groups_needs_both(core: type[Master]) -> None:
    """P41: no site need be in both."""
    node = Lone(core)
    node.submit(copies=(_group("b"), _group("c", name="us")))
    assert not _stamped(_holds(node, "b", 1))
    assert _stamped(_holds(node, "c", 1)) == [1]


def a_prepared_transaction_waits_before_it_is_prepared(core: type[Master]) -> None:
    """P35, P41: what is undecided is on the disks of its groups, so a YES can always be kept."""
    node = Lone(core)
    prepared: dict[str, Any] = {"participants": ("p",), "valid_until": ((0, 1 << 60),)}
    node.submit(copies=(_group("b"),), **prepared)
    assert not _stamped(node.submit(copies=(_group("c"),), **prepared))
    assert not node.master.undecided
    assert _stamped(_holds(node, "b", 1)) == [1]
    actions = node.wait(60 * SECOND_US)
    assert _refused(actions) == [(2, "group-away")]


def files_that_are_whole_here_do_not_suffice(core: type[Master]) -> None:
    """P1a, P41: after the stage timeout an ordinary run is stamped; one of a group is not."""
    node = Lone(core)
    node.submit(staged_bytes=1 << 40, copies=(_group("b"),))
    node.now += 10 * SECOND_US
    node.config = replace(node.config, synchro_timeout_us=100 * SECOND_US)
    actions = [*node.start(), *node.wait(60 * SECOND_US)]
    assert [a for a in actions if isinstance(a, CheckUnstamped)]
    assert not _stamped(node.feed(FilesHeld(digest=node.submits[1].digest)))
    assert _stamped(_holds(node, "b", 1)) == [1]


def a_group_that_is_away_stops_alone(core: type[Master]) -> None:
    """P41: its run is withdrawn in time, with who is missing; what rests on it goes with it."""
    node = Lone(core)
    node.submit(session="s", copies=(_group("b", "c", copies=2),))
    node.submit(session="s")
    assert _stamped(node.submit(session="t")) == [3]
    _holds(node, "c", 1)
    actions = node.wait(60 * SECOND_US)
    assert _refused(actions) == [(1, "group-away"), (2, "session-rolled-back")]
    texts = [a.text for a in actions if isinstance(a, TellRejected) and a.ticket == 1]
    assert texts == ["group 'eu' needs 2 of its 2 sites to hold it, 1 do; missing: b"]
    assert not node.disk.announcements
    assert _stamped(node.submit()) == [4]


def only_members_count(core: type[Master]) -> None:
    """P41: a site that is no member any more is no copy, whatever it said before."""
    node = Lone(core)
    node.submit(copies=(_group("b", "c", copies=2),))
    _holds(node, "c", 1)
    assert not _stamped(_decided(node, next_view(node.view, "a", "b")))
    assert not _stamped(_holds(node, "b", 1, epoch=2))


def a_restart_forgets_no_copies_that_are_needed(core: type[Master]) -> None:
    """P41: patience goes on, and so does the wait."""
    node = Lone(core)
    node.config = replace(node.config, synchro_timeout_us=5 * SECOND_US)
    node.submit(copies=(_group("b"),))
    node.wait(3 * SECOND_US)
    assert not _stamped(node.start())
    assert _refused(node.wait(3 * SECOND_US)) == [(1, "group-away")]


def a_group_of_an_earlier_incarnation_has_an_end(core: type[Master]) -> None:
    """P30, P41: as a member the node knows that it was not ordered; its patience begins then."""
    node = Lone(core)
    node.config = replace(node.config, synchro_timeout_us=5 * SECOND_US)
    node.submit(session="s", copies=(_group("b"),))
    node.submit(session="s")
    waiting = node.disk.announcements
    for ticket in (1, 2):
        waiting[ticket] = replace(waiting[ticket], submitted_at=None)
    node.now += 60 * SECOND_US
    assert not _refused([*node.start(), *node.wait(4 * SECOND_US)])
    refused = _refused(node.wait(2 * SECOND_US))
    assert refused == [(1, "group-away"), (2, "session-rolled-back")]
    assert not _refused(node.wait(60 * SECOND_US)) and _stamped(node.submit(session="s")) == [3]


def large_files_have_more_time(core: type[Master]) -> None:
    """P41: what takes long to fetch is not withdrawn while it is fetched."""
    node = Lone(core)
    node.config = replace(node.config, synchro_timeout_us=5 * SECOND_US)
    node.start()
    node.submit(staged_bytes=1 << 30, copies=(_group("b"),))
    assert not _refused(node.wait(10 * SECOND_US))
    assert _refused(node.wait(node.config.stage_timeout_us)) == [(1, "group-away")]


def a_name_keeps_its_sites(core: type[Master]) -> None:
    """P41: so a name says where rows are, whichever of its tables they belong to."""
    node = Lone(core, votes={"a": 1})
    elsewhere = replace(_TABLE, properties=((SITES_OF_TABLE, "b"),))
    node.submit(creates=((0, _TABLE),))
    dropped = Touch(table="t", schema_version=1, txs=(0,))
    node.submit(touches=(dropped,), changes=((0, "t", DROPPED),))
    assert _rejected(node.submit(creates=((0, elsewhere),))) == ["schema-mismatch"]
    assert _rejected(node.submit(creates=((0, _TABLE),))) == []


def runs_of_groups_take_no_room_of_others(core: type[Master]) -> None:
    """P3b, P41: those that wait have the part of the bound that synchronous ones have."""
    node = Lone(core)
    node.config = replace(node.config, max_incoming_runs=8)
    node.start()
    for _ in range(2):
        node.submit(copies=(_group("b"),))
    told = [a.code for a in node.submit(copies=(_group("b"),)) if isinstance(a, TellRejected)]
    assert told == ["busy"]
    assert _stamped(node.submit()) == [4]
