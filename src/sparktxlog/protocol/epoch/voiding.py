"""Runs that no node can deliver: checks whether one is complete somewhere (protocol P32).

A stamped run blocks all runs that are stamped later.  If its files are lost everywhere, an operator
voids it: an epoch decision replaces it by a run with the same stamp, number and ids, and without
content.  In each ballot, every member that says it holds the run first checks its files; a member
with complete files vetoes the change.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparktxlog.protocol.messages.actions import CheckFiles
from sparktxlog.protocol.messages.outbox import Outbox
from sparktxlog.protocol.messages.posts import RunHeader
from sparktxlog.protocol.messages.view import Ballot


class Inspection:
    """What this node knows about its own files, for one ballot."""

    __slots__ = ("_ballot", "_found", "_outbox")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._ballot = Ballot()
        #: Digest of the run → whether it is complete, None = unknown yet.
        self._found: dict[bytes, bool | None] = {}

    def look(
        self, ballot: Ballot, missing: int, claims: Sequence[RunHeader]
    ) -> tuple[int, tuple[bytes, ...]]:
        """Ask for what is not known yet.

        Returns:
            `missing` and how many claims are not known as lost; and the digests of whole ones.
        """
        if ballot != self._ballot:
            self._ballot = ballot
            self._found.clear()
        found = self._found
        for header in claims:
            if header.digest not in found:
                self._found[header.digest] = None
                self._outbox.tell(CheckFiles(header=header))
        digests = [header.digest for header in claims]
        not_lost = sum(found[digest] is not False for digest in digests)
        return missing + not_lost, tuple(digest for digest in digests if found[digest])

    def found(self, digest: bytes, *, whole: bool) -> None:
        """Note the result of a check, if it was requested."""
        if digest in self._found:
            self._found[digest] = whole
