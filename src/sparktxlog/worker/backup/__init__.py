"""Images of a replica, and restoring them; removal of what is old.

image_store  a directory of images: files once by content, one manifest for each image
imaging      makes an image of a replica's newest complete batch
restoring    a replica from an image
removal      removes images and entries of attics on request
"""
