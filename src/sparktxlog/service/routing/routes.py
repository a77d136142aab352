"""Every route of a node, declared once: the callers that it allows, what it takes and answers.

The application, the access checks, `/openapi.json`, `/docs` and docs/routes.md are made from
`ROUTES`; a test compares it with the paths that clients use.  To add a route, add a row here and a
handler of the same name in `submit_routes`, `questions`, `members`, `administration`,
`catalog_api`, `dashboard`, `peer` or `replica`.
"""

from __future__ import annotations

from typing import Any

from sparktxlog.codec import wire
from sparktxlog.codec.delta_catalog.catalog_answers import (
    CatalogConfig,
    CatalogInfo,
    CatalogsAnswer,
    CatalogTable,
    CredentialsAnswer,
    DroppedAnswer,
    ListedTables,
    LoadedTable,
    MetastoreAnswer,
    SchemaAnswer,
    SchemasAnswer,
    StagingTableAnswer,
    TemporaryCredentials,
)
from sparktxlog.codec.delta_catalog.catalog_requests import (
    CATALOG_API,
    DELTA_API,
    CreateTableRequest,
    MetricsRequest,
    NewSchemaRequest,
    RenameTableRequest,
    StagingTableRequest,
    TemporaryCredentialsRequest,
    UpdateTableRequest,
)
from sparktxlog.codec.submits.mark_requests import MarkRequest
from sparktxlog.codec.submits.requests import AddedOperations, OpenRequest, TransactionRequest
from sparktxlog.model.administration_answers import GroupLine, SettingValue
from sparktxlog.model.answers import (
    CommitTableLine,
    EpochsAnswer,
    EpochView,
    ForceAnswer,
    IncomingRunAnswer,
    InfoAnswer,
    ListedRun,
    OpenedTransaction,
    PositionAnswer,
    ProbedFile,
    ReceivedBytes,
    RepairedFiles,
    ReportAnswer,
    SiteSignatures,
    SnapshotAnswer,
    StateFilesAnswer,
    StatusAnswer,
    TableAt,
    UndecidedAnswer,
    VoidAnswer,
)
from sparktxlog.model.copying import CopyTicket, Decision, Lease, ReplicaSize, Transfer
from sparktxlog.model.epoch import EpochRecord
from sparktxlog.model.report import OwnReport, Recount
from sparktxlog.model.tables.table_checks import CommitTableCheck, CommitTableCheckRequest
from sparktxlog.model.tables.table_kind import TableDescription
from sparktxlog.model.tables.table_versions import OrderedVersions, TableVersions
from sparktxlog.model.transactions.receipt import Receipt
from sparktxlog.protocol.messages.posts import Announcement, Tail
from sparktxlog.runtime.log.pruning import Maintenance
from sparktxlog.service.handlers.administration import ADMINISTRATION
from sparktxlog.service.handlers.group_routes import GROUP_ACTS
from sparktxlog.service.handlers.point_routes import POINTS
from sparktxlog.service.handlers.view_routes import VIEWING
from sparktxlog.service.routing.declared_route import (
    ARROW,
    BINARY,
    HTML,
    JSON,
    MSGPACK,
    PLAIN,
    PROMETHEUS,
    RUN,
    Role,
    Route,
    get,
)
from sparktxlog.service.routing.query import Query, whole
from sparktxlog.service.routing.query_values import (
    APPLIED,
    AT,
    AT_LEAST,
    BEHIND,
    DATA,
    DECIDED,
    DECISION,
    ENTRIES,
    FIRST_WINS,
    LOG_ID,
    PAGE,
    PIECE,
    PIECES,
    POLL,
    REACH,
    REPLICA,
    ROWS,
    STAGED,
    SUBMIT,
    TABLES,
    UPLOADED,
    VERBOSE,
    VERSIONS,
    WAIT,
    WORKER,
)
from sparktxlog.service.routing.request_bodies import (
    AddPeer,
    ChangePeer,
    CopyRequest,
    DigestAnswer,
    DigestRequest,
    ForceEpoch,
    OrderedRecount,
    RecountOrder,
    RepairRequest,
    ReplacePeer,
    SegmentsAnswer,
    SetQuorum,
    VoidRun,
)

