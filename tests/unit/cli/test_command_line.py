"""The command line against canned answers of a node: tables, JSON, exit codes, errors."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_line import invoke

from sparktxlog.cli import serve
from sparktxlog.cli.commands import status_commands, table_commands, transaction_commands
from sparktxlog.cli.common_options import NodeApi
from sparktxlog.cli.example import example_config
from sparktxlog.config import load_config
from sparktxlog.errors import (
    ConfigError,
    InvalidRequestError,
    NotFoundError,
    TransportError,
    TxLogError,
)
from sparktxlog.http.tokens import local_token
from sparktxlog.model.tables.table import Column
from sparktxlog.model.tables.table_kind import TableDescription, TableKind

STATUS: dict[str, Any] = {
    "node_id": "A",
    "epoch": 1,
    "position": 1200,
    "published": 1000,
    "incoming_runs": 2,
    "incoming_transactions": 7,
    "round": 88,
    "waiting_for": [],
    "peers": [
        {
            "id": "B",
            "url": "http://b:1",
            "linked": True,
            "last_post_at": 1_700_000_000_000_000,
            "acquired": {"A": 41, "B": 17},
        }
    ],
    "replicas": [
        {"worker_id": "w", "node_id": "A", "position": 1000, "verdict": "IN_SYNC", "alive": True}
    ],
    "halted": None,
}


#: A table as `/v1/descriptions` has it.
DESCRIBED = TableDescription(
    name="flights",
    kind=TableKind.ROW_TABLE,
    comment="of 2013",
    columns=(Column(name="origin", type="string", comment="where from"),),
    keys=("origin",),
    properties={"team": "sales"},
    schema_version=3,
).to_document()
DESCRIBED = json.loads(json.dumps(DESCRIBED))


class CannedNode:
    """Stands in for NodeApi; answers by path."""

    answers: dict[str, Any] = {}
    asked: list[dict[str, Any]] = []

    def __init__(self, url: str, **_: Any) -> None:
        self.url = url

    def get(self, path: str, **query: Any) -> Any:
        answer = self.answers[path]
        self.asked.append(query)
        if isinstance(answer, TxLogError):
            raise answer
        return answer


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> type[CannedNode]:
    """Put a canned node behind the commands."""
    for module in (status_commands, table_commands, transaction_commands):
        monkeypatch.setattr(module, "NodeApi", CannedNode)
    CannedNode.answers = {"/v1/status": STATUS}
    return CannedNode


def test_status_tells_how_much_log_is_kept_and_who_needs_a_copy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], node: type[CannedNode]
) -> None:
    absent = {"worker_id": "", "node_id": "B", "position": 10, "needs_copy": True, "alive": False}
    known = STATUS["replicas"][0] | {"needs_copy": False}
    node.answers = {
        "/v1/status": STATUS
        | {"kept_after": 600, "log_bytes": 12_345_678, "replicas": [known, absent]}
    }
    assert invoke(monkeypatch, "status") == 3
    shown = capsys.readouterr().out
    assert "kept after" in shown and "\t600\t" in shown
    assert "log bytes" in shown and "\t12345678\t" in shown
    assert invoke(monkeypatch, "workers") == 3
    lines = capsys.readouterr().out.splitlines()
    assert any("needs copy" in line for line in lines)
    (own,) = (line.split("\t") for line in lines if "\tA\t" in line)
    (other,) = (line.split("\t") for line in lines if "\tB\t" in line)
    assert other[9] == "yes" and own[9] == "no"


def test_status_tells_whom_an_upgrade_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], node: type[CannedNode]
) -> None:
    waits = {"B": {"newest": 2, "linked": True}, "C": {"newest": 0, "linked": False}}
    versions = {"wire_version": 2, "wire_versions": [2, 3], "wire_version_waits_for": waits}
    node.answers = {"/v1/status": STATUS | versions}
    invoke(monkeypatch, "status")
    text = "wire version 2 is in force, 3 waits for B (speaks up to 2), C (not linked)"
    assert text in capsys.readouterr().out


@pytest.mark.parametrize("command", ["status", "peers"])
def test_what_peers_confirmed_is_shown(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    node: type[CannedNode],
    command: str,
) -> None:
    invoke(monkeypatch, command)
    shown = capsys.readouterr().out
    assert "holds runs" in shown and "A=41 B=17" in shown


@pytest.mark.parametrize("command", ["status", "workers"])
def test_only_programs_are_given_the_tables_of_replicas(
    monkeypatch: pytest.MonkeyPatch, node: type[CannedNode], command: str
) -> None:
    monkeypatch.setattr(node, "asked", [])
    invoke(monkeypatch, command)
    invoke(monkeypatch, command, "--json")
    assert node.asked == [{"tables": None}, {"tables": 1}]


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        ({}, 0, "in sync"),
        ({"phase": "SUSPECT", "suspects": ["B"]}, 0, "in sync"),
        ({"phase": "JOINING"}, 3, "lagging"),
        ({"failing": [{"task": "publishing", "text": "no room", "times": 3}]}, 3, "lagging"),
        ({"waiting_for": [{"peer": "C", "why": "promise", "since_us": 3_000_000}]}, 3, "lagging"),
        ({"published": 1100}, 3, "lagging"),
        # A worker that a scheduler starts is silent in between, and its replica still whole.
        ({"replicas": [{"node_id": "A", "position": 1000, "alive": False}]}, 0, "in sync"),
        ({"halted": "[invariant] two runs at one position"}, 4, "diverged"),
        (
            {"replicas": [{"node_id": "B", "position": 1000, "verdict": "DIVERGED"}]},
            4,
            "diverged",
        ),
    ],
)
def test_status_tells_the_state_by_exit_code(
    node: type[CannedNode],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, Any],
    code: int,
    word: str,
) -> None:
    node.answers["/v1/status"] = STATUS | change
    assert invoke(monkeypatch, "status", "--json") == code
    assert json.loads(capsys.readouterr().out)["state"] == word


def test_status_prints_what_the_node_warns_of(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    warning = {"code": "sole-voter", "text": "A alone has all votes"}
    node.answers["/v1/status"] = STATUS | {"warnings": [warning]}
    assert invoke(monkeypatch, "status") == 0
    assert "warning: A alone has all votes" in capsys.readouterr().out
    failing = {"task": "publishing", "text": "too many open files", "times": 3}
    node.answers["/v1/status"] = STATUS | {"failing": [failing]}
    assert invoke(monkeypatch, "status") == 3
    assert "publishing fails, 3 times: too many open files" in capsys.readouterr().out


def test_status_tells_of_a_history_that_nobody_could_compare(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {
        "position": 1_204,
        "summary_position": 9_000,
        "peer": "A",
        "at": 1,
        "quarantine_id": "q1",
        "kept": 3,
    }
    for kept in (3, 0):
        node.answers["/v1/status"] = STATUS | {"uncompared": found | {"kept": kept}}
        assert invoke(monkeypatch, "status") == 0
        told = " ".join(capsys.readouterr().out.split())
        assert "up to position 1,204, replaced by a summary of A's queue at 9,000" in told
        assert ("3 transactions are kept in log/quarantine as q1" in told) == bool(kept)


def test_status_shows_how_far_a_summary_is(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taking = {"peer": "A", "bytes": 1_048_576, "of_bytes": 20_000_000}
    node.answers["/v1/status"] = STATUS | {"fetching_summary": taking}
    assert invoke(monkeypatch, "status") == 0
    told = capsys.readouterr().out
    assert "fetching a summary of the queue from A: 1,048,576 of 20,000,000 bytes" in told


def test_status_tells_of_undecided_transactions(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {
        "transaction_id": "0f8fad5b-d9cb-469f-a165-70867728950e",
        "position": 1100,
        "origin": "NodeB",
        "participants": ["billing", "stock"],
        "missing": ["stock"],
        "valid_until": 1_700_000_060_000_000,
    }
    for number, more in ((0, ""), (1, ""), (1_021, "1,020 more")):
        listed = [one] if number else []
        node.answers["/v1/status"] = STATUS | {"undecided": number, "prepared": listed}
        assert invoke(monkeypatch, "status") == 0
        told = capsys.readouterr().out
        assert (f"{number:,} undecided" in told) == bool(number)
        assert (f"{more} are undecided, see sparktxlog tx prepared" in told) == bool(more)
        for shown in (one["transaction_id"], "NodeB", "stock", "2023-11-14 22:14:20"):
            assert (str(shown) in told) == bool(number)


def test_status_names_who_is_awaited_and_why(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waiting = [{"peer": "C", "why": "promise", "since_us": 3_000_000}]
    node.answers["/v1/status"] = STATUS | {"waiting_for": waiting}
    assert invoke(monkeypatch, "status") == 3
    out = capsys.readouterr().out
    assert "waits for C: its timestamp counter" in out
    assert "3.0 s" in out


def test_status_says_why_a_node_has_no_part_and_whom_it_waits_for(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = "no member of epoch 2 at the start: waits for B to admit it"
    waiting = [{"peer": "B", "why": "admission", "since_us": 3_000_000, "behind": None}]
    change = {"phase": "JOINING", "phase_reason": reason, "waiting_for": waiting}
    node.answers["/v1/status"] = STATUS | change
    assert invoke(monkeypatch, "status") == 3
    out = capsys.readouterr().out
    assert f"JOINING: {reason}" in out
    assert "waits for B: its confirmation that this node is a member again, for 3.0 s" in out
    node.answers["/v1/status"] = STATUS | {"phase": "NORMAL", "phase_reason": "all are there"}
    assert invoke(monkeypatch, "status") == 0
    assert "all are there" not in capsys.readouterr().out


def test_status_says_what_a_node_without_a_quorum_can_do(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    restricted = {"waits_for": ["B", "W"], "since_us": 12_000_000, "levels": ["accepted"]}
    node.answers["/v1/status"] = STATUS | {"phase": "SUSPECT", "restricted": restricted}
    assert invoke(monkeypatch, "status") == 3
    told = capsys.readouterr().out
    assert "restricted: too few nodes answer; it has waited for B, W for 12.0 s" in told
    assert "the highest level is accepted" in told


def test_an_error_ends_in_one_line_and_its_exit_code(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node.answers["/v1/status"] = TransportError("no node answers", hint="Start it.")
    assert invoke(monkeypatch, "status") == 5
    captured = capsys.readouterr()
    assert captured.err == "[transport] no node answers  Start it.\n"
    assert captured.out == ""


def test_an_error_is_a_problem_document_with_json(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    transaction = "0f8fad5b-d9cb-469f-a165-70867728950e"
    node.answers[f"/v1/transactions/{transaction}"] = NotFoundError("never seen here")
    assert invoke(monkeypatch, "tx", "show", transaction, "--json") == 1
    assert json.loads(capsys.readouterr().out)["title"] == "not-found"


def test_a_wrong_transaction_id_is_refused_before_anything_is_asked(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(monkeypatch, "tx", "show", "../etc") == 2
    assert "[invalid-name]" in capsys.readouterr().err


def _run_entry(position: int) -> dict[str, Any]:
    return {
        "position": position,
        "n": 10,
        "origin": "A",
        "seq": 1,
        "ts": 7,
        "rejected": [],
        "first_id": "0f8fad5b",
        "size_bytes": 100,
        "ordered_at": 0,
        "chain_hash": "abcdef",
    }


def test_queue_shows_the_latest_runs(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs start at odd places: the last ones are found by reading from well before the end."""
    asked = []

    def queue(self: CannedNode, path: str, **query: Any) -> Any:
        if path == "/v1/info":
            return {"position": 20_000}
        asked.append(query["after"])
        starts = range(1, 20_000, 10)
        return [_run_entry(start) for start in starts if start > query["after"]][: query["limit"]]

    monkeypatch.setattr(node, "get", queue)
    assert invoke(monkeypatch, "queue", "--limit", "3", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["position"] for entry in found] == [19_971, 19_981, 19_991]
    assert asked == [20_000 - 3, 20_000 - 3 * 16]
    assert invoke(monkeypatch, "queue", "--after", "19980") == 0
    out = capsys.readouterr().out
    assert "\n19981\t" in out
    assert "19,971" not in out


