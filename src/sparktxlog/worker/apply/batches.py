"""Plans what a worker does to each table for published segments; pure, no Spark.

A *batch* is a series of whole segments, up to the first signature boundary (protocol S2a).  For
each table the rows of a batch fall into *stages*, cut by changes of the table.  Within a stage only
the last upsert or delete of a key counts, and a `delete_where` removes the rows that stand before
it, those of the table and those of the stage.  So thousands of transactions become at most one
MERGE and one placing of untouched files.  Operations before the last overwrite of a batch are
skipped.  Many predicates cut a stage too, since one MERGE can only test so many.

Steps, the Delta commits of one table in one batch, are numbered; a table's `txn` version is
`to_position * STEPS + step`, which rises with every commit and is the same when a batch is done
again after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from sparktxlog.errors import ApplyError, DivergedError
from sparktxlog.model.replicas import holds
from sparktxlog.model.restore_point import RESTORE_POINTS
from sparktxlog.model.tables.alteration import TableChange
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.storage.interfaces import Segment, TableEffect

#: Upper bound of steps of one table in one batch; see `OwnCommit.txn_version`.
STEPS = 1 << 16
#: Most different predicates in one stage, and most characters of them.
PREDICATES_PER_STAGE = 32
_PREDICATE_CHARACTERS = 65_536
_STEPS_PER_STAGE = 4
_APPENDING = (OperationKind.APPEND, OperationKind.OVERWRITE)
_KEYED = (OperationKind.UPSERT, OperationKind.DELETE_KEYS)
#: Kinds that are about the table itself.
_ENDS_OF_LIFE = (OperationKind.CREATE_TABLE, OperationKind.DROP_TABLE)
_ABOUT_TABLES = (*_ENDS_OF_LIFE, OperationKind.ALTER_TABLE)


class LogPlace(NamedTuple):
    """The place of an operation in the log: position of its transaction, index in it."""

    position: int
    op: int


#: Before everything.
START = LogPlace(0, 0)
_LAST_OP = 1 << 31


class Where(NamedTuple):
    """A `delete_where`: it removes the rows before its place for which its predicate is true."""

    place: LogPlace
    #: Spark SQL.
    predicate: str


class Clear(str, Enum):
    """What a stage clears by a commit of its own, before its rows."""

    #: Its MERGE removes what its predicates match.
    NOTHING = "nothing"
    MATCHING = "matching"
    EVERYTHING = "everything"


class StepKind(str, Enum):
    """A Delta commit of a table: in this order within a stage."""

    CREATE = "create"
    ALTER = "alter"
    CLEAR = "clear"
    MERGE = "merge"
    PLACE = "place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The part of an effect that belongs to a stage."""

    effect: TableEffect
    #: True: all its rows belong to it.  False: only those between the stage's bounds.
    whole: bool
    #: None of its rows stands before this place.
    start: LogPlace = START

    @property
    def claimed(self) -> bool:
        """Whether the submitter's claim covers the piece (protocol S2b)."""
        return self.whole and bool(self.effect.claim)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStage:
    """Rows: the last operation of each key counts, less what predicates after them match.

    Or a change of the table, and nothing else.
    """

    index: int
    clear: Clear = Clear.NOTHING
    #: Each predicate once, with its last place.
    wheres: tuple[Where, ...] = ()
    #: Rows at or after this place …
    lower: LogPlace = START
    #: … and before this one, None = to the end of the batch.
    upper: LogPlace | None = None
    appends: tuple[Piece, ...] = ()
    keyed: tuple[Piece, ...] = ()
    change: TableChange | None = None

    @property
    def predicate(self) -> str:
        """What all predicates match together; empty without one."""
        return " OR ".join(f"({where.predicate})" for where in self.wheres)

    @property
    def merges_wheres(self) -> bool:
        """Whether the MERGE removes the table's rows that the predicates match."""
        return self.clear is Clear.NOTHING and bool(self.wheres)

    @property
    def partial(self) -> tuple[Piece, ...]:
        """Appended pieces whose files cannot be placed as they are."""
        return tuple(piece for piece in self.appends if not piece.whole)

    @property
    def whole(self) -> tuple[Piece, ...]:
        """Appended pieces whose files can be placed unless a later operation removes their rows."""
        return tuple(piece for piece in self.appends if piece.whole)

    @property
    def keyed_rows(self) -> int:
        """How many rows the files of keyed pieces have; those between the bounds, or more."""
        return sum(file.rows for piece in self.keyed for file in piece.effect.files)

    @property
    def has_one_keyed_operation(self) -> bool:
        """Whether all keyed rows are those of one operation: an upsert names each key once."""
        return len(self.keyed) == 1 and self.keyed[0].whole and not self.keyed[0].effect.says_places

    @property
    def removable(self) -> tuple[Piece, ...]:
        """Whole pieces from which a later operation may remove rows."""
        keyed = (LogPlace(piece.effect.last, _LAST_OP) for piece in self.keyed)
        last = max([START, *keyed, *(where.place for where in self.wheres)])
        return tuple(piece for piece in self.whole if piece.start < last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One Delta commit of a table in a batch."""

    number: int
    kind: StepKind
    #: Empty for CREATE.
    stage: TableStage
    #: Whether it is the table's last step in the batch.
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """What a batch does to one table."""

    table: str
    create: TableDefinition | None = None
    stages: tuple[TableStage, ...] = ()
    #: Position at which the table is dropped after its stages, None = it stays.
    dropped: int | None = None
    #: What is done to the table that is created after that under the same name.
    successor: TablePlan | None = None

    def steps(self) -> list[Step]:
        """Return the commits in order; a step may have nothing to commit."""
        found: list[tuple[int, StepKind, TableStage]] = []
        if self.create is not None:
            found.append((0, StepKind.CREATE, TableStage(index=-1)))
        for stage in self.stages:
            base = 1 + stage.index * _STEPS_PER_STAGE
            if stage.change is not None:
                found.append((base, StepKind.ALTER, stage))
            if stage.clear is not Clear.NOTHING:
                found.append((base, StepKind.CLEAR, stage))
            if stage.keyed or stage.partial or stage.removable:
                found.append((base + 1, StepKind.MERGE, stage))
            if stage.whole:
                found.append((base + 2, StepKind.PLACE, stage))
        if found and found[-1][0] >= STEPS:
            raise ApplyError(
                f"table {self.table!r}: a batch has {len(self.stages)} stages, too many",
                table=self.table,
            )
        return [
            Step(number=number, kind=kind, stage=stage, last=index == len(found) - 1)
            for index, (number, kind, stage) in enumerate(found)
        ]

    def defined(self, table: TableDefinition) -> Iterator[tuple[TableStage, TableDefinition]]:
        """Yield each stage with the table as it is before it.

        Args:
            table: As it is before the batch, or created by it.
        """
        for stage in self.stages:
            yield stage, table
            if stage.change is not None:
                table = stage.change.applied_to(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Whole segments that are applied together."""

    first: int
    last: int
    from_hash: str
    to_hash: str
    epoch: int
    transactions: int
    rejected: int
    #: Sorted by table name.
    tables: dict[str, TablePlan] = field(default_factory=dict)


#: Returns the places of the first and last row of an effect whose files say them.
Extent = Callable[[TableEffect], tuple[LogPlace, LogPlace]]


def batch_segments(
    segments: Sequence[Segment], interval: int, *, end: int | None = None
) -> Sequence[Segment]:
    """Return the segments of the next batch: a prefix up to the first signature boundary.

    A restore point is a boundary, too: its segment ends there, and tables can be read at that
    point.

    Args:
        interval: `signature-interval` of the cluster, positions.
        end: Last position of a batch that was begun before; it must end there again.

    Raises:
        DivergedError: The segments do not end at `end` (definite).

    **Source:** protocol S2a.
    """
    for index, segment in enumerate(segments):
        if end is not None:
            if segment.last == end:
                return segments[: index + 1]
        elif segment.last // interval > (segment.first - 1) // interval or any(
            effect.table == RESTORE_POINTS and effect.change is not None
            for effect in segment.effects
        ):
            return segments[: index + 1]
    if end is not None:
        raise DivergedError(
            f"a batch up to position {end} was begun, but no published segment ends there",
            hint="The node's log is not the one this replica was built from.",
            position=end,
        )
    return segments


