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
    replica     one batch brought to all tables, once
    apply       the loop
    reports     reports and heartbeats
    verify      recount, compare, name what differs
    copying     a replica copied from a donor: journal, ticket, swap, report
    staging     a donor's tables fetched and recounted beside the replica's
    copy_terms  options and outcome of a copy, and who brings files
    recovery    carries out the machine's orders: batches, ranges, copies
    fetching    files from donors, by threads or by executors
    deltalog    a table's log as Spark's Delta reads and writes it
    layout      which files a version needs, and which features files carry
    swap        staged files put in the table's place
    examining   whose versions stand in a table before it is replaced
    quarantine  what a copy would make disappear
    backup      the old files, before a copy
    leftovers   images, quarantine and old files, removed where somebody asks for it

Rows are processed in Spark only.  The room knows nothing of the sync protocol: it sees segments.
"""