#: Most bytes of a greeting.
HELLO_BYTES = 64 << 10
_DIGESTS_BYTES = 4 << 20
#: Most bytes of a part of a staged file.
PART_BYTES = 4 << 20
_Settings = dict[str, SettingValue]
_RUN: dict[str, Any] = {"answer": bytes, "answer_type": RUN}
_FILE: dict[str, Any] = {"answer": bytes, "answer_type": BINARY}

# -- the table -------------------------------------------------------------------------------------


def _submit(path: str, name: str, summary: str, **more: Any) -> Route:
    query = (*SUBMIT, FIRST_WINS)
    values: dict[str, Any] = {"role": Role.CLIENT, "query": query, "body": bytes} | more
    values = {"answer": Receipt, "body_bytes": None, "hot": True, "at_member": True} | values
    return Route(method="POST", path=path, name=name, summary=summary, **values)


def _tell(path: str, name: str, summary: str, body: Any, answer: Any = None) -> Route:
    path = f"/v1/worker{path}"
    values: dict[str, Any] = {"role": Role.WORKER, "body": body, "answer": answer}
    return Route(method="POST", path=path, name=name, summary=summary, **values)


def _decide(key: str, name: str, summary: str, body: Any = None, answer: Any = EpochView) -> Route:
    method, path = key.split(" ")
    values: dict[str, Any] = {"role": Role.ADMIN, "query": DECIDED, "at_witness": True}
    values |= {"body": body, "answer": answer, "at_member": True}
    return Route(method=method, path=f"/v1{path}", name=name, summary=summary, **values)


def _peer(key: str, name: str, summary: str, body: Any = None, **more: Any) -> Route:
    method, path = key.split(" ")
    values: dict[str, Any] = {"role": Role.PEER, "at_witness": True, "body_type": MSGPACK}
    values |= {"answer_type": MSGPACK, "body_bytes": None, "body": body} | more
    return Route(method=method, path=f"/peer/v1{path}", name=name, summary=summary, **values)


def _lease(method: str, path: str, name: str, summary: str, **more: Any) -> Route:
    path = f"/replica/v1/leases/{{lease}}{path}"
    return Route(method=method, path=path, name=name, summary=summary, role=Role.LEASE, **more)


def _always(path: str, name: str, summary: str, answer: Any, *query: Query, **more: Any) -> Route:
    """Return a route that each node answers at any time."""
    values: dict[str, Any] = {"at_witness": True, "before_log": True} | more
    return get(path, name, summary, answer, *query, **values)


def _open(path: str, name: str, summary: str, kind: str, *query: Query) -> Route:
    values: dict[str, Any] = {"role": Role.ANYBODY, "at_witness": True, "answer_type": kind}
    return get(path, name, summary, bytes, *query, **values)


_SUBMITS = (
    _submit(
        "/v1/transactions",
        "submit_transaction",
        "Commit one transaction",
        body=TransactionRequest,
        description="One or more operations over one or more tables, all or nothing.  "
        "A repeated transaction id returns the receipt of the first; other content under it is 409 "
        "id-taken, unless first_wins=1.  Appends, upserts and "
        "deletes without rows change nothing; a transaction of only these is recorded if it has "
        "an id, otherwise its receipt has n 0.  An overwrite without rows empties the table.  "
        "`commits` are staged versions of commit tables, all or none with the rest "
        "(docs/catalog-commits.md).",
    ),
    _submit(
        "/v1/runs",
        "submit_run",
        "Commit a batch of transactions",
        body_type=RUN,
        description="The body is a payload container (docs/formats.md): manifest with ids "
        "and Arrow IPC sections of inline rows.",
    ),
    _submit(
        "/v1/tables/{table}/rows",
        "submit_rows",
        "Commit Arrow rows to one table",
        body_type=ARROW,
        query=ROWS,
        description="With an int32 column `__txlog_tx` that rises from 0, the rows of each "
        "number are one transaction.",
    ),
)

