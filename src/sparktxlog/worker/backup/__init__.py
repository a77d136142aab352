"""Images of a replica, and restoring them; removal of what is old.

image_store  a directory of images: each is a donor on a disk, with the manifest of a copy
imaging      makes an image of a replica's newest complete batch
restoring    a replica from an image
removal      removes images and entries of attics on request
"""
