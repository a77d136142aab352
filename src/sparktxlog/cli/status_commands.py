"""Commands that read from a node and change nothing, and its answers in words."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from sparktxlog.cli.root import (
    DEFAULT_URL,
    AsJson,
    Columns,
    ExitCode,
    NodeApi,
    Url,
    app,
    end,
    print_json,
    print_table,
    show,
    time_text,
)
from sparktxlog.cli.transaction_commands import UNDECIDED
from sparktxlog.model.operation import LONGEST_RUN
from sparktxlog.worker.apply.cutting import runs_after

Limit = Annotated[int, typer.Option(min=1, max=1000, help="Entries to show.")]
_WITHOUT_PART = ("IDLE", "JOINING")
_BAD_VERDICTS = ("DIVERGED", "FOREIGN")
#: Follows a verdict if replicas differ and no majority says which one is right.
CONTESTED = ", contested"


def judge_status(status: Mapping[str, Any]) -> ExitCode:
    """Return the state of the cluster as `/v1/status` of one node shows it.

    DIVERGED: a replica or a commit table differs from the log or from another one, or the node
    halted.  LAGGING: the node is not a member of its epoch or has no quorum, one of its tasks
    fails, a node is missing while transactions wait, a replica is behind what is published, a
    worker stands still or is silent, or a commit table lacks versions here.
    A worker that ended, and whose replica has everything, is in sync: a scheduler may run it.
    """
    if status.get("halted"):
        return ExitCode.DIVERGED
    replicas = list(status.get("replicas") or [])
    if any(r.get("verdict") in _BAD_VERDICTS or r.get("contested") for r in replicas):
        return ExitCode.DIVERGED
    commit_tables = dict((status.get("commit_tables") or {}).get("states") or {})
    if commit_tables.pop("diverged", 0):
        return ExitCode.DIVERGED
    if status.get("phase") in _WITHOUT_PART or status.get("restricted") or status.get("failing"):
        return ExitCode.LAGGING
    if status.get("waiting_for") and status.get("incoming_transactions"):
        return ExitCode.LAGGING
    if any(replica.get("silent") or replica.get("error") for replica in replicas):
        return ExitCode.LAGGING
    if any(number for state, number in commit_tables.items() if state != "in-sync"):
        return ExitCode.LAGGING
    published = int(status.get("published") or 0)
    if any(int(replica.get("position") or 0) < published for replica in replicas):
        return ExitCode.LAGGING
    return ExitCode.IN_SYNC


def state_word(code: ExitCode) -> str:
    """Return the word for a judged state."""
    words = {ExitCode.IN_SYNC: "in sync", ExitCode.LAGGING: "lagging"}
    return words.get(code, "diverged")


def verdict_text(replica: Mapping[str, Any]) -> str:
    """Return the verdict on a replica, and whether it is contested."""
    verdict = str(replica.get("verdict") or "")
    return verdict + CONTESTED if replica.get("contested") else verdict


def alive_text(replica: Mapping[str, Any]) -> str:
    """Return whether a replica's worker reports, or should and does not."""
    return "SILENT" if replica.get("silent") else "yes" if replica.get("alive") else "no"


def awaited_text(waiting: Mapping[str, Any]) -> str:
    """Return which node is missing and why, in one sentence."""
    reasons = {
        "promise": "its timestamp counter (no post since)",
        "acquired": "its confirmation that it holds the data",
        "payload": "its data",
        "self-payload": "this node does not have the data itself",
        "copy": "to be a member again, for the copy of a synchronous transaction",
        "admission": "its confirmation that this node is a member again",
    }
    why = str(waiting.get("why", ""))
    since = waiting.get("since_us")
    text = f"{waiting.get('peer')}: {reasons.get(why, why)}"
    if isinstance(since, (int, float)) and since > 0:
        text += f", for {_age_text(since)}"
    return text


def restricted_text(found: Mapping[str, Any]) -> str:
    """Return what a node can do without a quorum, and which nodes it waits for, in one sentence."""
    levels = found.get("levels") or ["accepted"]
    return (
        f"restricted: too few nodes answer; it has waited for {', '.join(found['waits_for'])} for "
        f"{_age_text(found['since_us'])}; nothing is ordered, the highest level is {levels[-1]}"
    )