_UPLOADS = (
    Route(
        method="PUT",
        path="/v1/staged/{path:path}",
        name="upload_part",
        summary="Upload a part of a staged file",
        description="For executors that do not see the node's payload store.  The path is "
        "`<transaction id>/<directory>/<file>`, the body at most 4 MiB of the file.  `received` "
        "says how many bytes the node has; bytes that begin elsewhere are not taken, so an empty "
        "body asks.  When it has all of them, and they match the digest, the file is in place, and "
        "a transaction may name it.  No other file takes its name.  After 503 or a broken "
        "connection, ask and go on.  The node removes files that no transaction names.",
        role=Role.CLIENT,
        query=UPLOADED,
        body=bytes,
        body_type=BINARY,
        answer=ReceivedBytes,
        body_bytes=PART_BYTES,
        at_member=True,
    ),
)

_MARKS = (
    Route(
        method="POST",
        path="/v1/transactions/{id}/marks",
        name="mark_transaction",
        summary="Say YES or NO to a prepared transaction",
        description="For one of its participants.  The receipt is that of the mark; what becomes "
        "of the transaction is at `GET /v1/transactions/{id}`.  To say the same again is to repeat "
        "one transaction.",
        role=Role.CLIENT,
        query=SUBMIT,
        body=MarkRequest,
        answer=Receipt,
        at_member=True,
    ),
)

_OPEN_PATH = "/v1/open-transactions"
_OPENED = (
    Route(
        method="POST",
        path=_OPEN_PATH,
        name="open_transaction",
        summary="Open a transaction that further requests add to",
        description="It is in the memory of this node, and ends without effect if no request for "
        "it comes for as long as its lease says.  Nothing is locked.",
        role=Role.CLIENT,
        body=OpenRequest,
        answer=OpenedTransaction,
        at_member=True,
    ),
    _submit(
        f"{_OPEN_PATH}/{{id}}/operations",
        "add_operations",
        "Add operations to an open transaction, all or none; none renew its lease",
        body=AddedOperations,
        query=(),
        answer=OpenedTransaction,
    ),
    _submit(
        f"{_OPEN_PATH}/{{id}}/commit",
        "commit_transaction",
        "Commit an open transaction",
        body=None,
        description="After a failure that says definite it is open as before.  A repeated commit "
        "gets the receipt of the first, as `GET /v1/transactions/{id}` does.",
    ),
    Route(
        method="DELETE",
        path=f"{_OPEN_PATH}/{{id}}",
        name="rollback_transaction",
        summary="Roll back an open transaction",
        role=Role.CLIENT,
    ),
    get(_OPEN_PATH, "open_transactions", "Open transactions", list[OpenedTransaction]),
    get(f"{_OPEN_PATH}/{{id}}", "show_transaction", "An open transaction", OpenedTransaction),
)

