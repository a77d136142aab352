"""Compares sites by their reports: which ones differ, since which position, after which writes.

Reads signatures only: no Spark, no row.  A recount (`worker.verify`) then shows which site's record
disagrees with its own rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from heapq import nsmallest
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import dataset

from sparktxlog.catchup.opinions import majority, of_sites
from sparktxlog.delta.log_files import has_log
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import ExpiredError, StorageError
from sparktxlog.health.verdicts import ClusterState, Judgement, judge_sites, worst
from sparktxlog.worker.apply.cutting import runs_after
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.verify.histories import HISTORY, SiteHistory, read_histories

if TYPE_CHECKING:
    from sparktxlog.worker.verify.verify import Verification

_logger = logging.getLogger(__name__)

#: The way out where sites differ and no majority decides.
_CHOICE = (
    "recount each by `sparktxlog verify`; if each has the rows that it reported, run `sparktxlog "
    "catch-up --force copy --donor SITE` at the site that is wrong"
)
#: Most transactions named for one difference.
_NAMED = 20
_PAGE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A transaction, or a range of them, that wrote to a table."""

    first: int
    last: int
    kind: str
    #: Node where it was submitted, and its UUID; empty = not known here any more.
    origin: str = ""
    transaction_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteDifference:
    """Where one table of two sites began to differ."""

    #: Empty: the orders of transactions differ.
    table: str
    last_equal: int
    first_differing: int
    #: Site → what it reported at `first_differing`, all sites that reported there.
    signatures: dict[str, str]
    #: Sites that disagree with the majority, if three or more sites have one.
    disagreeing: tuple[str, ...] = ()
    #: What wrote to the table in (last_equal, first_differing], the first 20.
    suspects: tuple[Suspect, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFinding:
    """Two sites compared with each other."""

    left: str
    right: str
    #: Newest position that both reported, 0 = none: nothing could be compared.
    compared: int
    #: Last common position at which everything was equal, as far as known.
    equal_to: int
    differences: tuple[SiteDifference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteComparison:
    """All pairs of sites."""

    site: str
    pairs: tuple[PairFinding, ...]
    #: Site → why its own node was not asked.
    absent: dict[str, str] = field(default_factory=dict)
    #: Sites without any known report: their workers never applied anything.
    unreported: tuple[str, ...] = ()
    #: There never was a row table, so no worker has anything to report.
    without_rows: bool = False
    #: Verdicts on sites that are not in sync, as `sparktxlog status` has them.
    verdicts: tuple[Judgement, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether no difference was found; pairs without common position do not count."""
        return not any(pair.differences for pair in self.pairs)

    @property
    def complete(self) -> bool:
        """Whether every site has reported, and each pair has a position to be compared at."""
        reported = not self.unreported and all(pair.compared for pair in self.pairs)
        return reported or self.without_rows

    @property
    def state(self) -> ClusterState:
        """What the judge says of the sites; worse if a difference was found or not looked for.

        Reports that nobody could compare are no proof that sites are equal.
        """
        if not self.equal:
            return ClusterState.DIVERGED
        judged = worst(list(self.verdicts))
        if judged is not None:
            return judged.state
        return ClusterState.IN_SYNC if self.complete else ClusterState.LAGGING

    def to_document(self, said: list[str]) -> dict[str, Any]:
        """Return the document that commands and jobs print; `said` are its `conclusions`."""
        judged = {"state": self.state.value, "equal": self.equal, "complete": self.complete}
        return {**judged, **asdict(self), "conclusions": said}


def compare_sites(
    source: HttpLogSource, peer_urls: Mapping[str, str] | None = None, *, since: int = 0
) -> SiteComparison:
    """Compare the replicas of all sites by their reports.

    Args:
        source: The node of this site.
        peer_urls: Site → URL of its node; replaces the URLs that the node knows.
        since: Position up to which all are known to be equal (a repair, an earlier comparison).

    Raises:
        TransportError: The node of this site cannot be reached (definite).
    """
    own, histories = read_histories(source, peer_urls)
    suspects = _Suspects(source)
    pairs = compare_histories(histories, since=since)
    status = source.document("/v1/status")
    sites = judge_sites(status).values()
    return SiteComparison(
        site=own,
        without_rows=status.get("rows_until") == 0,
        verdicts=tuple(one for one in sites if one.state is not ClusterState.IN_SYNC),
        pairs=tuple(suspects.name_in(pair) for pair in pairs),
        absent={site: found.absent for site, found in histories.items() if found.absent},
        unreported=tuple(sorted(site for site, found in histories.items() if not found.states)),
    )


def comparison_lines(found: SiteComparison, said: list[str]) -> list[str]:
    """Return a comparison: a line for each pair of sites, its differences, the conclusions."""
    lines = []
    for pair in found.pairs:
        lines.append(_pair_line(pair))
        for difference in pair.differences:
            lines += _difference_lines(difference)
    lines += [f"site {site} was not asked: {reason}" for site, reason in found.absent.items()]
    return [*lines, *said]


def _pair_line(pair: PairFinding) -> str:
    sites = f"{pair.left} and {pair.right}"
    if not pair.compared:
        return f"unknown {sites}: no position that both reported"
    if not pair.differences:
        return f"equal   {sites}: up to position {pair.compared:,}"
    return f"DIFFER  {sites}: equal up to position {pair.equal_to:,}"


def _difference_lines(found: SiteDifference) -> list[str]:
    what = f"table {found.table}" if found.table else "order of transactions"
    interval = f"({found.last_equal:,}, {found.first_differing:,}]"
    lines = [f"        {what}: first difference in {interval}"]
    for site, text in found.signatures.items():
        against = "  against the majority" if site in found.disagreeing else ""
        lines.append(f"          site {site}: {text or 'no such table'}{against}")
    lines += [f"          {suspect_text(suspect)}" for suspect in found.suspects]
    return lines


def suspect_text(found: Suspect) -> str:
    """Return one line about a transaction that wrote to the table."""
    where = f"{found.first}" if found.first == found.last else f"{found.first} to {found.last}"
    name = f" {found.transaction_id}" if found.transaction_id else ""
    return f"position {where}: {found.kind}{name} of {found.origin or 'unknown origin'}"


def compare_histories(histories: Mapping[str, SiteHistory], *, since: int = 0) -> list[PairFinding]:
    """Compare all pairs of sites, without naming transactions."""
    return [
        _pair(histories, left, right, since) for left, right in combinations(sorted(histories), 2)
    ]


def _pair(histories: Mapping[str, SiteHistory], left: str, right: str, since: int) -> PairFinding:
    one, other = histories[left].states, histories[right].states
    common = sorted(one.keys() & other.keys())
    newest = common[-1] if common else 0
    positions = [position for position in common if position > since]
    both = histories[left], histories[right]
    tables = [
        table
        for table in (sorted({*one[newest], *other[newest]}) if positions else ())
        if all(history.compares(table) for history in both)
    ]
    found = [
        _described(histories, table, *interval)
        for table in tables
        if (interval := _first_difference(one, other, table, positions, since))
    ]
    return PairFinding(
        left=left,
        right=right,
        compared=newest,
        equal_to=min((difference.last_equal for difference in found), default=newest),
        differences=tuple(found),
    )


def _first_difference(
    one: Mapping[int, Mapping[str, str]],
    other: Mapping[int, Mapping[str, str]],
    table: str,
    positions: list[int],
    since: int,
) -> tuple[int, int] | None:
    """Return the last position at which a table was equal and the next one; None = equal now.

    Signatures are sums: a wrong row changes all later ones until the table is repaired.  So the
    search goes back from the newest position, and a repaired difference is not found.

    Args:
        positions: Reported by both sites, ascending, all after `since`.
    """
    first_differing = None
    for position in reversed(positions):
        if one[position].get(table, "") == other[position].get(table, ""):
            return None if first_differing is None else (position, first_differing)
        first_differing = position
    return None if first_differing is None else (since, first_differing)


def _described(
    histories: Mapping[str, SiteHistory], table: str, last_equal: int, first_differing: int
) -> SiteDifference:
    signatures = {
        site: history.states[first_differing].get(table, "")
        for site, history in sorted(histories.items())
        if first_differing in history.states and history.compares(table)
    }
    return SiteDifference(
        table=table,
        last_equal=last_equal,
        first_differing=first_differing,
        signatures=signatures,
        disagreeing=disagreeing(signatures),
    )


def disagreeing(signatures: Mapping[str, str]) -> tuple[str, ...]:
    """Return the replicas that disagree with the majority of sites; empty if there is none.

    Args:
        signatures: Replica → what it reported at one position.
    """
    truths = {one: majority(of_sites(one, signatures)) for one in signatures}
    return tuple(
        one
        for one, found in sorted(signatures.items())
        if truths[one] is not None and truths[one] != found
    )


def conclusions(comparison: SiteComparison, recount: Verification | None) -> list[str]:
    """Return sentences that follow from comparison and recount."""
    if comparison.without_rows:
        none = "there are no row tables; `sparktxlog verify` recounts the commit tables of a site"
        return [none, *(one.sentence for one in comparison.verdicts)]
    said = [one.sentence for one in comparison.verdicts]
    named = {one.site for one in comparison.verdicts}
    said += [
        f"site {site} has not reported: nothing of it could be compared"
        for site in comparison.unreported
        if site not in named
    ]
    if not comparison.pairs:
        said.append(
            f"site {comparison.site} is the only site that is known here: there is nothing to "
            "compare its reports with; `sparktxlog verify` recounts its rows"
        )
    differing = {d.table: d for pair in comparison.pairs for d in pair.differences}
    for name, found in sorted(differing.items()):
        what = f"table {name!r}" if name else "the order of transactions"
        if found.disagreeing:
            sites = ", ".join(found.disagreeing)
            said.append(f"{what}: the majority of sites disagrees with {sites}")
        else:
            said.append(f"{what}: no majority says which site is wrong; {_CHOICE}")
    for table in recount.tables if recount is not None else ():
        site = recount.node_id if recount is not None else ""
        if table.counted != table.recorded:
            said.append(
                f"table {table.table!r}: the rows of site {site} do not have the recorded "
                "signature: a damaged file, a foreign commit or a wrong claim there"
            )
        elif table.table in differing:
            said.append(
                f"table {table.table!r}: the rows of site {site} have the recorded signature: "
                "another site has other rows, or a step did nothing at one of them; recount there"
            )
    return said


class _Suspects:
    """Finds the transactions that wrote to a table between two positions."""

    def __init__(self, source: HttpLogSource) -> None:
        self._source = source
        self._found: dict[tuple[str, int, int], tuple[Suspect, ...]] = {}

    def name_in(self, pair: PairFinding) -> PairFinding:
        named = tuple(
            replace(d, suspects=self._between(d.table, d.last_equal, d.first_differing))
            if d.table != HISTORY
            else d
            for d in pair.differences
        )
        return replace(pair, differences=named)

    def _between(self, table: str, after: int, until: int) -> tuple[Suspect, ...]:
        key = (table, after, until)
        if key not in self._found:
            root = Path(str(self._source.document("/v1/info").get("log_root") or ""))
            found = queue_suspects(root / "synchronized_queue", *key)
            self._found[key] = self._by_segments(*key) if found is None else found
        return self._found[key]

    def _by_segments(self, table: str, after: int, until: int) -> tuple[Suspect, ...]:
        """Ask the node; of inline rows it knows only ranges of positions."""
        found: list[Suspect] = []
        try:
            runs = self._runs(after, until)
            for effect in self._effects(table, after, until):
                origins = {
                    o for first, last, o in runs if first <= effect.last and last >= effect.first
                }
                path = effect.files[0].path if effect.files and not effect.says_places else ""
                found.append(
                    Suspect(
                        first=effect.first,
                        last=effect.last,
                        kind=effect.kind,
                        origin=", ".join(sorted(origins)),
                        transaction_id=path.split("/")[0],
                    )
                )
        except ExpiredError as error:
            # The log no longer has the oldest ones: the rest is named.
            _logger.warning("transactions after position %d are not all known: %s", after, error)
        return tuple(nsmallest(_NAMED, found, key=lambda suspect: suspect.first))

    def _runs(self, after: int, until: int) -> list[tuple[int, int, str]]:
        """Return (first, last, origin) of the runs in (after, until]."""
        runs: list[tuple[int, int, str]] = []
        for run in runs_after(self._source.document, after):
            first = int(run["position"])
            if first > until:
                break
            runs.append((first, first + int(run["n"]) - 1, str(run["origin"])))
        return runs

    def _effects(self, table: str, after: int, until: int) -> Iterator[Any]:
        while after < until:
            segments = self._source.segments(after, wait_s=0.0, limit=_PAGE).segments
            if not segments:
                return
            for segment in segments:
                if segment.first > until:
                    return
                yield from (effect for effect in segment.effects if effect.table == table)
            after = segments[-1].last


def queue_suspects(queue: Path, table: str, after: int, until: int) -> tuple[Suspect, ...] | None:
    """Read the transactions that wrote to a table in (after, until] from the queue's Delta table.

    Returns:
        At most 20, ascending; None if the table cannot be read here.
    """
    if not has_log(queue):
        return None
    try:
        files = LogState.read(queue).files_between("position", after, until)
        if not files:
            return ()
        batches = dataset([str(queue / path) for path in files]).to_batches(
            columns=["position", "origin", "transaction_id", "operations"],
            filter=(pc.field("position") > after)
            & (pc.field("position") <= until)
            & (pc.field("outcome") == "committed"),
        )
        found = (
            Suspect(
                first=row["position"],
                last=row["position"],
                kind=operation["kind"],
                origin=row["origin"],
                transaction_id=row["transaction_id"],
            )
            for batch in batches
            for row in batch.to_pylist()
            for operation in row["operations"] or ()
            if operation["table"] == table
        )
        return tuple(nsmallest(_NAMED, found, key=lambda suspect: suspect.first))
    except (StorageError, OSError, pa.ArrowException) as error:
        _logger.warning("%s cannot be read: %s", queue, error)
        return None
