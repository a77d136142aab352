"""A real node whose journal was replaced by a peer's summary starts, follows and takes writes."""

from __future__ import annotations

import asyncio
import socket
import uuid
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.service.local_nodes import config_of, serving, until

from sparktxlog.api.client import Client
from sparktxlog.api.nodes import Nodes
from sparktxlog.codec.containers.assembly import assemble_rows
from sparktxlog.errors import CommitStateUnknownError, IdTakenError
from sparktxlog.model.ids import NodeId
from sparktxlog.model.transactions.operation import OperationKind
from sparktxlog.model.transactions.receipt import Level
from sparktxlog.runtime.node import Node
from sparktxlog.storage.interfaces import ResetJournal
from sparktxlog.storage.journal.journal import Journal


def free_ports(names: str) -> dict[str, int]:
    """Return a port for each node, the same one at every start."""
    listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in names}
    ports = {name: listener.getsockname()[1] for name, listener in listeners.items()}
    for listener in listeners.values():
        listener.close()
    return ports


def write(url: str, numbers: range, *, create: bool) -> None:
    """Write rows, one transaction each, and wait until they are ordered."""
    with Client(url) as client:
        if create:
            client.create_table("t", pa.schema([("id", pa.int64())]), keys=["id"])
        for number in numbers:
            client.append("t", [{"id": number}], transaction_id=identity(number))


def identity(number: int) -> str:
    """Return the id of the transaction that writes a row."""
    return str(uuid.UUID(int=number + 1))


def ask_for_the_past(url: str, number: int) -> None:
    """Ask the node for what was ordered before its summary: it knows the position only."""
    with Client(url) as client:
        known = client.receipt(identity(number))
        assert (known.level, known.outcome) == (Level.ORDERED, None)
        assert known.position == number + 2  # behind the table
        again = client.append("t", [{"id": number}], transaction_id=identity(number))
        assert again == replace(known, rows=1)
        with pytest.raises(IdTakenError, match=f"position {known.position}"):
            client.append("t", [{"id": 0}], transaction_id=identity(number))
        rows = pa.table({"id": [1, 2]})
        link, ids = Nodes(url), [uuid.UUID(int=n + 1).bytes for n in (number, number + 1)]
        txs = np.arange(2, dtype=np.int32)
        _, payload = assemble_rows("t", OperationKind.APPEND, 1, rows, txs, b"".join(ids), 1)
        with pytest.raises(CommitStateUnknownError) as caught:
            link.submit(payload, ids[0], is_run=True)
        assert caught.value.fields["position"] == known.position
        link.close()


async def run_both(
    directory: Path, ports: dict[str, int], numbers: range, *, create: bool = False
) -> int:
    """Run both nodes, write at B, and return the position that both have published then."""
    async with AsyncExitStack() as stack:
        nodes: dict[str, Node] = {}
        for name, port in ports.items():
            listener = socket.create_server(("127.0.0.1", port))
            config = config_of(directory, name, ports)
            nodes[name] = await stack.enter_async_context(serving(config, listener))
        links = [link for node in nodes.values() for link in node.base.links.values()]
        await until(lambda: all(link.up for link in links))
        url = f"http://127.0.0.1:{ports['B']}"
        if not create:
            await asyncio.to_thread(ask_for_the_past, url, 5)
        await asyncio.to_thread(write, url, numbers, create=create)
        parts = [node.base for node in nodes.values()]
        end = max(part.ordered.value for part in parts)
        await until(lambda: all(part.published.value == end for part in parts))
        assert len({part.master.status().chain_hash for part in parts}) == 1
    return end


def test_a_reset_node_goes_on(tmp_path: Path) -> None:
    ports = free_ports("AB")
    end = asyncio.run(run_both(tmp_path, ports, range(20), create=True))
    giver = Journal(tmp_path / "A")
    giver.load(1_000_000)
    summary = giver.read_summary()
    giver.close()
    assert summary.position == end
    journal = Journal(tmp_path / "B")
    journal.load(1_000_000)
    journal.write([ResetJournal(summary=summary, node_id=NodeId("B"))])
    journal.close()

    later = asyncio.run(run_both(tmp_path, ports, range(20, 30)))
    assert later == end + 10
    journal = Journal(tmp_path / "B")
    assert journal.read_segments(end, 100)[-1].last == later
    assert journal.load(1_000_000).kept_after == end
    journal.close()
    assert (tmp_path / "B" / "attic" / "queue-1" / "content").is_dir()