def check_chain(
    segments: Sequence[Segment], position: int, chain_hash: str, *, copied: bool = False
) -> None:
    """Refuse segments that do not continue the replica (protocol P24).

    Args:
        copied: The replica was copied from a site whose segments end elsewhere, so its position
            may be inside the first segment.  The node compares the hash there when it reports.

    Raises:
        DivergedError: Gap, overlap or another chain hash (definite).
    """
    for index, segment in enumerate(segments):
        if copied and index == 0 and segment.first <= position < segment.last:
            position, chain_hash = segment.last, segment.to_hash
            continue
        if segment.first != position + 1 or segment.last < segment.first:
            raise DivergedError(
                f"segment {segment.first}-{segment.last} does not follow position {position}",
                position=position,
            )
        # Nothing was applied yet, so any start of the log is right.
        if position > 0 and segment.from_hash != chain_hash:
            raise DivergedError(
                f"the log has hash {segment.from_hash or 'none'} at position {position}, "
                f"this replica {chain_hash or 'none'}",
                hint="The replica was built from another log; it needs a copy.",
                position=position,
            )
        position, chain_hash = segment.last, segment.to_hash


def plan_batch(
    segments: Sequence[Segment],
    extent: Extent,
    *,
    position: int = 0,
    chain_hash: str = "",
    known: Collection[str] = (),
    only: tuple[str, ...] = (),
) -> Batch:
    """Plan what to do to each table for some segments.

    Args:
        segments: At least one, contiguous.
        extent: Called only where a clearing operation may stand inside an effect whose files say
            places; it leaves out rows after the last segment's end.
        position: Applied position; of a first segment that begins before it (`check_chain`) only
            the rest is done.
        chain_hash: At that position.
        known: Tables that the replica has at that position.
        only: Patterns of the tables that it holds; empty = all.  Others are left out.
    """
    done = max(0, position - segments[0].first + 1)
    begin = LogPlace(position + 1, 0) if done else START
    # Effects of a segment that was cut may go on after its end.
    end = LogPlace(segments[-1].last + 1, 0)
    effects: dict[str, list[TableEffect]] = {}
    for segment in segments:
        for effect in segment.effects:
            if effect.last >= begin.position and holds(only, effect.table):
                effects.setdefault(effect.table, []).append(effect)
    plans = [
        _plan_table(name, effects[name], _Cutting(extent, begin, end), known=name in known)
        for name in sorted(effects)
    ]
    return Batch(
        first=segments[0].first + done,
        last=segments[-1].last,
        from_hash=chain_hash if done else segments[0].from_hash,
        to_hash=segments[-1].to_hash,
        epoch=segments[-1].epoch,
        transactions=sum(segment.transactions for segment in segments) - done,
        rejected=sum(segment.rejected for segment in segments),
        tables={plan.table: plan for plan in plans if plan is not None},
    )


