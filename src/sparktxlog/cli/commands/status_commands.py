"""Commands that read from a node and change nothing, and its answers in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer

from sparktxlog.cli.all_nodes import All, ask_all, print_all
from sparktxlog.cli.commands.transaction_commands import UNDECIDED, queue_of
from sparktxlog.cli.common_options import DEFAULT_URL, AsJson, ExitCode, NodeApi, Url, app, end
from sparktxlog.cli.printing import Columns, print_json, print_table, say, show
from sparktxlog.cli.repeating import Watch, repeat
from sparktxlog.errors import InvalidRequestError, NotFoundError
from sparktxlog.health.verdicts import (
    NOTE,
    Judgement,
    alarms_of,
    findings,
    furthest_lines,
    judge,
    judge_order,
    judge_replica,
    judge_sites,
    replica_lines,
    worst,
)
from sparktxlog.http.list_pages import read_pages
from sparktxlog.model.run_search import last_runs
from sparktxlog.model.shown import time_text
from sparktxlog.model.status_words import (
    alive_text,
    awaited_text,
    batch_text,
    last_transfer_text,
    tables_text,
    verdict_text,
)

Limit = Annotated[int, typer.Option(min=1, max=1000, help="Entries to show.")]


@app.command(epilog="Example: sparktxlog status --url http://127.0.0.1:7070 --json")
def status(
    url: Url = DEFAULT_URL,
    every: All = False,
    cost: Annotated[
        bool,
        typer.Option(
            "--cost",
            help="Show only what the node asked its buckets for since its start; with --json the "
            "field `stores`.",
        ),
    ] = False,
    watch: Watch = None,
    as_json: AsJson = False,
) -> None:
    """Show a node's state: positions, queues, missing nodes, what is undecided, replicas.

    With --all one line for each node; the exit code is that of the worst.
    """

    def once() -> ExitCode:
        if cost:
            return _cost_of(url, every, as_json)
        if every:
            return _status_of_all(url, as_json)
        found = _status_of(url, as_json)
        verdict = judge(found)
        if as_json:
            print_json(found | _judged(found))
        else:
            _print_status(found, verdict)
        return _code_of(verdict)

    repeat(watch, as_json, once)


def _asked(*kinds: str, what: str = "requests") -> Callable[[Mapping[str, Any]], int]:
    """Return what shows the sum of some kinds of requests to one bucket."""
    return lambda store: sum(store["asked"][kind][what] for kind in kinds)


_COST: Columns = {
    "bucket": "url",
    "since": lambda store: time_text(store["since"]),
    # Providers bill these about ten times as high as the next.
    "put, list, copy": _asked("put", "list", "copy"),
    "get, head": _asked("get", "head"),
    "delete": _asked("delete"),
    "bytes read": _asked("get", what="bytes"),
    "bytes written": _asked("put", what="bytes"),
}


def _cost_of(url: str, every: bool, as_json: bool) -> ExitCode:
    """Show what a node, or each of all nodes, asked its buckets for."""

    def ask(api: NodeApi) -> Any:
        found = api.get("/v1/status")
        return {"node_id": found["node_id"], "stores": found["stores"]}

    if every:
        return print_all(
            ask_all(url, ask, NodeApi), as_json, "buckets", _COST, lambda one: one["stores"]
        )
    found = ask(NodeApi(url))
    if as_json:
        print_json(found)
    elif not found["stores"]:
        say(f"All that {found['node_id']} has lies in directories: it asks no bucket.")
    else:
        for store in found["stores"]:
            rows = [{"kind": kind, **one} for kind, one in store["asked"].items()]
            columns: Columns = {name: name for name in ("kind", "requests", "bytes")}
            print_table(f"node {found['node_id']}: {store['url']}", columns, rows)
            say(f"Since {time_text(store['since'])}.")
        say("Requests that the library repeated, and those of Spark, are not among them.")
    return ExitCode.IN_SYNC


def _judged(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdicts that `--json` adds to a node's status."""
    verdict, sites = judge(found), judge_sites(found)
    return {
        "state": verdict.word,
        "verdict": verdict.to_document(),
        "sites": {site: one.to_document() for site, one in sites.items()},
    }


