"""Writers at all sites of real nodes that are killed and cut off write to a few commit tables.

Commits are prepared without Spark: a data file holds the name of one row.  A writer goes by Delta's
rules: who lost reads the table again and asks for the next version with the same data file; who got
no answer asks again with the same staged commit.  In the end no row is lost or doubled, and all
sites have one history, byte by byte.
"""
