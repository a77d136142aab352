"""Images of a replica, and restoring them; removal of old backups and quarantine.

image_store  a directory of images: files once by content, one manifest for each image
imaging      a replica's newest whole batch becomes an image
restoring    a replica from an image
old_files    a replica's files, kept before a copy
removal      images, quarantine and old files, removed where somebody asks for it
table_files  which files make one version of a table, without Spark
"""