COMMIT_TABLE = {
    "name": "shop.orders",
    "uuid": "7d444840-9dc0-11d1-b245-5ffdce74fad2",
    "version": 3,
    "ordered": 8,
    "lag": 5,
    "state": "fetching",
    "plan": "copy",
    "peer": "B",
    "reason": "lacks versions",
}


@pytest.mark.parametrize(("state", "code"), [("fetching", 3), ("diverged", 4), ("in-sync", 0)])
def test_status_tells_how_commit_tables_are(
    node: type[CannedNode],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: str,
    code: int,
) -> None:
    shown = [] if state == "in-sync" else [COMMIT_TABLE | {"state": state}]
    states = {"in-sync": 1, "fetching": 0, "diverged": 0}
    states[state] += 1
    found = {"total": 2, "states": states, "behind": 5, "tables": shown}
    up = {"position": 1000, "incoming_transactions": 0}
    node.answers["/v1/status"] = STATUS | up | {"commit_tables": found}
    assert invoke(monkeypatch, "status") == code
    out = capsys.readouterr().out
    assert ("shop.orders" in out) == bool(shown)
    assert f"commit tables: {'2 in-sync' if not shown else f'1 in-sync, 1 {state}'}\n" in out


def test_tables_lists_both_kinds(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = DESCRIBED | {"name": COMMIT_TABLE["name"], "kind": "commit-table"}
    node.answers["/v1/descriptions"] = [DESCRIBED, shop]
    node.answers["/v1/commit-tables"] = [COMMIT_TABLE]
    assert invoke(monkeypatch, "tables") == 0
    assert "shop.orders" in capsys.readouterr().out
    assert invoke(monkeypatch, "tables", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [DESCRIBED, COMMIT_TABLE | shop]


def test_a_table_is_described(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node.answers["/v1/descriptions/default.flights"] = DESCRIBED
    assert invoke(monkeypatch, "table", "describe", "default.flights") == 0
    out = capsys.readouterr().out
    for line in (
        "row-table flights",
        "comment: of 2013",
        "keys: origin",
        "definition version: 3",
        "location: nothing of it is at this site yet",
        "property team: sales",
    ):
        assert line in out
    assert "where from" in out and "clustered by" not in out
    assert invoke(monkeypatch, "table", "describe", "default.flights", "--json") == 0
    assert json.loads(capsys.readouterr().out) == DESCRIBED


def test_tables_and_peers_and_workers_print(
    node: type[CannedNode], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node.answers["/v1/descriptions"] = [DESCRIBED]
    node.answers["/v1/commit-tables"] = []
    assert invoke(monkeypatch, "tables") == 0
    assert invoke(monkeypatch, "peers") == 0
    assert invoke(monkeypatch, "workers") == 0
    out = capsys.readouterr().out
    assert "origin string" in out
    assert "http://b:1" in out
    assert "in sync" in out and "All replicas have what is published" in out


def test_init_writes_a_file_that_passes_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "conf" / "a.toml"
    assert invoke(monkeypatch, "init", str(path), "--node-id", "A", "--port", "7171") == 0
    assert invoke(monkeypatch, "config", "check", str(path), "--json") == 0
    assert invoke(monkeypatch, "init", str(path)) == 6
    captured = capsys.readouterr()
    assert '"ok":true' in captured.out
    assert "--force" in captured.err


def test_init_takes_a_bucket_for_tables_and_staged_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.toml"
    assert invoke(monkeypatch, "init", str(path), "--store", "hdfs://lake/site-a") == 6
    assert "lake-url = 'hdfs://lake/site-a/rows': expected s3://" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert invoke(monkeypatch, "init", str(path), "--store", "s3://lake/site-a/") == 0
    config = load_config(path, environ={})
    assert config.commit_table_url == "s3://lake/site-a/tables"
    assert config.lake_url == "s3://lake/site-a/rows"
    assert config.payload_url == "s3://lake/site-a/payloads"


def test_init_writes_a_token_of_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, token_file = tmp_path / "a.toml", tmp_path / "a.token"
    assert invoke(monkeypatch, "init", str(path)) == 0
    token = token_file.read_text().strip()
    assert len(token) > 40
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    config = load_config(path, environ={})
    assert config.client_token == token
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    serve._note_token(config)
    assert local_token("http://localhost:7070") == token
    # Clients know the token: it is not replaced with the file.
    assert invoke(monkeypatch, "init", str(path), "--force") == 0
    assert token_file.read_text().strip() == token


@pytest.mark.parametrize("limit", [20, 1_000])
def test_init_leaves_no_part_of_a_file_where_the_disk_is_full(tmp_path: Path, limit: int) -> None:
    """An empty token, or a configuration without its peers, would be taken for a whole one."""
    program = (
        "import resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "from sparktxlog.cli import main\n"
        "sys.argv = ['sparktxlog', 'init', 'node.toml']\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "[storage] node.to" in done.stderr, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["node.token"] * (limit > 20)
    assert all(path.stat().st_size > 40 for path in tmp_path.iterdir())


def test_init_where_nothing_can_be_written_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for arguments in (("file/node.toml",), ("file", "--sites", "2"), ("/proc/node.toml",)):
        monkeypatch.chdir(tmp_path)
        assert invoke(monkeypatch, "init", *arguments) == 1
        assert "[storage]" in capsys.readouterr().err


def test_init_writes_sites_that_find_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(monkeypatch, "init", "--sites", "3", "--port", "7170") == 0
    said = capsys.readouterr().out
    configs = [load_config(Path(f"site-{name}.toml"), environ={}) for name in "abc"]
    for config in configs:
        others = {one.node_id: one.master_url for one in configs if one is not config}
        assert {peer.id: peer.url for peer in config.peers} == others
        assert f"sparktxlog serve --config site-{config.node_id.lower()}.toml" in said
    assert [config.node_id for config in configs] == ["A", "B", "C"]
    assert [config.listen[1] for config in configs] == [7170, 7171, 7172]
    assert len({config.data_dir for config in configs}) == 3
    assert len({config.cluster_secret for config in configs}) == 1
    assert len(configs[0].cluster_secret or "") > 40
    # `verify --compare` and `status --all` show every site the token of the first.
    assert len({config.client_token for config in configs}) == 1
    assert len(configs[0].client_token or "") > 40
    assert stat.S_IMODE(Path("cluster.secret").stat().st_mode) == 0o600
    before = Path("cluster.secret").read_text()
    assert invoke(monkeypatch, "init", "--sites", "2") == 6
    assert "site-a.toml exists already" in capsys.readouterr().err
    assert configs[0].master_url in Path("site-a.toml").read_text()
    assert invoke(monkeypatch, "init", "--sites", "2", "--force", "--json") == 0
    sites = [{"written": f"site-{n}.toml", "token_file": "client.token"} for n in "ab"]
    written = json.loads(capsys.readouterr().out)
    assert written == {"sites": sites, "secret_file": "cluster.secret"}
    assert Path("cluster.secret").read_text() == before, "nodes that run share it"


def test_init_of_sites_refuses_what_does_not_fit_before_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(monkeypatch, "init", "--sites", "2", "--port", "65535") == 6
    assert "--port 65534" in capsys.readouterr().err
    assert invoke(monkeypatch, "init", "--sites", "2", "--node-id", "N") == 2
    assert invoke(monkeypatch, "init", "--sites", "2", "--store", "hdfs://lake") == 6
    assert list(tmp_path.iterdir()) == []
    assert invoke(monkeypatch, "init", "conf", "--sites", "2", "--store", "s3://lake/") == 0
    config = load_config(tmp_path / "conf" / "site-b.toml", environ={})
    assert config.lake_url == "s3://lake/site-b/rows"


def test_every_commented_line_of_the_example_can_be_used(tmp_path: Path) -> None:
    text = example_config(node_id="A", port=7171)
    head, _, settings = text.partition("# cluster-secret-file")
    for line in settings.splitlines():
        if line.startswith("# ") and " = " in line and '""' not in line and "peer" not in line:
            if line.startswith(('# id = "B"', "# url =")):
                continue
            path = tmp_path / "one.toml"
            path.write_text(f"{head}\n{line.removeprefix('# ')}\n")
            load_config(path, environ={})


def test_config_check_names_the_wrong_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.toml"
    path.write_text('node-id = "A"\nsignatur-interval = 5\n')
    assert invoke(monkeypatch, "config", "check", str(path)) == 6
    err = capsys.readouterr().err
    assert "signatur-interval" in err
    assert "signature-interval" in err


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("", "there is no file"),
        ("AWS_ACCESS_KEY_ID=hidden\n", "lacks AWS_SECRET_ACCESS_KEY"),
        ("AWS_ACCESS_KEY_ID=hidden\nexport X=hidden\n", "line 2"),
    ],
)
def test_config_check_reads_the_credentials_of_a_bucket(
    lines: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config, credentials = tmp_path / "a.toml", tmp_path / "store.env"
    if lines:
        credentials.write_text(lines)
    config.write_text(
        f'node-id = "A"\nmaster-url = "http://127.0.0.1:1"\ndata-dir = "{tmp_path}/data"\n'
        f'lake-url = "s3://lake/a"\nstore-credentials-file = "{credentials}"\n'
    )
    assert invoke(monkeypatch, "config", "check", str(config)) == 6
    err = capsys.readouterr().err
    assert told in err and str(credentials) in err and "hidden" not in err
    credentials.write_text("AWS_ACCESS_KEY_ID=k\nAWS_SECRET_ACCESS_KEY=s\n")
    assert invoke(monkeypatch, "config", "check", str(config)) == 0


@pytest.mark.parametrize(
    ("where", "sealed", "why"),
    [
        ("file", "", "is not a directory"),
        ("file/a/b", "", "file is not a directory"),
        ("new/a", "", "is not writable"),
        ("there", "there", "is not writable"),
        ("there", "there/journal.sqlite", "journal.sqlite in it is not writable"),
    ],
)
def test_a_data_directory_that_cannot_be_used_is_told_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: str,
    sealed: str,
    why: str,
) -> None:
    """By `config check` and by `serve` alike; nothing is made."""
    (tmp_path / "file").touch()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "journal.sqlite").touch()
    if why.endswith("not writable"):  # whoever runs the tests may write everywhere
        denied = str(tmp_path / sealed) if sealed else str(tmp_path)
        monkeypatch.setattr(os, "access", lambda path, _: str(path) != denied)
    path = tmp_path / "a.toml"
    path.write_text(
        f'node-id="A"\nmaster-url="http://127.0.0.1:7171"\ndata-dir="{tmp_path / where}"\n'
    )
    for command in (("config", "check", str(path)), ("serve", "--config", str(path))):
        assert invoke(monkeypatch, *command) == 6
        shown = capsys.readouterr().err
        assert f"data-dir = '{tmp_path / where}': " in shown and why in shown
        assert "Traceback" not in shown and len(shown.splitlines()) <= 2
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.toml", "file", "there"]


def test_a_data_directory_that_cannot_be_made_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some file systems deny what their modes allow: only the attempt tells."""
    path = tmp_path / "a.toml"
    path.write_text('node-id="A"\nmaster-url="http://127.0.0.1:1"\ndata-dir="/proc/sparktxlog"\n')
    monkeypatch.setattr(os, "access", lambda *_: True)
    arguments = ("serve", "--config", str(path), "--set", "listen=127.0.0.1:0")
    assert invoke(monkeypatch, *arguments) == 6
    shown = capsys.readouterr().err
    assert "data-dir = '/proc/sparktxlog': cannot be made: " in shown
    assert "Traceback" not in shown and len(shown.splitlines()) <= 2


def test_config_show_hides_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        'node-id="A"\nmaster-url="http://127.0.0.1:1"\ndata-dir="d"\n'
        'cluster-secret="0123456789abcdef"\n[peer.1]\nid="B"\nurl="http://127.0.0.1:2"\n'
    )
    assert invoke(monkeypatch, "config", "show", "--config", str(path), "--json") == 0
    out = capsys.readouterr().out
    assert "0123456789abcdef" not in out
    assert {"key": "peer.1.id", "value": "B", "meaning": "Name of a peer."} in json.loads(out)


def test_set_needs_an_equals_sign(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(monkeypatch, "serve", "--set", "log-level") == 6
    assert "--set key=value" in capsys.readouterr().err


def test_usage_errors_end_with_two(monkeypatch: pytest.MonkeyPatch) -> None:
    assert invoke(monkeypatch, "no-such-command") == 2


@pytest.mark.parametrize("url", ["", "ftp://a", "http://", "node"])
def test_a_wrong_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError):
        NodeApi(url)


def test_a_bad_example_name_is_refused() -> None:
    with pytest.raises(TxLogError):
        example_config(node_id="../a", port=1)
    assert issubclass(ConfigError, TxLogError)


def test_a_table_is_released_into_no_other_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = invoke(monkeypatch, "table", "release", "t", "file://host/x")
    assert (code, "not supported yet" in capsys.readouterr().err) == (2, True)


#: Their lake, images or Delta table may lie in a bucket: they ask the node first.
_TAKE_BUCKETS = (
    "apply --lake PLACE",
    "backup PLACE",
    "catch-up --lake PLACE",
    "maintain --images PLACE",
    "maintain --lake PLACE",
    "repair t --lake PLACE",
    "table adopt t PLACE --as commit-table",
    "table adopt t PLACE --as row-table",
    "table follow t PLACE",
    "verify --lake PLACE",
)
#: They ask the bucket, or the images, at once (`contract/test_images.py`).
_ASK_BUCKETS = (
    "backup create /images --lake PLACE",
    "backup list PLACE",
    "backup verify PLACE",
    "restore /images --lake /lake --commit-tables PLACE",
    "restore /images --lake PLACE",
    "restore PLACE --lake /lake",
)


@pytest.mark.parametrize(
    "command",
    [
        "apply --lake PLACE",
        "backup PLACE",
        "backup create /images --lake PLACE",
        "backup list PLACE",
        "backup verify PLACE",
        "catch-up --lake PLACE",
        "checkpoint copy /q PLACE",
        "checkpoint copy PLACE /q",
        "config check node.toml",
        "doctor --config node.toml",
        "drill --report PLACE",
        "maintain --images PLACE",
        "maintain --lake PLACE",
        "repair t --lake PLACE",
        "restore /images --lake /lake --commit-tables PLACE",
        "restore /images --lake PLACE",
        "restore PLACE --lake /lake",
        "serve --config node.toml",
        "table adopt t PLACE --as commit-table",
        "table adopt t PLACE --as row-table",
        "table follow t /t --state PLACE",
        "table follow t PLACE",
        "verify --lake PLACE",
    ],
)
@pytest.mark.parametrize("place", ["s3://bucket/x", "file://host/x"])
def test_no_command_takes_an_object_store_for_a_directory(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    command: str,
    place: str,
) -> None:
    """It is refused before anything is asked or made; Typer takes one slash away."""
    if place.startswith("s3://") and command in _ASK_BUCKETS:
        place = "ftp://bucket/x"
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "node.toml"
    config.write_text(example_config(node_id="A", port=1) + f'\nlake-dir = "{place}"\n')
    code = invoke(monkeypatch, *command.replace("PLACE", place).split())
    said = "".join(capsys.readouterr())
    if place.startswith("s3://") and command in _TAKE_BUCKETS:
        assert re.search("did not answer|no node answers", said) and code == 5
        return
    assert ("not supported yet" in said or "are not known" in said) and place in said, said
    assert code in (1, 2, 6)
    assert list(tmp_path.iterdir()) == [config]
