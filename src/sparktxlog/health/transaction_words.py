"""What became of a transaction, in sentences: for `sparktxlog why` and the dashboard alike.

Functions take answers of one node as they come, which may be of an older release: a receipt, an
entry of the queue, `/v1/status`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparktxlog.health.verdicts import (
    ClusterState,
    Judgement,
    findings,
    furthest_lines,
    judge_replica,
    rows_until,
)
from sparktxlog.model.shown import time_text
from sparktxlog.model.status_words import (
    awaited_text,
    synchronous_text,
    verdict_text,
)


def unseen_sentences(transaction_id: str, status: Mapping[str, Any]) -> list[str]:
    """Return what there is to say of a transaction that a node never saw."""
    node = status["node_id"]
    away = [peer["id"] for peer in status.get("peers") or [] if not peer.get("linked")]
    text = f"Node {node} never saw transaction {transaction_id}."
    hint = "It may be on its way from another site: ask the node that it was sent to."
    return [text, hint, *_listed("There is no link to ", away)]


def receipt_sentences(
    receipt: Mapping[str, Any],
    status: Mapping[str, Any],
    incoming: Sequence[Mapping[str, Any]] = (),
) -> list[str]:
    """Return what became of a transaction, where it is, what it waits for, and where it is applied.

    Args:
        receipt: Of a single transaction.
        status: Of the node that gave the receipt.
        incoming: The runs in negotiation, in their order.
    """
    run, position, outcome = receipt.get("run"), receipt.get("position"), receipt.get("outcome")
    sentences = [] if run is None else [f"Node {run['origin']} accepted it."]
    if outcome == "prepared":
        return [*sentences, *_prepared(receipt, status)]
    if position is None:
        if outcome == "rejected" or receipt.get("level") is None:
            sentences.append("It was refused before it had a position, and changed nothing.")
            return [*sentences, *_rejected(receipt)]
        return [*sentences, *_on_its_way(receipt, status, incoming)]
    if receipt.get("prepared_at") is not None:
        sentences.append(f"It was prepared at position {receipt['prepared_at']:,}, then decided.")
    at = receipt.get("ordered_at")
    sentences.append(
        f"It has position {position:,}" + (f", since {time_text(at)} UTC." if at else ".")
    )
    if outcome == "rejected":
        sentences.append("It was rejected at every site, and changed nothing.")
        return [*sentences, *_rejected(receipt)]
    if outcome is None:
        sentences.append("This node no longer keeps whether it took effect or was rejected.")
    else:
        sentences.append("It took effect: every site applies it at this position.")
    if receipt.get("holders") is not None:
        sentences.append(
            f"Only {receipt['holders']:,} members are known to hold it, fewer than asked."
        )
    return [*sentences, *_at_sites(position, status)]


def entry_sentences(position: int, run: Mapping[str, Any], status: Mapping[str, Any]) -> list[str]:
    """Return what became of the transaction at a position of a run whose ids are not listed."""
    index = position - run["position"]
    place = f"transaction {index + 1:,} of {run['n']:,} in a run of node {run['origin']}"
    sentences = [
        f"Position {position:,} is {place}, ordered at {time_text(run['ordered_at'])} UTC.",
        f"The run begins at position {run['position']:,} with transaction {run['first_id']}.",
    ]
    found = [one for one in run["rejected"] if one["index"] == index]
    if found:
        sentences.append("It was rejected at every site, and changed nothing.")
        return [*sentences, *_rejected({"rejections": found})]
    return [
        *sentences,
        "It was not rejected: it took effect, unless it is prepared.",
        *_at_sites(position, status),
    ]


def missing_sentences(position: int, status: Mapping[str, Any]) -> list[str]:
    """Return why a node has nothing at a position."""
    node, end = status["node_id"], status["position"]
    if position > end:
        sentences = [
            f"Nothing has position {position:,} yet: the queue of node {node} ends at {end:,}."
        ]
        waiting = status.get("incoming_transactions") or 0
        if waiting:
            sentences.append(f"{waiting:,} transactions wait for a position.")
        return [*sentences, *_held_up(status)]
    kept_after = status.get("kept_after") or 0
    return [
        f"Node {node} no longer keeps position {position:,}: its log begins after {kept_after:,}.",
        "Ask for the id of the transaction, or another node.",
    ]


def sites_of(position: int | None, status: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return, for each site with data, its furthest replica and whether that applied a position."""
    found = []
    for site, line in furthest_lines(status).items():
        verdict, has = judge_replica(status, {**line, "node_id": site}), line.get("position")
        is_applied = position is not None and (
            (has is not None and has >= position) or _needs_no_worker(position, status, verdict)
        )
        found.append(
            {
                "site": site,
                "worker": line.get("worker_id") or None,
                "position": has,
                "applied": is_applied,
                "verdict": verdict_text(line),
                "state": verdict.word,
                "text": _site_text(site, verdict, is_applied),
            }
        )
    return found


