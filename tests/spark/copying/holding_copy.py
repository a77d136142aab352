"""A target that holds its leases until it is killed: arguments URL and LAKE; no JVM is needed."""

from __future__ import annotations

import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from sparktxlog.worker.copy.donor_fetcher import DonorFetcher
from sparktxlog.worker.replica.reports import report_of
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.replica.state import ReplicaDirectory

if __name__ == "__main__":
    url, lake = sys.argv[1], Path(sys.argv[2])
    with closing(HttpLogSource(url)) as source, closing(ReplicaDirectory(lake)) as directory:
        info = source.info()
        state = replace(directory.load(), log_id=info.log_id)
        source.report(report_of(state, info.node_id))
        ticket = source.copy_ticket(state.worker_id, forced=True)
        DonorFetcher(lake, "killed").hold(ticket)
        lease = ticket.lease
        print(lease.node_id, lease.lease_id, lease.lease_s, flush=True)
        print("held", flush=True)
        threading.Event().wait()