_QUESTIONS = (
    get("/v1/transactions/{id}", "find_transaction", "State of a transaction", Receipt, *DECISION),
    get("/v1/prepared", "prepared", "Undecided transactions", list[UndecidedAnswer]),
    get("/v1/groups", "groups", "Groups of sites, and which of these are away", list[GroupLine]),
    _always("/v1/info", "info", "Names, limits and directories", InfoAnswer),
    _always(
        "/v1/status",
        "status",
        "Queues, peers, which node is missing and why",
        StatusAnswer,
        TABLES,
    ),
    get("/v1/tables", "tables", "All row tables", list[TableAt], *REACH, *PAGE),
    get("/v1/tables/{table}", "table", "One row table", TableAt, *REACH),
    get("/v1/descriptions", "descriptions", "All tables", list[TableDescription], *REACH, *PAGE),
    get("/v1/descriptions/{table}", "description", "One table", TableDescription, *REACH),
    get("/v1/state-files", "state_files", "Where views for SQL are written", StateFilesAnswer),
    get("/v1/commit-tables", "commit_tables", "Commit tables here", list[CommitTableLine]),
    get("/v1/incoming", "incoming", "Runs in negotiation", list[IncomingRunAnswer], ENTRIES),
    get("/v1/queue", "queue", "Runs of the queue", list[ListedRun], BEHIND, ENTRIES),
    get(
        "/v1/published",
        "published",
        "End of the queue table",
        PositionAnswer,
        AT_LEAST,
        LOG_ID,
        WAIT,
    ),
    get(
        "/v1/snapshot",
        "snapshot",
        "Table versions at one position",
        SnapshotAnswer,
        AT,
        AT_LEAST,
        LOG_ID,
        WAIT,
        Query("replica", "Name of the replica; default: the most current one.", ""),
        Query("table", "It must hold this table; default: all tables, if one does.", ""),
    ),
    get(
        "/v1/probe/{name}",
        "probe",
        "Size and digest of a file to probe the store",
        ProbedFile,
        before_log=True,
    ),
    get("/v1/transfers", "transfers", "Latest catch-ups, oldest first", list[Transfer], ENTRIES),
    get(
        "/v1/signatures",
        "signatures",
        "Signatures of the replica at the ends of its batches",
        SiteSignatures,
        BEHIND,
        ENTRIES,
        REPLICA,
    ),
    get(
        "/v1/settings",
        "settings",
        "Settings that can be changed at run time",
        _Settings,
        before_log=True,
    ),
    Route(
        method="PATCH",
        path="/v1/settings",
        name="change_settings",
        summary="Change settings at run time, all or none; null undoes a change",
        role=Role.ADMIN,
        body=dict[str, Any],
        answer=_Settings,
    ),
    Route(
        method="POST",
        path="/v1/maintenance",
        name="maintain",
        summary="Shorten the log to its limits now; says what was removed and who holds it back",
        role=Role.ADMIN,
        answer=Maintenance,
    ),
    Route(
        method="POST",
        path="/v1/recounts",
        name="order_recount",
        summary="Have the worker of this site recount row tables",
        description="A worker that follows the log does it after its next report, and reports what "
        "it found: a table with other rows is DIVERGED, and is repaired where a healthy donor is.",
        role=Role.ADMIN,
        body=RecountOrder,
        answer=OrderedRecount,
    ),
    Route(
        method="DELETE",
        path="/v1/replicas/{name}",
        name="forget_replica",
        summary="Forget a replica of this site whose worker has ended: it holds the log no longer",
        role=Role.ADMIN,
    ),
    _always("/metrics", "metrics", "Metrics", bytes, answer_type=PROMETHEUS),
)

_WORKERS = (
    get(
        "/v1/worker/segments",
        "segments",
        "Published segments after a position; long poll",
        SegmentsAnswer,
        APPLIED,
        POLL,
        PIECES,
    ),
    get(
        "/v1/worker/commits",
        "commits",
        "Versions of commit tables, where the log ordered them, and what became of the tables",
        OrderedVersions,
        BEHIND,
        whole("upto", "Up to this position.", required=True),
        whole(
            "limit", "Versions, about; those of one position stay together.", 500, low=1, high=1000
        ),
    ),
    get("/v1/worker/tables", "worker_tables", "All tables", list[TableAt], *REACH, *PAGE),
    get("/v1/worker/plan", "plan", "How a replica would catch up", Decision, WORKER),
    get(
        "/v1/worker/files/{where}/{path:path}",
        "worker_file",
        "A file of `payloads`, or of `versions` (below UUID and version), where no disk is shared",
        bytes,
        *STAGED,
        role=Role.WORKER,
        answer_type=BINARY,
    ),
    _tell("/reports", "report", "State of the replica; verdict, plan", OwnReport, ReportAnswer),
    _tell("/recounts", "take_recount", "What a full scan found", Recount, ReportAnswer),
    _tell("/copies", "order_copy", "A lease of the best donor", CopyRequest, CopyTicket),
    _tell(
        "/commit-tables/check",
        "check_commit_table",
        "Recount the files of a commit table, and mend them",
        CommitTableCheckRequest,
        CommitTableCheck,
    ),
    _tell("/files", "repair_files", "Fetch damaged files again", RepairRequest, RepairedFiles),
    _tell("/transfers", "take_transfer", "Report a finished or failed catch-up", Transfer),
)

