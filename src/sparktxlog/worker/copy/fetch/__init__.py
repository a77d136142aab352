"""The target's side of a copy, up to "all files are staged and verified".

    tasks       values: what is fetched, digests, what came of it
    workspace   the directory of a copy below the lake, its journals; survives kill -9
    selection   which files are here already and which travel; is there room
    donor_link  one connection to a donor: chunks, digests, the lease, kept alive and given back
    part_writer  chunks into files, past the page cache
    chunk_schedule  which chunk comes next, from which donor
    proving     which files donors have alike; whole files compared, brought to the disk, named
    fetch       all of it, and its threads: selected files in, staged files out
    parts       chunks fetched by Spark executors

Used by threads of a Spark driver and by functions that Spark ships to executors: imports stay
light, plans are picklable, nothing is global.
"""

from __future__ import annotations
