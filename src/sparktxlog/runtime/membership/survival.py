"""Would the log survive the loss of a site now: what only that site has, and who could go on.

It follows from what this node holds and from what the members said in their last posts.  What a
site accepted since its last post, only the site itself knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sparktxlog.errors import NotFoundError
from sparktxlog.model.answers import Survival
from sparktxlog.runtime.foundation import Foundation
from sparktxlog.runtime.membership.unseen_transactions import held_when_forced


def survivals(base: Foundation, replicas: Iterable[Mapping[str, Any]]) -> list[Survival]:
    """Return what the loss of each node with a place would mean.

    Args:
        replicas: Lines of the status.

    Raises:
        NotFoundError: This node is a witness, which hears of no transactions (definite).
    """
    if base.config.is_witness:
        raise NotFoundError(
            f"node {base.config.node_id!r} is a witness: it does not know what only a site has",
            hint="Ask another node; `sparktxlog peer list` says which ones are no witnesses.",
            witness=base.config.node_id,
        )
    master, status = base.master, base.master.status()
    ordered = master.member_state().watermarks
    held = _held(base)
    known = {
        origin: max(have.get(origin, 0) for have in held.values())
        for origin in {origin for have in held.values() for origin in have}
    }
    lines = [line for line in replicas if line["verdict"] == "IN_SYNC"]
    found: list[Survival] = []
    for site, (voters, goes_on) in voters_without(base).items():
        others = {name: have for name, have in held.items() if name != site}
        ordered_lost = _missing(ordered, others.values())
        holders = (name for name, have in others.items() if not _missing(ordered, [have]))
        applied = (int(line["position"]) for line in lines if line["node_id"] != site)
        one: Survival = {
            "site": site,
            "survives": not ordered_lost and goes_on,
            "ordered": status.position,
            "ordered_only_there": ordered_lost,
            "accepted_only_there": _missing(known, others.values()) - ordered_lost,
            "held_by": sorted(holders),
            "voters": voters,
            "goes_on": goes_on,
            "applied_elsewhere": max(applied, default=None),
            "sentence": "",
        }
        one["sentence"] = _sentence(one)
        found.append(one)
    return found


def voters_without(base: Foundation) -> dict[str, tuple[list[str], bool]]:
    """Return for each node who answers beside it, witnesses too, and if they have a majority."""
    status, view = base.master.status(), base.master.view
    answering = {str(status.node_id), *(name for name, link in base.links.items() if link.up)}
    seats = [str(seat.node_id) for seat in view.roster]
    answering = (answering & set(seats)) - set(map(str, status.suspects))
    left = {site: sorted(answering - {site}) for site in seats}
    return {site: (voters, view.elects(voters)) for site, voters in left.items()}


def _held(base: Foundation) -> dict[str, dict[str, int]]:
    """Return node → origin → its last transaction that the node holds; witnesses hold none."""
    master, status = base.master, base.master.status()
    state = master.member_state()
    held = {str(status.node_id): held_when_forced(state, None)}
    for peer in status.peers:
        seat = master.view.seat(peer.peer)
        if seat is None or seat.witness:
            continue
        shown = {str(origin): last for origin, last in peer.acquired.items()}
        shown[str(peer.peer)] = max(shown.get(str(peer.peer), 0), peer.last_seq)
        if peer.position >= status.position:  # who has ordered a position holds what is before it
            for origin, last in state.watermarks.items():
                shown[str(origin)] = max(shown.get(str(origin), 0), last)
        held[str(peer.peer)] = shown
    return held


def _missing(wanted: Mapping[str, int], held: Collection[Mapping[str, int]]) -> int:
    """Return how many transactions up to the wanted numbers none of some nodes holds."""
    return sum(
        max(0, last - max((have.get(origin, 0) for have in held), default=0))
        for origin, last in wanted.items()
    )


def _sentence(found: Survival) -> str:
    site, ordered = found["site"], found["ordered"]
    parts = [f"Loss of {site}: {'yes, it would be survived' if found['survives'] else 'NO'}"]
    if lost := found["ordered_only_there"]:
        parts.append(f"{lost:,} of {ordered:,} ordered positions are only at {site}")
    else:
        holders = " and ".join(found["held_by"]) or "the others together"
        parts.append(f"all {ordered:,} ordered positions are stored at {holders}")
    if only := found["accepted_only_there"]:
        parts.append(f"{only:,} accepted transactions are only at {site}")
    else:
        parts.append("no accepted transaction that is known is only there")
    if not found["goes_on"]:
        listed = ", ".join(found["voters"]) or "nobody"
        parts.append(f"what is left ({listed}) has no majority of votes, so nothing is ordered")
    applied = found["applied_elsewhere"]
    if applied is None:
        parts.append("no other site has tables that are in sync")
    else:
        parts.append(f"tables elsewhere are in sync at position {applied:,}")
    return f"{parts[0]}: {'; '.join(parts[1:])}."