_LINE: Columns = {
    "state": "state",
    **{name: name for name in ("phase", "epoch", "position", "published")},
    "waiting": "incoming_transactions",
    "missing": "suspects",
    "alarms": lambda found: [alarm["text"] for alarm in alarms_of(found)],
    "what to do": lambda found: found["verdict"]["way_out"],
}


def _status_of_all(url: str, as_json: bool) -> ExitCode:
    """Print one line for each node; return the worst exit code."""

    def ask(api: NodeApi) -> Any:
        found = api.get("/v1/status", tables=1 if as_json else None)
        return found | _judged(found)

    answers = ask_all(url, ask, NodeApi)
    failed = print_all(answers, as_json, "nodes", _LINE)
    states = [judge(one.answer).state.name for one in answers if one.error is None]
    return max(failed, *(ExitCode[name] for name in states), key=int)


def _status_of(url: str, as_json: bool) -> Any:
    """Return a node's status; with --json including the tables of each replica."""
    return NodeApi(url).get("/v1/status", tables=1 if as_json else None)


def _print_status(found: Mapping[str, Any], verdict: Judgement) -> None:
    names = (
        "position published kept_after log_bytes incoming_runs incoming_transactions "
        "round epoch phase"
    )
    columns: Columns = {name.replace("_", " "): name for name in names.split()}
    title = f"node {found.get('node_id')}: {verdict.word}"
    print_table(title, columns | {"on duty": "duty"}, [found])
    say(verdict.sentence)
    if until := found.get("maintenance_until"):
        say(f"in maintenance until {until}")
    for one in findings(found):
        if one != verdict and one.severity != NOTE:
            say(f"{one.severity}: {one.sentence}")
    for waiting in found.get("waiting_for") or []:
        say(f"waits for {awaited_text(waiting)}")
    if taking := found.get("fetching_summary"):
        share = f"{taking['bytes']:,} of {taking['of_bytes']:,} bytes"
        say(f"fetching a summary of the queue from {taking['peer']}: {share}")
    _print_undecided(found.get("undecided") or 0, found.get("prepared") or [])
    print_table("peers", _PEERS, found.get("peers") or [])
    print_table("replicas", _REPLICAS, replica_lines(found))
    _print_commit_tables(found.get("commit_tables") or {})


def _print_commit_tables(found: Mapping[str, Any]) -> None:
    """Print how many commit tables are in which state, and those that are not in sync."""
    if not found.get("total"):
        return
    states = [f"{number:,} {state}" for state, number in found["states"].items() if number]
    say(f"commit tables: {', '.join(states)}")
    if found["tables"]:
        print_table("commit tables that are not in sync", _COMMIT_TABLES, found["tables"])


def _print_undecided(number: int, oldest: Sequence[Any]) -> None:
    if number:
        print_table(f"prepared transactions: {number:,} undecided", UNDECIDED, oldest)
    if number > len(oldest):
        say(f"{number - len(oldest):,} more are undecided, see sparktxlog tx prepared")


