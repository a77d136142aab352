"""The two kinds of tables, and what a node says of a table of either kind."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from sparktxlog.model.tables.table import Column


class TableKind(str, Enum):
    """Whether the rows or the versions of a table are ordered."""

    #: Transactions carry its rows, and workers apply them to a Delta table of each site.
    ROW_TABLE = "row-table"
    #: Spark commits versions of it, the same at all sites (P36).
    COMMIT_TABLE = "commit-table"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDescription:
    """A table as the asked site has it."""

    #: As the log calls it.
    name: str
    kind: TableKind
    comment: str = ""
    #: None at all: a commit table whose newest version is not placed at this site.
    columns: tuple[Column, ...] = ()
    #: A commit table has none.
    keys: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    deletion_vectors: bool = False
    is_sync: bool = False
    #: Directory of the Delta table at this site; None = nothing is applied, or placed, here yet.
    location: str | None = None
    #: Version of the definition: the schema version of a row table; for a commit table, the version
    #: that changed it last.
    schema_version: int | None = None
    #: For a row table, how many transactions wrote to it and took effect; for a commit table, the
    #: version that is placed here, None = none yet.
    version: int | None = None
    #: Position of the last transaction that wrote to a row table.
    last_write: int | None = None
    #: End of the node's queue when it was asked; all else holds there.
    position: int = 0

    def to_document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self) | {"kind": self.kind.value}
