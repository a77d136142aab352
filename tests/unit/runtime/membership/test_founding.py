"""The name of a log: random where one node begins it, kept for ever, and told apart from others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparktxlog.codec.submits.transactions import PreparedTransaction
from sparktxlog.config import NodeConfig, load_config
from sparktxlog.errors import ConfigError, NewerReleaseError
from sparktxlog.model.transactions.receipt import Level
from sparktxlog.protocol.messages.posts import MergeBase
from sparktxlog.protocol.messages.versions import NEWEST
from sparktxlog.protocol.messages.view import View
from sparktxlog.runtime.membership.standings import INSTANCE
from sparktxlog.runtime.node import build_node
from sparktxlog.storage.interfaces import PutValue, PutView
from sparktxlog.storage.journal.journal import Journal


def config_of(directory: Path, **settings: Any) -> NodeConfig:
    values = {
        "node-id": "A",
        "master-url": "http://127.0.0.1:7001",
        "data-dir": str(directory),
    } | settings
    return load_config(None, values, {})


def log_id_of(config: NodeConfig) -> str:
    """Start a node and return the name of its log."""

    async def main() -> str:
        running = build_node(config)
        await running.start()
        try:
            assert running.base.master.view.log_id == running.config.log_id
            return running.config.log_id
        finally:
            await running.stop()

    return asyncio.run(main())


def test_two_logs_of_nodes_with_one_id_have_two_names(tmp_path: Path) -> None:
    """A worker at the wrong node was taken for one whose tables differ, and copied over."""
    one, other = (log_id_of(config_of(tmp_path / name)) for name in ("one", "other"))
    assert one != other
    assert one.startswith("sparktxlog-")
    assert log_id_of(config_of(tmp_path / "one")) == one


def test_an_old_log_keeps_its_name(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    journal = Journal(tmp_path)
    journal.write([PutValue(name=INSTANCE, value=b"made by an earlier release")])
    journal.close()
    assert log_id_of(config) == config.log_id


def test_a_decided_view_has_the_last_word(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    first = log_id_of(config)
    journal = Journal(tmp_path)
    view = View(
        log_id="forced", epoch=2, roster=(), members=(), end=MergeBase(), ancestors=((first, 1),)
    )
    journal.write([PutView(view=view, node_id=config.node_id, incarnation=1)])
    journal.close()
    running_name = asyncio.run(_name(config))
    assert running_name == first


async def _name(config: NodeConfig) -> str:
    running = build_node(config)
    await running.start()
    try:
        return running.config.log_id
    finally:
        await running.stop()


def test_nodes_that_begin_a_log_together_have_its_name_before_they_meet(tmp_path: Path) -> None:
    peers = {
        "cluster-secret": "a secret of the test cluster",
        "peer.1.id": "B",
        "peer.1.url": "http://127.0.0.1:1",
    }
    config = config_of(tmp_path, **peers)
    assert log_id_of(config) == config.log_id


def test_the_name_follows_from_cluster_and_members_alone(tmp_path: Path) -> None:
    """However each node lists the others, and whichever addresses it has for them."""

    def named(own: str, *others: str, **more: Any) -> str:
        peers = {"cluster-secret": "a secret of the test cluster", "node-id": own}
        for number, other in enumerate(others, start=1):
            peers |= {
                f"peer.{number}.id": other,
                f"peer.{number}.url": f"http://{own}-sees-{other}:1",
            }
        return config_of(tmp_path, **peers, **more).log_id

    one = named("A", "B", "C")
    assert one == named("B", "C", "A") == named("C", "A", "B")
    assert one not in (named("A", "B"), named("A", "B", "D"), named("A", "B", "C", cluster="x"))


def version_of(config: NodeConfig) -> int:
    """Start a node and return the wire version that its log works by."""

    async def main() -> int:
        running = build_node(config)
        await running.start()
        try:
            return running.base.master.view.version
        finally:
            await running.stop()

    return asyncio.run(main())


def test_a_new_log_works_by_the_version_of_the_release_that_founds_it(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert [version_of(config), version_of(config)] == [NEWEST, NEWEST]


def test_an_old_log_keeps_its_version_and_alone_it_is_raised_at_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write([PutValue(name=INSTANCE, value=b"made by an earlier release")])
    journal.close()
    older, later = config_of(tmp_path), replace(config_of(tmp_path), wire_version=NEWEST + 1)
    assert [version_of(older), version_of(older)] == [NEWEST, NEWEST]

    async def main() -> None:
        running = build_node(later)
        assert running.base.master.view.version == NEWEST
        await running.start()
        async with asyncio.timeout(30):
            while running.base.master.view.version == NEWEST:
                await asyncio.sleep(0.01)
        await running.core.executor.write([])  # the view is durable before this one
        await running.stop()

    asyncio.run(main())
    with pytest.raises(NewerReleaseError, match=r"uses wire version 2, .* speaks 1 to 1"):
        version_of(older)


_PEER = {
    "cluster-secret": "a secret of the test cluster",
    "peer.1.id": "B",
    "peer.1.url": "http://127.0.0.1:1",
}


def commit_one(directory: Path) -> None:
    """Let node A, alone, order one transaction."""

    async def main() -> None:
        running = build_node(config_of(directory))
        await running.start()
        prepared = PreparedTransaction(transaction_id=b"1" * 16, operations=())
        receipt = await running.submit(prepared, level=Level.ORDERED, timeout=30)
        assert receipt.position == 1
        await running.stop()

    asyncio.run(main())


def test_a_peer_that_is_only_in_the_file_renames_no_log(tmp_path: Path) -> None:
    """All workers found another log after the restart, and the old file did not bring it back."""
    name = log_id_of(config_of(tmp_path))
    commit_one(tmp_path)
    with pytest.raises(ConfigError, match=r"founded by A, the .* lists A, B") as found:
        log_id_of(config_of(tmp_path, **_PEER))
    assert "sparktxlog peer add" in found.value.hint
    assert log_id_of(config_of(tmp_path)) == name


def test_the_members_of_an_empty_log_may_still_be_put_right(tmp_path: Path) -> None:
    alone, both = config_of(tmp_path), config_of(tmp_path, **_PEER)
    first = log_id_of(alone)
    assert log_id_of(both) == both.log_id != first
    assert log_id_of(both) == both.log_id
    assert log_id_of(alone) == first
