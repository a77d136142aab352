"""Commit tables in random logs: the fold does what a model does that keeps whole histories (P36).

Transactions do something to one table or to several, all or nothing.  A node may restart, or begin
from a summary, after any run: it decides all later ones alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import pytest
from tests.support.segments import segment
from tests.support.storage_samples import entries_of, run_of
from tests.verification.model.commit_tables import REPLACED, Commit, Design
from tests.verification.reference import ReferenceCommits
from tests.verification.simulation.commits import check_histories

from sparktxlog.model.ids import NodeId
from sparktxlog.model.tables.commit_table import CommitKind, CommitOperation, CommitTable
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.effects.commits import CommitFold
from sparktxlog.protocol.effects.effects import Effects
from sparktxlog.protocol.effects.idwindow import IdWindow
from sparktxlog.protocol.messages.posts import Rejection
from sparktxlog.storage.interfaces import AppendQueue, MarkPublished, PutRun, ResetJournal
from sparktxlog.storage.journal.journal import Journal

_UUIDS = [f"00000000-0000-4000-8000-{number:012}" for number in range(8)]
_NAMES = ("s.t", "S.T", "s.u", "r.t")
_LOGS, _RUNS = 300, 14


class Node:
    """A node that folds runs; what it keeps is all that a restarted one has.

    Args:
        kept: Commit tables by UUID.
        end: Position where it begins.
    """

    def __init__(self, kept: dict[str, CommitTable], end: int, ids: bytes) -> None:
        self.kept = dict(kept)
        self.commits = CommitFold(kept.values())
        window = IdWindow(1_000, max_run=20)
        window.recover([(1, ids)] if ids else [])
        self.effects = Effects([], window, commits=self.commits)
        self.end = end

    def apply(self, facts: RunFacts) -> tuple[list[tuple[int, str]], tuple[CommitTable, ...]]:
        """Return index and code of what a run rejects, and the tables that it changed."""
        self.rejections, _ = self.effects.apply(self.end + 1, facts)
        self.end += facts.n
        changed = self.commits.take_changes()
        self.kept.update((table.uuid, table) for table in changed)
        return [(one.index, one.code) for one in self.rejections], changed


def _runs(random: Random) -> Iterator[RunFacts]:
    """Yield runs of commits, of other transactions, and of ids that were there before."""
    ids = [random.randbytes(16) for _ in range(60)]
    for _ in range(_RUNS):
        n = random.randrange(1, 5)
        chosen = random.sample(ids, n)
        places = [at for at in range(n) if random.random() < 0.8]
        drawn = tuple((at, one) for at in places for one in _of_one_transaction(random))
        yield RunFacts(n=n, ids=b"".join(chosen), commits=drawn)


def _of_one_transaction(random: Random) -> list[CommitOperation]:
    """Return what a transaction does to one table or several."""
    uuids = random.sample(_UUIDS[: random.choice((2, 3, 8))], random.choice((1, 1, 2)))
    drawn = [_drawn(random, uuid) for uuid in uuids]
    names = [one.name.lower() for one in drawn if one.name]
    return drawn if len(set(names)) == len(names) else drawn[:1]


def _drawn(random: Random, uuid: str) -> CommitOperation:
    kind = random.choices(list(CommitKind), (2, 8, 1, 1))[0]
    if kind is CommitKind.DROP:
        return CommitOperation(kind=kind, uuid=uuid)
    if kind is CommitKind.RENAME:
        return CommitOperation(kind=kind, uuid=uuid, name=random.choice(_NAMES))
    return CommitOperation(
        kind=kind,
        uuid=uuid,
        name=random.choice(_NAMES) if kind is CommitKind.CREATE else "",
        version=random.randrange(kind is CommitKind.COMMIT, 4),
        timestamp=random.randrange(8),
    )


def _expected(
    model: ReferenceCommits, first: int, facts: RunFacts, known: set[bytes]
) -> list[tuple[int, str]]:
    """Return what the model says that a run rejects."""
    found = []
    for index in range(facts.n):
        one = facts.ids[16 * index : 16 * index + 16]
        code = "duplicate-transaction" if one in known else ""
        known.add(one)
        if not code:
            own = [commit for at, commit in facts.commits if at == index]
            code = model.judge(own, first + index, one)
        found += [(index, code)] if code else []
    model.end_run(first)
    return found


def test_the_fold_decides_as_the_model_whenever_a_node_restarts() -> None:
    seen: set[str] = set()
    for seed in range(_LOGS):
        runs, model, known = list(_runs(Random(seed))), ReferenceCommits(), set[bytes]()
        steady, ids = Node({}, 0, b""), b""
        restarted: list[Node] = []
        for run in runs:
            told = _expected(model, steady.end + 1, run, known)
            found, changed = steady.apply(run)
            assert found == told, (seed, steady.end)
            for other in restarted:
                assert other.apply(run) == (found, changed), (seed, other.end)
            ids += run.ids
            assert steady.kept == model.at(steady.end), (seed, steady.end)
            restarted.append(Node(steady.kept, steady.end, ids))
            for node in (steady, *restarted):
                assert node.kept == steady.kept
                assert dict(node.commits.tables) == _existing(steady.kept)
            seen |= {code for _, code in found}
    assert seen == {
        "duplicate-transaction",
        "name-taken",
        "stale-timestamp",
        "unknown-table",
        "version-conflict",
    }


def _puts(runs: Sequence[RunFacts]) -> list[PutRun]:
    """Return runs as a journal keeps them."""
    puts, seq = [], 1
    for run in runs:
        puts.append(run_of(seq=seq, n=run.n, ids=run.ids, commits=run.commits))
        seq += run.n
    return puts


def _existing(kept: dict[str, CommitTable]) -> dict[str, CommitTable]:
    return {uuid: table for uuid, table in kept.items() if not table.is_dropped}


def test_the_model_itself_has_whole_histories() -> None:
    """What takes effect by the model is a history in which each version follows the one before."""
    for seed in range(_LOGS):
        model, known, log, facts, end = ReferenceCommits(), set[bytes](), [], {}, 0
        runs = list(_runs(Random(seed)))
        for entry, run in zip(entries_of(_puts(runs)), runs, strict=True):
            lost = _expected(model, end + 1, run, known)
            facts[entry.header.digest] = run
            rejections = tuple(Rejection(index=at, code=code, text="") for at, code in lost)
            log.append(replace(entry, rejections=rejections))
            end += run.n
        assert check_histories(log, facts) == ""
        committed = [h.versions for h in model.histories.values()]
        for versions in committed:
            numbers = [version for version, _, _, _ in versions]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_what_one_transaction_does_to_several_tables_is_all_or_nothing() -> None:
    won = lost = 0
    for seed in range(_LOGS):
        node, random = Node({}, 0, b""), Random(seed)
        for _ in range(_RUNS):
            commits = _of_one_transaction(random)
            before = dict(node.kept)
            told, _ = node.apply(_facts(random.randbytes(14), commits))
            changed = {uuid for uuid, table in node.kept.items() if before.get(uuid) != table}
            assert changed == (set() if told else {commit.uuid for commit in commits})
            won += len(commits) > 1 and not told
            lost += len(commits) > 1 and bool(told)
    assert min(won, lost) > 20


def test_a_history_that_is_wrong_is_seen() -> None:
    create = CommitOperation(kind=CommitKind.CREATE, uuid=_UUIDS[0], name="s.t")
    first = CommitOperation(kind=CommitKind.COMMIT, uuid=_UUIDS[0], version=1, timestamp=1)
    drop = CommitOperation(kind=CommitKind.DROP, uuid=_UUIDS[0])
    other = replace(create, uuid=_UUIDS[1], name="s.u")
    rename = CommitOperation(kind=CommitKind.RENAME, uuid=_UUIDS[0], name="s.v")
    for wrong in (
        [create, create],
        [create, replace(create, uuid=_UUIDS[1], name="S.T")],
        [first],
        [create, first, first],
        [create, replace(first, version=2)],
        [create, replace(first, timestamp=0)],
        [create, drop, first],
        [create, drop, drop],
        [create, drop, create],
        [create, other, replace(rename, name="S.U")],
        [create, rename, replace(other, name="S.V")],
        [rename],
    ):
        run = RunFacts(n=len(wrong), ids=bytes(16 * len(wrong)), commits=tuple(enumerate(wrong)))
        (entry,) = entries_of(_puts([run]))
        assert check_histories([entry], {entry.header.digest: run}).startswith("P36: "), wrong


def test_the_journal_keeps_what_the_fold_says(tmp_path: Path) -> None:
    for seed in range(12):
        random = Random(seed)
        runs, node = list(_runs(random)), Node({}, 0, b"")
        puts, published, states = _puts(runs), 0, [dict[str, CommitTable]()]
        path = tmp_path / str(seed)
        ends = [0]
        for put, entry, run in zip(puts, entries_of(puts), runs, strict=True):
            _, changed = node.apply(run)
            append = AppendQueue(entries=(entry,), ordered_at=1, commit_tables=changed)
            states.append(dict(node.kept))
            ends.append(node.end)
            with closing(Journal(path)) as journal:
                journal.write([put, append])
                kept = {table.uuid: table for table in journal.load(1_000).core.commit_tables}
                assert kept == node.kept, (seed, node.end)
                if random.random() < 0.3:
                    number = random.randrange(ends.index(published), len(ends))
                    if ends[number] > published:
                        of = segment(published + 1, ends[number])
                        published = ends[number]
                        journal.write([MarkPublished(position=published, version=1, segment=of)])
                summary = journal.read_summary()
            told = {table.uuid: table for table in summary.commit_tables}
            assert told == states[ends.index(published)], (seed, published)
        if published:
            with closing(Journal(tmp_path / f"{seed}-joiner")) as joiner:
                joiner.write([ResetJournal(summary=summary, node_id=NodeId("z"))])
                assert joiner.load(1_000).core.commit_tables == summary.commit_tables


# -- the model of decision 47 ----------------------------------------------------------------------

_T = {"t1": _UUIDS[1], "t2": _UUIDS[2]}
_WORDS = (
    *(Commit(name, "t1", version) for name, version in (("A1", 1), ("B1", 1), ("A2", 2))),
    Commit("B2", "t2", 1),
    REPLACED,
)
_CODES = {"200": "", "404": "unknown-table", "409": "version-conflict"}


@pytest.mark.parametrize("most", range(1, 7))
def test_the_fold_tells_in_all_short_logs_what_the_model_of_the_decision_tells(most: int) -> None:
    for log in product(_WORDS, repeat=most):
        if log.count(REPLACED) < 2:  # the model has two tables
            assert _told(log) == Design().folded(log)[1], log


def _told(log: Sequence[Commit]) -> dict[str, str]:
    """Return what the fold tells each commit; one that is repeated is told the same again."""
    node, told = Node({}, 0, b""), dict[str, str]()
    node.apply(_facts(b"0", [CommitOperation(kind=CommitKind.CREATE, uuid=_T["t1"], name="s.t")]))
    for word in log:
        if word == REPLACED:
            drop = CommitOperation(kind=CommitKind.DROP, uuid=_T["t1"])
            create = CommitOperation(kind=CommitKind.CREATE, uuid=_T["t2"], name="s.t")
            assert node.apply(_facts(b"RS", [drop], [create]))[0] == []
            continue
        commit = CommitOperation(
            kind=CommitKind.COMMIT,
            uuid=_T[word.table],
            version=word.version,
            timestamp=word.version,
        )
        codes = [code for _, code in node.apply(_facts(word.name.encode()[:2], [commit]))[0]]
        if codes != ["duplicate-transaction"]:
            (code,) = codes or [""]
            told[word.name] = next(said for said, kept in _CODES.items() if kept == code)
    return told


def _facts(name: bytes, *transactions: Sequence[CommitOperation]) -> RunFacts:
    ids = [bytes([at]) + name.ljust(15, b"-") for at in range(len(transactions))]
    commits = tuple((at, commit) for at, own in enumerate(transactions) for commit in own)
    return RunFacts(n=len(transactions), ids=b"".join(ids), commits=commits)