class _Cutting(NamedTuple):
    """How the rows of a batch are cut into stages: arguments of `plan_batch`."""

    extent: Extent
    #: Rows at or after this place …
    begin: LogPlace
    #: … and before this one.
    end: LogPlace


def _plan_table(
    table: str, effects: Sequence[TableEffect], cutting: _Cutting, *, known: bool
) -> TablePlan | None:
    """Plan the tables of one name: the one that is there, and the one that is there at the end.

    A table that is created and dropped within the batch is left out.  Schema versions go on from a
    dropped table to the one that is created after it, so they say which table an effect is for
    (P33).

    Args:
        known: The replica has a table of that name.

    Returns:
        None if nothing is to be done.
    """
    drops = {e.schema_version: e.first for e in effects if e.change and e.change.is_dropped}
    if not drops:
        # The replica's table: to create it again has no effect.
        kept = [e for e in effects if not known or e.kind != OperationKind.CREATE_TABLE]
        return _plan_life(table, kept, cutting) if kept else None
    successor = None
    if after := [effect for effect in effects if effect.schema_version > max(drops)]:
        successor = _plan_life(table, after, cutting)
    if not known:
        return successor
    last = min(drops)
    before = [
        effect
        for effect in effects
        if effect.schema_version <= last and effect.kind not in _ENDS_OF_LIFE
    ]
    plan = _plan_life(table, before, cutting)
    return replace(plan, dropped=drops[last], successor=successor)


def _plan_life(table: str, effects: Sequence[TableEffect], cutting: _Cutting) -> TablePlan:
    """Plan one table: what was made for a schema version comes before the change to the next."""
    create = next((effect.definition for effect in effects if effect.definition is not None), None)
    stages: list[TableStage] = []
    for version in sorted({effect.schema_version for effect in effects}):
        made_for = [effect for effect in effects if effect.schema_version == version]
        stages += _stages_of_schema(made_for, cutting)
        stages += [TableStage(index=0, change=e.change) for e in made_for if e.change is not None]
    numbered = (replace(stage, index=index) for index, stage in enumerate(stages))
    return TablePlan(table=table, create=create, stages=tuple(numbered))


