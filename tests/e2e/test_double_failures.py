"""Two nodes are killed for good, as far as those know that are left (P23, P41, V47).

Of three copies any two may be lost: an operator lets the last node go on alone.  Of two copies in
groups most pairs of sites are of two groups, and each group has its other copy.

`tests/property/test_double_failures.py` shows for simulated cores which moment is survived.  Here
are the parts that these lack: processes that are killed, rows on a disk, the operator's token and
the text that has to be repeated, and clients whose commits wait for the operator.
"""

from __future__ import annotations

import json
import signal
import uuid
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.support.epoch_views import all_show, operate, told
from tests.support.forked_nodes import run_command
from tests.support.node_processes import (
    Cluster,
    HttpProblem,
    NodeProcess,
    append,
    call,
    committed,
    running,
    wait_until,
)

from sparktxlog import Client
from sparktxlog.api.writing.group_definitions import alter_group, create_group
from sparktxlog.errors import GroupAwayError
from sparktxlog.http.link import Http

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.timeout(480)]

#: Nobody is missed who is only slow: no machine takes so long to let a node of the test run.
PATIENT = ("suspect-timeout = 6", "start-timeout = 20")
TOKEN = "of the operators"
SETTINGS = (*PATIENT, f'admin-token = "{TOKEN}"', "inline-limit = 4096")
#: Rows of a load: so many bytes that its rows are in files.
ROWS = 400
#: E votes, and holds rows of no group.
GROUPS = {"eu": "AB", "us": "CD"}


def _kill(*nodes: NodeProcess) -> None:
    """Kill them at once: none of them sees that another one is gone."""
    for node in nodes:
        node.send(signal.SIGKILL)
    for node in nodes:
        node.kill()


def _files_of(node: NodeProcess, table: str) -> list[Path]:
    """Return where the node's own disk should have the files of what is ordered for a table."""
    position = node.status()["position"]
    call(f"{node.url}/v1/published?at_least={position}&timeout=30")
    payloads, after, found = Path(call(f"{node.url}/v1/info")["payload_root"]), 0, list[Path]()
    while after < position:
        query = f"after={after}&wait=5&limit=500"
        for segment in call(f"{node.url}/v1/worker/segments?{query}")["segments"]:
            after = segment["last"]
            effects = (one for one in segment["effects"] if one["table"] == table)
            found += [payloads / file["path"] for one in effects for file in one["files"]]
    return found


# -- three copies of everything ------------------------------------------------------------------


def _commit(nodes: list[NodeProcess], numbers: range) -> dict[str, int]:
    """Commit a row and then a load at each node; return the ids that clients know → rows."""
    found = dict[str, int]()
    for number in numbers:
        for node in nodes:
            identity = str(uuid.uuid4())
            node.commit(append(number, identity), "acquired")
            found[identity] = 1
            rows = [{"id": number, "v": f"{row:09d}" * 4} for row in range(ROWS)]
            operation = {"kind": "append", "table": "t", "rows": rows}
            load = {"transaction_id": str(uuid.uuid4()), "operations": [operation]}
            node.commit(load, "acquired")
            found[load["transaction_id"]] = ROWS
    return found


def _rows_of(node: NodeProcess) -> int:
    """Return how many rows the files of the node's own disk have for all that is ordered."""
    return sum(pq.read_metadata(file).num_rows for file in _files_of(node, "t"))


def _force(node: NodeProcess, *, confirm: str, token: str = TOKEN) -> tuple[int, Any]:
    arguments = ("peer", "force", "--json", "--url", node.url, "--confirm", confirm)
    done = run_command(*arguments, SPARKTXLOG_ADMIN_TOKEN=token)
    return done.returncode, json.loads(done.stdout)


def _waits(survivor: NodeProcess, epoch: int) -> None:
    """The last one orders nothing by itself, however long it waits."""
    with pytest.raises(HttpProblem) as problem:
        survivor.commit(append(900), "ordered", 6)
    assert problem.value.status in (503, 504)
    others = set(survivor.status()["members"]) - {survivor.name}
    wait_until(lambda: set(survivor.status()["suspects"]) == others, what="it misses all others")
    shown = survivor.status()
    assert shown["epoch"] == epoch and shown["restricted"]["levels"] == ["accepted"]
    code, said = told(survivor, "status")
    assert code != 0 and all(name in said for name in others), said


