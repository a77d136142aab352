"""Validated transactions on their way into a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparktxlog.model.operation import OperationKind, StagedFile
from sparktxlog.model.signature import TableSignature
from sparktxlog.model.table import TableDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedOperation:
    """One operation of a `PreparedTransaction`."""

    table: str
    kind: OperationKind
    schema_version: int = 1
    #: Inline rows: a pyarrow.Table with exactly the columns the kind needs (all, or the keys).
    rows: Any = None
    files: tuple[StagedFile, ...] = ()
    definition: TableDefinition | None = None
    predicate: str | None = None
    claim: TableSignature | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransaction:
    """A validated transaction; several of them are assembled into one run (group commit)."""

    transaction_id: bytes
    operations: tuple[PreparedOperation, ...]
    session: str | None = None