def synchronous_text(status: Mapping[str, Any]) -> str:
    """Return what waits of the node's synchronous transactions in one sentence, empty = nothing."""
    found, members = status.get("synchronous") or {}, len(status.get("members") or ())
    parts = []
    if found.get("waiting"):
        text = (
            f"{found['waiting']:,} in {found['waiting_runs']:,} runs with "
            f"{found['size_bytes']:,} bytes wait for a timestamp, the oldest for "
            f"{_age_text(found['oldest_us'])}"
        )
        if found["needs"] > members:
            text += f": too few members, {found['needs']} copies are needed"
        parts.append(
            f"{text}, missing are {', '.join(found['missing'])}" if found["missing"] else text
        )
    if found.get("unconfirmed"):
        parts.append(
            f"{found['unconfirmed']:,} in {found['unconfirmed_runs']:,} runs have too few copies, "
            f"for {_age_text(found['lag_us'])}: not yet confirmed by "
            f"{', '.join(found['unconfirmed_by'])}"
        )
    if not parts:
        return ""
    return (
        f"synchronous transactions of {status['node_id']}: {'; '.join(parts)}.  New ones need "
        f"{status['synchro_quorum']} copies ({status['synchro_rule']}), there are {members} members"
    )


def upgrade_text(found: Mapping[str, Any]) -> str:
    """Return which wire version the log uses, and which nodes hold it back (P31)."""
    waits = [
        f"{node} ({'speaks up to ' + str(peer['newest']) if peer['linked'] else 'not linked'})"
        for node, peer in found["wire_version_waits_for"].items()
    ]
    return (
        f"wire version {found['wire_version']} is in force, {found['wire_versions'][1]} waits for "
        + ", ".join(waits)
    )


def uncompared_text(found: Mapping[str, Any]) -> str:
    """Return, in one sentence, which history a node could not compare."""
    kept = int(found.get("kept") or 0)
    text = (
        f"not compared: the history up to position {int(found['position']):,}, replaced by a "
        f"snapshot of {found['peer']} at {int(found['snapshot_position']):,}"
    )
    if kept:
        text += f"; {kept:,} transactions are kept in log/quarantine as {found['quarantine_id']}"
    return text


def _age_text(since_us: float) -> str:
    return f"{since_us / 1e6:,.1f} s"


def last_transfer_text(replica: Mapping[str, Any]) -> str:
    """Return a replica's running catch-up, else the last one, in a few words; empty for none."""
    if running := list(replica.get("running_transfers") or []):
        shown = running[-1]
        text = f"{shown['kind']} running for {shown['running_s']:,.1f} s"
    elif shown := replica.get("last_transfer"):
        text = f"{shown['kind']} to {shown['to_position']:,}: {shown['outcome']}"
        text += f", measured {shown['actual_s']:,.1f} s"
    else:
        return ""
    expected = shown.get("estimated_s")
    return text if expected is None else f"{text}, estimated {expected:,.1f} s"


# -- commands -------------------------------------------------------------------------------------


