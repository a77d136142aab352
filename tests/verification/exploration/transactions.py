"""What the explored transactions do, in a word each, to the one table that there is.

`a` submits a plain one: it touches nothing.  Further words say what it does:

    a write             writes to the table
    a update            writes to it if nobody did since the log began (P27)
    a prepare p q       the same, once its participants `p` and `q` say YES (P35)
    b yes p, b no q     what a participant says of the one that is prepared
    a create, a drop    creates or drops a commit table (P36)
    a commit 1          commits its version 1
    a both              creates that commit table and another one
    a both 1            commits version 1 of both, and writes to the table as `update` does
    … by 2              the same; without effect after that log time, microseconds

Timestamps count runs here, rather than time: those of a cluster that nobody restarts begin with 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sparktxlog.model.ids import LARGEST
from sparktxlog.model.tables.commit_table import CommitKind, CommitOperation
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.conditions import Condition
from sparktxlog.model.transactions.operation import Acceptance, Mark, RunFacts, Touch

#: It was created before the log began, and so was never written to.
TABLE = TableDefinition(name="t", columns=(Column(name="id", type="bigint"),))

_UUID, _OTHER = (f"00000000-0000-4000-8000-00000000000{number}" for number in (1, 2))
_WRITES = (Touch(table=TABLE.name, schema_version=TABLE.schema_version),)
_UNREAD = ((0, Condition(read_position=0, reads=(TABLE.name,))),)


def origin_of(submit: str) -> str:
    """Return the node that takes a transaction."""
    return submit.split(" ")[0]


def facts_of(submits: Sequence[str]) -> list[RunFacts]:
    """Return the run of each transaction, in submit order; at most one is prepared."""
    prepared = [at for at, submit in enumerate(submits, start=1) if " prepare " in submit]
    marked = _id(prepared[0] if prepared else 0)
    return [_facts(submit, _id(at), marked) for at, submit in enumerate(submits, start=1)]


def _id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def _facts(submit: str, own: bytes, marked: bytes) -> RunFacts:
    what, _, until = submit.partition(" by ")
    _, *words = what.split(" ")
    facts = RunFacts(
        n=1,
        ids=own,
        # All were accepted before anything was ordered, and the id window holds all.
        acceptance=Acceptance(position=0, ts=0),
        valid_until=((0, int(until)),) if until else (),
    )
    match words:
        case []:
            return facts
        case ["write"]:
            return replace(facts, touches=_WRITES)
        case ["update"]:
            return replace(facts, touches=_WRITES, conditions=_UNREAD)
        case ["prepare", *names]:
            return replace(
                facts,
                touches=_WRITES,
                conditions=_UNREAD,
                participants=tuple(names),
                valid_until=facts.valid_until or ((0, LARGEST),),
            )
        case ["yes" | "no" as said, name]:
            mark = Mark(transaction_id=marked, participant=name, yes=said == "yes")
            return replace(facts, marks=((0, mark),))
        case ["create"]:
            return replace(facts, commits=((0, _create(_UUID)),))
        case ["commit", version]:
            return replace(facts, commits=((0, _commit(_UUID, int(version))),))
        case ["both"]:
            return replace(facts, commits=((0, _create(_UUID)), (0, _create(_OTHER))))
        case ["both", version]:
            both = [(0, _commit(uuid, int(version))) for uuid in (_OTHER, _UUID)]
            return replace(facts, touches=_WRITES, conditions=_UNREAD, commits=tuple(both))
        case ["drop"]:
            commit = CommitOperation(kind=CommitKind.DROP, uuid=_UUID)
            return replace(facts, commits=((0, commit),))
        case _:
            raise ValueError(f"{submit!r} says nothing that is explored")


def _create(uuid: str) -> CommitOperation:
    return CommitOperation(kind=CommitKind.CREATE, uuid=uuid, name=f"s.t{uuid[-1]}")


def _commit(uuid: str, version: int) -> CommitOperation:
    return CommitOperation(kind=CommitKind.COMMIT, uuid=uuid, version=version, timestamp=version)
