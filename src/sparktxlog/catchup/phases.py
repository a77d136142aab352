"""Phases of a replica's way back, and all transitions between them (B26–B35, B40, D5)."""

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
    (Phase.BASIC, Move.GAP): Phase.REQUEST,  # B28
    (Phase.BASIC, Move.BEYOND_REPLAY): Phase.LOAD,  # D5
    (Phase.BASIC, Move.COPY_TOLD): Phase.LOAD,
    (Phase.BASIC, Move.STOP_TOLD): Phase.IDLE,
    (Phase.BASIC, Move.REFUSED): Phase.IDLE,  # D5, B40
    (Phase.BASIC, Move.SPENT): Phase.IDLE,  # B40
    (Phase.REQUEST, Move.FILLED): Phase.BASIC,  # B29
    (Phase.REQUEST, Move.BEYOND_REPLAY): Phase.LOAD,  # B30
    (Phase.REQUEST, Move.COPY_TOLD): Phase.LOAD,
    (Phase.REQUEST, Move.STOP_TOLD): Phase.IDLE,
    (Phase.REQUEST, Move.REFUSED): Phase.IDLE,  # D5, B40
    (Phase.REQUEST, Move.SPENT): Phase.IDLE,  # B40
    (Phase.LOAD, Move.LOADED): Phase.BASIC,  # B35
    (Phase.LOAD, Move.REFUSED): Phase.IDLE,  # B32
    (Phase.LOAD, Move.STOP_TOLD): Phase.IDLE,
    (Phase.LOAD, Move.SPENT): Phase.IDLE,  # B34, B40
    (Phase.IDLE, Move.COPY_TOLD): Phase.LOAD,
    (Phase.IDLE, Move.RESUMED): Phase.BASIC,
    (Phase.IDLE, Move.RESUMED_UNFINISHED): Phase.LOAD,
}
