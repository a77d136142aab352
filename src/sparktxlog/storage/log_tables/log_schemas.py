"""Columns of the tables in `log/`; docs/formats-log.md says what each of them means.

Only types that every Delta reader knows at reader version 1 / writer version 2: no timestamp
without zone, no decimal wider than needed, no unsigned integer.
"""

from __future__ import annotations

import pyarrow as pa

from sparktxlog.codec.arrow import arrow_type


def _schema(text: str) -> pa.Schema:
    """Return the schema that lines of name, type and `not null` declare."""
    lines = [line.split(maxsplit=2) for line in text.strip().splitlines()]
    return pa.schema(
        [pa.field(name, arrow_type(kind), nullable=not rest) for name, kind, *rest in lines]
    )


_OPERATION = (
    "struct<op:int,table:string,kind:string,rows:bigint,bytes:bigint,files:array<string>,"
    "predicate:string>"
)
#: An operation of a transaction, as element of `operations`.
OPERATION = arrow_type(_OPERATION)

#: `log/synchronized_queue`: one row per transaction, key and order `position`.
SYNCHRONIZED_QUEUE = _schema(f"""
    position        bigint  not null
    run_seq         bigint  not null
    run_n           int     not null
    epoch           bigint  not null
    timestamp       bigint  not null
    origin          string  not null
    incarnation     bigint  not null
    sequence        bigint  not null
    transaction_id  string  not null
    outcome         string  not null
    reason          string
    operations      array<{_OPERATION}>
    inline          array<string>
    digest          string  not null
    chain_hash      string  not null
    submitted_at    timestamp
    ordered_at      timestamp  not null
    """)

#: `log/signatures`: state of one table of one replica at one position.  `name`: of the replica at
#: its site.
SIGNATURES = _schema("""
    position     bigint  not null
    chain_hash   string  not null
    table        string  not null
    node_id      string  not null
    worker_id    string  not null
    name         string  not null
    version      bigint  not null
    rows         bigint  not null
    signature    string  not null
    schema       string  not null
    diverged     string
    reported_at  timestamp  not null
    """)

_SEAT = (
    "struct<id:string,url:string,weight:bigint,witness:boolean,follower:boolean,incarnation:bigint>"
)
#: `log/epochs`: one row per epoch that this node entered, key (log id, epoch).
EPOCHS = _schema(f"""
    log_id       string  not null
    epoch         bigint  not null
    members       array<string>  not null
    quorum        bigint  not null
    quorum_rule   string  not null
    roster        array<{_SEAT}>  not null
    begins_after  struct<position:bigint,chain_hash:string>  not null
    joined        array<string>
    left          array<string>
    changed       array<string>
    phase         string  not null
    taken_up_at   timestamp  not null
    """)

#: `log/lag`: how far each replica is behind, as this node knows it, every `lag-interval` seconds
#: while one is; when it has caught up, one row with 0.  `table` NULL: the replica as a whole.  With
#: a table: the part of it, if the replica is not far behind; of a commit table, whose `worker_id`
#: is empty, the versions that this site lacks.  `transactions`: published and not applied, of a
#: table at most so many.  `seconds`: age of the first of them; `size_bytes` and `seconds` are NULL
#: if not known.
LAG = _schema("""
    sampled_at    timestamp  not null
    node_id       string  not null
    worker_id     string  not null
    table         string
    position      bigint  not null
    transactions  bigint  not null
    size_bytes    bigint
    seconds       double
    """)

#: `log/rounds`: one row per round that was held up and ended; pages show them.
ROUNDS = _schema("""
    round         bigint  not null
    began_at      timestamp  not null
    ended_at      timestamp
    position      bigint  not null
    transactions  bigint  not null
    held_up_by    array<string>  not null
    waits         array<struct<peer:string,why:string,began_at:timestamp,ended_at:timestamp>>
    sentence      string  not null
    """)

#: Columns of `log/synchronized_queue` that an accepted transaction does not have.
_ORDERED_ONLY = {"run_seq", "epoch", "timestamp", "sequence", "outcome", "chain_hash", "ordered_at"}

#: `log/quarantine`: one row per transaction that a node gave up to follow another history.
QUARANTINE = pa.schema(
    [
        *_schema("""
        quarantine_id   string  not null
        quarantined_at  timestamp  not null
        why             string  not null
        log_id         string  not null
        survives        boolean  not null
        """),
        *(
            field.with_nullable(field.nullable or field.name in _ORDERED_ONLY)
            for field in SYNCHRONIZED_QUEUE
        ),
        *_schema("""
        files_root      string  not null
        partitions      string
        creates         string
        remark          string
        """),
    ]
)

#: Table directory below `log/` → schema.
LOG_TABLES = {
    "synchronized_queue": SYNCHRONIZED_QUEUE,
    "signatures": SIGNATURES,
    "epochs": EPOCHS,
    "lag": LAG,
    "rounds": ROUNDS,
    "quarantine": QUARANTINE,
}
