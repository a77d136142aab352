"""A replica copied from a donor.

replica_copy   journal, ticket, swap, report
copy_terms     options and outcome of a copy, and who brings files
donor_fetcher  files from donors, by threads or by executors
layout         which files a version needs, and which features files carry
staging        a donor's tables fetched and recounted beside the replica's
swap           staged files put in the table's place
fetch          files over the network into a directory below the lake; needs no Spark
"""
