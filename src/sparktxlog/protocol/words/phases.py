"""Phases of a master and the ways between them."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """What part a node takes at the moment."""

    #: Fetches what the members have, in order to be admitted; takes no transactions.
    JOINING = "JOINING"
    #: Takes part in everything.
    NORMAL = "NORMAL"
    #: As NORMAL, but rounds stay empty: a member is missing.
    SUSPECT = "SUSPECT"
    #: Promised a ballot: stamps, acquires and adds nothing until the epoch is decided.
    WEDGED = "WEDGED"
    #: Evicted: reads only; on to JOINING at once.  An operator's pause is no phase.
    IDLE = "IDLE"
    #: A contradiction was found: reads only, until an operator has dealt with it.
    FAULT = "FAULT"
    #: Votes only.
    WITNESS = "WITNESS"


#: Phase → phases it may turn into.
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.JOINING: frozenset({Phase.NORMAL, Phase.IDLE, Phase.FAULT}),
    Phase.NORMAL: frozenset({Phase.SUSPECT, Phase.WEDGED, Phase.IDLE, Phase.FAULT}),
    Phase.SUSPECT: frozenset({Phase.NORMAL, Phase.WEDGED, Phase.IDLE, Phase.FAULT}),
    Phase.WEDGED: frozenset({Phase.NORMAL, Phase.IDLE, Phase.FAULT}),
    Phase.IDLE: frozenset({Phase.JOINING, Phase.NORMAL, Phase.FAULT}),
    Phase.FAULT: frozenset(),
    Phase.WITNESS: frozenset({Phase.FAULT}),
}

#: Phases in which transactions are taken.
TAKES_SUBMITS = frozenset({Phase.NORMAL, Phase.SUSPECT, Phase.WEDGED})
