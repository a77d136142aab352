"""Is it well: one verdict for each site and for the cluster, and what a person must look at.

Functions take `/v1/status` as it comes from a node, which may be of an older release: a field that
is missing says nothing, and never that all is well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from sparktxlog.model.replicas import MAIN, replica_id
from sparktxlog.model.status_words import (
    awaited_text,
    replica_of,
    restricted_text,
    synchronous_text,
    uncompared_text,
    upgrade_text,
    verdict_text,
    worker_of,
)
from sparktxlog.model.values import split_urls

_Facts = Mapping[str, Any]
_WITHOUT_PART = ("IDLE", "JOINING")
_CALM = ("NORMAL", "WITNESS", "FOLLOWING", "FAULT")
#: A follower that is not at the end for longer than this lags, seconds.
_FOLLOWS_S = 10.0
_BAD_VERDICTS = ("DIVERGED", "FOREIGN")
_COMPARE = "`sparktxlog verify --compare` says in which table, and since which position."
_SEE_LOG = "The log of the node has the trace; docs/monitoring.md says what to do."
_BY_ITSELF = "Nothing is to be done: it catches up by itself."
_SLOW_DISK = (
    "  docs/monitoring.md (SparktxlogDiskSlow) says how to let the others go on without it."
)
_SEE_PEERS = "`sparktxlog peer list` says which nodes are linked."
_FORCE = (
    "Bring them back.  If too many of them lost their disks for ever, `sparktxlog peer force` lets "
    "this node go on without them; what only they had is lost."
)
_FORCE_THERE = (
    "  If too many nodes lost their disks for a majority, `sparktxlog peer force` at one that has "
    "the log lets it go on and admit the others."
)
#: Seconds of a write of the journal above which a disk is in the way of all sites' commits.
SLOW_WRITE_S = 0.25
#: Levels of need; a note explains a state, and is no alarm.
ALARM, WARNING, NOTE = "alarm", "warning", "note"


class ClusterState(str, Enum):
    """How a site or the cluster is, as one node knows it; in rising order of need."""

    IN_SYNC = "in sync"
    LAGGING = "lagging"
    DIVERGED = "diverged"


class SiteState(str, Enum):
    """How a commit table is at one site."""

    IN_SYNC = "in-sync"
    PLACING = "placing"
    FETCHING = "fetching"
    NOT_PLACED = "not-placed"
    DIVERGED = "diverged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The answer to one question: how is it, what does that mean, and what is the way out."""

    #: Names the case, see docs/verdicts.md.
    code: str
    state: ClusterState
    #: alarm, warning or note.
    severity: str
    #: What it means, in a sentence.
    text: str
    #: What to do, with the command; empty = nothing.
    way_out: str = ""
    #: The site that it is about, empty = the asked node or the order of the log.
    site: str = ""

    @property
    def word(self) -> str:
        """The state in a word; a witness knows of no tables, so it has no state."""
        return "witness" if self.code == "witness" else self.state.value

    @property
    def sentence(self) -> str:
        """What it means, and the way out."""
        text = self.text if self.text.endswith(".") else f"{self.text}."
        return f"{text}  {self.way_out}" if self.way_out else text

    def to_document(self) -> dict[str, str]:
        """Return its fields as JSON has them."""
        return {**asdict(self), "state": self.word}


