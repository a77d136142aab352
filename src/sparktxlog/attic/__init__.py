"""The only place for what is set aside, and the only remover of what is old there.

Kinds of entries (`attic.Kind`):

    dropped   the directory of a row table that the log dropped (P33)
    rows      rows that a copy or a repair took out of a table (P28), as a Delta table
    table     the directory of a table that a copy or a repair replaced as a whole (P28)
    backup    the files of a table before a copy replaced them, if `backup-dir` is set
    queue     the Delta table of the queue from before a summary replaced it
    fork      what a node had before it left a fork: journal, queue, and the rows of what it gave
              up; each of its commit tables is an entry of its own
    files     files that were in the places of others in a commit table
    log       the Delta log of a table whose files moved to a commit table

Not here, because nobody may want it back: payloads, positions and versions that their retention
ends (`storage.payloads`, `storage.journal`, `storage.commit_tables.table_sweep`); images, which are
kept on purpose and counted (`worker.backup`); scratch of a running step; leases and pinned files.
"""
