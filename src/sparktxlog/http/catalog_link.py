"""Client of a node's catalog of commit tables: makes, loads, commits and drops tables."""

from __future__ import annotations

import time
from threading import Event
from typing import Any
from urllib.parse import quote

import msgspec

from sparktxlog.codec.delta_catalog.catalog_answers import (
    CatalogTable,
    ListedTables,
    LoadedTable,
    SchemasAnswer,
    StagingTableAnswer,
)
from sparktxlog.codec.delta_catalog.catalog_requests import (
    CATALOG_API,
    DELTA_API,
    CreateTableRequest,
    UpdateTableRequest,
)
from sparktxlog.codec.problems import ERROR_CLASSES
from sparktxlog.errors import (
    LocalProtocolError,
    NameTakenError,
    SlowRequestError,
    StaleTimestampError,
    TransportError,
    TxLogError,
    VersionConflictError,
)
from sparktxlog.http.link import Http
from sparktxlog.model.ids import full_table_name
from sparktxlog.model.tables.commit_table import check_commit_table_name

#: The log has one catalog, so every name means the same.
_CATALOG = "log"
#: Seconds between two attempts of a request whose outcome is not known.
_PAUSE_S = 1.0


class _Named(msgspec.Struct):
    reason: str
    metadata: dict[str, Any] = {}


class _Problem(msgspec.Struct):
    message: str
    details: list[_Named]


class CatalogLink(Http):
    """The catalog of one node; errors are those of the node, in their classes."""

    #: Set when the caller's own link is closed; None: the caller has none.
    _caller: Event | None = None

    @classmethod
    def to_same_node(cls, link: Http) -> CatalogLink:
        """Return a link to the catalog of the node of another link; **after calling** close it.

        Its pauses end when the other link is closed.
        """
        found = cls(link.url, token=link.token, ca_file=link.ca_file)
        found._caller = link.closed
        return found

    def stage(self, name: str) -> StagingTableAnswer:
        """Return the place of a table that is to be created.

        Args:
            name: `schema.table`.

        Raises:
            TxLogError: The name is taken, or wrong (definite).
        """
        schema, table = _parts(name)
        body = msgspec.json.encode({"name": table})
        answer = self.request("POST", f"{_schema(schema)}/staging-tables", body=body)
        found: StagingTableAnswer = self._decoded(answer, StagingTableAnswer)
        return found

    def create(self, name: str, request: CreateTableRequest, *, timeout_s: float) -> LoadedTable:
        """Make a staged table one of the log; asks again while its outcome is not known.

        Raises:
            CommitStateUnknownError, TransportError: It is not known in time, or was refused after
                an attempt that may have made it.
            TxLogError: It was not made (definite).
        """
        schema, _ = _parts(name)
        return self._until_known(f"{_schema(schema)}/tables", request, timeout_s)

    def _until_known(self, path: str, request: msgspec.Struct, timeout_s: float) -> LoadedTable:
        body, end = msgspec.json.encode(request), time.monotonic() + timeout_s
        perhaps: TxLogError | None = None
        while True:
            left = max(1.0, end - time.monotonic())
            try:
                answer = self.request("POST", path, body=body, timeout_s=left)
            except TxLogError as error:
                if not error.definite:
                    perhaps = error
                elif perhaps is None or isinstance(error, _SETTLES):
                    raise
                elif not _is_of_the_node(error):
                    raise perhaps  # noqa: B904 - as below
                over = time.monotonic() + _PAUSE_S > end
                if over or (self._caller or self.closed).wait(_PAUSE_S):
                    raise perhaps  # noqa: B904 - the later error is its context
                continue
            found: LoadedTable = self._decoded(answer, LoadedTable)
            return found

    def load(self, name: str) -> LoadedTable:
        """Return a table at its newest version.

        Raises:
            UnknownTableError: There is none (definite).
        """
        found: LoadedTable = self._decoded(self.request("GET", _table(name)), LoadedTable)
        return found

    def tables(self) -> list[CatalogTable]:
        """Return all commit tables, by schema and name; one that is not placed has no properties.

        Raises:
            TransportError: The node cannot be reached.
        """
        found: list[CatalogTable] = []
        query = {"catalog_name": _CATALOG}
        answer = self.request("GET", f"{CATALOG_API}/schemas", query=query)
        schemas: SchemasAnswer = self._decoded(answer, SchemasAnswer)
        for schema in schemas.schemas:
            of_schema = query | {"schema_name": schema.name}
            answer = self.request("GET", f"{CATALOG_API}/tables", query=of_schema)
            listed: ListedTables = self._decoded(answer, ListedTables)
            found += [table for table in listed.tables if table.table_type == "MANAGED"]
        return found

    def commit(self, name: str, update: UpdateTableRequest, *, timeout_s: float) -> LoadedTable:
        """Commit a version of a table; asks again while its outcome is not known.

        Raises:
            VersionConflictError, StaleTimestampError: It lost (definite).
            CommitStateUnknownError, TransportError: As `create`.
        """
        return self._until_known(_table(name), update, timeout_s)

    def drop(self, name: str) -> None:
        """Drop a table; its files stay.

        Raises:
            UnknownTableError: There is none (definite).
        """
        self.request("DELETE", _table(name))

    def _refused(self, path: str, status: int, answer: bytes) -> TxLogError:
        try:
            problem = msgspec.json.decode(answer, type=_Problem)
            found = problem.details[0]
        except (msgspec.MsgspecError, UnicodeDecodeError, IndexError):
            return super()._refused(path, status, answer)
        kind = ERROR_CLASSES.get(found.reason, TransportError)
        fields = {key: value for key, value in found.metadata.items() if key != "message"}
        return kind(problem.message, **fields)


#: What says that an attempt before came to nothing, too.  Another refusal may be of this one only:
#: the table has another name since, or the other attempt uses up what the client may.
_SETTLES = (VersionConflictError, StaleTimestampError, NameTakenError)


def _is_of_the_node(error: TxLogError) -> bool:
    """Return whether a definite error says nothing of the attempts before it.

    The node is away, busy or halted.
    """
    kinds = (TransportError, LocalProtocolError, SlowRequestError)
    return isinstance(error, kinds) or error.http_status in (503, 507)


def _parts(name: str) -> tuple[str, str]:
    schema, _, table = check_commit_table_name(name).partition(".")
    return schema, table


def _schema(schema: str) -> str:
    return f"{DELTA_API}/v1/catalogs/{_CATALOG}/schemas/{quote(schema, safe='')}"


def _table(name: str) -> str:
    schema, table = _parts(full_table_name(name))
    return f"{_schema(schema)}/tables/{quote(table, safe='')}"
