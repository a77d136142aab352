"""Sites compared over HTTP by what they reported: canned nodes, a real queue table."""

from __future__ import annotations

import json
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sparktxlog.api.jobs.job import JobContext
from sparktxlog.api.jobs.upkeep import verify
from sparktxlog.cli.common_options import ExitCode
from sparktxlog.errors import InvalidRequestError
from sparktxlog.http.tokens import note_token
from sparktxlog.storage.log_tables.log_schemas import SIGNATURES
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.verify.comparing import (
    SiteComparison,
    Suspect,
    compare_sites,
    comparison_lines,
    conclusions,
    queue_suspects,
)
from sparktxlog.worker.verify.histories import read_peer_urls
from sparktxlog.worker.verify.verify import TableFinding, Verification


def states_of(name: str, positions: list[int], wrong_from: int = 1 << 40) -> list[dict[str, Any]]:
    return [
        {
            "position": position,
            "chain_hash": f"h{position}",
            "tables": {
                "t": f"{position}:0:{name if position >= wrong_from else 0}",
                "u": f"{position}:1:1",
            },
        }
        for position in positions
    ]


class CannedNode:
    """A node that answers from a list of states."""

    def __init__(self, name: str, positions: list[int], wrong_from: int = 1 << 40) -> None:
        self.name = name
        #: What clients showed.
        self.shown = set[str | None]()
        self.states = states_of(name, positions, wrong_from)
        self.documents: dict[str, Any] = {
            "/v1/info": {"node_id": name, "log_root": ""},
            "/v1/status": {"peers": [], "replicas": []},
            "/v1/groups": [],
            "/v1/queue": [],
            "/v1/worker/segments": {"position": 0, "log_id": "l", "epoch": 1, "segments": []},
        }
        node = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                node.shown.add(self.headers["Authorization"])
                content = json.dumps(node.answer(self.path)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, path: str) -> Any:
        parts = urlsplit(path)
        query = {name: int(float(values[0])) for name, values in parse_qs(parts.query).items()}
        if parts.path == "/v1/signatures":
            found = [s for s in self.states if s["position"] > query["after"]]
            return {"node_id": self.name, "signatures": found[: min(query["limit"], 7)]}
        if parts.path == "/v1/queue":
            return [r for r in self.documents[parts.path] if r["position"] > query["after"]]
        if parts.path == "/v1/worker/segments":
            document = self.documents[parts.path]
            kept = [s for s in document["segments"] if s["last"] > query["after"]]
            return document | {"segments": kept}
        return self.documents[parts.path]


@pytest.fixture
def nodes() -> Iterator[dict[str, CannedNode]]:
    """Three sites; B differs in table t from position 60 on."""
    made = {
        "A": CannedNode("A", list(range(10, 210, 10))),
        "B": CannedNode("B", list(range(5, 185, 5)), wrong_from=60),
        "C": CannedNode("C", list(range(20, 220, 20))),
    }
    made["A"].documents["/v1/status"]["peers"] = [
        {"id": name, "url": made[name].url} for name in "BC"
    ]
    yield made
    for node in made.values():
        node.server.shutdown()
        node.server.server_close()


def compare(nodes: dict[str, CannedNode], **options: Any) -> SiteComparison:
    with closing(HttpLogSource(nodes["A"].url)) as source:
        return compare_sites(source, **options)


