"""The Spark worker: applies the published log to a replica's Delta tables, and verifies them.

    replica  the loop, the replica's durable state, its node's interface, reports, upkeep
    apply    segments → Delta commits of each table, exactly once; content signatures
    copy     a replica copied from a donor; `files` brings the files, without Spark
    repair   rows of other writers kept in the attic; a table brought back to the log
    verify   recounts, comparison of sites
    backup   images of a replica, and restoring them; removal of old backups

Rows are processed in Spark only.  The worker does not know the sync protocol, only segments.
"""
