"""Repairs by the worker itself: tables that others wrote to, where a copy would be made for them.

A copy replaces a whole replica.  If commits of others on whole tables are all that is wrong, the
files of this site suffice, and nothing but these tables has to be read.
"""

from __future__ import annotations

import logging

from sparktxlog.errors import TransportError, TxLogError
from sparktxlog.worker.repair.repairing import RepairOutcome, RepairWay, TableRepair

_logger = logging.getLogger(__name__)


def repair_stopped(repair: TableRepair) -> list[RepairOutcome]:
    """Restore each table that stands still to its recorded version, and replay what follows.

    Returns:
        What was done; nothing if a table's recorded version is not whole: then only a copy helps.

    Raises:
        TransportError: The node cannot be reached.  What was begun is done by a later call.

    **After calling**: `repair.state` is the replica's.
    """
    try:
        found = [repair.diagnose(name) for name in sorted(repair.state.diverged)]
        for one in found:
            if one.way is not RepairWay.RESTORE:
                _logger.warning("table %s is not repaired here: %s", one.table, one.reason)
                return []
        done = [repair.run(one) for one in found]
    except TransportError:
        raise
    except TxLogError as error:
        _logger.warning("tables that others wrote to are not repaired here: %s", error)
        return []
    for outcome in done:
        _logger.warning("%s", outcome.describe())
    return done