_MEMBERS = (
    _always(
        "/v1/epochs",
        "epochs",
        "Current view: phase, epoch, nodes, members, and who is linked",
        EpochsAnswer,
    ),
    _always(
        "/v1/epochs/history",
        "epoch_history",
        "Epochs that this node has entered, newest first",
        list[EpochRecord],
        ENTRIES,
    ),
    _decide("POST /peers", "add_peer", "Add a node; 409 says why not", AddPeer),
    _decide("DELETE /peers/{id}", "remove_peer", "Remove a node"),
    _decide("PATCH /peers/{id}", "change_peer", "Change address or votes", ChangePeer),
    _decide("POST /peers/{id}/promote", "promote_peer", "Move up in precedence"),
    _decide("POST /peers/{id}/demote", "demote_peer", "Move down in precedence"),
    _decide("POST /peers/{id}/replace", "replace_peer", "Replace a node by another", ReplacePeer),
    _decide("POST /quorum", "set_quorum", "Change the acquisition quorum", SetQuorum),
    _decide("POST /void", "void", "Declare an undeliverable run void", VoidRun, VoidAnswer),
    _decide("POST /force", "force", "Go on alone if all others are dead", ForceEpoch, ForceAnswer),
)

_PEERS = (
    _peer("POST /hello", "hello", "Greet", wire.Hello, answer=wire.Hello, body_bytes=HELLO_BYTES),
    _peer("GET /watch", "watch", "Wait: answered at the end of the wait, or when the node stops"),
    _peer("POST /posts", "posts", "Status and reports", wire.Envelope, answer=wire.PostAnswer),
    _peer("POST /pushes", "pushes", "Runs with their payloads", bytes),
    _peer("POST /announcements", "announcements", "Staged files of a coming run", Announcement),
    _peer("POST /tails", "tails", "The end of a queue", Tail),
    _peer("POST /epochs", "epoch_message", "A message about the change of an epoch", bytes),
    _peer(
        "GET /summaries/{name}",
        "summary_offer",
        "Size of a queue summary",
        answer=wire.SummaryOffer,
    ),
    _peer("GET /queue/{position:number}", "queue_tail", "The queue after a position", answer=Tail),
    _peer(
        "GET /runs/{origin}/{incarnation:number}/{seq:number}", "run", "Payload of a run", **_RUN
    ),
    _peer("POST /runs", "runs", "Small runs", wire.RunsRequest, answer=wire.RunsAnswer),
    _peer("GET /announced/{digest}", "announced", "Payload of an announced run", **_RUN),
    _peer(
        "GET /files/{where}/{path:path}",
        "file",
        "A file of `payloads`, of `versions` (below UUID and version) or of `summaries`",
        query=STAGED,
        **_FILE,
    ),
    _peer(
        "GET /commit-tables/{uuid}/versions",
        "table_versions",
        "Files of the versions of a commit table",
        query=VERSIONS,
        answer=TableVersions,
        at_witness=False,
    ),
    _peer("POST /leases", "lend", "A lease", wire.LeaseRequest, answer=Lease),
    _peer(
        "GET /replica/size",
        "replica_size",
        "What a copy would cost",
        query=(REPLICA,),
        answer=ReplicaSize,
    ),
)

_LEASES = (
    _lease("GET", "", "lease", "What the lease pins", answer=Lease),
    _lease("DELETE", "", "release", "End the lease"),
    _lease("POST", "/renew", "renew", "Renew the lease"),
    _lease("GET", "/chunks", "chunk", "A piece of a pinned file", query=PIECE, **_FILE),
    _lease(
        "POST",
        "/digests",
        "digests",
        "Digests of pinned files",
        body=DigestRequest,
        answer=DigestAnswer,
        body_bytes=_DIGESTS_BYTES,
    ),
)

#: Where the pages for people are, in addition to `/`.
DASHBOARD = "/dashboard"
_MORE = Query("after", "Of the queue: runs after this position. Of tables: names after this one.")


