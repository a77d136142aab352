"""Rehearses on a running cluster what does no harm: questions to all nodes, and a restore aside.

Nothing is cut or killed.  For each site the views `survival` of the other nodes say what would be
lost and which sites would go on if it were lost now (`health.survival` judges); their statuses say
where its writers would go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic, time_ns
from typing import Any

from sparktxlog.cli.all_nodes import NodeAnswer, ask_all
from sparktxlog.cli.common_options import NodeApi
from sparktxlog.cli.drill.drill_report import DrillReport, Rehearsal
from sparktxlog.health.survival import worst_loss


def run_live(url: str) -> DrillReport:
    """Ask all nodes of a running cluster; return what the loss of each site would mean.

    Args:
        url: A node that knows the others.

    Raises:
        TransportError: The node at `url` does not answer.
    """
    begun = monotonic()
    asked = NodeApi(url).get("/v1/epochs")
    # Nobody relies on a follower: its loss loses nothing, and no writer can go there.
    followers = {seat["id"] for seat in asked["roster"] if seat.get("follower")}
    answers = [one for one in ask_all(url, _ask_node, NodeApi) if one.node not in followers]
    witnesses = {seat["id"] for seat in asked["roster"] if seat["witness"]}
    report = DrillReport(
        began_at=time_ns() // 1000,
        sites=[one.node for one in answers if one.node not in witnesses],
        suspect_timeout_s=asked["suspect_timeout"],
        evicts=asked["eviction"] != "manual",
        guard=asked.get("eviction_guard", []),
    )
    examine(answers, report)
    report.seconds = monotonic() - begun
    return report


def _ask_node(api: NodeApi) -> dict[str, Any]:
    """Return what one node knows that a drill needs: only members know what is lost."""
    status = api.get("/v1/status")
    knows = status["phase"] not in ("WITNESS", "FOLLOWING")
    return {"status": status, "survival": api.get("/v1/views/survival") if knows else []}


def examine(answers: Sequence[NodeAnswer], report: DrillReport) -> None:
    """Add a rehearsal of each site's loss to a report.

    Args:
        answers: Of `_ask_node` by all nodes with a place that are no followers.
    """
    there = {one.node: one.answer for one in answers if one.error is None}
    statuses = {name: found["status"] for name, found in there.items()}
    report.position = max((int(one["position"]) for one in statuses.values()), default=0)
    away = [one for one in answers if one.error is not None]
    for site in report.sites:
        problems = [f"node {one.node} does not answer: {one.error}" for one in away]
        rows = [
            (name, one)
            for name, found in there.items()
            for one in found["survival"]
            if one["site"] == site
        ]
        said = [one for name, one in rows if name != site]
        problems += _votes(said) + _writers(site, statuses)
        # Where no other one answers, the site itself says what only it has.
        lost, of, data = worst_loss(said or [one for _, one in rows])
        problems += data
        report.rehearsals.append(
            Rehearsal(
                name=f"loss of {site}",
                what=f"If site {site} were lost now: {_went_on(site, said, report)}",
                lost=lost,
                shown=of,
                problems=problems,
            )
        )


def _went_on(site: str, said: Sequence[Mapping[str, Any]], report: DrillReport) -> str:
    if not any(one["goes_on"] for one in said):  # a removal would find no majority either
        goes_on = "nothing is ordered any more."
    elif report.goes_on(site):
        goes_on = f"the others go on after about suspect-timeout ({report.suspect_timeout_s:g} s)."
    else:
        goes_on = (
            f"the others wait until somebody runs `sparktxlog peer remove {site}` "
            f"({'eviction-guard' if report.evicts else 'eviction = manual'})."
        )
    return (
        f"{goes_on}  What {site} accepted and showed to nobody would be lost too; clients that "
        "wait for `acquired` or more have no answer for it."
    )


def _votes(said: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say whether the others could go on: it is enough if one of them says so."""
    if not said:
        return ["no other node with data answers"]
    if any(one["goes_on"] for one in said):
        return []
    voters = max((list(one["voters"]) for one in said), key=len)
    left = " and ".join(voters) or "nobody"
    text = f"the others that answer ({left}) would have no majority of the votes"
    return [f"{text} and stop until `sparktxlog peer force`: add a site or a witness"]


def _writers(site: str, statuses: Mapping[str, Any]) -> list[str]:
    """Say whether writers of a site would find another node that takes transactions."""
    reasons = []
    for name, status in statuses.items():
        if name == site or status["phase"] == "WITNESS":
            continue
        if status["paused"]:
            reasons.append(f"{name} is paused")
        elif status.get("halted") or status.get("disk_full"):
            reasons.append(f"{name} takes none: {status.get('halted') or 'its disk is full'}")
        else:
            return []
    return [f"its writers would find no node: {', '.join(reasons) or 'there is no other'}"]


def rehearse_restore(
    position: int,
    log_ids: Collection[str],
    image: Mapping[str, Any],
    kept_after: int,
    run: Callable[[], tuple[float, Any]],
) -> Rehearsal:
    """Return what became of a restore aside.

    Args:
        position: End of the queue.
        log_ids: Of the cluster's log, and of those that it continues.
        image: `image`, its name, `log_id` and `position`.
        kept_after: The log can be replayed after this position.
        run: Restores it, counts its rows unless that was left out; returns seconds, and table →
            signatures that differ.
    """
    if image["log_id"] not in log_ids:
        return _of_another_log("restore", f"image {image['image']}", image["log_id"], log_ids)
    seconds, wrong = run()
    problems = [f"table {name}: {a} recorded, {b} counted" for name, (a, b) in wrong.items()]
    behind = position - int(image["position"])
    if image["position"] < kept_after:
        problems.append(
            f"the log begins after {kept_after:,}, so image {image['image']} at "
            f"{image['position']:,} leads nowhere: take a new one"
        )
    return Rehearsal(
        name="restore",
        what=f"Image {image['image']} was written to a scratch directory and compared; it is "
        f"{behind:,} transactions behind, which are lost only if all sites are.",
        pause_s={"restore": round(seconds, 2)},
        problems=problems,
    )


def rehearse_feed_end(
    position: int, log_id: str, feed: Mapping[str, Any], run: Callable[[], tuple[float, Any]]
) -> Rehearsal:
    """Return what became of the end of a feed.

    Args:
        position: End of the queue.
        log_id: Of the cluster: a feed is of one log alone.
        feed: Its `log_id`; `position`, its end; `lag_s`, how late it is; `what` is done.
        run: Does it; returns seconds, and table → signatures that differ.
    """
    if feed["log_id"] != log_id:
        return _of_another_log("restore of the feed", "the feed", feed["log_id"], [log_id])
    seconds, wrong = run()
    behind = max(0, position - int(feed["position"]))
    return Rehearsal(
        name="restore of the feed",
        what=f"The feed up to position {feed['position']:,} was {feed['what']}; it is {behind:,} "
        f"transactions behind, which are lost only if all sites are, and {feed['lag_s']:g} s late.",
        pause_s={"restore": round(seconds, 2)},
        problems=[f"table {name}: {a} recorded, {b} counted" for name, (a, b) in wrong.items()],
    )


def _of_another_log(name: str, what: str, log_id: str, known: Collection[str]) -> Rehearsal:
    """Return a rehearsal of what keeps nothing of this cluster."""
    text = f"{what} is of log {log_id}, and the cluster has {' after '.join(known)}"
    return Rehearsal(
        name=name,
        what="Nothing was restored: that is another cluster's, or from before a fork.",
        problems=[f"{text}: name the place of this cluster's own"],
    )
