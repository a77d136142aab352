"""A summary on its way to a real node that joins: a link that is cut begins nothing anew (P21)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import FileIO
from pathlib import Path

import pytest
from tests.service.local_nodes import config_of, serving, until
from tests.service.test_lost_journal import JOURNAL_NAME, commit
from tests.service.test_start_after_a_summary import free_ports
from tests.support.slow_link import SlowLink, slow_link

from sparktxlog.files import sending
from sparktxlog.files.foreign_files import INCOMING
from sparktxlog.files.sending import Outgoing
from sparktxlog.runtime.membership.join_orders import StartAgainError
from sparktxlog.runtime.node import Node
from sparktxlog.transport import exchange

#: Bytes of one piece here.
PIECE = 64
#: The link breaks after so many bytes.
CUT_AT = 2 * PIECE


@asynccontextmanager
async def pair(
    directory: Path, way: SlowLink, ports: dict[str, int]
) -> AsyncIterator[tuple[Node, Node]]:
    """Run A and B; B reaches A by the relay only."""
    known = {"A": int(way.url.rpartition(":")[2]), "B": ports["B"]}
    listeners = {name: socket.create_server(("127.0.0.1", ports[name])) for name in "AB"}
    configs = {name: config_of(directory, name, known) for name in "AB"}
    async with (
        serving(configs["A"], listeners["A"]) as a,
        serving(configs["B"], listeners["B"]) as b,
    ):
        yield a, b


def test_a_summary_whose_link_is_cut_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_PIECE_BYTES", PIECE)
    monkeypatch.setattr(exchange, "_BLOCK_BYTES", PIECE)
    ports = free_ports("AB")

    async def main() -> None:
        async with slow_link(ports["A"], 1e9) as way:
            async with pair(tmp_path, way, ports) as (a, b):
                await until(lambda: a.membership.joining.proven)
                await commit(a, 3)
                await until(lambda: b.base.published.value == 3)
            (tmp_path / "B" / JOURNAL_NAME).unlink()
            async with pair(tmp_path, way, ports) as (_, b):
                assert isinstance(await asyncio.wait_for(b.failed, 60), StartAgainError)
            served: list[int] = []
            send = Outgoing.pieces

            async def cut_off(file: Outgoing, content: FileIO, offset: int) -> AsyncIterator[bytes]:
                served.append(offset)
                async for piece in send(file, content, offset):
                    if len(served) == 1 and offset == CUT_AT:
                        await until(lambda: came() == CUT_AT)
                        way.cut()
                    offset += len(piece)
                    yield piece

            def came() -> int:
                found = (tmp_path / "B" / "summaries").glob(f"*/{INCOMING}/*")
                return sum(path.stat().st_size for path in found)

            monkeypatch.setattr(Outgoing, "pieces", cut_off)
            async with pair(tmp_path, way, ports) as (a, b):
                error = await asyncio.wait_for(b.failed, 60)
                assert isinstance(error, StartAgainError) and "begins at position 3" in str(error)
                assert b.base.links["A"].ups > 1
            assert served == [0, CUT_AT], "what came was not asked for once more"
            async with pair(tmp_path, way, ports) as (_, b):
                assert b.base.ordered.value == 3

    asyncio.run(main())