def _page(path: str, name: str, summary: str, *query: Query, **more: Any) -> Route:
    values: dict[str, Any] = {"role": Role.BROWSER, "answer_type": HTML, "at_witness": True} | more
    return get(path, name, summary, bytes, *query, **values)


_PAGES = (
    _page("/", "start_page", "Sites, links, replicas, and what the order waits for"),
    _page(
        f"{DASHBOARD}/events",
        "dashboard_events",
        "Tells a page that something changed",
        answer_type="text/event-stream",
    ),
    _page(
        f"{DASHBOARD}/search",
        "search_dashboard",
        "To a transaction, a position or a table",
        Query("q", "Its id, number or name.", required=True),
        at_witness=False,
    ),
    _page(
        f"{DASHBOARD}/{{page}}",
        "dashboard_page",
        "overview, history, queue, rounds, tables, transfers, epochs, acts; with `.json` as JSON",
        _MORE,
        Query("find", "Of tables: those whose names have this."),
        Query("table", "Of acts: those on this table, too."),
        Query("span", "Of the history: hour (a sample each 10 s) or day (each minute)."),
    ),
    _page(
        f"{DASHBOARD}/rounds/{{id}}",
        "round_page",
        "A round that was held up, with those before and after it; with `.json` the same as JSON",
        at_witness=False,
    ),
    _page(
        f"{DASHBOARD}/transactions/{{id}}",
        "transaction_page",
        "The way of a transaction; with `.json` the same as JSON",
        at_witness=False,
    ),
    _page(
        f"{DASHBOARD}/tables/{{name}}",
        "table_page",
        "A table: columns, how it is at each site, what wrote to it; with `.json` as JSON",
        at_witness=False,
    ),
    _page(
        f"{DASHBOARD}/static/{{name}}",
        "dashboard_file",
        "A script or style of the pages",
        role=Role.ANYBODY,
    ),
)

#: Entries of a page of the catalog, at most.
LISTED = 1_000
_SCHEMA = f"{DELTA_API}/v1/catalogs/{{catalog}}/schemas/{{schema}}"
_TABLE = f"{_SCHEMA}/tables/{{table}}"


def _catalog(key: str, name: str, summary: str, **more: Any) -> Route:
    method, path = key.split(" ")
    values: dict[str, Any] = {"role": Role.CLIENT, "at_member": method != "GET"} | more
    return Route(method=method, path=path, name=name, summary=summary, **values)