_PEERS: Columns = {
    "peer": "id",
    "url": "url",
    "linked": lambda peer: bool(peer.get("linked")),
    "why not": "reason",
    "clock off (us)": "clock_offset_us",
    "wire": "wire_version",
    "last post (UTC)": lambda peer: time_text(peer.get("last_post_at")),
    "a write (s)": "write_s",
    "position": "position",
    "holds runs": "acquired",
    "counter": lambda peer: str(peer.get("counter", "-")),
    "round": "round",
}
_REPLICAS: Columns = {
    "worker": "worker_id",
    "site": "node_id",
    "name": "name",
    "tables": tables_text,
    "position": "position",
    "behind": "behind",
    "state": "state",
    "report is old (s)": "age_s",
    "alive": alive_text,
    "needs copy": lambda replica: bool(replica.get("needs_copy")),
    "plan": "plan",
    "batch": batch_text,
    "catch-up": last_transfer_text,
    "what it means": "text",
    "what to do": "way_out",
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
    """Show the links of a node to its peers.

    Exit code 0: all are linked, and the order waits for none; 3: not so.
    """
    found = NodeApi(url).get("/v1/status")
    peers = found.get("peers") or []
    show(peers, as_json, "peers", _PEERS)
    # A restart of one node after the other waits for links, also while nothing else does.
    linked = all(peer.get("linked") for peer in peers)
    end(_code_of(judge_order(found)) if linked else ExitCode.LAGGING)


workers_app = typer.Typer(
    help="Show the replicas of all sites: position, verdict, age of the last report.",
    epilog="Example: sparktxlog workers --json",
)
app.add_typer(workers_app, name="workers")


@workers_app.callback(invoke_without_command=True)
def workers(
    context: typer.Context, url: Url = DEFAULT_URL, watch: Watch = None, as_json: AsJson = False
) -> None:
    """Show the replicas of all sites: position, verdict, age of the last report."""
    if context.invoked_subcommand is None:
        _show_workers(url, watch, as_json)


@workers_app.command("forget", epilog="Example: sparktxlog workers forget reports")
def workers_forget(
    name: Annotated[str, typer.Argument(help="Name of the replica at the node's site.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Forget a replica of the node's site whose worker has ended: it holds the log no longer.

    Its lake stays.  If its worker starts again, it is a replica of the site again.
    """
    NodeApi(url).send("DELETE", f"/v1/replicas/{quote(name, safe='')}", {})
    if as_json:
        print_json({"forgotten": name})
    else:
        say(f"replica {name} is forgotten; its lake stays as it is")


def _show_workers(url: str, watch: float | None, as_json: bool) -> None:
    def once() -> ExitCode:
        found = _status_of(url, as_json)
        show(replica_lines(found), as_json, "replicas", _REPLICAS)
        return _code_of(worst(list(judge_sites(found).values())))

    repeat(watch, as_json, once)


def _code_of(found: Judgement | None) -> ExitCode:
    """Return the exit code of a verdict, None = nothing was found."""
    return ExitCode.IN_SYNC if found is None else ExitCode[found.state.name]


@app.command(epilog="Example: sparktxlog queue --after 1000 --limit 20")
def queue(
    url: Url = DEFAULT_URL,
    after: Annotated[
        int | None, typer.Option(min=0, help="Show runs that start after this position.")
    ] = None,
    limit: Limit = 20,
    watch: Watch = None,
    as_json: AsJson = False,
) -> None:
    """Show runs of the synchronized queue: those after --after, else the latest ones."""
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
    api = NodeApi(url)

    def once() -> ExitCode:
        if after is None:
            info = api.get("/v1/info")
            kept_after = int(info.get("kept_after", 0))
            entries = last_runs(queue_of(api), int(info["position"]), kept_after, limit)
        else:
            entries = api.get("/v1/queue", after=after, limit=limit)
        show(entries, as_json, "synchronized queue, by runs", columns)
        return ExitCode.IN_SYNC

    repeat(watch, as_json, once)


@app.command(epilog="Example: sparktxlog tables")
def tables(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the tables of both kinds, as they are at this site; `table describe` shows one.

    With --json a commit table also says which versions the log has and what this site lacks.
    """
    api = NodeApi(url)
    found = list(read_pages(api.get, "/v1/descriptions"))
    commit_tables = api.get("/v1/commit-tables")
    if as_json:
        lines = {line["name"]: line for line in commit_tables}
        print_json([lines.get(table["name"], {}) | table for table in found])
        return
    columns: Columns = {
        "table": "name",
        "kind": "kind",
        "columns": lambda table: [f"{c['name']} {c['type']}" for c in table["columns"]],
        "keys": "keys",
        "comment": "comment",
        "version": "version",
        "last write": "last_write",
    }
    print_table("tables", columns, found)
    if commit_tables:
        print_table("commit tables", _COMMIT_TABLES, commit_tables)


@app.command(epilog="Example: sparktxlog survival B")
def survival(
    site: Annotated[str | None, typer.Argument(help="Only of this site; default: of each.")] = None,
    url: Url = DEFAULT_URL,
    watch: Watch = None,
    as_json: AsJson = False,
) -> None:
    """Say whether the log would survive the loss of a site now, and what only that site has.

    Exit code 0: it would, whichever of them is lost; 3: it would not.
    """

    def once() -> ExitCode:
        rows = NodeApi(url).get("/v1/views/survival")
        found = [row for row in rows if site in (None, row["site"])]
        if not found:
            raise InvalidRequestError(
                f"no node {site!r} has a place",
                hint=f"Nodes: {', '.join(row['site'] for row in rows)}.",
                value=site,
            )
        if as_json:
            print_json(found)
        else:
            for row in found:
                say(row["sentence"])
        good = all(row["survives"] for row in found)
        return ExitCode.IN_SYNC if good else ExitCode.LAGGING

    repeat(watch, as_json, once)


@app.command(epilog="Example: sparktxlog view workers")
def view(
    name: Annotated[str, typer.Argument(help="queue, masters, workers, …: docs/views.md.")],
    url: Url = DEFAULT_URL,
    after: Annotated[
        int | None, typer.Option(min=0, help="Of queue: rows after this position.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, max=100_000, help="Rows at most.")] = None,
    watch: Watch = None,
    as_json: AsJson = False,
) -> None:
    """Show a view of the state: the same rows that SQL has as txlog.NAME."""
    path = f"/v1/views/{quote(name, safe='')}"

    def once() -> ExitCode:
        rows = NodeApi(url).get(path, after=after, limit=limit)
        show(rows, as_json, name, {column: column for column in (rows[0] if rows else ())})
        return ExitCode.IN_SYNC

    repeat(watch, as_json, once)


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
        **{name: name for name in ("log_id", "epoch", "members", "joined", "left", "changed")},
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

    Exit code 0: the site is in sync, 3: lagging, 4: diverged or contested, as `status` says it.
    """
    api = NodeApi(url)
    decision = _decision(api, worker)
    status = api.get("/v1/status")
    line = _line_of(status, decision.get("worker_id"))
    if decision:
        line |= {"plan": decision["plan"], "plan_reason": decision["reason"]}
    judged = judge_replica(status, line)
    commit_tables = (status.get("commit_tables") or {}).get("tables") or []
    shown = decision | {"verdict": verdict_text(line)}
    if as_json:
        more = {"state": judged.word, "code": judged.code, "commit_tables": commit_tables}
        print_json(shown | more)
    else:
        if decision:
            _print_plan(shown)
        say(judged.sentence)
        if commit_tables:
            print_table("commit tables that are not in sync", _COMMIT_TABLES, commit_tables)
    end(_code_of(judged))


def _decision(api: NodeApi, worker: str | None) -> dict[str, Any]:
    """Return what a worker of the site would do; empty: there is none, and none is named."""
    try:
        return dict(api.get("/v1/worker/plan", worker=worker))
    except NotFoundError:
        if worker is not None:
            raise
        return {}  # a site may have commit tables only


def _line_of(status: Mapping[str, Any], worker_id: str | None) -> dict[str, Any]:
    """Return the line of a worker of the asked site, None = of its furthest one."""
    own = str(status.get("node_id"))
    if worker_id is None:
        return {"node_id": own, **furthest_lines(status).get(own, {})}
    site = {"worker_id": worker_id, "node_id": own}
    lines = (dict(line) for line in status.get("replicas") or [] if site.items() <= line.items())
    return next(lines, site)


def _print_plan(decision: Mapping[str, Any]) -> None:
    columns: Columns = {
        "verdict": "verdict",
        "plan": "plan",
        "transactions behind": "behind",
        "replay, estimated (s)": lambda found: _seconds(found.get("replay")),
        "copy, estimated (s)": lambda found: _seconds(found.get("copy")),
        "donor": "donor",
    }
    print_table(f"worker {decision['worker_id']}", columns, [decision])
    say(f"Why: {decision['reason']}")
    for name in ("replay", "copy"):
        if decision.get(name):
            say(f"Estimate of the {name}: {decision[name]['basis']}")


def _seconds(estimate: Mapping[str, Any] | None) -> float | None:
    return None if not estimate else float(estimate["seconds"])


# -- transfers -------------------------------------------------------------------------------------


@app.command(epilog="Example: sparktxlog transfers --limit 5")
def transfers(
    url: Url = DEFAULT_URL,
    limit: Limit = 20,
    watch: Watch = None,
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
        "why": "reason",
    }

    def once() -> ExitCode:
        show(NodeApi(url).get("/v1/transfers", limit=limit), as_json, "transfers", columns)
        return ExitCode.IN_SYNC

    repeat(watch, as_json, once)
