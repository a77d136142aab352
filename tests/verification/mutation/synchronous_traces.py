"""Directed traces of synchronous runs (protocol P34)."""

from __future__ import annotations

from dataclasses import replace

from tests.verification.mutation.lone import (
    LOG_ID,
    SECOND_US,
    Lone,
    changing,
    entry_of,
    next_ballot,
    next_view,
    queued,
    sent,
    tail_of,
    views,
)

from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import Touch
from sparktxlog.protocol.epoch.union import end_of
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.actions import (
    Action,
    PersistAnnouncement,
    PersistOwnRun,
    PersistRestamp,
    PersistWithdrawal,
    TellAcquired,
    TellOrdered,
    TellRejected,
)
from sparktxlog.protocol.messages.balloting import Accept
from sparktxlog.protocol.messages.events import (
    FilesHeld,
    FilesLost,
    PostReceived,
    SynchroTimeoutSet,
)
from sparktxlog.protocol.messages.posts import MergeBase, Rejection, RunHeader
from sparktxlog.protocol.messages.view import Phase, View


def _without_c(core: type[Master]) -> Lone:
    """Return a node in an epoch with two of three members."""
    node = Lone(core)
    node.disk.view = next_view(node.view, "a", "b")
    node.start()
    return node


def _stamped(actions: list[Action]) -> list[int]:
    return [action.ticket for action in actions if isinstance(action, PersistOwnRun)]


def _header(actions: list[Action]) -> RunHeader:
    headers = [action.header for action in actions if isinstance(action, PersistOwnRun)]
    assert len(headers) == 1
    return headers[0]


def _refused(actions: list[Action]) -> list[tuple[int, str]]:
    """Return tickets and codes of what is refused, durably first."""
    gone = [run.ticket for a in actions if isinstance(a, PersistWithdrawal) for run in a.runs]
    told = [(a.ticket, a.code) for a in actions if isinstance(a, TellRejected)]
    assert gone == [ticket for ticket, _ in told]
    return told


def _told_busy(actions: list[Action]) -> list[str]:
    told = [action for action in actions if isinstance(action, TellRejected)]
    assert {action.code for action in told} <= {"busy"}
    return [action.text for action in told]


def _holders(actions: list[Action]) -> list[int]:
    """Return how many members are said to hold what is told as ordered."""
    return [action.holders for action in actions if isinstance(action, TellOrdered)]


def _acquires(node: Lone, sender: str, epoch: int = 1) -> list[Action]:
    """Let another member say that it holds all that this node stamped, and stamped nothing."""
    node.now += SECOND_US // 100
    own = {"a": node.master.standing.seq_now}
    post = replace(node.post_of(sender, node.now + SECOND_US), epoch=epoch, known=own, acquired=own)
    return node.feed(PostReceived(post=post))


def _decided(node: Lone, view: View) -> list[Action]:
    return node.hear(node.letter_of_decision("b", view))


def with_too_few_members_nothing_is_stamped(core: type[Master]) -> None:
    """P34: a run that needs three holders waits while there are two members; others go on."""
    node = _without_c(core)
    actions = node.submit(holders=3)
    assert not _stamped(actions)
    assert [a.ticket for a in actions if isinstance(a, PersistAnnouncement)] == [1]
    assert _stamped(node.submit()) == [2]
    assert _stamped(node.submit(holders=2)) == [3]
    assert _stamped(node.wait(SECOND_US)) == []
    assert _stamped(_decided(node, replace(next_view(node.view, "a", "b", "c"), epoch=3))) == [1]


def waiting_runs_keep_the_order_of_their_session(core: type[Master]) -> None:
    """P1a, P34: an ordinary run waits for a synchronous one of its session."""
    node = _without_c(core)
    node.submit(holders=3, session="s")
    assert not _stamped(node.submit(session="s"))
    assert _stamped(node.submit(session="t")) == [3]
    assert _stamped(_decided(node, replace(next_view(node.view, "a", "b", "c"), epoch=3))) == [1, 2]


def what_rests_on_a_withdrawn_run_goes_with_it(core: type[Master]) -> None:
    """P34: in one write; not what came before it, what stands alone, or another session's."""
    node = _without_c(core)
    node.submit(staged_bytes=1 << 40, session="s")
    node.submit(holders=3, session="s")
    node.submit(session="s")
    node.submit(session="s", stands_alone=True)
    node.submit(holders=3, session="t")
    assert not _refused(node.start())
    node.submit(session="s")
    actions = node.wait(6 * SECOND_US)
    gone = [(2, "synchro-timeout"), (3, "session-rolled-back"), (6, "session-rolled-back")]
    assert _refused(actions) == [*gone, (5, "synchro-timeout")]
    writes = [a for a in actions if isinstance(a, PersistWithdrawal)]
    assert [[run.ticket for run in write.runs] for write in writes] == [[2, 3, 6], [5]]
    told = [a for a in actions if isinstance(a, TellRejected) and a.ticket == 3]
    assert [a.rests_on for a in told] == [node.submits[2].facts.ids]
    text = f"transaction {transaction_id_to_text(told[0].rests_on)} before it in its session was"
    assert told[0].text.startswith(f"{text} withdrawn: it needs 3 holders")
    assert list(node.disk.announcements) == [1, 4]
    node.start()
    assert _stamped(node.feed(FilesHeld(digest=node.submits[1].digest))) == []