_OF_CATALOG = Query("catalog_name", "Name of the catalog in the session.", required=True)
_OF_SCHEMA = Query("schema_name", "Name of the schema.", required=True)
_OF_PAGE = (
    whole("max_results", "Most entries of a page, 1,000 at most; 0 = 1,000.", 0),
    Query("page_token", "What the page before said of the next one."),
)
_CATALOG = (
    _catalog(
        f"GET {DELTA_API}/v1/config",
        "catalog_config",
        "What the catalog offers",
        query=(
            Query("catalog", "Name of the catalog in the session.", required=True),
            Query("protocol-versions", "Versions that the client speaks.", required=True),
        ),
        answer=CatalogConfig,
    ),
    _catalog(
        f"GET {CATALOG_API}/metastore_summary", "metastore", "The log", answer=MetastoreAnswer
    ),
    _catalog(
        f"GET {CATALOG_API}/catalogs",
        "list_catalogs",
        "Catalogs: the log is one",
        query=_OF_PAGE,
        answer=CatalogsAnswer,
    ),
    _catalog(
        f"GET {CATALOG_API}/catalogs/{{name}}",
        "get_catalog",
        "The log as a catalog, whatever a session calls it",
        answer=CatalogInfo,
    ),
    _catalog(
        f"GET {CATALOG_API}/schemas",
        "list_schemas",
        "Schemas of commit tables",
        query=(_OF_CATALOG, *_OF_PAGE),
        answer=SchemasAnswer,
    ),
    _catalog(
        f"POST {CATALOG_API}/schemas",
        "create_schema",
        "Create a schema at this node",
        body=NewSchemaRequest,
        answer=SchemaAnswer,
    ),
    _catalog(
        f"GET {CATALOG_API}/schemas/{{full_name}}", "get_schema", "A schema", answer=SchemaAnswer
    ),
    _catalog(
        f"DELETE {CATALOG_API}/schemas/{{full_name}}",
        "drop_schema",
        "Drop a schema",
        query=(
            Query("force", "`true`: drop the commit tables in it first, each as a transaction."),
        ),
        answer=DroppedAnswer,
    ),
    _catalog(
        f"GET {CATALOG_API}/tables",
        "list_tables",
        "Tables of a schema: commit tables, and row tables to be read",
        query=(_OF_CATALOG, _OF_SCHEMA, *_OF_PAGE),
        answer=ListedTables,
    ),
    _catalog(
        f"GET {CATALOG_API}/tables/{{full_name}}",
        "get_table",
        "A table",
        answer=CatalogTable,
    ),
    _catalog(
        f"DELETE {CATALOG_API}/tables/{{full_name}}",
        "drop_table",
        "Drop a commit table; its files stay",
        answer=DroppedAnswer,
    ),
    _catalog(
        f"POST {CATALOG_API}/temporary-table-credentials",
        "temporary_table_credentials",
        "Credentials for a table by its id, if the node gives any",
        body=TemporaryCredentialsRequest,
        answer=TemporaryCredentials,
    ),
    _catalog(
        f"POST {_SCHEMA}/staging-tables",
        "create_staging_table",
        "A place for a new commit table",
        body=StagingTableRequest,
        answer=StagingTableAnswer,
    ),
    _catalog(
        f"POST {_SCHEMA}/tables",
        "create_delta_table",
        "Create a commit table whose version 0 is written",
        body=CreateTableRequest,
        answer=LoadedTable,
    ),
    _catalog(f"GET {_TABLE}", "load_delta_table", "A table", answer=LoadedTable),
    _catalog(
        f"POST {_TABLE}",
        "update_delta_table",
        "Commit a version of a commit table",
        body=UpdateTableRequest,
        answer=LoadedTable,
    ),
    _catalog(f"DELETE {_TABLE}", "delete_delta_table", "Drop a commit table; its files stay"),
    _catalog(
        f"POST {_TABLE}/rename",
        "rename_delta_table",
        "Give a commit table another name in its schema",
        body=RenameTableRequest,
    ),
    _catalog(
        f"POST {_TABLE}/metrics",
        "report_metrics",
        "Take note of a client's metrics; they are not kept",
        body=MetricsRequest,
        at_member=False,
    ),
    _catalog(
        f"GET {_TABLE}/credentials",
        "table_credentials",
        "Credentials for a table, if the node gives any (store-vend-role, store-vend-sas)",
        query=(Query("operation", "READ or READ_WRITE.", required=True),),
        answer=CredentialsAnswer,
    ),
    _catalog(
        f"GET {DELTA_API}/v1/staging-tables/{{table_id}}/credentials",
        "staging_credentials",
        "Credentials for a staging table, if the node gives any",
        answer=CredentialsAnswer,
    ),
)

_OPEN = (
    _open("/livez", "livez", "Whether the process runs", PLAIN),
    _open(
        "/readyz",
        "readyz",
        "Whether the node is ready, 503 if not; reasons for those with a token",
        PLAIN,
        VERBOSE,
        DATA,
    ),
    _open("/openapi.json", "openapi", "The interface of clients, for programs", JSON),
    _open("/docs", "docs", "The interface of clients, for people", HTML),
)

ROUTES: tuple[Route, ...] = (
    *_SUBMITS,
    *_UPLOADS,
    *_MARKS,
    *_OPENED,
    *_QUESTIONS,
    *_WORKERS,
    *_MEMBERS,
    *VIEWING,
    *ADMINISTRATION,
    *POINTS,
    *GROUP_ACTS,
    *_PAGES,
    *_CATALOG,
    *_PEERS,
    *_LEASES,
    *_OPEN,
)