_STATES = tuple(ClusterState)
_SEVERITIES = (NOTE, WARNING, ALARM)
#: What a node itself warns of: code → state, severity and way out; others are warnings only.
_WARNED: dict[str, tuple[ClusterState, str, str]] = {
    "undelivered-run": (
        ClusterState.LAGGING, ALARM,
        "Put a good copy of its file back where it was staged; more in docs/losing-sites.md.",
    ),
    "damaged-file": (
        ClusterState.LAGGING, ALARM, "Put a good copy in its place; the node goes on by itself.",
    ),
    "files-stuck": (
        ClusterState.LAGGING, ALARM, "Look at that mount; the node goes on once it answers.",
    ),
    "site-not-whole": (
        ClusterState.LAGGING, WARNING, "Wait: the site fetches it from the others by itself.",
    ),
    "commit-table-not-placed": (
        ClusterState.LAGGING, WARNING, "`sparktxlog plan` says from which site the files come.",
    ),
    "tables-not-held": (
        ClusterState.IN_SYNC, WARNING,
        "If this site shall have them, start a worker with another --name, --lake and --tables.",
    ),
    "pattern-matches-nothing": (
        ClusterState.IN_SYNC, WARNING, "Nothing is to be done if such a table will come.",
    ),
    "replicas-not-known": (
        ClusterState.IN_SYNC, WARNING,
        "`sparktxlog workers forget NAME` there forgets one whose worker has ended.",
    ),
    "commit-table-diverged": (
        ClusterState.DIVERGED, ALARM, "`sparktxlog repair TABLE` fetches its files again.",
    ),
}  # fmt: skip
#: Warnings about what the lines of replicas say too.
_SAID_BY_LINES = ("worker-silent", "worker-error")
#: Judgement on a site → warning that it says too.
_SAID_BY_SITES = {"commit-table-differs": "commit-table-diverged"}


def judge(status: _Facts) -> Judgement:
    """Return the verdict on the cluster as one node knows it: the worst of all that is found."""
    return worst(findings(status)) or _well(status)


def judge_order(status: _Facts) -> Judgement | None:
    """Return the worst that is found of the order alone; None = it waits for no node."""
    return worst(list(_of_order(status)))


def worst(found: list[Judgement]) -> Judgement | None:
    """Return the verdict with the worst state, of these the most severe; None = all are in sync."""
    bad = [one for one in found if one.state is not ClusterState.IN_SYNC]
    return max(bad, key=lambda one: (_STATES.index(one.state), _rank(one.severity)), default=None)


def _rank(severity: str) -> int:
    return _SEVERITIES.index(severity)


def _well(status: _Facts) -> Judgement:
    if status.get("phase") == "WITNESS":
        text = "This node votes on epochs and keeps no data: the others know what is applied."
        return _note("witness", text)
    if not (status.get("position") or status.get("published")):
        if status.get("phase") in _WITHOUT_PART:
            return _note("not-known", "This node does not know the log yet.", _SEE_PEERS, lags=True)
        return _note("empty-log", "Nothing has been committed yet.")
    if rows_until(status) == 0:
        return _note("no-rows", "No row table needs a worker, and all commit tables are placed.")
    return _note("in-sync", "All replicas have what is published, and none differs.")


def findings(status: _Facts) -> list[Judgement]:
    """Return all that is not as it should be: of the node, of the order, of each site."""
    sites = [one for one in judge_sites(status).values() if one.code not in _GOOD]
    said = {*_SAID_BY_LINES, *(_SAID_BY_SITES.get(one.code) for one in sites)}
    warned = (one for one in status.get("warnings") or [] if one["code"] not in said)
    own = (*_of_node(status), *_of_disks(status), *_of_order(status))
    return [*own, *sites, *_of_data(status), *map(_of_warning, warned)]


def banner_of(status: _Facts) -> list[dict[str, str]]:
    """Return what is shown first of a node: the verdict, then what else a person must look at.

    Returns:
        As `alarms_of`, with `word`: the state for the verdict, empty for others.  The severity of
        the verdict is calm if all are in sync, and at most note in maintenance.
    """
    verdict, severity = judge(status), NOTE if status.get("maintenance_until") else ""
    if verdict.state is ClusterState.IN_SYNC:
        severity = "calm"
    first = _shown(severity or verdict.severity, verdict.text, verdict.way_out)
    others = [one for one in alarms_of(status) if one["text"] != verdict.text]
    return [first | {"word": verdict.word}, *(one | {"word": ""} for one in others)]


