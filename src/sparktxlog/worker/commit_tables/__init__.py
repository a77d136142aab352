"""Commit tables: what Spark does to them besides the commits of users.

delta_reading   a Delta table, read by Spark
table_adoption  a Delta table becomes a commit table
"""
