"""One transaction as JSON, the form that a person can post with curl.

    {"transaction_id": "…", "level": "ordered", "operations": [
      {"kind": "create_table", "table": "orders", "keys": ["id"],
       "columns": [{"name": "id", "type": "bigint", "nullable": false}, …]},
      {"kind": "upsert", "table": "orders", "rows": [{"id": 1, …}]},
      {"kind": "append", "table": "events", "arrow": "<base64 of an Arrow IPC stream>"},
      {"kind": "append", "table": "bulk", "files": [{"path": "<transaction id>/…", …}]},
      {"kind": "delete_where", "table": "orders", "predicate": "amount < 0"},
      {"kind": "alter_table", "table": "flights", "add": [{"name": "note", "type": "string"}]},
      {"kind": "drop_table", "table": "old_flights"}]}

`decode_request` checks the form, `prepare` the content against the tables; staged files are
looked at by the service, which has the payload store.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec.structs import asdict

from sparktxlog.codec.arrow import arrow_schema, normal_type
from sparktxlog.codec.containers.runs import MAX_OPERATIONS, RunLimits
from sparktxlog.codec.containers.sections import write_section
from sparktxlog.codec.partitions import canonical_value
from sparktxlog.codec.predicate import MAX_LENGTH, normalise
from sparktxlog.codec.rows import rows_to_arrow
from sparktxlog.codec.submits.alterations import (
    CHANGE_FIELDS,
    MAX_COLUMNS,
    ChangeRequest,
    Names,
    prepare_change,
    put_change,
)
from sparktxlog.codec.submits.arguments import text_given
from sparktxlog.codec.submits.condition_requests import (
    ConditionsRequest,
    condition_of,
    request_of_condition,
)
from sparktxlog.codec.submits.mark_requests import check_prepared, participants_of
from sparktxlog.codec.submits.plain_rows import PlainRows, plain_rows
from sparktxlog.codec.submits.transactions import (
    PreparedOperation,
    PreparedTransaction,
    Rollback,
    Session,
    StagedCommitRequest,
)
from sparktxlog.codec.submits.validation import (
    align_rows,
    check_definition,
    check_made_for,
    check_rows,
    known_table,
    read_rows,
    row_schema,
)
from sparktxlog.errors import (
    InvalidNameError,
    InvalidRequestError,
    InvalidRowsError,
    ManifestMismatchError,
    OversizeError,
    SchemaMismatchError,
)
from sparktxlog.lazy_arrow import pa
from sparktxlog.model.ids import (
    check_new_name,
    check_relative_path,
    table_name,
    transaction_id_to_text,
)
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.tables.groups import check_new_table, new_properties
from sparktxlog.model.tables.table import Column, TableDefinition, Tables
from sparktxlog.model.transactions.operation import ROW_KINDS, OperationKind, StagedFile
from sparktxlog.model.transactions.receipt import Level

_Read = TypeVar("_Read")

MAX_FILES = 100_000
#: Characters of all predicates of a transaction.
_MAX_PREDICATES = 4 * MAX_LENGTH
_LEVEL = re.compile(r"(accepted|acquired|ordered|applied)(?:\(([0-9]{1,3})\))?")


#: Sums over a transaction's files stay below 2^63.
_Bytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 45)]
_Rows = Annotated[int, msgspec.Meta(ge=0, le=1 << 45)]
_Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
_SchemaVersion = Annotated[int, msgspec.Meta(ge=1, le=1 << 45)]
_Session = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class ColumnRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A column of `create_table`."""

    name: str
    type: str
    nullable: bool = True
    comment: str = ""


class FileRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A staged Parquet file."""

    path: str
    size_bytes: _Bytes
    rows: _Rows
    #: SHA-256, hexadecimal.
    digest: _Digest
    partition: dict[str, str | None] | None = None


class OperationRequest(ChangeRequest, kw_only=True):
    """One operation; which fields it takes depends on its kind."""

    rows: list[Any] | None = None
    #: Base64 of an Arrow IPC stream of the rows.
    arrow: str | None = None
    files: Annotated[list[FileRequest], msgspec.Meta(max_length=MAX_FILES)] | None = None
    predicate: Annotated[str, msgspec.Meta(max_length=MAX_LENGTH)] | None = None
    columns: Annotated[list[ColumnRequest], msgspec.Meta(max_length=MAX_COLUMNS)] | None = None
    partition_by: Names | None = None
    deletion_vectors: bool | None = None
    #: `rows:lane0:lane1`, the content signature of the rows (protocol S2b).
    claim: str | None = None
    #: For files without a claim: what their rows are known by, compared if the id comes again.
    content: Annotated[str, msgspec.Meta(max_length=80)] | None = None
    #: Schema version of the table that it was made for; `stale-schema` if that is another one.
    schema_version: _SchemaVersion | None = None


class TransactionRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One transaction."""

    #: One at least, or `commits`.
    operations: Annotated[list[OperationRequest], msgspec.Meta(max_length=MAX_OPERATIONS)]
    transaction_id: str | None = None
    session: _Session | None = None
    #: What takes it along when it is withdrawn: an earlier one of the session, or none.
    rollback: Rollback = "session"
    level: str | None = None
    #: Seconds.
    timeout: float | None = None
    #: Microseconds since 1970 UTC: no effect when ordered after that.
    valid_until: int | None = None
    conditions: ConditionsRequest | None = None
    #: True: it needs as many holders as `synchro-quorum` says, whatever its tables are.
    is_sync: bool = False
    #: It takes effect where the last of these says YES (P35).
    participants: list[str] | None = None
    #: Versions of commit tables that take effect with it, all or none (P36).
    commits: (
        Annotated[list[StagedCommitRequest], msgspec.Meta(max_length=MAX_OPERATIONS)] | None
    ) = None


class OpenRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Opens a transaction that later requests add operations to."""

    transaction_id: str | None = None
    session: _Session | None = None
    rollback: Rollback = "session"
    #: Microseconds since 1970 UTC: no effect when ordered after that.
    valid_until: int | None = None
    conditions: ConditionsRequest | None = None
    #: These two as in a transaction of one request.
    is_sync: bool = False
    participants: list[str] | None = None
    #: Seconds without a request after which it ends without effect.
    lease: Annotated[float, msgspec.Meta(ge=1, le=3600)] = 60.0


class AddedOperations(msgspec.Struct, forbid_unknown_fields=True):
    """Operations that are added to an open transaction; none: its lease is renewed."""

    operations: Annotated[list[OperationRequest], msgspec.Meta(max_length=MAX_OPERATIONS)]
    #: Number of operations before these.  With it a repeated request adds nothing twice.
    first: Annotated[int, msgspec.Meta(ge=0, le=MAX_OPERATIONS)] | None = None


_decoder = msgspec.json.Decoder(TransactionRequest)
_added_decoder = msgspec.json.Decoder(AddedOperations)
_encoder = msgspec.json.Encoder()

#: Fields other than kind and table that a kind takes.
_ROW_FIELDS = frozenset({"rows", "arrow", "files", "claim", "content", "schema_version"})
_FIELDS = {
    OperationKind.CREATE_TABLE: frozenset(
        {"columns", "keys", "partition_by", "deletion_vectors", "is_sync", "cluster_by"}
        | {"comment", "properties"}
    ),
    OperationKind.ALTER_TABLE: CHANGE_FIELDS | {"schema_version"},
    OperationKind.DROP_TABLE: frozenset({"schema_version"}),
    OperationKind.DELETE_WHERE: frozenset({"predicate", "schema_version"}),
    **dict.fromkeys(ROW_KINDS, _ROW_FIELDS),
}


def decode_request(body: bytes) -> TransactionRequest:
    """Read a transaction's JSON.

    Raises:
        InvalidRequestError: Not JSON, or another form; the message names the place (definite).
    """
    found = _decoded(_decoder, body, "the transaction")
    if not found.operations and not found.commits:
        raise InvalidRequestError(
            "the transaction has neither operations nor commits",
            hint="See /docs of the node.",
            field="operations",
        )
    return found


def decode_added(body: bytes) -> AddedOperations:
    """Read the JSON of operations to add; errors as `decode_request`."""
    return _decoded(_added_decoder, body, "the list of operations")


def _decoded(decoder: msgspec.json.Decoder[_Read], body: bytes, what: str) -> _Read:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"{what} cannot be read: {error}", hint="See /docs of the node."
        ) from error


def parse_level(text: str) -> tuple[Level, int]:
    """Return level and number of sites of `accepted`, `ordered`, `applied`, `applied(2)` …

    Raises:
        InvalidRequestError: No such level (definite).
    """
    return _level(text_given(text, "level"))


@lru_cache(maxsize=64)
def _level(text: str) -> tuple[Level, int]:
    match = _LEVEL.fullmatch(text)
    if match is None or (match[2] is not None and (match[1] != "applied" or int(match[2]) < 1)):
        raise InvalidRequestError(
            f"{text[:80]!r} is not a level",
            hint="Levels: accepted, acquired, ordered, applied, applied(k).",
            field="level",
            value=text[:80],
        )
    return Level(match[1]), int(match[2] or 1)


def prepare(
    request: TransactionRequest,
    transaction_id: bytes,
    tables: Mapping[str, TableDefinition],
    limits: RunLimits,
    *,
    size_bytes: int | None = None,
) -> PreparedTransaction:
    """Check a transaction against the tables; staged files are checked by form only.

    Appends, upserts and deletes of no rows are checked and left out, so the result may have no
    operation; an overwrite with no rows becomes a `delete_where` of all.  Staged files that claim
    to have none remain until somebody has looked at them.

    Args:
        request: The decoded request.
        transaction_id: Its id, or one made for it.
        tables: Those of the log; what the transaction itself creates is added for it.
        limits: Bounds of a run.
        size_bytes: Length of the JSON; if short, the rows' size need not be measured.

    Raises:
        CommitRejectedError: The class says why; nothing happened (definite).
    """
    # A value takes at least two characters of JSON and, but for its text, at most 16 bytes.
    plain = size_bytes is not None and all(item.arrow is None for item in request.operations)
    is_short = plain and 16 * (size_bytes or 0) <= limits.size_bytes
    preparation = Preparation(transaction_id, limits)
    preparation.add(request.operations, tables, measured=not is_short)
    participants = participants_of(request.participants)
    if participants and request.commits:
        raise InvalidRequestError(
            "a prepared transaction commits to no commit tables",
            hint="Leave out 'participants', or 'commits'.",
            field="commits",
        )
    if participants:
        check_prepared(preparation.operations, request.valid_until, request.session)
    return PreparedTransaction(
        transaction_id=transaction_id,
        operations=preparation.operations,
        session=request.session,
        stands_alone=Session(request.session, request.rollback).stands_alone,
        valid_until=request.valid_until,
        condition=condition_of(request.conditions, tables),
        is_sync=request.is_sync,
        participants=participants,
        staged_commits=tuple(request.commits or ()),
    )


class Preparation:
    """The operations of one transaction, checked as they come.

    Args:
        transaction_id: Staged files lie in a directory with its name.
        limits: Bounds of a run.
    """

    def __init__(self, transaction_id: bytes, limits: RunLimits) -> None:
        self._transaction_id = transaction_id
        self._limits = limits
        self.operations: tuple[PreparedOperation, ...] = ()
        #: Operations that were given, also those without rows, and characters of predicates.
        self.given = self._predicates = 0
        self._files: frozenset[str] = frozenset()
        self._created: dict[str, TableDefinition] = {}
        #: Tables that it changes, and does nothing else to: so each operation sees one schema.
        self._changed: frozenset[str] = frozenset()

    def add(
        self,
        operations: Sequence[OperationRequest],
        tables: Mapping[str, TableDefinition],
        *,
        measured: bool = True,
    ) -> None:
        """Check operations against the tables, and add them: all of them, or none.

        Args:
            operations: The next ones.
            tables: Those of the log as they are now.
            measured: Compare the size of all rows with the limit of a run.

        Raises:
            CommitRejectedError: The class says why (definite).
        """
        given = self.given + len(operations)
        if given > MAX_OPERATIONS:
            raise OversizeError(
                f"the transaction has {given:,} operations, {MAX_OPERATIONS:,} are allowed",
                hint="Split the transaction.",
                limit=MAX_OPERATIONS,
            )
        predicates = self._predicates + sum(len(one.predicate or "") for one in operations)
        if predicates > _MAX_PREDICATES:
            raise OversizeError(
                f"the transaction's predicates have {predicates:,} characters, "
                f"{_MAX_PREDICATES:,} are allowed",
                hint="Delete by keys instead, or split the transaction.",
                limit=_MAX_PREDICATES,
            )
        seen_files, created = set(self._files), dict(self._created)
        changed = set(self._changed)
        known, prepared = Tables.of(tables), list(self.operations)
        if created:
            known = known.below(created)
        for operation in operations:
            _check_fields(operation)
            if operation.kind is OperationKind.CREATE_TABLE:
                definition = _definition(operation, known)
                if not created:
                    known = known.below(created)
                created[definition.name.lower()] = definition
                prepared.append(
                    PreparedOperation(
                        table=definition.name, kind=operation.kind, definition=definition
                    )
                )
                continue
            table = known_table(known, operation.table)
            check_made_for(table, operation.schema_version)
            if operation.kind in (OperationKind.ALTER_TABLE, OperationKind.DROP_TABLE):
                prepared.append(prepare_change(operation, table))
                changed.add(table.name)
                continue
            found = _prepare_operation(
                operation, table, self._transaction_id, seen_files, self._limits
            )
            if found is not None:
                prepared.append(found)
        if measured:
            _check_size(prepared, self._limits)
        if changed:
            _check_changed(prepared, changed)
        self.operations, self._created = tuple(prepared), created
        self._changed = frozenset(changed)
        self.given, self._predicates = given, predicates
        self._files = frozenset(seen_files)


def _check_fields(operation: OperationRequest) -> None:
    allowed = _FIELDS[operation.kind]
    for name in operation.__struct_fields__:
        if name in ("kind", "table") or name in allowed:
            continue
        if getattr(operation, name) is not None:
            raise InvalidRequestError(
                f"{operation.kind.value} takes no {name!r}",
                hint=f"It takes {', '.join(sorted(allowed)) or 'a table only'}.",
                table=operation.table[:140],
                field=name,
            )


def _check_changed(operations: Iterable[PreparedOperation], changed: set[str]) -> None:
    """Refuse a transaction that changes or drops a table and does something else to it."""
    once = Counter(operation.table for operation in operations if operation.table in changed)
    for table, count in once.items():
        if count > 1:
            raise InvalidRequestError(
                f"the transaction changes or drops table {table!r}, and has another operation on "
                "it",
                hint="Put all of a change into one alter_table; drop a table, and write to one, in "
                "transactions before or after it.",
                table=table,
            )


def _definition(operation: OperationRequest, tables: Tables) -> TableDefinition:
    name = table_name(operation.table)
    present = tables.alike(name)
    has_vectors = operation.deletion_vectors
    if has_vectors is None:  # then as the table has it
        has_vectors = present is not None and present.deletion_vectors
    if operation.properties is not None:
        properties = new_properties(name, dict(operation.properties), tables)
    else:
        properties = new_properties(name, {}, tables) if present is None else present.properties
    definition = TableDefinition(
        name=name if present is None else present.name,
        columns=tuple(
            Column(name=c.name, type=normal_type(c.type), nullable=c.nullable, comment=c.comment)
            for c in operation.columns or ()
        ),
        keys=tuple(operation.keys or ()),
        partition_by=tuple(operation.partition_by or ()),
        deletion_vectors=has_vectors,
        is_sync=bool(operation.is_sync),
        cluster_by=tuple(operation.cluster_by or ()),
        comment=operation.comment or "",
        properties=properties,
    )
    check_definition(definition)
    if present is None:
        former = tables.former(definition.name)
        check_new_table(definition, former)
        return definition.created_after(former)
    if not present.is_like(definition):
        raise SchemaMismatchError(
            f"table {present.name!r} exists with another definition: "
            f"{'; '.join(present.differences(definition)[:5])}",
            hint="Creating an equal table again does nothing.  Choose another name, or change the "
            "table: alter_table.",
            table=present.name,
        )
    return present


def _prepare_operation(
    operation: OperationRequest,
    definition: TableDefinition,
    transaction_id: bytes,
    seen_files: set[str],
    limits: RunLimits,
) -> PreparedOperation | None:
    kind, table = operation.kind, definition.name
    version = definition.schema_version
    if kind is OperationKind.DELETE_WHERE:
        predicate = normalise(operation.predicate or "", arrow_schema(definition))
        return PreparedOperation(
            table=table, kind=kind, schema_version=version, predicate=predicate
        )
    sources = [operation.rows, operation.arrow, operation.files]
    if sum(source is not None for source in sources) != 1:
        raise InvalidRequestError(
            f"{kind.value} on table {table!r} needs exactly one of rows, arrow and files",
            table=table,
        )
    claim = _claim(operation)
    if operation.files is not None:
        row_schema(definition, kind)  # refuses keyed kinds on tables without keys
        files = _files(operation.files, definition, kind, transaction_id, seen_files)
        _check_claim(definition, claim, sum(file.rows for file in files))
        if not files:
            return without_rows(definition, kind)
        return PreparedOperation(
            table=table,
            kind=kind,
            schema_version=version,
            files=files,
            claim=claim,
            content=operation.content or "",
        )
    rows = _rows(operation, definition, limits)
    _check_claim(definition, claim, rows.num_rows)
    return _of_rows(definition, kind, rows, claim)


def prepare_rows(
    definition: TableDefinition, kind: OperationKind, rows: list[Any] | pa.Table, limits: RunLimits
) -> PreparedOperation | None:
    """Check rows as `prepare` does; None: they change nothing.

    Args:
        definition: The table.
        kind: A kind that carries rows.
        rows: In JSON's form (`codec.rows`), or Arrow rows of the caller's own.
        limits: Bounds of a run.

    Raises:
        CommitRejectedError: The class says why (definite).
    """
    if isinstance(rows, pa.Table):
        found = _of_rows(definition, kind, align_rows(definition, kind, rows))
    else:
        found = _of_rows(definition, kind, _of_json(definition, kind, rows))
    if found is not None:
        _check_size((found,), limits)
    return found


def _of_rows(
    definition: TableDefinition,
    kind: OperationKind,
    rows: pa.Table | PlainRows,
    claim: TableSignature | None = None,
) -> PreparedOperation | None:
    if not rows.num_rows:
        return without_rows(definition, kind)
    if not isinstance(rows, PlainRows):
        check_rows(definition, kind, rows)
    return PreparedOperation(
        table=definition.name,
        kind=kind,
        schema_version=definition.schema_version,
        rows=rows,
        claim=claim,
    )


def without_rows(definition: TableDefinition, kind: OperationKind) -> PreparedOperation | None:
    """Return what an operation of no rows does: an overwrite empties the table, others nothing."""
    if kind is not OperationKind.OVERWRITE:
        return None
    return PreparedOperation(
        table=definition.name,
        kind=OperationKind.DELETE_WHERE,
        schema_version=definition.schema_version,
        predicate=normalise("TRUE", arrow_schema(definition)),
    )


def _rows(
    operation: OperationRequest, definition: TableDefinition, limits: RunLimits
) -> pa.Table | PlainRows:
    if operation.rows is not None:
        return _of_json(definition, operation.kind, operation.rows)
    try:
        data = base64.b64decode(operation.arrow or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequestError(
            f"table {definition.name!r}: 'arrow' is not base64", table=definition.name
        ) from error
    return read_rows(data, definition, operation.kind, 2 * limits.size_bytes)


def _of_json(
    definition: TableDefinition, kind: OperationKind, rows: list[Any]
) -> pa.Table | PlainRows:
    plain = plain_rows(definition, kind, rows)
    return plain or rows_to_arrow(definition.name, rows, row_schema(definition, kind))


def _claim(operation: OperationRequest) -> TableSignature | None:
    if operation.claim is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}:[0-9a-f]{16}:[0-9a-f]{16}", operation.claim):
        raise InvalidRequestError(
            f"{operation.claim[:80]!r} is not a signature",
            hint="Its form is rows:lane0:lane1, lanes as 16 hexadecimal digits.",
            table=operation.table,
            value=operation.claim[:80],
        )
    return TableSignature.from_text(operation.claim)


def _check_claim(definition: TableDefinition, claim: TableSignature | None, rows: int) -> None:
    if claim is not None and claim.rows != rows:
        raise ManifestMismatchError(
            f"table {definition.name!r}: the claimed signature counts {claim.rows:,} rows, the "
            f"operation carries {rows:,}",
            table=definition.name,
            claimed=claim.rows,
            rows=rows,
        )


def _files(
    requests: Iterable[FileRequest],
    definition: TableDefinition,
    kind: OperationKind,
    transaction_id: bytes,
    seen: set[str],
) -> tuple[StagedFile, ...]:
    """Check staged files by form: place and partition values."""
    root = transaction_id_to_text(transaction_id) + "/"
    files = []
    for request in requests:
        path = check_relative_path(request.path)
        for part in path.split("/"):
            check_new_name(part)
        if not path.startswith(root):
            raise InvalidNameError(
                f"staged file {path[:140]!r} is not below {root!r}",
                hint="Stage files in a directory with the name of their transaction.",
                value=path[:140],
            )
        if path in seen:
            raise InvalidRequestError(
                f"staged file {path[:140]!r} is named twice", path=path[:140], table=definition.name
            )
        seen.add(path)
        partition = check_partition(path, request.partition or {}, definition, kind)
        files.append(StagedFile(**asdict(request) | {"partition": partition or None}))
    if len(seen) > MAX_FILES:
        raise OversizeError(f"a transaction may have {MAX_FILES:,} staged files", limit=MAX_FILES)
    return tuple(files)


def check_partition(
    path: str,
    given: Mapping[str, str | None],
    definition: TableDefinition,
    kind: OperationKind,
) -> dict[str, str | None]:
    """Return the partition values of a staged file in the log's form, checked.

    Args:
        path: For the text.
        given: Partition column, as in files → value as Delta writes it.

    Raises:
        SchemaMismatchError, InvalidRowsError: They do not fit the table (definite).
    """
    # Files of keys to delete are never placed in the table: they hold all keys as columns.
    wanted = () if kind is OperationKind.DELETE_KEYS else definition.partition_by
    named = dict(zip(definition.in_files(wanted), wanted, strict=True))
    if set(given) != set(named):
        raise SchemaMismatchError(
            f"staged file {path[:140]!r} gives values for the partition columns "
            f"{sorted(given)}, {kind.value} of table {definition.name!r} takes {sorted(named)}",
            table=definition.name,
            path=path[:140],
        )
    found: dict[str, str | None] = {}
    for stored, name in named.items():
        column = definition.column(name)
        assert column is not None
        found[stored] = value = canonical_value(definition.name, column, given[stored])
        if value is None and (not column.nullable or name in definition.keys):
            raise InvalidRowsError(
                f"staged file {path[:140]!r}: partition column {name!r} takes no NULL",
                table=definition.name,
                column=name,
            )
    return found


def _check_size(operations: Iterable[PreparedOperation], limits: RunLimits) -> None:
    inline = sum(4096 + o.rows.nbytes for o in operations if o.rows is not None)
    if inline > limits.size_bytes:
        raise OversizeError(
            f"the transaction's rows have {inline:,} bytes, {limits.size_bytes:,} may travel "
            "inline",
            hint="Stage the rows as Parquet files (sparktxlog.connect does), or make it several "
            "transactions.",
            size_bytes=inline,
            limit_bytes=limits.size_bytes,
        )


# -- the other direction --------------------------------------------------------------------------


def request_of(
    transaction: PreparedTransaction, *, level: str | None = None, timeout_s: float | None = None
) -> bytes:
    """Return the JSON body of a transaction; rows travel as Arrow."""
    # A table that it creates begins with the version that a dropped one of the name left (P33).
    created = {item.table for item in transaction.operations if item.definition is not None}
    requests = [_operation_request(item) for item in transaction.operations]
    for request in requests:
        if request.table in created:
            request.schema_version = None
    return encode_request(
        TransactionRequest(
            operations=requests,
            transaction_id=transaction_id_to_text(transaction.transaction_id),
            session=transaction.session,
            rollback="transaction" if transaction.stands_alone else "session",
            level=level,
            timeout=timeout_s,
            valid_until=transaction.valid_until,
            conditions=request_of_condition(transaction.condition),
            is_sync=transaction.is_sync,
            participants=list(transaction.participants) or None,
            commits=list(transaction.staged_commits) or None,
        )
    )


def encode_request(request: msgspec.Struct | list[Any]) -> bytes:
    """Return the JSON of a request, or of rows in JSON's form.

    Raises:
        InvalidRequestError: A text of it has half a surrogate pair, or a value is none that can be
            sent (definite).
    """
    try:
        return _encoder.encode(request)
    except TypeError as error:
        raise InvalidRequestError(
            f"an argument has a value that cannot be sent: {error}",
            hint="Give texts, numbers, True or False, and lists and dicts of these.",
        ) from error
    except UnicodeEncodeError as error:
        text, at = str(error.object), error.start
        raise InvalidRequestError(
            f"the text {text[max(0, at - 20) : at + 20]!r} has half a surrogate pair, which is no "
            "character",
            hint="Decode texts with errors='strict' where they come from.",
            field="text",
            value=ascii(text[:80]),
        ) from error


def arrow_text(rows: pa.Table) -> str:
    """Return rows as the field `arrow` of an operation."""
    return base64.b64encode(write_section(rows)).decode("ascii")


def _operation_request(operation: PreparedOperation) -> OperationRequest:
    request = OperationRequest(
        kind=operation.kind,
        table=operation.table,
        predicate=operation.predicate,
        claim=operation.claim.to_text() if operation.claim is not None else None,
        content=operation.content or None,
    )
    if operation.rows is not None:
        request.arrow = arrow_text(operation.rows)
    if operation.files:
        request.files = msgspec.convert(operation.files, list[FileRequest], from_attributes=True)
    put_change(operation.change, request)
    definition = operation.definition
    if definition is None:
        request.schema_version = operation.schema_version or None
    else:
        request.columns = msgspec.convert(
            definition.columns, list[ColumnRequest], from_attributes=True
        )
        request.keys = list(definition.keys)
        request.partition_by = list(definition.partition_by)
        request.deletion_vectors = definition.deletion_vectors
        request.is_sync = definition.is_sync or None
        request.cluster_by = list(definition.cluster_by) or None
        request.comment = definition.comment or None
        request.properties = dict(definition.properties) or None
    return request
