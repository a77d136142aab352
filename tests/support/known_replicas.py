"""What `Replicas` needs of a node: any site is linked, and the queue is as long as told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any

from sparktxlog.model.report import TableState, WorkerReport
from sparktxlog.model.signature import TableSignature


class _AllSites(dict[str, Any]):
    """A link, which is up, to whichever site is asked for."""

    def __contains__(self, site: object) -> bool:
        return True

    def __missing__(self, site: str) -> Any:
        return SimpleNamespace(up=True)


def base_of(
    node_id: str,
    hash_at: Callable[[int], bytes | None],
    *,
    position: int,
    log_id: str = "l",
    dead_after_us: int = 10_000_000,
    saved: Mapping[str, bytes] | None = None,
    links: Mapping[str, Any] | None = None,
    followers: Collection[str] = (),
) -> Any:
    """Return a foundation; `ordered` and `published` may grow, `links` come and go."""
    return SimpleNamespace(
        config=SimpleNamespace(
            node_id=node_id, log_id=log_id, worker_dead_after=dead_after_us / 1e6
        ),
        ordered=SimpleNamespace(value=position),
        published=SimpleNamespace(value=position),
        kept_after=SimpleNamespace(value=0),
        holds=lambda table: True,
        journal=SimpleNamespace(read_hash_at=hash_at),
        state=SimpleNamespace(values=saved or {}),
        links=_AllSites() if links is None else links,
        master=SimpleNamespace(
            tables=dict[str, Any](),
            view=SimpleNamespace(follows=lambda site: site in followers),
        ),
    )


def hash_at(position: int) -> bytes | None:
    """Return the hash of a position; every tenth one is an end of a run."""
    return position.to_bytes(32, "big") if position % 10 == 0 else None


def report(position: int, node: str = "A", rows: int = 1, diverged: str = "") -> WorkerReport:
    """Return a report of the table `t` at a position."""
    signature = TableSignature(rows=rows)
    return WorkerReport(
        worker_id=f"w{node}",
        node_id=node,
        log_id="l",
        epoch=1,
        position=position,
        chain_hash=(hash_at(position) or b"").hex(),
        tables={
            "t": TableState(version=position, signature=signature, schema="s", diverged=diverged)
        },
    )
