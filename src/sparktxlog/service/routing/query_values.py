"""Values of queries that several routes take, each with its default and what it means."""

from __future__ import annotations

from sparktxlog.model.ids import LARGEST
from sparktxlog.model.replicas import MAIN
from sparktxlog.service.routing.query import Query, seconds, whole

#: Default wait of a submit, seconds.
SUBMIT_TIMEOUT_S = 30.0
#: Default wait for a decision, seconds: longer than four times the default `suspect-timeout`, after
#: which a change is refused that too few nodes answer to decide.
DECISION_TIMEOUT_S = 60.0

LEVEL = Query(
    "level",
    "How far it must get before the answer: accepted (durable here), acquired (durable at the "
    "acquisition quorum), ordered (has its position), applied or applied(k) (is in the tables of "
    "this site, or of k sites, however many replicas each has).",
    "ordered",
)
TIMEOUT = seconds(
    "timeout",
    "Seconds to wait for the level.  Then the answer is the receipt with late: true if the "
    "transaction is ordered, and 504 unknown-outcome if it is not.",
    SUBMIT_TIMEOUT_S,
)
AFTER = whole(
    "after",
    "A position, for example of a receipt of another node. This node first waits until it has "
    "reached it, for as long as timeout in the query says; after that the answer is 503 "
    "position-not-reached.",
    0,
)
FIRST_WINS = whole(
    "first_wins",
    "1: whatever the log has under the transaction id counts, and its receipt is the answer. 0: if "
    "that has other content, the answer is 409 id-taken.",
    0,
    high=1,
)
SUBMIT = (LEVEL, TIMEOUT, AFTER)
REACH = (AFTER, seconds("timeout", "Seconds to wait for it.", SUBMIT_TIMEOUT_S))
PAGE = (
    Query(
        "after_name",
        "Tables after this one, in the order of their full names without case, as default.orders.",
        "",
    ),
    whole("limit", "Tables at most; fewer are the last ones. Default: all.", low=1, high=1000),
)
BEHIND = whole("after", "After this position.", 0)
AT_LEAST = whole("at_least", "Wait until it is reached.", 0)
LOG_ID = Query(
    "log_id",
    "The log of the receipt that at_least was taken from. A position of another log is refused.",
    "",
)
WAIT = seconds("timeout", "Seconds to wait.", 0.0)
DECISION = (
    AFTER,
    seconds("timeout", "Seconds to wait for after, and for the decision if it is prepared.", 0.0),
)
ENTRIES = whole("limit", "Entries at most.", 100, low=1, high=1000)
TABLES = whole(
    "tables",
    "1: list the tables of each replica, not only their number, and all commit tables.",
    0,
    high=1,
)
AT = whole("position", "Exactly this position; default: the latest.", -1, low=-1)
APPLIED = whole("after", "Applied position.", 0)
POLL = seconds("wait", "Seconds to wait for a segment.", 0.0)
PIECES = whole("limit", "Segments at most.", 500, low=1, high=1000)
WORKER = Query("worker", "Worker; default: that of the site's main replica.")
REPLICA = Query("replica", "Name of the replica at its site.", MAIN)
VERBOSE = Query("verbose", "List all checks, also if they pass, and `data`.")
DATA = Query(
    "data",
    "Ask, too, whether the site has all data that the others count on it to have: rows, and "
    "versions of commit tables.  Wait for it before the next disk is replaced.",
)
SCHEMA_VERSION = whole(
    "schema_version",
    "Schema version of the table that the rows are made for. If that is another one by now, the "
    "answer is 409 stale-schema.",
    low=1,
)
ROWS = (
    Query("kind", "append, upsert, delete_keys or overwrite.", "append"),
    Query("transaction_id", "Id of a single transaction."),
    SCHEMA_VERSION,
    *SUBMIT,
    FIRST_WINS,
)
STAGED = (
    Query("digest", "Digest of the file.", required=True),
    whole("size", "Its bytes.", 0),
    whole("rows", "Its rows.", 0),
)
UPLOADED = (
    Query("table", "The table that its rows are for.", required=True),
    Query("digest", "SHA-256 of the whole file, hexadecimal.", required=True),
    whole("size", "Bytes of the whole file.", required=True, low=1),
    whole("rows", "Its rows.", required=True),
    whole("offset", "Where in the file the body begins.", 0),
)
VERSIONS = (
    whole("after", "After this version.", -1, low=-1),
    whole("until", "Up to this version.", LARGEST),
)
PIECE = (
    Query("table", "Its table.", required=True),
    Query("path", "Its path below the table.", required=True),
    whole("offset", "Its first byte.", required=True),
    whole("length", "Its bytes.", required=True),
)
DECIDED = (seconds("timeout", "Seconds to wait for the decision.", DECISION_TIMEOUT_S),)