def what_waited_too_long_at_once_goes_together(core: type[Master]) -> None:
    """P34: in one write, so that after a crash no part is left that rests on what is gone."""
    node = _without_c(core)
    node.submit(holders=3, session="s")
    node.submit(holders=3, session="s")
    node.submit(session="s")
    node.submit(holders=3, session="s", stands_alone=True)
    actions = node.wait(6 * SECOND_US)
    gone = [(1, "synchro-timeout"), (2, "session-rolled-back"), (3, "session-rolled-back")]
    assert _refused(actions) == [*gone, (4, "synchro-timeout")]
    writes = [a for a in actions if isinstance(a, PersistWithdrawal)]
    assert [[run.ticket for run in write.runs] for write in writes] == [[1, 2, 3], [4]]


def what_comes_after_a_withdrawal_goes_on(core: type[Master]) -> None:
    """P34: its client may know of that."""
    node = _without_c(core)
    node.submit(holders=3, session="s")
    assert _refused(node.wait(6 * SECOND_US)) == [(1, "synchro-timeout")]
    assert _stamped(node.submit(session="s")) == [2]


def lost_files_take_along_what_rests_on_them(core: type[Master]) -> None:
    """P1a, P34: not where an earlier copy of the run is ordered: then it took effect."""
    node = Lone(core)
    node.config = replace(node.config, quorum=2, quorum_rule="majority")
    node.start()
    node.submit(staged_bytes=1 << 40, session="s")
    node.submit(session="s")
    lost = FilesLost(digest=node.submits[1].digest, text="damaged")
    gone = [(1, "payload-store"), (2, "session-rolled-back")]
    assert _refused(node.feed(lost)) == gone
    node.submit(staged_bytes=1 << 40, session="s")
    node.submit(session="s")
    first = node.run_of("b", 1, node.now + 1, ids=node.submits[3].facts.ids)
    node.push(first)
    posts = [replace(node.post_of(peer, node.now + 100), acquired={"b": 1}) for peer in "bc"]
    node.feed(PostReceived(post=replace(posts[0], headers=(first,), last_seq=1)))
    node.now += 1_000
    assert queued(node.feed(PostReceived(post=posts[1])))
    actions = node.feed(FilesLost(digest=node.submits[3].digest, text="damaged"))
    assert _refused(actions) == [(3, "duplicate-transaction")]
    assert _stamped(actions) == [4]


def what_waits_too_long_is_withdrawn(core: type[Master]) -> None:
    """P34: a run without a stamp in time is forgotten durably, and is never stamped later."""
    node = _without_c(core)
    node.submit(holders=3)
    assert not _refused(node.wait(4 * SECOND_US))
    actions = node.wait(2 * SECOND_US)
    assert _refused(actions) == [(1, "synchro-timeout")]
    texts = [action.text for action in actions if isinstance(action, TellRejected)]
    assert texts == ["it needs 3 holders, the log has 2 members"]
    late = _decided(node, replace(next_view(node.view, "a", "b", "c"), epoch=3))
    node.start()
    assert not _stamped([*late, *node.wait(SECOND_US)])


def patience_goes_on_over_a_restart(core: type[Master]) -> None:
    """P34: a restart does not let a synchronous run wait again from 0, and does not forget it."""
    node = _without_c(core)
    node.submit(holders=3)
    assert not _refused(node.wait(3 * SECOND_US))
    assert not _refused(node.start())
    assert _refused(node.wait(3 * SECOND_US)) == [(1, "synchro-timeout")]


def what_waited_too_long_is_not_stamped_after_a_restart(core: type[Master]) -> None:
    """P34: its client may know it as withdrawn, though there are enough members now."""
    node = _without_c(core)
    node.submit(holders=3)
    node.disk.view = replace(next_view(node.view, "a", "b", "c"), epoch=3)
    node.now += 6 * SECOND_US
    actions = node.start()
    assert (_refused(actions), _stamped(actions)) == ([(1, "synchro-timeout")], [])