@app.command(epilog="Example: sparktxlog status --url http://127.0.0.1:7070 --json")
def status(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a node's state: positions, queues, missing nodes, what is undecided, replicas."""
    found = _status_of(url, as_json)
    code = judge_status(found)
    if as_json:
        print_json(found | {"state": state_word(code)})
    else:
        _print_status(found, state_word(code))
    end(code)


def _status_of(url: str, as_json: bool) -> Any:
    """Return a node's status; with --json including the tables of each replica."""
    return NodeApi(url).get("/v1/status", tables=1 if as_json else None)


def _print_status(found: Mapping[str, Any], word: str) -> None:
    names = (
        "position published kept_after log_bytes incoming_runs incoming_transactions "
        "round epoch phase"
    )
    columns: Columns = {name.replace("_", " "): name for name in names.split()}
    print_table(f"node {found.get('node_id')}: {word}", columns | {"on duty": "duty"}, [found])
    if found.get("phase_reason") and found.get("phase") not in ("NORMAL", "WITNESS", "FAULT"):
        typer.echo(f"{found['phase']}: {found['phase_reason']}")
    for warning in found.get("warnings") or []:
        typer.echo(f"warning: {warning['text']}")
    if found.get("wire_version_waits_for"):
        typer.echo(upgrade_text(found))
    for name in found.get("suspects") or []:
        typer.echo(f"missing {name}: it does not answer")
    for waiting in found.get("waiting_for") or []:
        typer.echo(f"waits for {awaited_text(waiting)}")
    if waits := synchronous_text(found):
        typer.echo(waits)
    if found.get("restricted"):
        typer.echo(restricted_text(found["restricted"]))
    for failing in found.get("failing") or []:
        typer.echo(f"failing {failing['task']}, {failing['times']:,} times: {failing['text']}")
    if found.get("halted"):
        typer.echo(f"halted: {found['halted']}")
    if taking := found.get("taking_snapshot"):
        share = f"{taking['bytes']:,} of {taking['of_bytes']:,} bytes"
        typer.echo(f"fetching a snapshot from {taking['peer']}: {share}")
    if found.get("uncompared"):
        typer.echo(uncompared_text(found["uncompared"]))
    _print_undecided(found.get("undecided") or 0, found.get("prepared") or [])
    print_table("peers", _PEERS, found.get("peers") or [])
    print_table("replicas", _REPLICAS, found.get("replicas") or [])
    _print_commit_tables(found.get("commit_tables") or {})


def _print_commit_tables(found: Mapping[str, Any]) -> None:
    """Print how many commit tables are in which state, and those that are not in sync."""
    if not found.get("total"):
        return
    states = [f"{number:,} {state}" for state, number in found["states"].items() if number]
    typer.echo(f"commit tables: {', '.join(states)}")
    if found["tables"]:
        print_table("commit tables that are not in sync", _COMMIT_TABLES, found["tables"])


def _print_undecided(number: int, oldest: Sequence[Any]) -> None:
    if number:
        print_table(f"prepared transactions: {number:,} undecided", UNDECIDED, oldest)
    if number > len(oldest):
        typer.echo(f"{number - len(oldest):,} more are undecided, see sparktxlog tx prepared")


_PEERS: Columns = {
    "peer": "id",
    "url": "url",
    "linked": lambda peer: bool(peer.get("linked")),
    "wire": "wire_version",
    "last post (UTC)": lambda peer: time_text(peer.get("last_post_at")),
    "position": "position",
    "holds runs": "acquired",
    "counter": lambda peer: str(peer.get("counter", "-")),
    "round": "round",
}
_REPLICAS: Columns = {
    "worker": "worker_id",
    "site": "node_id",
    "position": "position",
    "verdict": verdict_text,
    "report is old (s)": "age_s",
    "alive": alive_text,
    "needs copy": lambda replica: bool(replica.get("needs_copy")),
    "plan": "plan",
    "catch-up": last_transfer_text,
    "last error": "error",
}


_COMMIT_TABLES: Columns = {
    "table": "name",
    "version": "version",
    "ordered": "ordered",
    "lag": "lag",
    "state": "state",
    "plan": "plan",
    "from": "peer",
    "why": "reason",
}


@app.command(epilog="Example: sparktxlog peers")
def peers(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the links of a node to its peers."""
    found = NodeApi(url).get("/v1/status").get("peers") or []
    show(found, as_json, "peers", _PEERS)
    linked = all(peer.get("linked") for peer in found)
    end(ExitCode.IN_SYNC if linked else ExitCode.LAGGING)


@app.command(epilog="Example: sparktxlog workers --json")
def workers(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the replicas of all sites: position, verdict, age of the last report."""
    found = _status_of(url, as_json)
    show(found.get("replicas") or [], as_json, "replicas", _REPLICAS)
    end(judge_status({**found, "waiting_for": []}))


@app.command(epilog="Example: sparktxlog queue --after 1000 --limit 20")
def queue(
    url: Url = DEFAULT_URL,
    after: Annotated[
        int | None, typer.Option(min=0, help="Show runs that start after this position.")
    ] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show runs of the synchronized queue: those after --after, else the latest ones."""
    api = NodeApi(url)
    if after is None:
        entries = latest_runs(api, limit)
    else:
        entries = api.get("/v1/queue", after=after, limit=limit)
    columns: Columns = {
        "position": "position",
        "transactions": "n",
        "origin": "origin",
        "sequence": "seq",
        "timestamp": lambda run: str(run["ts"]),
        "first transaction": "first_id",
        "rejected": lambda run: len(run["rejected"]),
        "bytes": "size_bytes",
        "ordered (UTC)": lambda run: time_text(run["ordered_at"]),
        "chain hash": lambda run: run["chain_hash"][:12],
    }
    show(entries, as_json, "synchronized queue, by runs", columns)


@app.command(epilog="Example: sparktxlog tables")
def tables(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the tables of the catalog: row tables, and commit tables as they are at this site."""
    api = NodeApi(url)
    row_tables, commit_tables = api.get("/v1/tables"), api.get("/v1/commit-tables")
    if as_json:
        print_json(
            [
                *({**table, "kind": "row"} for table in row_tables),
                *({**table, "kind": "commit"} for table in commit_tables),
            ]
        )
        return
    columns: Columns = {
        "table": "name",
        "columns": lambda table: [f"{c['name']} {c['type']}" for c in table.get("columns") or []],
        "keys": "keys",
        "partitioned by": "partition_by",
        "synchronous": "is_sync",
        "version": "version",
        "last write": "last_write",
        "position": "position",
    }
    print_table("tables", columns, row_tables)
    if commit_tables:
        print_table("commit tables", _COMMIT_TABLES, commit_tables)


def latest_runs(api: NodeApi, limit: int) -> list[dict[str, Any]]:
    """Return the last `limit` runs of a node's queue, ascending; fewer if runs are long."""
    info = api.get("/v1/info")
    after = max(int(info.get("kept_after", 0)), int(info["position"]) - LONGEST_RUN)
    return list(deque(runs_after(api.get, after), maxlen=limit))


@app.command(epilog="Example: sparktxlog epochs --limit 5")
def epochs(
    url: Url = DEFAULT_URL,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show the epochs that a node has taken part in, newest first: members, and what changed.

    Epochs that began and ended while the node was away are missing; ask another node.
    """
    columns: Columns = {
        "taken up (UTC)": lambda epoch: time_text(epoch["taken_up_at"]),
        **{name: name for name in ("lineage", "epoch", "members", "joined", "left", "changed")},
        "quorum": lambda epoch: f"{epoch['quorum']} ({epoch['quorum_rule']})",
        "begins after": lambda epoch: epoch["begins_after"]["position"],
        "phase": "phase",
    }
    show(NodeApi(url).get("/v1/epochs/history", limit=limit), as_json, "epochs", columns)


# -- plan ------------------------------------------------------------------------------------------


@app.command(epilog="Example: sparktxlog plan --json")
def plan(
    worker: Annotated[
        str | None, typer.Argument(help="Worker of the site; default: the last that reported.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show how a replica would catch up and why; changes nothing.

    Commit tables that are not in sync here are listed with theirs: replay (the log has their files)
    or copy (a peer gives them).

    Exit code 0: up to date, 3: a replay or a copy is needed, 4: diverged, contested, or it must
    stop.
    """
    api = NodeApi(url)
    decision = api.get("/v1/worker/plan", worker=worker)
    status = api.get("/v1/status")
    verdict = _verdict(status, str(decision["worker_id"]))
    commit_tables = (status.get("commit_tables") or {}).get("tables") or []
    if as_json:
        print_json({**decision, "verdict": verdict, "commit_tables": commit_tables})
    else:
        _print_plan(decision, verdict)
        if commit_tables:
            print_table("commit tables that are not in sync", _COMMIT_TABLES, commit_tables)
    end(max(plan_code(str(decision["plan"]), verdict), _tables_code(commit_tables)))


def _tables_code(commit_tables: Sequence[Mapping[str, Any]]) -> ExitCode:
    """Return the exit code for commit tables that are not in sync."""
    if any(table["state"] == "diverged" for table in commit_tables):
        return ExitCode.DIVERGED
    return ExitCode.LAGGING if commit_tables else ExitCode.IN_SYNC


def _verdict(status: Mapping[str, Any], worker_id: str) -> str:
    found = (
        verdict_text(replica)
        for replica in status.get("replicas") or []
        if replica.get("worker_id") == worker_id and replica.get("node_id") == status.get("node_id")
    )
    return next(found, "")


def plan_code(chosen: str, verdict: str) -> ExitCode:
    """Return the exit code of a plan."""
    if verdict == "DIVERGED" or verdict.endswith(CONTESTED) or chosen == "stop":
        return ExitCode.DIVERGED
    return ExitCode.IN_SYNC if chosen == "up-to-date" else ExitCode.LAGGING


def _print_plan(decision: Mapping[str, Any], verdict: str) -> None:
    columns: Columns = {
        "verdict": lambda _: verdict,
        "plan": "plan",
        "transactions behind": "behind",
        "replay, estimated (s)": lambda found: _seconds(found.get("replay")),
        "copy, estimated (s)": lambda found: _seconds(found.get("copy")),
        "donor": "donor",
    }
    print_table(f"worker {decision['worker_id']}", columns, [decision])
    typer.echo(f"Why: {decision['reason']}")
    for name in ("replay", "copy"):
        if decision.get(name):
            typer.echo(f"Estimate of the {name}: {decision[name]['basis']}")


def _seconds(estimate: Mapping[str, Any] | None) -> float | None:
    return None if not estimate else float(estimate["seconds"])


# -- transfers -------------------------------------------------------------------------------------


@app.command(epilog="Example: sparktxlog transfers --limit 5")
def transfers(
    url: Url = DEFAULT_URL,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show the latest catch-ups of the site's replica: estimated and measured times."""
    columns: Columns = {
        "finished (UTC)": lambda transfer: time_text(transfer["finished_at"]),
        "worker": "worker_id",
        "kind": "kind",
        "from": "from_position",
        "to": "to_position",
        "donors": "donors",
        "bytes": "size_bytes",
        "over the network": "wire_bytes",
        "found here": "reused_bytes",
        "estimated (s)": "estimated_s",
        "measured (s)": "actual_s",
        "outcome": "outcome",
    }
    show(NodeApi(url).get("/v1/transfers", limit=limit), as_json, "transfers", columns)