def alarms_of(status: _Facts) -> list[dict[str, str]]:
    """Return what a person must look at, as pages and commands show it.

    Returns:
        `severity` is alarm or warning, `text` a sentence, `way_out` another one or empty.
    """
    if until := status.get("maintenance_until"):
        text = f"In maintenance until {until}: other alarms of this node are silent."
        return [_shown(WARNING, text, "`sparktxlog maintenance end` ends it now.")]
    found = [one for one in findings(status) if one.severity != NOTE]
    found.sort(key=lambda one: (_rank(one.severity), _STATES.index(one.state)), reverse=True)
    return [_shown(one.severity, one.text, one.way_out) for one in found]


def _shown(severity: str, text: str, way_out: str) -> dict[str, str]:
    return {"severity": severity, "text": text, "way_out": way_out}


# -- the asked node --------------------------------------------------------------------------------


def _note(code: str, text: str, way_out: str = "", *, lags: bool = False) -> Judgement:
    state = ClusterState.LAGGING if lags else ClusterState.IN_SYNC
    return Judgement(code=code, state=state, severity=NOTE, text=text, way_out=way_out)


def _warning(code: str, text: str, way_out: str = "", *, lags: bool = True) -> Judgement:
    state = ClusterState.LAGGING if lags else ClusterState.IN_SYNC
    return Judgement(code=code, state=state, severity=WARNING, text=text, way_out=way_out)


def _differing(code: str, text: str, way_out: str) -> Judgement:
    state = ClusterState.DIVERGED
    return Judgement(code=code, state=state, severity=ALARM, text=text, way_out=way_out)


def _of_node(status: _Facts) -> Iterator[Judgement]:
    if halted := status.get("halted"):
        way_out = "Keep its data-dir; docs/monitoring.md (SparktxlogHalted) says what to do."
        yield _differing("halted", f"This node halted: {halted}", way_out)
    if status.get("only_joins"):
        text = "The journal of this node may be lost: it waits for a peer whose log it can join"
        yield _warning("journal-lost", text, _SEE_PEERS + _FORCE_THERE)
    phase, reason = status.get("phase"), status.get("phase_reason") or "it says no reason"
    if phase in _WITHOUT_PART and not status.get("aside"):
        text, way_out = f"{phase}: {reason}", _SEE_PEERS + _FORCE_THERE
        own, seats = status.get("node_id"), status.get("roster") or []
        if seats and all(one["id"] != own for one in seats):
            text = f"{text}; the cluster of {seats[0]['id']} has no place for this node"
            where = f"--url {split_urls(seats[0]['url'])[0]}"
            add = f"`sparktxlog peer add {own} ITS-URL {where}`"
            way_out = f"{add} gives it one again. If it was removed for good, stop it."
        yield _warning("no-member", text, way_out)
    elif phase not in (*_CALM, None) and status.get("phase_reason"):
        lags = phase == "WEDGED" and bool(status.get("incoming_transactions"))
        yield _warning(str(phase).lower(), f"{phase}: {reason}", _SEE_PEERS, lags=lags)
    elif following := status.get("following"):
        yield from _of_following(following)
    elif phase == "WITNESS" and not status.get("takes_part", True):
        yield _warning("no-vote", f"{phase}: {reason}", _SEE_PEERS)
    if status.get("disk_full"):
        held = "".join(f"; {one}" for one in status.get("disk_held_by") or [])
        text = f"The disk of this node is full: it takes no transactions{held}"
        yield Judgement(
            code="disk-full",
            state=ClusterState.LAGGING,
            severity=ALARM,
            text=text,
            way_out="Make room, and it goes on by itself: docs/monitoring.md (A full disk).",
        )
    if status.get("paused"):
        text = "This node is paused: it takes no transactions"
        yield _warning("paused", text, "`sparktxlog peer continue` ends the pause.", lags=False)
    for one in status.get("failing") or []:
        text = f"{one['task']} fails, {one['times']:,} times: {one['text']}"
        yield _warning("task-fails", text, _SEE_LOG)
    failure = status.get("publish_failure")
    if failure and not any(failure == one["text"] for one in status.get("failing") or []):
        yield _warning("publishing-fails", f"Publishing fails: {failure}", _SEE_LOG)
    if uncompared := status.get("uncompared"):
        yield _warning("uncompared", uncompared_text(uncompared), lags=False)
    if status.get("wire_version_waits_for"):
        yield _warning("upgrade", upgrade_text(status), lags=False)


