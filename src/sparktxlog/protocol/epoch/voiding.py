"""Runs that nobody can deliver: whether what would be void is whole somewhere (protocol P32).

A stamped run stands in the way of all that is stamped later.  If its files are lost everywhere, an
operator has it voided: an epoch decision puts a run in its place that has its stamp, its number and
its ids, and no content.  Each member that says it holds the run looks at its files first, in each
ballot anew; one that finds them whole vetoes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparktxlog.protocol.words.actions import CheckFiles
from sparktxlog.protocol.words.messages import RunHeader
from sparktxlog.protocol.words.outbox import Outbox
from sparktxlog.protocol.words.view import Ballot


class Inspection:
    """What this node found out about its own files, for one ballot."""

    __slots__ = ("_ballot", "_found", "_outbox")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._ballot = Ballot()
        #: Digest of the run → whether it is whole, None = not known yet.
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
        """Note what the shell found, if it was asked."""
        if digest in self._found:
            self._found[digest] = whole