def ordinary_runs_have_room_while_synchronous_ones_wait(core: type[Master]) -> None:
    """P3b, P34: a quarter of the bound is for what waits for members, and nothing else is."""
    node = _without_c(core)
    node.config = replace(node.config, max_incoming_runs=8)
    node.start()
    node.submit(holders=3, session="s")
    node.submit(session="s", stands_alone=True)
    busy = (
        "2 own runs of 200 bytes wait for members already, and there are 2: bring missing nodes "
        "back, or lower synchro-quorum"
    )
    assert _told_busy(node.submit(holders=3)) == [busy]
    assert _told_busy(node.submit(session="s")) == [busy], "it would wait for members as well"
    for _ in range(6):
        assert _stamped(node.submit())
    assert _told_busy(node.submit()) == ["8 own runs of 800 bytes wait to be ordered already"]
    assert _stamped(node.wait(6 * SECOND_US)) == [2]
    assert not _told_busy(node.submit(holders=3)), "the first one waits no more"
    assert _told_busy(node.submit(holders=3)) == [
        "8 own runs of 800 bytes wait to be ordered already"
    ]


def ordinary_runs_leave_room_for_synchronous_ones(core: type[Master]) -> None:
    """P3b, P34: else those would be refused as soon as ordinary ones had taken their part."""
    node = _without_c(core)
    node.config = replace(node.config, max_incoming_runs=8)
    node.start()
    for _ in range(6):
        assert _stamped(node.submit())
    assert _told_busy(node.submit()) == ["6 own runs of 600 bytes wait to be ordered already"]
    assert not _told_busy(node.submit(holders=3))


def bytes_have_a_part_too(core: type[Master]) -> None:
    """P3b, P34: as runs have; a run that is larger than an empty part has room."""
    node = _without_c(core)
    node.config = replace(node.config, max_incoming_bytes=399)
    node.start()
    assert not _told_busy(node.submit(holders=3)), "a quarter is less than it has"
    assert len(_told_busy(node.submit(holders=3))) == 1
    assert _stamped(node.submit()) and _stamped(node.submit())
    assert _told_busy(node.submit()) == ["3 own runs of 300 bytes wait to be ordered already"]


def a_wedged_node_withdraws_too(core: type[Master]) -> None:
    """P34: a node that may not stamp says so in time; an ordinary run waits on."""
    node = Lone(core)
    node.hear(node.prepare("b", 1))
    node.submit()
    node.submit(holders=2)
    actions = node.wait(6 * SECOND_US)
    assert node.master.phase is Phase.WEDGED
    assert _refused(actions) == [(2, "synchro-timeout")]
    assert list(node.disk.announcements) == [1]


def patience_can_be_set(core: type[Master]) -> None:
    """P34: another timeout counts for those that wait already."""
    node = _without_c(core)
    node.submit(holders=3)
    node.feed(SynchroTimeoutSet(timeout_us=20 * SECOND_US))
    assert not _refused(node.wait(10 * SECOND_US))
    actions = node.feed(SynchroTimeoutSet(timeout_us=8 * SECOND_US))
    assert _refused(actions) == [(1, "synchro-timeout")]


def so_many_members_hold_it_first(core: type[Master]) -> None:
    """P7, P34: a run that needs three holders is not answered as acquired or ordered with two."""
    node = Lone(core)
    node.submit()
    node.submit(holders=3)
    actions = _acquires(node, "b") + _acquires(node, "c")
    assert [a.header.seq for a in actions if isinstance(a, TellAcquired)] == [1, 2]
    node = Lone(core)
    node.submit(holders=3)
    post = replace(node.post_of("c", node.now + SECOND_US), known={"a": 1})
    actions = _acquires(node, "b") + node.feed(PostReceived(post=post))
    assert not [a for a in actions if isinstance(a, (TellAcquired, TellOrdered))]
    actions = _acquires(node, "c")
    assert [a.header.seq for a in actions if isinstance(a, TellAcquired)] == [1]
    assert _holders(actions) == [3]


def a_quorum_that_suffices_is_enough(core: type[Master]) -> None:
    """P34: where the acquisition quorum is as large, a synchronous run costs what others cost."""
    node = Lone(core)
    node.submit(holders=2)
    post = replace(node.post_of("c", node.now + SECOND_US), known={"a": 1})
    assert _holders(_acquires(node, "b") + node.feed(PostReceived(post=post))) == [3]


def a_final_queue_says_how_many_hold_it(core: type[Master]) -> None:
    """P34: what the final queue keeps with fewer holders is acknowledged with their number."""
    node = Lone(core)
    header = _header(node.submit(holders=3))
    tail = (header,)
    view = next_view(node.view, "a", "b")
    actions = _decided(node, replace(view, tail=tail, end=end_of(MergeBase(), tail)))
    assert [entry.header for one in queued(actions) for entry in one.entries] == [header]
    assert _holders(actions) == [2]