def _stages_of_schema(effects: Iterable[TableEffect], cutting: _Cutting) -> tuple[TableStage, ...]:
    wheres: list[Where] = []
    rows: list[TableEffect] = []
    for effect in effects:
        kind = OperationKind(effect.kind)
        if kind in _ABOUT_TABLES:
            continue
        if kind is OperationKind.DELETE_WHERE:
            wheres.append(Where(LogPlace(effect.first, effect.op), effect.predicate or "false"))
        else:
            rows.append(effect)
    extent, begin, end = cutting.extent, cutting.begin, cutting.end
    overwritten = max(
        (
            (extent(effect) if effect.says_places else _staged_extent(effect))[1]
            for effect in rows
            if effect.kind == OperationKind.OVERWRITE
        ),
        default=None,
    )
    if overwritten is not None:
        wheres = [where for where in wheres if where.place > overwritten]
    wheres.sort()
    # Where two stages may meet, inline rows on both sides are looked for.
    cuts = [] if overwritten is None else [overwritten]
    spans = [(effect, *_extent_of(effect, cuts, extent, end)) for effect in rows]
    upper = end if any(effect.last >= end.position for effect in rows) else None
    if overwritten is not None and overwritten < begin:
        # An inline overwrite that ended before the position.
        overwritten = None
    return _stages(begin, upper, overwritten, wheres, spans)


def _stages(
    begin: LogPlace,
    end: LogPlace | None,
    overwritten: LogPlace | None,
    wheres: list[Where],
    spans: list[tuple[TableEffect, LogPlace, LogPlace]],
) -> tuple[TableStage, ...]:
    """Distribute predicates and rows over as few stages as possible.

    Args:
        end: Rows from here on are left out; None = there are none.
    """
    lower = overwritten or begin
    open_stages: list[tuple[LogPlace, dict[str, Where]]] = [(lower, {})]
    for where in wheres:
        _, found = open_stages[-1]
        if _has_room(found, where.predicate):
            # Only the last place of a predicate counts: it removes all that came before.
            found[where.predicate] = where
        else:
            open_stages.append((where.place, {where.predicate: where}))
    stages: list[TableStage] = []
    for index, (lower, found) in enumerate(open_stages):
        upper = open_stages[index + 1][0] if index + 1 < len(open_stages) else end
        pieces = _pieces(spans, lower, upper)
        keyed = tuple(piece for piece in pieces if piece.effect.kind in _KEYED)
        clear = Clear.MATCHING if found and not keyed else Clear.NOTHING
        if index == 0 and overwritten is not None:
            clear = Clear.EVERYTHING
        if clear is Clear.NOTHING and not pieces:
            continue
        stages.append(
            TableStage(
                index=len(stages),
                clear=clear,
                wheres=tuple(found.values()),
                lower=lower,
                upper=upper,
                appends=tuple(piece for piece in pieces if piece.effect.kind in _APPENDING),
                keyed=keyed,
            )
        )
    return tuple(stages)


def _has_room(found: dict[str, Where], predicate: str) -> bool:
    if predicate in found:
        return True
    characters = sum(len(one) for one in found) + len(predicate)
    return not found or (len(found) < PREDICATES_PER_STAGE and characters <= _PREDICATE_CHARACTERS)


def _pieces(
    spans: list[tuple[TableEffect, LogPlace, LogPlace]], lower: LogPlace, upper: LogPlace | None
) -> list[Piece]:
    return [
        Piece(
            effect=effect,
            whole=start >= lower and (upper is None or end < upper) and not effect.left_out,
            start=start,
        )
        for effect, start, end in spans
        if end >= lower and (upper is None or start < upper)
    ]


def _staged_extent(effect: TableEffect) -> tuple[LogPlace, LogPlace]:
    place = LogPlace(effect.first, effect.op)
    return place, place


def _extent_of(
    effect: TableEffect, cuts: list[LogPlace], extent: Extent, limit: LogPlace
) -> tuple[LogPlace, LogPlace]:
    """Return the places of an effect's first and last row, exact enough for the cuts."""
    if not effect.says_places:
        return _staged_extent(effect)
    start, end = LogPlace(effect.first, 0), LogPlace(effect.last, _LAST_OP)
    if any(start <= cut <= end for cut in cuts):
        found = extent(effect)
        # Where an effect crosses the limit, its last row before it is not known.
        return (found[0], end) if end >= limit else found
    return start, end
