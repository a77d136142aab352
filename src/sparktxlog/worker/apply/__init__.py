"""Segments → Delta commits of each table, each done once.

batches     segments → what to do to each table (pure)
cutting     the log cut at the end of a run
fold        rows of a batch as DataFrames, folded by key
signatures  content signatures as Spark expressions
merging     commits made by Spark: MERGE, DELETE
placing     commits made without Spark: staged files in place
settling    what a power cut leaves of commits
steps       the commits of one table, each once
version_files  which files make one version of a table
tables      table logs: creation, own and foreign commits
deltalog    a table's log as Spark's Delta reads and writes it
"""
