"""Copies a replica from a donor.

replica_copy   the copy from its ticket to its report
copy_terms     options and outcome of a copy
donor_fetcher  fetches files from donors, by threads or by executors
layout         which files a version needs, and which features files carry
staging        fetches and recounts a donor's tables next to the replica's
swap           replaces a table by a staged one
fetch          files over the network into a directory below the lake; needs no Spark
"""