def _of_following(following: _Facts) -> Iterator[Judgement]:
    name, lags_s = following.get("upstream"), following.get("lags_s") or 0.0
    if circle := following.get("circle"):
        text = f"This follower gets nothing: {', '.join(circle)} follow each other, and no member"
        way_out = "Name a member in `follow` of one of them, or leave `follow` out."
        yield _warning("follow-circle", text, way_out)
    elif not following.get("linked"):
        why = f"{name} does not answer" if name else "there is no node that it could follow"
        text = f"This follower gets nothing: {why}"
        yield _warning("upstream-away", text, _SEE_PEERS)
    elif lags_s > _FOLLOWS_S:
        text = (
            f"This follower lacks {following['lacks']:,} transactions, and has not been at the end "
            f"of the log for {lags_s:,.0f} s"
        )
        yield _note("follows-behind", text, _BY_ITSELF, lags=True)


def _of_order(status: _Facts) -> Iterator[Judgement]:
    for name in status.get("suspects") or []:
        way_out = (
            "Start its node, or look at the network between.  If it is lost for ever, "
            f"`sparktxlog peer remove {name}` takes it out where the others have a majority of "
            "votes; else `sparktxlog peer force` goes on without it."
        )
        if status.get("phase") in _WITHOUT_PART:  # perhaps it is this one that was removed
            way_out = _SEE_PEERS
        yield _warning("peer-away", f"{name} does not answer", way_out, lags=False)
    if restricted := status.get("restricted"):
        yield _warning("restricted", restricted_text(restricted), _FORCE)
    waits, waiting = status.get("waiting_for") or [], status.get("incoming_transactions") or 0
    if waits and waiting:
        text = f"{waiting:,} transactions wait for node {awaited_text(waits[0])}"
        yield _note("order-waits", text, _SEE_PEERS, lags=True)
    if text := synchronous_text(status):
        yield _warning("synchronous-waits", text, lags=False)


def _of_data(status: _Facts) -> Iterator[Judgement]:
    """Yield what other sites lack; of its own site the node itself warns."""
    for site, lacks in (status.get("others_lack") or {}).items():
        text = (
            f"Site {site} does not have all data: {'; '.join(lacks)}.  Lose or replace no other "
            "disk before `/readyz?data` is ok there"
        )
        yield _site(site, _of_warning({"code": "site-not-whole", "text": text}))


def _of_disks(status: _Facts) -> Iterator[Judgement]:
    """Judge how quick the disks of members are, and of nodes that stand aside for that (P37)."""
    member = status.get("phase") not in ("WITNESS", "FOLLOWING")
    own = {**status, "id": status.get("node_id"), "member": member}
    for one in (own, *(status.get("peers") or [])):
        name, took_s = one["id"], one.get("write_s") or 0.0
        if one.get("aside"):
            text = f"{name} stands aside, because its disk takes {took_s:,.2f} s for a write"
            way_out = "No commit waits for it; it comes back by itself once its disk is quick."
            yield _warning("slow-disk", text, way_out, lags=False)
        elif took_s > SLOW_WRITE_S and one.get("member", True):
            text = f"The disk of {name} takes {took_s:,.2f} s for a write: all commits wait for it"
            way_out = "Give it a faster disk, or end what else writes there."
            yield _warning("slow-disk", text, f"{way_out}{_SLOW_DISK}", lags=False)


