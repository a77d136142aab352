"""Where the tables of a replica lie: in a directory, or in a bucket.

lake         what a worker asks of either
disk_lake    a directory: hard links, and forced to the disk
bucket_lake  a bucket: conditional requests, under a lock
lake_lease   that lock: an object with a number that grows
lake_places  which of both a path or a URL names
"""
