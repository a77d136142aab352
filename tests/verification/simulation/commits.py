"""Writers of commit tables in a simulated hour: they create, commit, rename and drop (P36).

Each builds on what its node knows, so several compete for a version.  Some write to several commit
tables at once, and to row tables.  They are drawn beside everything else, so the histories are
those that there are without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from uuid import UUID

from tests.verification.simulation.marks import Marks

from sparktxlog.model.tables.commit_table import CommitKind, CommitOperation, CommitTable
from sparktxlog.model.transactions.operation import RunFacts
from sparktxlog.protocol.master import Master
from sparktxlog.protocol.messages.posts import QueueEntry

#: Part of the runs with commits, and of their transactions that are some.
_RUNS, _PLACES = 0.25, 0.4
#: Names of tables: few, so that a name is free again soon; case is ignored.  Row tables are named
#: `t0` and so on.
_NAMES = ("s.orders", "s.Stock", "S.STOCK", "s.users", "default.t1", "Default.T2")
#: UUIDs that anybody ever takes: the state of a log stays small.
_MOST = 40
#: Chance that somebody creates a table though there is one, uses a UUID again, drops a table, and
#: renames one.
_CREATES, _AGAIN, _DROPS, _RENAMES = 0.1, 0.1, 0.04, 0.04
#: Chance that a transaction does something to several tables.
_SEVERAL = 0.3
#: Chance that a writer wants another version than the next one, and that its clock goes wrong.
_BLIND, _BACKWARDS = 0.05, 0.1
DrawnCommits = tuple[tuple[int, CommitOperation], ...]


class Committers:
    """Clients that write to commit tables.

    Args:
        seed: Of their own draws.
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(f"{seed}:commits")
        self._uuids: list[str] = []

    def draw(self, master: Master, n: int, others: Iterable[int]) -> DrawnCommits:
        """Return what a run of `n` transactions commits, as a node takes it.

        Args:
            others: Transactions of the run that do something else alone.
        """
        random, busy = self._random, set(others)
        if random.random() >= _RUNS:
            return ()
        places = [at for at in range(n) if at not in busy and random.random() < _PLACES]
        known = dict(master.commit_tables)
        return tuple((at, one) for at in places for one in self._transaction(known))

    def _transaction(self, known: dict[str, CommitTable]) -> list[CommitOperation]:
        """Return what a transaction does, to each table one thing."""
        first = self._commit(known)
        if self._random.random() >= _SEVERAL:
            return [first]
        second = self._commit(known)
        same_name = first.name and first.name.lower() == second.name.lower()
        return [first] if second.uuid == first.uuid or same_name else [first, second]

    def _commit(self, known: dict[str, CommitTable]) -> CommitOperation:
        random = self._random
        if not known or random.random() < _CREATES:
            again = self._uuids and (random.random() < _AGAIN or len(self._uuids) >= _MOST)
            uuid = random.choice(self._uuids) if again else str(UUID(int=random.getrandbits(128)))
            if not again:
                self._uuids.append(uuid)
            return CommitOperation(
                kind=CommitKind.CREATE,
                uuid=uuid,
                name=random.choice(_NAMES),
                timestamp=random.randrange(1_000),
                version=random.choice((0, 0, 3)),
            )
        gone = self._uuids and random.random() < _BLIND
        table = known[random.choice(list(known))]
        uuid = random.choice(self._uuids) if gone else table.uuid
        drawn = random.random()
        if drawn < _DROPS:
            return CommitOperation(kind=CommitKind.DROP, uuid=uuid)
        if drawn < _DROPS + _RENAMES:
            name = random.choice(_NAMES)
            return CommitOperation(kind=CommitKind.RENAME, uuid=uuid, name=name)
        version = table.version + 1
        if random.random() < _BLIND:
            version = random.randrange(1, version + 3)
        step = 0 if random.random() < _BACKWARDS else random.randrange(1, 50)
        if version == table.version + 1 and uuid == table.uuid and random.random() < 0.5:
            # One run builds a version on one of its own.
            known[uuid] = CommitTable(
                uuid=uuid,
                name=table.name,
                version=version,
                timestamp=table.timestamp + step,
                transaction_id=b"",
                position=table.position,
            )
        return CommitOperation(
            kind=CommitKind.COMMIT, uuid=uuid, version=version, timestamp=table.timestamp + step
        )


def mark_commits(
    marks: Marks, facts: RunFacts, by_id: Iterable[int], codes: Mapping[int, str]
) -> None:
    """Count what became of a run's commits.

    Args:
        by_id: Indices that were rejected for their ids.
        codes: Index → why another one takes no effect.
    """
    repeats, seen = set(by_id), set[int]()
    for index, commit in facts.commits:
        if index in repeats:
            marks.hit("commit repeated")
        else:
            marks.hit(f"commit table: {codes.get(index) or commit.kind.value}")
            if index in seen:
                marks.hit(f"several commit tables: {codes.get(index) or 'committed'}")
        seen.add(index)


def check_histories(log: Iterable[QueueEntry], facts: Mapping[bytes, RunFacts]) -> str:
    """P36: return what is wrong with the history of a commit table, empty = nothing.

    From the queue and what it rejects alone: each version of a table is one commit and follows the
    one before, in time too; names are never shared, and what is dropped stays so.
    """
    newest: dict[str, tuple[int, int]] = {}
    names: dict[str, str] = {}
    for entry in log:
        run = facts[entry.header.digest]
        rejected = {rejection.index for rejection in entry.rejections}
        for index, commit in run.commits:
            if index in rejected:
                continue
            at, uuid = entry.position + index, commit.uuid
            if commit.kind is CommitKind.CREATE:
                if uuid in newest or commit.name.lower() in names.values():
                    return f"P36: {at} creates {commit}, there are {names}"
                names[uuid] = commit.name.lower()
            elif uuid not in names:
                return f"P36: {at} takes effect on a table that is not there: {commit}"
            elif commit.kind is CommitKind.DROP:
                del names[uuid]
                continue
            elif commit.kind is CommitKind.RENAME:
                if commit.name.lower() in {name for of, name in names.items() if of != uuid}:
                    return f"P36: {at} is {commit}, there are {names}"
                names[uuid] = commit.name.lower()
                continue
            elif newest[uuid][0] + 1 != commit.version or newest[uuid][1] >= commit.timestamp:
                return f"P36: {at} is {commit} after {newest[uuid]}"
            newest[uuid] = (commit.version, commit.timestamp)
    return ""
