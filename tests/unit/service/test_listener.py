"""Connections of a server that stops: none is left that would answer as the node of before."""

from __future__ import annotations

from typing import Any

from sparktxlog.service.listener import Doors


class Caller:
    """A connection."""

    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_who_is_let_in_while_the_server_stops_is_closed() -> None:
    doors = Doors(4)
    early: Any = Caller()
    late: Any = Caller()
    doors.enter(early)
    doors.shut = True
    doors.enter(late)
    assert (early.aborted, late.aborted) == (False, True), "an open request may end"
    doors.close()
    assert early.aborted