def _needs_no_worker(position: int, status: Mapping[str, Any], verdict: Judgement) -> bool:
    """Return whether a site without a worker lacks nothing of a transaction of commit tables."""
    is_published = rows_until(status) < position <= (status.get("published") or 0)
    return is_published and verdict.state is ClusterState.IN_SYNC


def _site_text(site: str, verdict: Judgement, is_applied: bool) -> str:
    if verdict.state is ClusterState.DIVERGED:
        return verdict.sentence
    if is_applied:
        return f"Site {site} has applied it."
    if verdict.state is ClusterState.IN_SYNC and verdict.code != "follower-lags":
        return f"Site {site} has not applied it, and lacks nothing that is published for workers."
    return f"Site {site} has not applied it.  {verdict.sentence}"


def _at_sites(position: int, status: Mapping[str, Any]) -> list[str]:
    sentences = []
    published = status.get("published") or 0
    if published < position:
        since = (status.get("publish_lag_us") or 0) / 1e6
        sentences.append(
            f"It is not published yet: workers see the log up to {published:,}, and what comes "
            f"after it has waited {since:,.1f} s."
        )
        if status.get("publish_failure"):
            sentences.append(f"Publishing fails: {status['publish_failure']}.")
    sentences += [one["text"] for one in sites_of(position, status)]
    behind = (status.get("commit_tables") or {}).get("behind")
    if behind:
        sentences.append(f"{behind:,} versions of commit tables are not placed at this site yet.")
    return sentences


def _rejected(receipt: Mapping[str, Any]) -> list[str]:
    sentences = []
    for one in receipt.get("rejections") or []:
        sentences.append(f"Why: [{one['code']}] {one['text'].rstrip('.')}.")
        if one.get("winner") is None:
            continue
        table = f" of table {one['table']}" if one.get("table") else ""
        text = f"It lost to the write{table} at position {one['winner']:,}"
        if one.get("origin"):
            text += f", which node {one['origin']} accepted"
        if one.get("winner_id"):
            text += f": transaction {one['winner_id']}"
        sentences.append(f"{text}.")
    return sentences


def _prepared(receipt: Mapping[str, Any], status: Mapping[str, Any]) -> list[str]:
    place = receipt.get("prepared_at") or receipt.get("position") or 0
    sentences = [f"It is prepared at position {place:,}, and undecided: it has no effect yet."]
    for one in status.get("prepared") or []:
        if one["transaction_id"] == receipt.get("transaction_id"):
            sentences.append(f"It waits for a YES of {', '.join(one['missing'])}.")
            sentences.append(
                f"What is undecided at {time_text(one['valid_until'])} UTC is rejected."
            )
    return sentences


def _on_its_way(
    receipt: Mapping[str, Any],
    status: Mapping[str, Any],
    incoming: Sequence[Mapping[str, Any]],
) -> list[str]:
    if receipt["level"] == "accepted":
        sentences = [
            f"It is durable there, and a quorum of {status['quorum']} does not hold it yet."
        ]
    else:
        sentences = ["A quorum of the members holds its data, and it has no position yet."]
    names = ("origin", "incarnation", "seq")
    place = [(receipt.get("run") or {}).get(name) for name in names]
    before = next((i for i, run in enumerate(incoming) if [run[n] for n in names] == place), None)
    own = [] if before is None else incoming[before]["waits"]
    sentences += [f"It waits for {awaited_text(one)}." for one in own]
    if before:
        sentences.append(f"{before:,} runs are before it in the order.")
    # For the first run both are the same.
    sentences += _held_up({**status} | {"waiting_for": []} if own and not before else status)
    return sentences if sentences[1:] else [*sentences, "Nothing holds it up: it is being ordered."]


def _held_up(status: Mapping[str, Any]) -> list[str]:
    """Return what the order waits for, one sentence each; empty = nothing."""
    judged = {one.code: one.sentence for one in findings(status)}
    sentences = [judged[code] for code in ("halted", "disk-full") if code in judged]
    sentences += [
        f"The order waits for {awaited_text(one)}." for one in status.get("waiting_for") or []
    ]
    if text := judged.get("restricted"):
        sentences.append(f"{text[0].upper()}{text[1:]}")
    if text := synchronous_text(status):
        sentences.append(f"{text[0].upper()}{text[1:]}.")
    for run in status.get("undelivered") or []:
        sentences.append(f"No node can deliver run {run['digest'][:16]} of {run['origin']}.")
    return sentences


def _listed(begin: str, names: Sequence[str]) -> list[str]:
    return [f"{begin}{', '.join(names)}."] if names else []
