"""The target's side of a copy, up to "all files are staged and verified".

    tasks       values: what is fetched, digests, what came of it
    workspace   the directory of a copy below the lake; survives kill -9
    selection   which chunks are here already and which travel; is there room
    donor_link  one connection to a donor: chunks, digests, the lease, kept alive and given back
    part_writer  chunks into files, past the page cache
    fetch       selected files in, staged files out; by threads, here or at executors

Used by threads of a Spark driver and by functions that Spark ships to executors: imports stay
light, parts are picklable, nothing is global.
"""

from __future__ import annotations