def _of_warning(one: Mapping[str, str]) -> Judgement:
    state, severity, way_out = _WARNED.get(one["code"], (ClusterState.IN_SYNC, WARNING, ""))
    return Judgement(
        code=one["code"], state=state, severity=severity, text=one["text"], way_out=way_out
    )


# -- sites -----------------------------------------------------------------------------------------

#: Of sites that lack nothing.
_GOOD = ("in-sync", "no-rows", "empty-log", "not-known", "follower-lags")


def rows_until(status: _Facts) -> int:
    """Return up to which position workers have something to apply, as far as it is published."""
    published = int(status.get("published") or 0)
    until = status.get("rows_until")
    return published if until is None else min(int(until), published)


def site_lines(status: _Facts) -> dict[str, list[_Facts]]:
    """Return each site with data and the lines of its replicas; none = no worker reported."""
    if status.get("phase") == "WITNESS":
        return {}  # it hears of no replicas
    roster = status.get("roster") or []
    seats = [
        one
        for one in roster
        if (one.get("member", True) or one.get("follower")) and not one.get("witness")
    ]
    found: dict[str, list[_Facts]] = {one["id"]: [] for one in seats}
    for line in status.get("replicas") or []:
        if line.get("node_id"):
            found.setdefault(line["node_id"], []).append(line)
    return dict(sorted(found.items()))


def furthest_lines(status: _Facts) -> dict[str, _Facts]:
    """Return each site with data and the line that says how far it is; empty = no worker reported.

    It is that of its furthest replica with all tables; if each has a set of tables, of the least
    one.
    """
    return {site: _furthest(lines) for site, lines in site_lines(status).items()}


def _furthest(lines: Sequence[_Facts]) -> _Facts:
    by_position = sorted(lines, key=lambda one: int(one.get("position") or 0))
    whole = [line for line in by_position if not line.get("only")]
    return whole[-1] if whole else by_position[0] if by_position else {}


def judge_sites(status: _Facts) -> dict[str, Judgement]:
    """Return the verdict on each site with data, as far as the asked node knows it.

    It is the worst of the verdicts on its replicas.
    """
    found: dict[str, Judgement] = {}
    for site, lines in site_lines(status).items():
        furthest = _furthest(lines)
        others = [line for line in lines if line is not furthest]
        judged = [_judge_site(status, site, line) for line in (furthest, *others)]
        found[site] = max(judged, key=lambda one: (_STATES.index(one.state), _rank(one.severity)))
    return found


def judge_replica(status: _Facts, line: _Facts) -> Judgement:
    """Return the verdict on one replica: that on its site, by this line."""
    return _judge_site(status, str(line.get("node_id") or ""), line)


def replica_lines(status: _Facts) -> list[dict[str, Any]]:
    """Return the lines of replicas with their verdicts, and one for each site without a worker.

    Each line has `state`, `code`, `text` and `way_out` in addition.
    """
    if status.get("phase") == "WITNESS":
        return []
    lines = [dict(line) for line in status.get("replicas") or []]
    known = {line.get("node_id") for line in lines}
    absent = {"worker_id": "", "name": MAIN, "only": [], "position": 0}
    lines += [absent | {"node_id": site} for site in furthest_lines(status) if site not in known]
    found = []
    for line in sorted(lines, key=replica_of):  # the main one of a site first
        verdict, has = judge_replica(status, line), int(line.get("position") or 0)
        behind = int(status.get("published") or 0) - has if has < rows_until(status) else 0
        said = {"state": verdict.word, "code": verdict.code, "text": verdict.text}
        found.append({"behind": behind} | line | said | {"way_out": verdict.way_out})
    return found


def is_diverged(replica: _Facts) -> bool:
    """Return whether a replica differs from the log or from others."""
    return replica.get("verdict") in _BAD_VERDICTS or bool(replica.get("contested"))


