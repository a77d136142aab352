"""Submits: a transaction as JSON, a run as a payload container, rows as Arrow.

`msgspec` decodes, `codec` checks, and nothing is checked twice.  A body over its limit is refused
while it arrives (`bodies`).  Large bodies are checked in a thread, so that rounds of the protocol
go on; a waiting submit blocks nothing.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import structlog
from starlette.requests import Request
from starlette.responses import Response

from sparktxlog.codec.containers.assembly import NewIds, as_ids, assemble_rows
from sparktxlog.codec.containers.payload import read_manifest
from sparktxlog.codec.containers.runs import RunLimits, validate_run
from sparktxlog.codec.submits.commit_requests import as_uuid
from sparktxlog.codec.submits.condition_requests import conflict_of, is_conflict
from sparktxlog.codec.submits.known_contents import Content
from sparktxlog.codec.submits.mark_requests import MarkRequest, marking
from sparktxlog.codec.submits.requests import (
    OperationRequest,
    TransactionRequest,
    decode_request,
    parse_level,
    prepare,
    without_rows,
)
from sparktxlog.codec.submits.transactions import (
    PreparedOperation,
    PreparedTransaction,
    StagedCommitRequest,
)
from sparktxlog.codec.submits.validation import (
    IndexArray,
    check_made_for,
    check_rows,
    known_table,
    read_rows,
    row_schema,
)
from sparktxlog.errors import (
    CommitRejectedError,
    IdTakenError,
    InvalidRequestError,
    OversizeError,
    StaleSchemaError,
)
from sparktxlog.model.ids import transaction_id_from_text, transaction_id_to_text
from sparktxlog.model.tables.table import TableDefinition
from sparktxlog.model.transactions.operation import (
    ROW_KINDS,
    TX_COLUMN,
    OperationKind,
    RunManifest,
    StagedFile,
)
from sparktxlog.model.transactions.receipt import LEVEL_RANK, Level, Receipt
from sparktxlog.runtime.audit_trail import asks
from sparktxlog.runtime.commit.staged_checks import verify_staged
from sparktxlog.runtime.groups.grouped_rows import (
    has_grouped_blocks,
    has_grouped_rows,
    in_files,
    run_in_files,
)
from sparktxlog.runtime.node import Node
from sparktxlog.runtime.tokens.budgets import upload_of
from sparktxlog.service.connections.bodies import Bodies, check_parts, check_unfolding
from sparktxlog.service.granted import check_writes
from sparktxlog.service.routing.endpoints import RouteHandlers, json_response
from sparktxlog.service.routing.query_values import (
    AFTER,
    FIRST_WINS,
    LEVEL,
    SCHEMA_VERSION,
    TIMEOUT,
)

_T = TypeVar("_T")
_AsThen: TypeAlias = Callable[[Mapping[str, TableDefinition]], PreparedTransaction | RunManifest]


class Waiting(NamedTuple):
    """What a submit waits for."""

    level: Level
    sites: int
    #: Seconds.
    timeout: float
    #: Whatever the log has under its ids counts.
    first_wins: bool


_NO_QUERY: Mapping[str, str] = {}
#: JSON of more bytes is checked in a thread; Arrow always is.
THREAD_BYTES = 32 << 10
#: Runs of more bytes or rows are checked in a thread; a check of these takes a few milliseconds.
SHORT_BYTES, SHORT_ROWS = 512 << 10, 4_096
#: Predicates of more characters are parsed in a thread.
_THREAD_PREDICATE = 1_000
#: Bodies above wait for each other, bytes: JSON takes many times its size when it is decoded, so
#: one is at once, and of Arrow a few.
_LARGE_BYTES = 256 << 10
_LARGE_AT_ONCE = 2
#: How many times longer than a run an Arrow stream may be: padding, many small batches.
_ROWS_FACTOR = 4


class SubmitRoutes(RouteHandlers):
    """One method per route."""

    def __init__(self, node: Node, bodies: Bodies) -> None:
        self._node = node
        self._ids = NewIds()
        self._bodies = bodies
        self._large_json, self._large_arrow = _Turns(1), _Turns(_LARGE_AT_ONCE)
        self._limits = node.base.run_limits
        self._short = replace(self._limits, size_bytes=min(SHORT_BYTES, self._limits.size_bytes))
        #: Limits of what a node with other limits may have taken, and is compared here.
        self._widest = RunLimits(size_bytes=max(self._limits.size_bytes, node.config.body_limit))

    async def submit_transaction(self, request: Request) -> Response:
        waited = await self.reach(request)
        prepared: PreparedTransaction | CommitRejectedError
        async with self._bodies.of(request) as body, self.turn_of_json(len(body)):
            is_large = len(body) > THREAD_BYTES
            wanted = await checked(is_large, _decode, body)
            is_large = is_large or takes_long(wanted.operations)
            identity = self._id_of(wanted.transaction_id)
            try:
                prepared = await checked(is_large, self._prepare, wanted, identity, len(body))
            except CommitRejectedError as error:
                prepared = error
        waiting = waiting_of(request, wanted.level, wanted.timeout, waited=waited)
        as_then = partial(prepare, wanted, identity, limits=self._widest)
        if isinstance(prepared, CommitRejectedError):
            return await self._refused(prepared, identity, waiting, as_then, wanted.commits or ())
        return await self.commit(prepared, wanted.transaction_id, waiting, as_then)

    def _prepare(
        self, wanted: TransactionRequest, identity: bytes, size_bytes: int
    ) -> PreparedTransaction:
        return prepare(wanted, identity, self._node.tables(), self._limits, size_bytes=size_bytes)

    def _id_of(self, text: str | None) -> bytes:
        """Return the id that a client gave, or a new one."""
        identity = self._ids.next() if text is None else transaction_id_from_text(text)
        structlog.contextvars.bind_contextvars(transaction=transaction_id_to_text(identity))
        return identity

    async def commit(
        self,
        prepared: PreparedTransaction,
        given_id: str | None,
        waiting: Waiting,
        as_then: _AsThen | None = None,
    ) -> Response:
        """Look at its staged files, and submit it; return its receipt.

        A transaction without effect is recorded only if the client gave it an id.

        Args:
            as_then: See `_refused`; None = it cannot be made again.

        Raises:
            TxLogError: As `Node.submit`; ConflictError if a condition does not hold, or a table
                changed.
        """
        commits = prepared.staged_commits
        acts = [f"{one.kind.value} {one.table}" for one in prepared.operations]
        check_writes(lambda: self._written(prepared), acts)
        self._check_owned(file for one in prepared.operations for file in one.files)
        unseen, payloads, run = prepared, self._node.payloads, self._node.base.stagers.run
        try:
            tables = self._node.tables()
            if has_grouped_rows(prepared, tables):
                prepared = await run(payloads.place, in_files, prepared, tables, payloads)
            if any(one.files for one in prepared.operations):
                tables = self._node.tables()
                prepared = await run(payloads.place, verify_staged, prepared, tables, payloads)
        except CommitRejectedError as error:
            return await self._refused(
                error, unseen.transaction_id, waiting, lambda tables: unseen, commits
            )
        if commits:
            receipt = await self._node.several_commits.commit(prepared, **waiting._asdict())
            return self._told_single(receipt, rows=prepared.carried)
        is_nothing = not prepared.operations and given_id is None
        if is_nothing and prepared.condition is None and not prepared.participants:
            return json_response(Receipt.of_nothing(waiting.level))
        try:
            receipt = await self._node.submit(prepared, **waiting._asdict())
        except IdTakenError as error:
            if as_then is None or error.fields["position"] is None:
                raise
            # A type that is wider by now gives the same values another form.
            return await self._refused(error, prepared.transaction_id, waiting, as_then)
        self._named(file for operation in prepared.operations for file in operation.files)
        return self._told_single(receipt, rows=prepared.carried)

    def _named(self, files: Iterable[StagedFile]) -> None:
        """Count uploaded files no longer as those that no transaction names."""
        for file in files:
            self._node.base.budgets.uploads.give(*upload_of(file))

    def _written(self, prepared: PreparedTransaction) -> Iterable[str | None]:
        """Yield the tables that a transaction writes."""
        yield from (operation.table for operation in prepared.operations)
        for one in prepared.staged_commits:
            found = self._node.commit_table(as_uuid(one.table_id))
            yield None if found is None else found.name

    def _check_owned(self, files: Iterable[StagedFile]) -> None:
        """Let a submit name files that were uploaded, or raise: another token's are that one's."""
        for place in {file.path.partition("/")[0] for file in files}:
            self._node.core.owners.check(place)

    async def _refused(
        self,
        error: CommitRejectedError,
        of: bytes | RunManifest,
        waiting: Waiting,
        as_then: _AsThen,
        commits: Sequence[StagedCommitRequest] = (),
    ) -> Response:
        """Answer a submit that does not fit; a repeat gets the receipt of the first one.

        That one was taken when it did fit: a table may have changed since, files may have expired.

        Args:
            as_then: Returns what is submitted, by the tables as they were then.

        Raises:
            CommitRejectedError: The error; there was no first one, or it had other content.
        """
        level = waiting.level
        if not waiting.first_wins and LEVEL_RANK[level] < LEVEL_RANK[Level.ORDERED]:
            level = Level.ORDERED  # what the tables were is known there
        first = await self._node.repeated(
            Content(of, first_wins=True),
            level=level,
            sites=waiting.sites,
            timeout=waiting.timeout,
        )
        if first is None:
            self.name_winner(error)
            raise error
        if not waiting.first_wins:
            first = await self._compared(error, first, as_then)
        uuids = [as_uuid(one.table_id) for one in commits]
        await self._node.several_commits.placed(first, uuids)
        return self._told_single(first) if isinstance(of, bytes) else self._told(first)

    async def _compared(
        self,
        error: CommitRejectedError,
        first: Receipt,
        as_then: _AsThen,
    ) -> Receipt:
        position = first.position if first.prepared_at is None else first.prepared_at
        assert position is not None, "it is ordered"
        try:
            tables = await asyncio.to_thread(self._node.tables_before, position)
            async with self._large_arrow.turn():
                content = Content(await asyncio.to_thread(_made_then, as_then, tables))
        except CommitRejectedError:
            raise error from None  # it did not fit then, either
        return self._node.judged(content, first, position)

    def name_winner(self, error: BaseException) -> None:
        """Let the error of a stale schema name the last write to the table."""
        if isinstance(error, StaleSchemaError):
            error.fields["winner"] = self._node.writes(error.fields["table"]).position

    def _told_single(self, receipt: Receipt, **more: Any) -> Response:
        for rejection in receipt.rejections:
            if is_conflict(rejection):
                raise conflict_of(receipt, rejection)
        return self._told(receipt, **more)

    async def mark_transaction(
        self, id_: str, said: MarkRequest, level: str, timeout: float, after: int
    ) -> Receipt:
        found, sites = parse_level(level)
        began = time.monotonic()
        check_writes(lambda: (None,))  # it says something of a transaction of whatever tables
        if after:
            await self._node.reach_for_submit(after, found, sites, timeout)
        left = max(0.0, timeout - (time.monotonic() - began))
        receipt = await self._node.submit(
            marking(transaction_id_from_text(id_), said), level=found, sites=sites, timeout=left
        )
        return replace(receipt, log_id=self._node.log_id)

    def _told(self, receipt: Receipt, **more: Any) -> Response:
        return json_response(replace(receipt, log_id=self._node.log_id, **more))

    async def reach(self, request: Request) -> float:
        """Wait for the position that the request must come after; return the seconds waited.

        The body is read after that, so a waiting request needs no memory.
        """
        if not request.scope.get("query_string"):
            return 0.0
        after = AFTER.read(request.query_params.get(AFTER.name))
        if not after:
            return 0.0
        level, sites, timeout, _ = waiting_of(request)
        began = time.monotonic()
        await self._node.reach_for_submit(after, level, sites, timeout)
        return time.monotonic() - began

    async def submit_run(self, request: Request) -> Response:
        waiting = waiting_of(request, waited=await self.reach(request))
        stale: StaleSchemaError | None = None
        check = partial(validate_run, limits=self._limits)
        async with (
            self._bodies.of(request) as payload,
            self._turn_of(self._large_arrow, len(payload)),
        ):
            try:
                manifest = await self._validated(payload)
            except StaleSchemaError as error:
                stale, manifest = error, read_manifest(payload)
        check_writes(lambda: [block.table for block in manifest.blocks])
        self._check_owned(manifest.staged_files)
        if stale is not None:
            return await self._refused(stale, manifest, waiting, partial(check, payload))
        return await self._submit_run(payload, manifest, waiting, partial(check, payload))

    async def _submit_run(
        self, payload: bytes, manifest: RunManifest, waiting: Waiting, as_then: _AsThen, **more: Any
    ) -> Response:
        """Submit a checked run, with its rows for groups in files; return its receipt."""
        payloads, tables, unseen = self._node.payloads, self._node.tables(), manifest
        if has_grouped_blocks(manifest, tables):
            try:
                payload, manifest = await self._node.base.stagers.run(
                    payloads.place, run_in_files, payload, manifest, tables, payloads
                )
            except CommitRejectedError as error:
                return await self._refused(error, unseen, waiting, as_then)
        receipt = await self._node.submit_run(payload, manifest, **waiting._asdict())
        self._named(unseen.staged_files)
        return self._told(receipt, rows=_rows_of(unseen), **more)

    async def _validated(self, payload: bytes) -> RunManifest:
        """Check a run against the tables, in a thread if that takes much; errors as `validate_run`.

        A short one says itself how many rows it has.  One that has others is refused before they
        are looked at, and one that inflates beyond what is short goes to a thread.
        """
        tables = self._node.tables()
        if len(payload) <= SHORT_BYTES:
            blocks = read_manifest(payload).blocks
            if sum(one.inline.rows for one in blocks if one.inline is not None) <= SHORT_ROWS:
                with suppress(OversizeError):
                    return validate_run(payload, tables, self._short)
        return await asyncio.to_thread(validate_run, payload, tables, self._limits)

    async def submit_rows(self, request: Request) -> Response:
        waiting = waiting_of(request, waited=await self.reach(request))
        try:
            kind = OperationKind(request.query_params.get("kind", "append"))
        except ValueError:
            kind = OperationKind.CREATE_TABLE
        if kind not in ROW_KINDS:
            raise InvalidRequestError(
                f"kind {request.query_params['kind'][:40]!r} takes no rows",
                hint=f"Kinds: {', '.join(sorted(item.value for item in ROW_KINDS))}.",
            )
        text = (
            request.query_params.get("transaction_id")
            or request.headers.get("transaction-id")
            or None
        )
        limit = _ROWS_FACTOR * self._limits.size_bytes
        made_for = SCHEMA_VERSION.read(request.query_params.get(SCHEMA_VERSION.name))
        table, identity = request.path_params["table"], self._id_of(text)
        found: PreparedTransaction | tuple[RunManifest, bytes] | CommitRejectedError

        def decode(limits: RunLimits, tables: Mapping[str, TableDefinition]) -> Any:
            definition = known_table(tables, table)
            return _decode_rows(body, definition, made_for, kind, text, identity, limits)

        as_then = partial(decode, self._widest)

        async with (
            self._bodies.of(request, limit) as body,
            self._turn_of(self._large_arrow, len(body)),
        ):
            try:
                found = await asyncio.to_thread(decode, self._limits, self._node.tables())
            except CommitRejectedError as error:
                found = error
        if isinstance(found, CommitRejectedError):
            return await self._refused(found, identity, waiting, as_then)
        if isinstance(found, PreparedTransaction):
            return await self.commit(found, text, waiting, as_then)
        manifest, payload = found
        check_writes(lambda: (table,))
        ids = tuple(transaction_id_to_text(manifest.transaction_id(i)) for i in range(manifest.n))
        return await self._submit_run(payload, manifest, waiting, as_then, ids=ids)

    def turn_of_json(self, size: int) -> AbstractAsyncContextManager[None]:
        """Return the lock that a body of JSON waits for if it is large."""
        return self._turn_of(self._large_json, size)

    @staticmethod
    def _turn_of(turns: _Turns, size: int) -> AbstractAsyncContextManager[None]:
        """Return the lock that a body waits for if it is large."""
        return turns.turn() if size > _LARGE_BYTES else nullcontext()


def _made_then(
    as_then: _AsThen, tables: Mapping[str, TableDefinition]
) -> PreparedTransaction | RunManifest:
    """Return what is submitted, by the tables as they were, in the form that was compared then."""
    made = as_then(tables)
    if isinstance(made, PreparedTransaction) and has_grouped_rows(made, tables):
        return in_files(made, tables)
    return made


def _decode_rows(
    body: bytes,
    definition: TableDefinition,
    made_for: int | None,
    kind: OperationKind,
    id_text: str | None,
    identity: bytes,
    limits: RunLimits,
) -> PreparedTransaction | tuple[RunManifest, bytes]:
    table = definition.name
    check_made_for(definition, made_for)
    row_schema(definition, kind)
    rows = read_rows(body, definition, kind, 2 * limits.size_bytes, marks=(TX_COLUMN,))
    txs = None
    if not rows.num_rows:
        rows = rows.drop_columns([name for name in rows.column_names if name == TX_COLUMN])
    if TX_COLUMN in rows.column_names:
        txs = _transactions_of(rows, table, limits)
        rows = rows.drop_columns([TX_COLUMN])
    if not rows.num_rows:
        nothing = without_rows(definition, kind)
        return PreparedTransaction(
            transaction_id=identity,
            operations=() if nothing is None else (nothing,),
        )
    check_rows(definition, kind, rows, txs, None if txs is None else np.zeros_like(txs))
    if rows.nbytes + 4096 > limits.size_bytes:
        raise OversizeError(
            f"the rows have {rows.nbytes:,} bytes, a run may have {limits.size_bytes:,}",
            hint="Send several requests, or stage the rows as Parquet files.",
            size_bytes=rows.nbytes,
            limit_bytes=limits.size_bytes,
        )
    n = 1 if txs is None else int(txs[-1]) + 1
    if n == 1 or txs is None:
        operation = PreparedOperation(
            table=table, kind=kind, schema_version=definition.schema_version, rows=rows
        )
        return PreparedTransaction(transaction_id=identity, operations=(operation,))
    if id_text is not None:
        raise InvalidRequestError(
            f"only one transaction id is given for {n:,} transactions",
            hint="POST /v1/runs takes an id for each.",
        )
    return assemble_rows(
        table, kind, definition.schema_version, rows, txs, as_ids(os.urandom(16 * n)), _now_us()
    )


def _rows_of(manifest: RunManifest) -> int:
    return sum(block.inline.rows for block in manifest.blocks if block.inline is not None)


async def checked(takes_long: bool, check: Callable[..., _T], *arguments: Any) -> _T:
    """Run a check, in a thread if it takes long."""
    if takes_long:
        return await asyncio.to_thread(check, *arguments)
    return check(*arguments)


def _decode(body: bytes) -> TransactionRequest:
    check_parts(body)
    check_unfolding(body)
    return decode_request(body)


def takes_long(operations: Iterable[OperationRequest]) -> bool:
    """Return whether a small request may take long, as Arrow or with long predicates."""
    return any(
        operation.arrow is not None or len(operation.predicate or "") > _THREAD_PREDICATE
        for operation in operations
    )


def _transactions_of(rows: pa.Table, table: str, limits: RunLimits) -> IndexArray:
    """Return the column TX_COLUMN, checked: ascending from 0 without gaps."""
    column = rows[TX_COLUMN]
    if not pa.types.is_integer(column.type) or column.null_count or not rows.num_rows:
        raise InvalidRequestError(
            f"table {table!r}: {TX_COLUMN} must hold whole numbers, one for each row", table=table
        )
    txs = column.to_numpy().astype(np.int64)
    steps = np.diff(txs)
    if txs[0] != 0 or bool(((steps < 0) | (steps > 1)).any()):
        raise InvalidRequestError(
            f"table {table!r}: {TX_COLUMN} must rise from 0 without gaps",
            hint="It numbers the transactions: 0, 0, 1, 2, 2 …",
            table=table,
        )
    if int(txs[-1]) >= limits.transactions:
        raise OversizeError(
            f"{int(txs[-1]) + 1:,} transactions, a run may have {limits.transactions:,}",
            hint="Send several requests.",
            transactions=int(txs[-1]) + 1,
            limit=limits.transactions,
        )
    result: IndexArray = txs.astype(np.int32)
    return result


def waiting_of(
    request: Request,
    level: str | None = None,
    timeout_s: float | None = None,
    *,
    waited: float = 0.0,
) -> Waiting:
    """Return what the query and the body say, less the seconds waited; the query overrides."""
    query = request.query_params if request.scope.get("query_string") else _NO_QUERY
    found, sites = parse_level(query.get(LEVEL.name) or level or LEVEL.default)
    given = query.get(TIMEOUT.name)
    if given is None and timeout_s is not None:
        given = str(timeout_s)
    first_wins = bool(FIRST_WINS.read(query.get(FIRST_WINS.name)))
    return Waiting(found, sites, max(0.0, TIMEOUT.read(given) - waited), first_wins)


class _Turns:
    """Turns of large bodies: a few at once, and no more of one token are in the line.

    So each body that waits, waits for a few of each other token.
    """

    def __init__(self, at_once: int) -> None:
        self._line = asyncio.Semaphore(at_once)
        self._of_token: dict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(at_once)
        )

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Have a turn meanwhile."""
        async with self._of_token[asks.get()], self._line:
            yield


def _now_us() -> int:
    return time.time_ns() // 1000
