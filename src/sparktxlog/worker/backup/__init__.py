"""Images of a replica, and restoring them; removal of what is old.

image          an image, and its manifest
image_store    what is asked of a place of images: each is a donor, with the manifest of a copy
disk_images    one that is a directory
bucket_images  one in a bucket
image_places   which of both a path or a URL names
originals      files of the site, in a directory or a bucket
imaging        makes an image of a replica's newest complete batch
restoring      a replica from an image
bucket_restoring  the same into a bucket
removal        removes images and entries of attics on request
"""
