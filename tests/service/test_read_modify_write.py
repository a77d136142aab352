"""Clients at two sites that read, compute and write one table lose no update (P27)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.support.node_processes import Cluster, running

import sparktxlog
from sparktxlog import Client
from sparktxlog.errors import ConflictError, UnknownTableError

_TIMES = 15


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """URLs of two nodes of one log."""
    with running(Cluster(tmp_path_factory.mktemp("sites"), "AB")) as cluster:
        yield [node.url for node in cluster.nodes.values()]


def _counter(sites: list[str]) -> str:
    """Create a table that both sites know, whose only row counts its writes; return its name."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with Client(sites[0]) as a, Client(sites[1]) as b:
        b.after(a.create_table(name, {"n": "bigint"}).position or 0)
        assert b.table(name).version == 0
    return name


def _count_up(url: str, name: str, by_version: bool) -> list[int]:
    """Add one so often; return what was written."""
    with Client(url, timeout=60) as client:

        @client.retry(attempts=1_000, timeout=90)
        def add_one() -> int:
            # The row holds the version: what a reader of the rows at this position finds.
            state = client.table(name)
            assert state.version is not None
            with client.transaction(isolation=None if by_version else "serializable") as t:
                if by_version:
                    t.expect_version(name, state.version)
                else:
                    t.read_at(state.position, name)
                t.overwrite(name, [{"n": state.version + 1}])
            return state.version + 1

        return [add_one() for _ in range(_TIMES)]


@pytest.mark.parametrize("by_version", [True, False], ids=["version", "read"])
def test_no_update_is_lost_between_two_sites(sites: list[str], by_version: bool) -> None:
    name = _counter(sites)
    with ThreadPoolExecutor() as pool:
        written = list(pool.map(lambda url: _count_up(url, name, by_version), sites))
    assert sorted(n for of_site in written for n in of_site) == list(range(1, 2 * _TIMES + 1))
    assert all(of_site == sorted(of_site) for of_site in written)


def test_of_two_that_read_what_the_other_one_writes_one_takes_effect(sites: list[str]) -> None:
    """No write skew if both say what they read; without, the log takes both."""
    x, y = _counter(sites), _counter(sites)
    with Client(sites[0]) as a, Client(sites[1]) as b:
        b.after(a.table(y).position)
        for isolation, wanted in ((None, []), ("serializable", [x])):
            read = {client: client.table(y).position for client in (a, b)}
            conflicts = []
            for client, writes in ((a, x), (b, y)):
                t = client.transaction(isolation=isolation)
                if isolation is not None:
                    t.read_at(read[client], x, y)
                t.append(writes, [{"n": 1}])
                try:
                    position = t.commit().position or 0
                except ConflictError as error:
                    conflicts.append(error.fields["table"])
                    continue
                for site in (a, b):  # who reads next has seen this write
                    site.after(position)
            assert conflicts == wanted
        assert (a.table(x).version, b.table(y).version) == (2, 1)


def test_a_conflict_names_who_won_and_stays_the_outcome_of_its_id(sites: list[str]) -> None:
    name = _counter(sites)
    given = str(uuid.uuid4())
    with Client(sites[0]) as a, Client(sites[1]) as b:
        b.after(a.table(name).position)
        read = b.table(name)
        winner = a.append(name, [{"n": 1}]).position
        t = b.transaction(isolation="serializable", transaction_id=given)
        t.read_at(read.position, name)
        t.overwrite(name, [{"n": 7}])
        for _ in range(2):
            with pytest.raises(ConflictError) as caught:
                t.commit()
            fields = caught.value.fields
            assert (fields["table"], fields["winner"], fields["origin"]) == (name, winner, "A")
            assert caught.value.definite and caught.value.retryable
        with pytest.raises(ConflictError), a.transaction(transaction_id=given) as again:
            again.overwrite(name, [{"n": 7}])
        a.after(fields["position"])
        assert (a.table(name).version, a.table(name).last_write) == (1, winner)
        with b.transaction(isolation="serializable") as t:
            t.read_at(fields["winner"], name)
            t.overwrite(name, [{"n": 7}])
        assert t.receipt.outcome == "committed"


def test_a_table_that_does_not_exist_cannot_be_read(sites: list[str]) -> None:
    with Client(sites) as client:
        t = client.transaction(isolation="serializable")
        t.read_at(1, "nope")
        t.append("t", [{"id": 1, "v": "x"}])
        with pytest.raises(UnknownTableError, match="nope"):
            t.commit()


def test_the_example_of_the_documentation(sites: list[str]) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "conditions.md").read_text()
    _, _, section = page.partition("### From Spark and Python")
    blocks = [block.partition("```")[0] for block in section.split("```python")[1:]]
    (example,) = [block for block in blocks if "client.retry" in block]
    code = compile(example, "docs/conditions.md", "exec")
    exec(code, {"sparktxlog": sparktxlog, "url": sites[0]})