def _judge_site(status: _Facts, site: str, line: _Facts) -> Judgement:
    own = site == status.get("node_id")
    rules: tuple[Callable[..., Judgement | None], ...] = (
        _differs,
        *((_commit_table_differs,) if own else ()),
        _worker_wrong,
        _without_worker,
        _rows_missing,
        *((_commit_tables_missing,) if own else ()),
    )
    for rule in rules:
        if (found := rule(status, site, line)) is not None:
            lags = found.state is ClusterState.LAGGING
            return _of_follower(found) if lags and not own and _follows(status, site) else found
    return _site(site, _well(status))


def _follows(status: _Facts, site: str) -> bool:
    """Return whether a site's node is a follower (P38)."""
    return any(one["id"] == site and one.get("follower") for one in status.get("roster") or [])


def _of_follower(found: Judgement) -> Judgement:
    """Return the verdict on another site that follows: only at itself it matters that it lags."""
    text = f"{found.text}; it is a follower, and nobody waits for it"
    return _site(found.site, _note("follower-lags", text, found.way_out))


def _site(site: str, found: Judgement) -> Judgement:
    return replace(found, site=site)


def _differs(_: _Facts, site: str, line: _Facts) -> Judgement | None:
    if not is_diverged(line):
        return None
    verdict, reason = verdict_text(line), line.get("reason")
    code, way_out = "diverged", f"{_COMPARE}  `sparktxlog repair TABLE` brings a table back."
    if line.get("verdict") == "FOREIGN":
        code = "foreign"
        way_out = "It is of another log: give the worker its own --lake, or the URL of its node."
    elif line.get("contested"):
        code, way_out = "contested", f"{_COMPARE}  `sparktxlog verify` recounts the rows there."
        verdict = verdict.removeprefix("IN_SYNC, ")
    text = f"Site {site}, worker {worker_of(line)}: {verdict}"
    return _site(site, _differing(code, f"{text}: {reason}" if reason else text, way_out))


def table_state(lag: int, *, differs: bool, is_fetched: bool, failed: bool) -> SiteState:
    """Return how a commit table is at a site, which counts it in its status.

    Args:
        lag: Versions that the log has and that are not placed.
        differs: Whether a recount found other files, or other bytes.
        is_fetched: Whether another site gives what it lacks.
        failed: Whether a version could not be placed.
    """
    if differs:
        return SiteState.DIVERGED
    if is_fetched:
        return SiteState.FETCHING
    if failed:
        return SiteState.NOT_PLACED
    return SiteState.PLACING if lag else SiteState.IN_SYNC


def _commit_table_differs(status: _Facts, site: str, _: _Facts) -> Judgement | None:
    found = status.get("commit_tables") or {}
    differs = SiteState.DIVERGED.value
    number = (found.get("states") or {}).get(differs) or 0
    if not number:
        return None
    first = next((one for one in found.get("tables") or [] if one["state"] == differs), None)
    text, name = f"{number:,} commit tables of site {site} differ from the log", "SCHEMA.TABLE"
    if first is not None:
        name = first["name"]
        more = f", and {number - 1:,} more" if number > 1 else ""
        text = f"Commit table {name} differs here{more}: {first['reason']}"
    way_out = (
        f"`sparktxlog repair {name}` fetches its files again from other sites; where no majority "
        "says whose are right, give `--right SITE`."
    )
    return _site(site, _differing("commit-table-differs", text, way_out))


def _worker_wrong(status: _Facts, site: str, line: _Facts) -> Judgement | None:
    name, error = f"Worker {worker_of(line)} of site {site}", line.get("error")
    if line.get("silent"):
        age = line.get("age_s")
        text = f"{name} has been silent" + (f" for {age:,.1f} s" if age is not None else "")
        text += " and did not end" + (f"; its last error: {error}" if error else "")
        return _site(site, _warning("worker-silent", text, _start(status, site, line)))
    if error:
        way_out = "`sparktxlog doctor` on its machine finds missing JARs, Java and space."
        return _site(site, _warning("worker-fails", f"{name} fails: {error}", way_out))
    return None


