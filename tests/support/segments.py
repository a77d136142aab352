"""Segments of a log, and what they do to the table `t`, for tests of the worker."""

from __future__ import annotations

from typing import Any

from sparktxlog.storage.interfaces import Segment, TableEffect


def segment(first: int, last: int, *effects: TableEffect) -> Segment:
    """Return a segment; its hashes are named after its ends."""
    return Segment(
        first=first,
        last=last,
        from_hash=f"h{first - 1}",
        to_hash=f"h{last}",
        epoch=1,
        transactions=last - first + 1,
        rejected=0,
        effects=effects,
    )


def effect(kind: str, first: int, last: int | None = None, **fields: Any) -> TableEffect:
    """Return what positions do to the table `t`."""
    return TableEffect(
        table="t", kind=kind, first=first, last=first if last is None else last, **fields
    )
