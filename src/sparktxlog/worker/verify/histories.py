"""What sites reported about their replicas: signatures by position.

A replica is known by the text of `model.replicas`: a site's main one has the name of the site.  Its
history is read from its own node (`GET /v1/signatures`).  The rest comes from this site:
the newest report of every replica (`GET /v1/status?tables=1`, also of a DIVERGED one), and older
ones from the Delta table `log/signatures`, which holds the reports of all sites.  So a site that
cannot be reached is compared up to its last report that arrived here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.dataset import dataset

from sparktxlog.delta.log_files import has_log
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import InvalidRequestError, StorageError, TransportError, TxLogError
from sparktxlog.http.tokens import client_token
from sparktxlog.model.replicas import MAIN, holds, name_of, replica_id, site_of
from sparktxlog.model.status_words import replica_of
from sparktxlog.worker.replica.source import HttpLogSource

_logger = logging.getLogger(__name__)

#: Key of the chain hash among a state's tables: it differs where the orders differ.
HISTORY = ""
#: Signatures asked for at once.
_PAGE = 1_000
#: Added to the signature of a table that stands still: it is no state of the log.
_STANDS_STILL = " (stands still)"


@dataclass(slots=True, kw_only=True)
class SiteHistory:
    """What one replica reported."""

    #: The replica.
    site: str
    #: Patterns of the tables that it holds; empty = all.
    only: tuple[str, ...] = ()
    #: Tables of groups whose rows other sites hold (P41).
    elsewhere: frozenset[str] = frozenset()
    #: Position → table → signature as text; `HISTORY` → chain hash.
    states: dict[int, dict[str, str]] = field(default_factory=dict)
    #: Why the site's own node was not asked, empty if it answered.
    absent: str = ""

    def add(
        self, position: int, chain_hash: str, tables: Mapping[str, str], *, replace: bool = False
    ) -> None:
        """Add what was reported at a position; the first report stays, unless `replace`."""
        if position > 0 and (replace or position not in self.states):
            self.states[position] = {HISTORY: chain_hash, **tables}

    def compares(self, table: str) -> bool:
        """Return whether it can be compared in a table, or in the order of transactions."""
        return table == HISTORY or (holds(self.only, table) and table not in self.elsewhere)


def read_peer_urls(pairs: Sequence[str]) -> dict[str, str]:
    """Read `NAME=URL` options.

    Raises:
        InvalidRequestError: One is no such pair (definite).
    """
    found = {}
    for pair in pairs:
        name, _, url = pair.partition("=")
        if not name or not url:
            raise InvalidRequestError(
                f"--peer-url {pair[:120]!r} is no NAME=URL",
                hint="Example: --peer-url B=http://127.0.0.1:7071",
                value=pair[:120],
            )
        found[name] = url
    return found


def read_histories(
    source: HttpLogSource, peer_urls: Mapping[str, str] | None = None
) -> tuple[str, dict[str, SiteHistory]]:
    """Return this site's name, and the histories of all replicas that its node knows.

    Args:
        source: The node of this site.
        peer_urls: Site → URL of its node; replaces the URLs that the node knows.

    Raises:
        TransportError: The node of this site cannot be reached (definite).
    """
    info, status = source.document("/v1/info"), source.document("/v1/status", tables=1)
    own = str(info["node_id"])
    peers = [peer for peer in status.get("peers") or () if not peer.get("witness")]
    urls = {str(peer["id"]): str(peer["url"]) for peer in peers if peer.get("url")}
    urls |= dict(peer_urls or {})
    lines = {replica_of(line): line for line in status.get("replicas") or ()}
    silent = {own, *urls} - {site_of(replica) for replica in lines}
    groups = source.document("/v1/groups")
    found = {
        replica: SiteHistory(
            site=replica,
            only=tuple(lines.get(replica, {}).get("only") or ()),
            elsewhere=frozenset(
                table
                for group in groups
                if site_of(replica) not in group["sites"]
                # An old position may be one at which a table was there that is dropped now.
                for table in (*group["tables"], *group["dropped"])
            ),
        )
        for replica in sorted({*lines, *silent})
    }
    for replica, history in found.items():
        site = site_of(replica)
        if site == own:
            _ask(source, history)
            continue
        if site not in urls:
            history.absent = "its URL is not known here"
            continue
        try:
            # Not `source.token`: that may be what only the node of this site noted on this machine.
            with closing(HttpLogSource(urls[site], client_token())) as other:
                _ask(other, history)
        except TxLogError as error:
            history.absent = str(error)
    for replica, line in lines.items():
        _add_newest(found[replica], line)
    read_log_table(Path(str(info.get("log_root") or "")) / "signatures", found)
    return own, found


def _ask(source: HttpLogSource, history: SiteHistory) -> None:
    after = 0
    while True:
        name = name_of(history.site)
        query = {} if name == MAIN else {"replica": name}
        answer = source.document("/v1/signatures", after=after, limit=_PAGE, **query)
        if str(answer.get("node_id")) != site_of(history.site):
            raise TransportError(
                f"{source.url} is the node of site {answer.get('node_id')!r}, not of "
                f"{site_of(history.site)!r}",
                hint="Give --peer-url NAME=URL with the right URL.",
                url=source.url,
            )
        listed = list(answer.get("signatures") or ())
        for state in listed:
            history.add(int(state["position"]), str(state["chain_hash"]), dict(state["tables"]))
        if not listed or int(listed[-1]["position"]) <= after:
            return
        after = int(listed[-1]["position"])


def _add_newest(history: SiteHistory, replica: Mapping[str, Any]) -> None:
    """Add the newest report, which the site's own history may lack."""
    tables = {
        str(name): _text(str(state.get("signature") or ""), str(state.get("diverged") or ""))
        for name, state in (replica.get("tables") or {}).items()
    }
    position, chain_hash = int(replica.get("position") or 0), str(replica.get("chain_hash") or "")
    history.add(position, chain_hash, tables)
    if any(text.endswith(_STANDS_STILL) for text in tables.values()):
        # The site's own history does not say that a table stands still.
        history.add(position, chain_hash, tables, replace=True)


def read_log_table(path: Path, histories: Mapping[str, SiteHistory]) -> None:
    """Add what the Delta table `log/signatures` has about replicas, if it can be read."""
    if not has_log(path):
        return
    try:
        files = [str(path / name) for name in LogState.read(path).adds]
        if not files:
            return
        rows = dataset(files).to_table(
            columns=[
                "position",
                "chain_hash",
                "table",
                "node_id",
                "name",
                "signature",
                "diverged",
                "reported_at",
            ],
            filter=pc.field("node_id").isin(sorted({site_of(one) for one in histories})),
        )
    except (StorageError, OSError, pa.ArrowException) as error:
        _logger.warning("%s cannot be read: %s", path, error)
        return
    states: dict[tuple[str, int], tuple[str, dict[str, str]]] = {}
    # The last report of a position counts: it may follow a repair.
    for row in rows.sort_by("reported_at").to_pylist():
        replica, position = replica_id(row["node_id"], row["name"]), row["position"]
        state = states.setdefault((replica, position), ("", {}))
        state[1][row["table"]] = _text(row["signature"], row["diverged"] or "")
        states[replica, position] = (row["chain_hash"], state[1])
    for (replica, position), (chain_hash, tables) in states.items():
        if replica in histories:
            histories[replica].add(position, chain_hash, tables)


def _text(signature: str, diverged: str) -> str:
    return signature + (_STANDS_STILL if diverged else "")