def _goes_on_alone(cluster: Cluster, survivor: NodeProcess, wanted: dict[str, int]) -> None:
    before = survivor.status()
    text = call(f"{survivor.url}/v1/epochs")["force"]["confirm"]
    assert text == f"{survivor.name} {before['epoch']}"
    code, problem = _force(survivor, confirm=text, token="")
    assert (code, problem["title"]) == (5, "unauthorized")
    code, problem = _force(survivor, confirm=f"{survivor.name} 77")
    assert code == 2 and text in problem["hint"] and problem["definite"]
    assert survivor.status()["epoch"] == before["epoch"], "nothing happened"

    code, view = _force(survivor, confirm=text)
    assert (code, view["members"]) == (0, [survivor.name])
    assert view["log_id"] != before["log_id"]
    missed = sorted(set(before["members"]) - {survivor.name})
    assert [loss["node_id"] for loss in view["may_be_lost"]] == missed
    assert survivor.commit(append(901))["level"] == "ordered"
    assert committed(survivor, set(wanted)) == sorted(wanted), "all that clients know of"
    # What no client was answered may be there, too: 900 is, 901 certainly.
    assert _rows_of(survivor) - sum(wanted.values()) in (1, 2)

    for name in cluster.nodes.keys() - {survivor.name}:
        cluster.nodes[name].start()
    wait_until(
        lambda: all(
            node.status()["phase"] == "NORMAL" and set(node.status()["members"]) == {*cluster.nodes}
            for node in cluster.nodes.values()
        ),
        180,
        "the others follow the fork, and are members",
    )
    back = next(node for node in cluster.nodes.values() if node is not survivor)
    cluster.agree(back.commit(append(902), timeout=60)["position"])
    for node in cluster.nodes.values():
        assert committed(node, set(wanted)) == sorted(wanted)


def test_two_are_killed_at_once(tmp_path: Path) -> None:
    """With `acquisition-quorum = all` each of the three holds what any client knows of."""
    settings = (*SETTINGS, 'acquisition-quorum = "all"')
    with running(Cluster(tmp_path, "ABC", settings=settings)) as cluster:
        a, b, c = cluster.nodes.values()
        wanted = _commit([a, b, c], range(1, 3))
        epoch = b.status()["epoch"]
        _kill(a, c)
        _waits(b, epoch)
        _goes_on_alone(cluster, b, wanted)


def test_one_is_killed_after_the_other(tmp_path: Path) -> None:
    """By default two of three hold it; once the others went on as two, both do."""
    with running(Cluster(tmp_path, "ABC", settings=SETTINGS)) as cluster:
        a, b, c = cluster.nodes.values()
        wanted = _commit([a, b, c], range(1, 2))
        _kill(a)
        all_show(cluster, "BC")
        wanted |= _commit([b, c], range(2, 3))
        epoch = c.status()["epoch"]
        _kill(b)
        _waits(c, epoch)
        _goes_on_alone(cluster, c, wanted)


# -- two copies, in groups -----------------------------------------------------------------------


def _make_groups(url: str) -> None:
    with Client(url, timeout=120) as client:
        for name, sites in GROUPS.items():
            create_group(Http(url), name, list(sites), len(sites))
            client.create_table(name, {"id": "bigint"}, group=name)
            for number in range(3):
                assert client.append(name, [{"id": number}]).outcome == "committed"


def _ids(node: NodeProcess, table: str) -> list[int]:
    """Return the ids that a node's disk has of what is ordered for a table.

    Raises:
        FileNotFoundError: It lacks a file of that.
    """
    files = _files_of(node, table)
    return sorted(number for file in files for number in pq.read_table(file)["id"].to_pylist())


def _has(node: NodeProcess, table: str, wanted: list[int]) -> None:
    what = f"{node.name} has the rows of {table}: {wanted}"
    wait_until(lambda: _ids(node, table) == wanted, what=what)


def _goes_on_in_groups(node: NodeProcess, holders: dict[str, list[str]]) -> None:
    """Write to each group: with one copy where one is left, as an operator says."""
    operate(node, "settings", "set", "synchro-timeout", "1")
    with Client(node.url, timeout=120) as client:
        for group, left in holders.items():
            if len(left) < len(GROUPS[group]):
                with pytest.raises(GroupAwayError, match=f"'{group}' needs 2 of its 2") as error:
                    client.append(group, [{"id": 9}])
                assert error.value.definite
    operate(node, "settings", "unset", "synchro-timeout")
    with Client(node.url, timeout=120) as client:
        for group, left in holders.items():
            if len(left) == 1:
                alter_group(Http(node.url), group, copies=1)
            if left:
                assert client.append(group, [{"id": 3}]).outcome == "committed"


@pytest.mark.parametrize("lost", ["AC", "AB"])
def test_two_sites_of_groups_are_killed(tmp_path: Path, lost: str) -> None:
    """Of two groups: both go on.  The two of one: its writes wait for them, the other goes on."""
    settings = (*PATIENT, "synchro-timeout = 60")
    with running(Cluster(tmp_path, "ABCDE", settings=settings)) as cluster:
        nodes, e = cluster.nodes, cluster.nodes["E"]
        left = "".join(name for name in nodes if name not in lost)
        holders = {
            group: [name for name in sites if name in left] for group, sites in GROUPS.items()
        }
        _make_groups(e.url)
        _kill(*(nodes[name] for name in lost))
        all_show(cluster, left)
        for group, sites in holders.items():
            for name in sites:
                assert _ids(nodes[name], group) == [0, 1, 2], (group, name)
        _goes_on_in_groups(e, holders)

        for name in lost:
            nodes[name].start()
        all_show(cluster, "ABCDE", 180)
        with Client(e.url, timeout=120) as client:
            for group in GROUPS:
                assert client.append(group, [{"id": 4}]).outcome == "committed"
        for group, sites in GROUPS.items():
            wanted = [0, 1, 2, *([3] if holders[group] else []), 4]
            for name in sites:
                _has(nodes[name], group, wanted)
