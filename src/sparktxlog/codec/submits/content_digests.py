"""What the content of a transaction is known by: 8 bytes, kept as long as its id.

Two transactions with one id are compared by it, so it must be equal for a job that runs again: it
says which operations a transaction has on which tables, and which rows they carry, in whatever
order and files.  Rows count by the signature that their submitter claims (protocol S2b); rows that
were sent without one are hashed here, and staged files without one count by their digests.
Conditions do not count, because a job that runs again has read later.  It finds accidents, not
attackers.
See docs/decisions/0073-ids-belong-to-their-content.md.

Rows are hashed by columns, as array operations: `numpy` costs 1 µs for a row of 200 bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from sparktxlog.codec.submits.commit_requests import as_uuid
from sparktxlog.codec.submits.transactions import PreparedOperation, PreparedTransaction
from sparktxlog.lazy_arrow import np, pa
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import DIGEST_BYTES, OperationKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Words: TypeAlias = "NDArray[np.uint64]"

# NumPy gives them the type of the array that they meet.
_MIX_A, _MIX_B = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
_HALF, _ONE = 32, 1
_encode = msgspec.json.Encoder(order="deterministic").encode
#: What says nothing of the content: it follows from what is there, or is taken from it.
_LEFT_OUT: dict[type, tuple[str, ...]] = {
    Column: ("stored",),
    TableDefinition: ("schema_version", "first_version", "deletion_vectors", "properties"),
}


class ContentDigests:
    """Collects the operations of `n` transactions."""

    def __init__(self, n: int) -> None:
        self._totals: _Words = np.zeros(n, np.uint64)

    def add(self, tx: int, transaction: PreparedTransaction) -> list[int | None]:
        """Add all of a transaction but its inline rows without a claim; see `add_rows`.

        Returns:
            The place of each operation among those that count; None = it does not count.
        """
        if _is_plain(transaction):
            return [0]
        places = _counted_places(transaction)
        for place, operation in zip(places, transaction.operations, strict=True):
            if place is not None and (operation.rows is None or operation.claim is not None):
                self._put(tx, place, _content_of(operation))
        commits: list[tuple[object, ...]] = [
            (one.kind.value, one.uuid, one.name, one.version, one.timestamp)
            for one in transaction.commits
        ] or [
            ("commit", as_uuid(one.table_id), "", one.proposed_version, one.timestamp)
            for one in transaction.staged_commits
        ]
        said = [*commits, *(("participant", name) for name in transaction.participants)]
        if (mark := transaction.mark) is not None:
            said.append(("mark", mark.transaction_id.hex(), mark.participant, mark.yes))
        for one in said:
            self._put(tx, 0, one)
        return places

    def _put(self, tx: int, op: int, said: Sequence[object]) -> None:
        word = hashlib.blake2b(_encode((op, *said)), digest_size=DIGEST_BYTES).digest()
        self._totals[tx : tx + 1] += np.frombuffer(word, "<u8")

    def add_rows(
        self, table: str, kind: str, rows: pa.Table, txs: NDArray[Any], ops: NDArray[Any]
    ) -> None:
        """Add the rows of one table and kind.

        Args:
            rows: Only columns of the table.
            txs: For each row the index of its transaction, ascending.
            ops: For each row the place of its operation there, ascending within a transaction.
        """
        if not rows.num_rows:
            return
        new = np.concatenate(([True], (txs[1:] != txs[:-1]) | (ops[1:] != ops[:-1])))
        starts = np.flatnonzero(new)
        words = np.add.reduceat(_struct_words(rows.schema.names, rows.columns), starts)
        words += np.diff(starts, append=rows.num_rows).astype(np.uint64) * _MIX_A
        words ^= np.uint64(_seed(f"{kind} {table}"))
        words += (ops[starts].astype(np.uint64) + _ONE) * _MIX_B
        own = txs[starts]
        first = np.flatnonzero(np.concatenate(([True], own[1:] != own[:-1])))
        self._totals[own[first]] += np.add.reduceat(_mixed(words), first)

    def to_bytes(self) -> bytes:
        """Return `DIGEST_BYTES` for each transaction, never all zero."""
        return np.maximum(self._totals, _ONE).astype("<u8").tobytes()


class RowsContent:
    """What rows that many tasks stage are known by, in whatever order."""

    def __init__(self) -> None:
        self._rows, self._word = 0, 0

    def add(self, rows: pa.Table) -> None:
        """Add rows of the table that they are for, under its columns."""
        if rows.num_rows:
            self._rows += rows.num_rows
            self._word += int(_struct_words(rows.schema.names, rows.columns).sum())

    def __add__(self, other: RowsContent) -> RowsContent:
        total = RowsContent()
        total._rows, total._word = self._rows + other._rows, self._word + other._word
        return total

    def to_text(self) -> str:
        """Return the field `content` of an operation."""
        return f"{self._rows}:{self._word % (1 << 64):016x}"


def _is_plain(transaction: PreparedTransaction) -> bool:
    """Return whether a transaction has nothing but rows without a claim, for one operation."""
    operations = transaction.operations
    return (
        len(operations) == 1
        and (rows := operations[0].rows) is not None
        and rows.num_rows > 0
        and operations[0].claim is None
        and not (transaction.commits or transaction.staged_commits or transaction.participants)
        and transaction.mark is None
    )


def _counted_places(transaction: PreparedTransaction) -> list[int | None]:
    """Return the place of each operation among those that count; None = it does not count.

    What creates a table and writes to it does not create it when it comes again.  Operations of no
    rows are left out once somebody has looked at their files.
    """
    count, found = 0, list[int | None]()
    creates = OperationKind.CREATE_TABLE
    written = {one.table.lower() for one in transaction.operations if one.kind is not creates}
    for one in transaction.operations:
        creates_only = one.kind is creates and one.table.lower() in written
        counts = not (one.is_nothing or creates_only)
        found.append(count if counts else None)
        count += counts
    return found


def _content_of(operation: PreparedOperation) -> Sequence[object]:
    rows: object = operation.content or sorted(file.digest for file in operation.files)
    if operation.claim is not None:
        rows = operation.claim.to_text()
    said = operation.predicate, _said(operation.definition), _said(operation.change)
    return operation.kind.value, operation.table, rows, *said


def _said(value: Any) -> Any:
    """Return the fields of a value that are not as by default, so that later fields may come."""
    if isinstance(value, tuple):
        return [_said(one) for one in value]
    if not is_dataclass(value):
        return value
    left_out = _LEFT_OUT.get(type(value), ())
    given = ((field, getattr(value, field.name)) for field in fields(value))
    return {
        field.name: _said(one)
        for field, one in given
        if field.name not in left_out and one != field.default
    }


def differing(one: bytes, other: bytes) -> list[int]:
    """Return the indices at which two series of digests are known and differ, ascending."""
    if len(one) != len(other):
        return []
    a, b = np.frombuffer(one, "<u8"), np.frombuffer(other, "<u8")
    return [int(index) for index in np.flatnonzero((a != b) & (a != 0) & (b != 0))]


def _mixed(words: _Words) -> _Words:
    """Mix words in place, so that sums of them do not cancel out."""
    words *= _MIX_A
    words ^= words >> _HALF
    words *= _MIX_B
    words ^= words >> _HALF
    return words


@lru_cache(4096)
def _seed(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _struct_words(names: Iterable[str], columns: Iterable[Any]) -> _Words:
    """Return a word for each row of some columns; a NULL adds nothing, whatever its column."""
    total: _Words | None = None
    for name, column in zip(names, columns, strict=True):
        if isinstance(column, pa.ChunkedArray):
            column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        words = _words(column)
        words += np.uint64(_seed(name))
        _mixed(words)
        if column.null_count:
            words *= column.is_valid().to_numpy(zero_copy_only=False).astype(np.uint64)
        total = words if total is None else np.add(total, words, out=total)
    return np.zeros(0, np.uint64) if total is None else _mixed(total)


def _words(column: pa.Array) -> _Words:
    """Return a word of its own for each value; for NULLs any."""
    kind, types = column.type, pa.types
    if not len(column):
        return np.zeros(0, np.uint64)
    if types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        return _struct_words(names, column.flatten())
    if types.is_map(kind):  # in whatever order
        entries = _struct_words(("key", "value"), (column.keys, column.items))
        return _sums(_mixed(entries), _offsets(column))
    if types.is_list(kind):
        return _joined(_struct_words(("element",), (column.values,)), _offsets(column))
    if types.is_string(kind) or types.is_binary(kind):
        return _text_words(column)
    return _fixed_words(column)


def _fixed_words(column: pa.Array) -> _Words:
    """Return the values of a type of fixed width as words; wider types of a value have the same."""
    types, kind = pa.types, column.type
    if types.is_decimal(kind):
        pairs = np.frombuffer(column.buffers()[1], "<u8").reshape(-1, 2)
        pairs = pairs[column.offset : column.offset + len(column)]
        found: _Words = pairs[:, 0] ^ (pairs[:, 1] * _MIX_B)
        return found
    if types.is_floating(kind):
        floats: NDArray[np.float64] = _numbers(column).astype(np.float64) + 0.0
        floats[np.isnan(floats)] = np.nan
        return floats.view(np.uint64)
    if types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif types.is_date32(kind):
        column = column.cast(pa.int32())
    elif types.is_timestamp(kind):
        column = column.cast(pa.int64())
    whole: NDArray[np.int64] = _numbers(column).astype(np.int64)
    return whole.view(np.uint64)


def _numbers(column: pa.Array) -> NDArray[Any]:
    column = column.fill_null(0) if column.null_count else column
    found: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def _offsets(column: pa.Array) -> NDArray[np.int64]:
    """Return where each value of a list, map, string or binary begins, and where the last ends."""
    raw = np.frombuffer(column.buffers()[1], np.int32)
    found: NDArray[np.int64] = raw[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return found


@cache
def _tails() -> _Words:
    """Return what counts of the last word of a text with so many bytes in it."""
    return np.array([(1 << 8 * (n or 8)) - 1 for n in range(8)], np.uint64)


def _text_words(column: pa.Array) -> _Words:
    """Return a word for each string; they are read eight bytes at a time."""
    offsets = _offsets(column)
    low, high = int(offsets[0]), int(offsets[-1])
    data = column.buffers()[2]
    raw = b"" if data is None else memoryview(data)[low:high]
    padded = np.frombuffer(b"".join((raw, bytes(8))), np.uint8)
    # A word at each byte, so that a string may begin anywhere.
    at_each: _Words = np.ndarray((len(padded) - 7,), "<u8", padded.data, 0, (1,))
    lengths = np.diff(offsets)
    counts = (lengths + 7) >> 3
    ends = np.cumsum(counts)
    nth = np.arange(int(ends[-1]), dtype=np.int64) - np.repeat(ends - counts, counts)
    words = at_each[np.repeat(offsets[:-1] - low, counts) + (nth << 3)]
    whole = counts > 0
    words[ends[whole] - 1] &= _tails()[lengths[whole] & 7]
    bounds = np.concatenate((np.zeros(1, np.int64), ends))
    found = _joined(words, bounds, nth)
    found += lengths.astype(np.uint64)
    return found


def _joined(words: _Words, bounds: NDArray[np.int64], nth: Any = None) -> _Words:
    """Return a word for each series of words: the i-th goes from bound i to the next one."""
    if nth is None:
        nth = np.arange(len(words), dtype=np.int64)
        lengths = np.diff(bounds)
        inside = nth[bounds[0] : bounds[-1]]
        inside -= np.repeat(bounds[:-1], lengths)
    words = words + (nth.astype(np.uint64) + _ONE) * _MIX_B
    return _sums(_mixed(words), bounds)


def _sums(words: _Words, bounds: NDArray[np.int64]) -> _Words:
    through = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(words, out=through[1:])
    found = through[bounds[1:]] - through[bounds[:-1]]
    found += np.diff(bounds).astype(np.uint64)
    return found
