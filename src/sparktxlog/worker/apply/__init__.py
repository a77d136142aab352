"""Applies segments: Delta commits of each table, each done exactly once.

batches     segments → what to do to each table (pure)
cutting     the log cut at the end of a run
fold        rows of a batch as DataFrames: the last operation of each key
signatures  content signatures as Spark expressions
merging     the commit of a stage's upserts and deletes, made by Spark
placing     commits made without Spark: staged files added as they are
settling    makes commits durable; undoes those that a power cut damaged
steps       the commits of one table, each exactly once
tables      table logs: creation, own and foreign commits
deltalog    a table's log as Spark's Delta reads and writes it
worker_session  the workers' Spark sessions: settings, marks of commits and jobs
"""