def a_view_without_its_tail_says_how_many_hold_it(core: type[Master]) -> None:
    """P16, P34: up to the base of a later view, a run counts as held by that view's members."""
    node = Lone(core, votes={"a": 1, "b": 1, "c": 1, "d": 1})
    base = end_of(MergeBase(), (_header(node.submit(holders=4)),))
    actions = _decided(node, replace(next_view(node.view, "a", "b", "c"), base=base, end=base))
    assert _holders(actions) == [3]


def a_tail_says_nothing_of_the_others(core: type[Master]) -> None:
    """P9, P34: what a tail brings counts as held by two: its sender may be in a later epoch."""
    node = Lone(core)
    header = _header(node.submit(holders=3))
    actions = node.feed(tail_of(LOG_ID, entry_of(header, 1, bytes(32))))
    assert _holders(actions) == [2]


def a_new_stamp_asks_for_what_there_is(core: type[Master]) -> None:
    """P20, P34: what was stamped goes on in a later epoch, with all members that are left."""
    node = Lone(core, votes={"a": 1, "b": 1, "c": 1, "d": 1})
    node.submit(holders=4)
    actions = _decided(node, next_view(node.view, "a", "b", "c"))
    assert [type(action) for action in actions].count(PersistRestamp) == 1
    assert not _holders(_acquires(node, "b", 2))
    assert _holders(_acquires(node, "c", 2)) == [3]


def runs_of_an_earlier_incarnation_are_stamped(core: type[Master]) -> None:
    """P30, P34: they may have had a stamp, so nobody may say that they were never ordered."""
    node = _without_c(core)
    node.submit(holders=3)
    waiting = node.disk.announcements
    waiting[1] = replace(waiting[1], submitted_at=None)
    assert not _refused(node.start())
    assert list(node.disk.announcements) == []


def the_rule_is_decided_and_stays(core: type[Master]) -> None:
    """P11, P34: another rule comes with an epoch and stays; N counts no witness."""
    node = Lone(core, votes=dict.fromkeys(("a", "b", "c", "w", "w2"), 1))
    assert node.view.synchro_quorum == 2
    ballot = changing(node, node.view.roster, synchro_rule="N")
    node.hear(node.promise("b", ballot), node.promise("c", ballot))
    found = views(node.hear(node.accepted("b", ballot), node.accepted("c", ballot)))
    assert len(found) == 1
    view = found[0]
    assert (view.synchro_rule, view.synchro_quorum) == ("N", 3)
    node.hear(replace(node.prepare("b", 1), view=view))
    ballot = next_ballot(node)
    promises = [replace(node.promise(peer, ballot), epoch=view.epoch) for peer in "bc"]
    asked = sent(node.hear(*promises), Accept)
    assert {accept.candidate.synchro_rule for accept in asked} == {"N"}


def each_site_judges_by_the_table(core: type[Master]) -> None:
    """P25b, P34: what its node took for an ordinary write has no effect on a synchronous table."""
    node = Lone(core)
    table = TableDefinition(name="s", columns=(Column(name="c", type="bigint"),), is_sync=True)
    write = (Touch(table="s", schema_version=1),)
    makes, ordinary, right = (
        node.run_of("b", 1, 1, creates=((0, table),), holders=2),
        node.run_of("b", 2, 2, touches=write),
        node.run_of("b", 3, 3, touches=write, holders=2),
    )
    entry, entries = bytes(32), []
    for position, header in enumerate((makes, ordinary, right), start=1):
        node.push(header)
        entries.append(entry_of(header, position, entry))
        entry = entries[-1].chain_hash
    refused = Rejection(index=0, code="stale-schema", text="", table="s")
    entries[1] = replace(entries[1], rejections=(refused,))
    found = queued(node.feed(tail_of(LOG_ID, *entries)))
    codes = [[r.code for r in entry.rejections] for one in found for entry in one.entries]
    assert codes == [[], ["stale-schema"], []]
    assert not node.master.status().halted


def a_prepared_one_is_judged_so_too(core: type[Master]) -> None:
    """P34, P35: an ordinary prepared transaction takes no effect on a synchronous table."""
    node = Lone(core)
    table = TableDefinition(name="s", columns=(Column(name="c", type="bigint"),), is_sync=True)
    node.disk.tables["s"] = table
    node.start()
    header = node.run_of(
        "b",
        1,
        1,
        touches=(Touch(table="s", schema_version=1),),
        participants=("p",),
        valid_until=((0, 1 << 60),),
    )
    node.push(header)
    refused = Rejection(index=0, code="stale-schema", text="", table="s")
    entry = replace(entry_of(header, 1, bytes(32)), rejections=(refused,))
    found = queued(node.feed(tail_of(LOG_ID, entry)))
    assert [[r.code for r in e.rejections] for one in found for e in one.entries] == [
        ["stale-schema"]
    ]
