"""Which node reaches which address of which other node.

Each node checks which addresses of its peers answer it, and reports that (`transport.addresses`).
This module makes one matrix of all reports: observer → node → address → whether it answers.
Unchecked addresses and old reports are not in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

#: A report is valid for so long, microseconds.
HEARD_US = 180_000_000
#: Most addresses that are kept of one report.
_MAX_ADDRESSES = 4_096

Found = Iterable[tuple[str, str, bool]]
Matrix = dict[str, dict[str, dict[str, bool]]]


class AddressReports:
    """Last reports of other nodes about the addresses that answer them."""

    def __init__(self) -> None:
        #: Node → (time of its report, report).
        self._reports: dict[str, tuple[int, tuple[tuple[str, str, bool], ...]]] = {}

    def note(self, observer: str, found: Found, now: int) -> None:
        """Keep a node's report, which replaces its former one."""
        self._reports[observer] = (now, tuple(islice(found, _MAX_ADDRESSES)))

    def matrix(self, own_id: str, own: Found, places: Iterable[str], now: int) -> Matrix:
        """Return the matrix of nodes with a place.

        Args:
            own: This node's own report.
            places: All nodes with a place, in the order of the matrix.
        """
        order = tuple(places)
        reports: dict[str, Found] = {
            node: found for node, (at, found) in self._reports.items() if now - at <= HEARD_US
        }
        reports[own_id] = own
        rows = {
            observer: _row(reports[observer], order) for observer in order if observer in reports
        }
        return {observer: row for observer, row in rows.items() if row}


def _row(found: Found, places: tuple[str, ...]) -> dict[str, dict[str, bool]]:
    row: dict[str, dict[str, bool]] = {}
    for node, address, answers in found:
        if node in places:
            row.setdefault(node, {})[address] = answers
    return row


def differing_addresses(matrix: Matrix) -> dict[str, list[str]]:
    """Return for each node the addresses that answer only some observers."""
    seen: dict[tuple[str, str], set[bool]] = {}
    for row in matrix.values():
        for node, addresses in row.items():
            for address, answers in addresses.items():
                seen.setdefault((node, address), set()).add(answers)
    found: dict[str, list[str]] = {}
    for node, address in sorted(key for key, values in seen.items() if len(values) > 1):
        found.setdefault(node, []).append(address)
    return found
