"""Phases of a replica's way back, and all transitions between them."""

from __future__ import annotations

from enum import Enum


class Phase(str, Enum):
    """What a replica is about."""

    BASIC = "BASIC"
    REQUEST = "REQUEST"
    LOAD = "LOAD"
    IDLE = "IDLE"


class Move(str, Enum):
    """What moves a replica from one phase to another."""

    #: The head of the queue does not continue the position.
    GAP = "gap"
    #: What was missing came.
    FILLED = "filled"
    #: The log is expired, or applying fails in a way that would repeat.
    BEYOND_REPLAY = "beyond-replay"
    #: The node decided on a copy.
    COPY_TOLD = "copy-told"
    #: The node, or its operator, wants it to stand still.
    STOP_TOLD = "stop-told"
    #: Nobody lends, the old files cannot be kept, or neither replay nor copy would help.
    REFUSED = "refused"
    #: All attempts failed.
    SPENT = "spent"
    LOADED = "loaded"
    RESUMED = "resumed"
    #: Resumed, but a copy that it needs was not finished.
    RESUMED_UNFINISHED = "resumed-unfinished"


#: All transitions there are.
TRANSITIONS: dict[tuple[Phase, Move], Phase] = {
    (Phase.BASIC, Move.GAP): Phase.REQUEST,
    (Phase.BASIC, Move.BEYOND_REPLAY): Phase.LOAD,
    (Phase.BASIC, Move.COPY_TOLD): Phase.LOAD,
    (Phase.BASIC, Move.STOP_TOLD): Phase.IDLE,
    (Phase.BASIC, Move.REFUSED): Phase.IDLE,
    (Phase.BASIC, Move.SPENT): Phase.IDLE,
    (Phase.REQUEST, Move.FILLED): Phase.BASIC,
    (Phase.REQUEST, Move.BEYOND_REPLAY): Phase.LOAD,
    (Phase.REQUEST, Move.COPY_TOLD): Phase.LOAD,
    (Phase.REQUEST, Move.STOP_TOLD): Phase.IDLE,
    (Phase.REQUEST, Move.REFUSED): Phase.IDLE,
    (Phase.REQUEST, Move.SPENT): Phase.IDLE,
    (Phase.LOAD, Move.LOADED): Phase.BASIC,
    (Phase.LOAD, Move.REFUSED): Phase.IDLE,
    (Phase.LOAD, Move.STOP_TOLD): Phase.IDLE,
    (Phase.LOAD, Move.SPENT): Phase.IDLE,
    (Phase.IDLE, Move.COPY_TOLD): Phase.LOAD,
    (Phase.IDLE, Move.RESUMED): Phase.BASIC,
    (Phase.IDLE, Move.RESUMED_UNFINISHED): Phase.LOAD,
}
