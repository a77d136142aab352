"""The Spark worker: applies the published log to a replica's Delta tables, and proves them equal.

    source      where segments come from and reports go to
    batches     segments → what to do to each table (pure)
    fold        rows of a batch as DataFrames, folded by key
    signatures  content signatures as Spark expressions
    merging     commits made by Spark: MERGE, DELETE
    placing     commits made without Spark: staged files in place
    steps       the commits of one table, each once
    tables      table logs: creation, own and foreign commits
    state       the replica's durable state and lock
    apply       the loop
    reports     reports and heartbeats
    verify      recount, compare, name what differs

Rows are processed in Spark only.  The room knows nothing of the sync protocol: it sees segments.
"""