def test_each_site_of_this_machine_gets_the_token_that_its_own_node_noted(
    nodes: dict[str, CannedNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for name in ("SPARKTXLOG_CLIENT_TOKEN", "SPARKTXLOG_ADMIN_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for site in "AB":
        (tmp_path / site).write_text(f"token-of-{site}")
        note_token([nodes[site].url], tmp_path / site)
    compare(nodes)
    shown = {site: node.shown for site, node in nodes.items()}
    assert shown == {"A": {"Bearer token-of-A"}, "B": {"Bearer token-of-B"}, "C": {None}}
    monkeypatch.setenv("SPARKTXLOG_ADMIN_TOKEN", "of-all")
    compare(nodes)
    assert "Bearer of-all" in nodes["C"].shown


def test_the_first_difference_of_each_pair_is_found(nodes: dict[str, CannedNode]) -> None:
    found = compare(nodes)
    assert not found.equal and found.absent == {} and found.site == "A"
    pairs = {(pair.left, pair.right): pair for pair in found.pairs}
    assert pairs["A", "C"].equal_to == pairs["A", "C"].compared == 200
    (difference,) = pairs["A", "B"].differences
    assert pairs["A", "B"].equal_to == 50
    assert (difference.table, difference.last_equal, difference.first_differing) == ("t", 50, 60)
    assert difference.signatures == {"A": "60:0:0", "B": "60:0:B", "C": "60:0:0"}
    assert difference.disagreeing == ("B",)
    # B and C share even multiples of 20 only.
    (difference,) = pairs["B", "C"].differences
    assert (difference.last_equal, difference.first_differing) == (40, 60)
    text = "\n".join(comparison_lines(found, conclusions(found, None)))
    assert "equal   A and C: up to position 200" in text
    assert "DIFFER  A and B: equal up to position 50" in text
    assert "table t: first difference in (50, 60]" in text
    assert "site B: 60:0:B  against the majority" in text
    assert "the majority of sites disagrees with B" in text
    # Behind a repair at 100, what was before is not looked at.
    again = compare(nodes, since=100)
    assert again.pairs[0].differences[0].last_equal == 100


def test_a_dropped_table_of_a_group_is_compared_at_its_sites(nodes: dict[str, CannedNode]) -> None:
    """P41: at an old position it was there, and B never had its rows."""
    group = {"name": "g", "sites": ["A", "C"], "tables": [], "dropped": ["t"]}
    nodes["A"].documents["/v1/groups"] = [group]
    assert compare(nodes).equal
    group["sites"] = ["A", "B"]
    found = {(pair.left, pair.right): pair.differences for pair in compare(nodes).pairs}
    assert [one.table for one in found["A", "B"]] == ["t"] and not found["A", "C"]


def test_equal_sites_are_equal(nodes: dict[str, CannedNode]) -> None:
    nodes["B"].states = nodes["A"].states[:3]
    found = compare(nodes)
    assert found.equal and [p.compared for p in found.pairs] == [30, 200, 20]


def test_a_site_that_never_reported_is_named(nodes: dict[str, CannedNode]) -> None:
    """Nothing differs, but nothing was compared either: that is not in sync."""
    asked = Namespace(url=nodes["A"].url, compare=True, recount=False, peer_url=[], since=0)
    lines: list[str] = []
    context = JobContext(arguments=asked, tell=lines.append)
    nodes["B"].states = nodes["A"].states[:3]
    assert verify(context)[0] == 0
    nodes["C"].states = []
    code, report = verify(context)
    assert (code, report["equal"], report["unreported"]) == (ExitCode.LAGGING, True, ("C",))
    assert any("site C has not reported" in line for line in lines)
    # Nor is it where two have no position in common, or nobody has reported at all.
    nodes["C"].states = states_of("C", [7])
    code, report = verify(context)
    assert (code, report["unreported"]) == (ExitCode.LAGGING, ())
    for node in nodes.values():
        node.states = []
    code, report = verify(context)
    assert (code, report["unreported"]) == (ExitCode.LAGGING, ("A", "B", "C"))
    # A log without row tables has nothing to report, as `status` says too.
    nodes["A"].documents["/v1/status"]["rows_until"] = 0
    code, report = verify(context)
    assert (code, report["complete"]) == (ExitCode.IN_SYNC, True)
    assert any("no row tables" in line for line in lines)
    del nodes["A"].documents["/v1/status"]["rows_until"]
    # A witness has no tables; a difference counts for more.
    for peer in nodes["A"].documents["/v1/status"]["peers"]:
        peer["witness"] = peer["id"] == "C"
    nodes["A"].states, nodes["B"].states = (states_of(name, [9], 9) for name in "AB")
    code, report = verify(context)
    assert (code, report["unreported"]) == (ExitCode.DIVERGED, ())


def test_a_site_that_lags_is_compared_up_to_the_position_that_both_reported(
    nodes: dict[str, CannedNode],
) -> None:
    """The exit code is that of `status`, and the lines say what was compared."""
    asked = Namespace(url=nodes["A"].url, compare=True, recount=False, peer_url=[], since=0)
    lines: list[str] = []
    context = JobContext(arguments=asked, tell=lines.append)
    status, chain = nodes["A"].documents["/v1/status"], {"verdict": "IN_SYNC", "alive": True}
    status |= {"node_id": "A", "position": 200, "published": 200, "rows_until": 200}
    status["peers"] = [{"id": "B", "url": nodes["B"].url, "linked": True}]
    status["replicas"] = [
        {"node_id": name, "worker_id": f"w{name}", "position": position, "tables": {}, **chain}
        for name, position in (("A", 200), ("B", 30))
    ]
    nodes["B"].states = nodes["A"].states[:3]
    code, report = verify(context)
    assert (code, report["equal"], report["complete"]) == (ExitCode.LAGGING, True, True)
    assert lines[0] == "equal   A and B: up to position 30"
    assert "Site B is at position 30 of 200" in lines[1] and len(lines) == 2
    # A difference at a position that both reported counts for more, wherever they are now.
    lines.clear()
    nodes["B"].states = states_of("B", [10, 20, 30], wrong_from=30)
    code, report = verify(context)
    assert (code, report["state"]) == (ExitCode.DIVERGED, "diverged")
    assert lines[0] == "DIFFER  A and B: equal up to position 20"
    assert "--force copy --donor SITE" in lines[-1]


def test_the_only_site_is_told_that_there_is_nothing_to_compare(
    nodes: dict[str, CannedNode],
) -> None:
    """It printed nothing."""
    asked = Namespace(url=nodes["A"].url, compare=True, recount=False, peer_url=[], since=0)
    nodes["A"].documents["/v1/status"] |= {"peers": [], "replicas": []}
    lines: list[str] = []
    code, report = verify(JobContext(arguments=asked, tell=lines.append))
    assert (code, report["pairs"]) == (ExitCode.IN_SYNC, ())
    (line,) = lines
    assert "site A is the only site" in line and "nothing to compare" in line


def test_a_newest_report_that_its_node_does_not_keep_counts(nodes: dict[str, CannedNode]) -> None:
    nodes["B"].states = nodes["A"].states[:3]
    replica = {
        "node_id": "B",
        "position": 40,
        "chain_hash": "h40",
        "tables": {
            "t": {"signature": "40:0:0", "diverged": "somebody wrote"},
            "u": {"signature": "40:1:1", "diverged": ""},
        },
    }
    nodes["A"].documents["/v1/status"]["replicas"] = [replica]
    (difference,) = compare(nodes).pairs[0].differences
    assert (difference.last_equal, difference.first_differing) == (30, 40)
    assert difference.signatures["B"] == "40:0:0 (stands still)"


def test_an_absent_site_is_compared_by_what_it_reported_here(
    nodes: dict[str, CannedNode], tmp_path: Path
) -> None:
    states, name = nodes["B"].states, "signatures"
    rows = [
        {
            "position": state["position"],
            "chain_hash": state["chain_hash"],
            "table": table,
            "node_id": "B",
            "worker_id": "w",
            "name": "main",
            "version": 1,
            "rows": 1,
            "signature": text,
            "schema": "s",
            "diverged": "",
            "reported_at": state["position"],
        }
        for state in states
        for table, text in state["tables"].items()
    ]
    write_deltalake(tmp_path / name, pa.Table.from_pylist(rows, SIGNATURES))
    nodes["A"].documents["/v1/info"]["log_root"] = str(tmp_path)
    found = compare(nodes, peer_urls={"B": "http://127.0.0.1:9"})
    assert "did not answer" in found.absent["B"]
    (difference,) = found.pairs[0].differences
    assert (difference.last_equal, difference.first_differing) == (50, 60)
    assert any("site B was not asked" in line for line in comparison_lines(found, []))


def test_a_wrong_peer_url_is_noticed(nodes: dict[str, CannedNode]) -> None:
    found = compare(nodes, peer_urls={"B": nodes["C"].url})
    assert "is the node of site 'C', not of 'B'" in found.absent["B"]
    assert read_peer_urls(["B=http://h:1"]) == {"B": "http://h:1"}
    with pytest.raises(InvalidRequestError, match="NAME=URL"):
        read_peer_urls(["http://h:1"])


def test_transactions_are_named_from_the_segments(nodes: dict[str, CannedNode]) -> None:
    file = {"path": "0f8f/t/0-part-0.parquet", "size_bytes": 1, "rows": 1, "digest": ""}
    effects = [
        {"table": "t", "kind": "append", "first": 52, "last": 52, "files": [file]},
        {"table": "u", "kind": "append", "first": 53, "last": 53, "files": [file]},
        {"table": "t", "kind": "upsert", "first": 54, "last": 58, "inline": True, "files": [file]},
    ]
    whole = {"from_hash": "", "to_hash": "", "epoch": 1, "transactions": 1, "rejected": 0}
    nodes["A"].documents["/v1/worker/segments"]["segments"] = [
        {"first": 41, "last": 50, "effects": effects[:1], **whole},
        {"first": 51, "last": 60, "effects": effects, **whole},
        {"first": 61, "last": 70, "effects": effects, **whole},
    ]
    nodes["A"].documents["/v1/queue"] = [
        {"position": 51, "n": 4, "origin": "A"},
        {"position": 55, "n": 6, "origin": "B"},
        {"position": 61, "n": 1, "origin": "C"},
    ]
    found = compare(nodes).pairs[0].differences[0]
    assert found.suspects == (
        Suspect(first=52, last=52, kind="append", origin="A", transaction_id="0f8f"),
        Suspect(first=54, last=58, kind="upsert", origin="A, B"),
    )


def test_transactions_are_named_from_the_queue_table(tmp_path: Path) -> None:
    def row(position: int, table: str, outcome: str = "committed") -> dict[str, Any]:
        return {
            "position": position,
            "origin": "B",
            "transaction_id": f"id{position}",
            "outcome": outcome,
            "operations": [{"table": "v", "kind": "append"}, {"table": table, "kind": "upsert"}],
        }

    rows = [row(50, "t"), row(53, "t"), row(51, "t"), row(52, "u"), row(54, "t", "rejected")]
    write_deltalake(tmp_path / "q", pa.Table.from_pylist([*rows, row(61, "t")]))
    found = queue_suspects(tmp_path / "q", "t", 50, 60)
    assert found is not None and [s.transaction_id for s in found] == ["id51", "id53"]
    assert {(s.kind, s.origin) for s in found} == {("upsert", "B")}
    assert queue_suspects(tmp_path / "nowhere", "t", 50, 60) is None
    assert queue_suspects(tmp_path / "q", "t", 61, 90) == ()
    for path in (tmp_path / "q").glob("*.parquet"):
        path.write_bytes(b"no parquet")
    assert queue_suspects(tmp_path / "q", "t", 50, 60) is None


@pytest.mark.parametrize(("counted", "said"), [("1", "other rows"), ("2", "damaged file")])
def test_the_recount_says_whose_record_is_wrong(
    nodes: dict[str, CannedNode], counted: str, said: str
) -> None:
    table = TableFinding(table="t", version=1, recorded="1", counted=counted)
    recount = Verification(node_id="A", position=60, tables=(table,), compared_sites=())
    assert said in conclusions(compare(nodes), recount)[-1]


def test_a_recount_says_what_it_counted_and_what_differs() -> None:
    sound = TableFinding(table="t", version=3, recorded="1:a:b", counted="1:a:b")
    other = TableFinding(
        table="u",
        version=4,
        recorded="1:a:b",
        counted="",
        differing_sites={"B": "2:a:b"},
        causes=("data file x is missing",),
    )
    found = Verification(node_id="A", position=1_000, tables=(sound, other), compared_sites=("B",))
    assert found.lines() == [
        "site A at position 1,000; compared: B",
        "sound   t version 3: 1:a:b by full scan",
        "DIFFERS u version 4: nothing by full scan",
        "        data file x is missing",
        "        site B has 2:a:b",
    ]
