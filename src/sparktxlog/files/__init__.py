"""Moves files between sites.

A copy: a donor pins and offers files, or has them; a target fetches them.

    pins        what a lease keeps: hard links to the files of a replica
    pinned_chunks  what is sent: chunks of pinned files, and their digests
    donor_link  one connection to a donor: chunks, digests, the lease, kept alive and given back
    file_donors  what files are fetched from: a node, or a directory of this machine
    tasks       values: what is fetched, and what came of it
    workspace   where fetched files are staged; survives kill -9
    selection   which chunks are here already and which travel; is there room
    part_writer  chunks into files, past the page cache
    fetch       selected files in, staged files out; by threads, here or at executors

All others, each with a digest of its own in a manifest:

    sending     at their sender: bytes from an offset on
    arrivals    a directory where they arrive: resumed, verified, durable, or refused

The target's side of a copy is used by threads of a Spark driver and by functions that Spark ships
to executors: imports stay light, parts are picklable, nothing is global.
"""

from __future__ import annotations
