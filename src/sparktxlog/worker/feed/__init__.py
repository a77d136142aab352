"""The log of a cluster, kept outside of all its sites, and tables that are made from it again.

feed_page       a piece of the log, and what it must follow
feed_store      the place of a feed, in a directory or in a bucket, and who may write there
shipping        follows a node, and stores what it publishes
shipped_files   the files that pages name, from the site into the feed and back
feed_points     from where to where a feed leads: positions, times, images
feed_lakes      lakes into which it may be restored
feed_restoring  row tables at a position: an image, then the feed, by the ordinary applier
feed_commits    commit tables at a position
feed_checks     compares all of a feed with its digests, and says how late it is
"""