def _without_worker(status: _Facts, site: str, line: _Facts) -> Judgement | None:
    if line.get("worker_id") or line.get("position") or not rows_until(status):
        return None
    peer = next((one for one in status.get("peers") or [] if one["id"] == site), None)
    if peer is not None and not peer.get("linked"):
        text = f"Nothing is known of the tables of site {site}: its node does not answer"
        return _site(site, _warning("site-unknown", text, _SEE_PEERS))
    text = (
        f"No worker has applied anything at site {site}: its tables lack what is published, up to "
        f"position {rows_until(status):,}"
    )
    return _site(site, _warning("no-worker", text, _start(status, site)))


def _rows_missing(status: _Facts, site: str, line: _Facts) -> Judgement | None:
    has, until = int(line.get("position") or 0), rows_until(status)
    end = status.get("position")
    if line.get("verdict") == "AHEAD" and end is not None and has > int(end):
        text = (
            f"{_where(site, line)} is at position {has:,}, and the log of this node ends at {end:,}"
        )
        return _site(site, _note("ahead", f"{text}: it is not compared yet", _BY_ITSELF, lags=True))
    if has >= until:
        return None
    published = int(status.get("published") or 0)
    text = f"{_where(site, line)} is at position {has:,} of {published:,}"
    if line.get("needs_copy"):
        text += ", and the log begins after that: it needs a copy"
        way_out = _command(status, site, f"catch-up{_of(line)}")
        return _site(site, _warning("needs-copy", text, f"Run {way_out}."))
    if line.get("plan") == "stop":
        text += f", and its worker must stop: {line.get('plan_reason') or 'it says no reason'}"
        return _site(site, _warning("must-stop", text, "`sparktxlog plan` says why."))
    if (plan := line.get("plan")) not in (None, "", "up-to-date"):
        why = f", because {line['plan_reason']}" if line.get("plan_reason") else ""
        text += f", its plan is {plan}{why}"
    if line.get("alive"):
        return _site(site, _note("behind", f"{text}, and its worker runs", _BY_ITSELF, lags=True))
    text += ", and its worker does not run at the moment"
    return _site(site, _note("worker-ended", text, _start(status, site, line), lags=True))


def _commit_tables_missing(status: _Facts, site: str, _: _Facts) -> Judgement | None:
    states = (status.get("commit_tables") or {}).get("states") or {}
    good = SiteState.IN_SYNC.value
    late = {state: number for state, number in states.items() if number and state != good}
    if not late:
        return None
    said = ", ".join(f"{number:,} {state}" for state, number in late.items())
    text = f"Commit tables of site {site} lack versions that the log has: {said}"
    way_out = "`sparktxlog plan` lists them, and from where they come."
    return _site(site, _note("commit-tables-behind", text, way_out, lags=True))


def _start(status: _Facts, site: str, line: _Facts = MappingProxyType({})) -> str:
    return f"Start one: {_command(status, site, f'apply --follow{_of(line)}')}."


def _of(line: _Facts) -> str:
    """Return the options that say which replica of its site a command is for."""
    name = line.get("name") or MAIN
    return "" if name == MAIN else f" --name {name} --lake {line.get('lake') or 'ITS-LAKE'}"


def _where(site: str, line: _Facts) -> str:
    """Return the subject of a sentence: the site, or one of its replicas."""
    name = line.get("name") or MAIN
    return f"Site {site}" if name == MAIN else f"Replica {replica_id(site, name)}"


def _command(status: _Facts, site: str, command: str) -> str:
    """Return a command for the node of a site; without its address as the site would run it."""
    seats = {one["id"]: one.get("url") for one in status.get("roster") or []}
    url = seats.get(site)
    where = f" --url {split_urls(url)[0]}" if url else ""
    return f"`sparktxlog {command}{where}`"
