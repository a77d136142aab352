"""What a node tells of a transaction that its core knows and its front does not (I7)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from sparktxlog.model.receipt import Level
from sparktxlog.runtime.node import Node
from sparktxlog.runtime.progress import Progress

ID = bytes(range(16))


def test_a_position_is_told_only_once_it_is_durable() -> None:
    """The core places a run at once; its entry follows with the next write of the front."""

    async def main() -> None:
        ordered = Progress(6)
        parts: Any = SimpleNamespace(
            config=None,
            payloads=None,
            master=SimpleNamespace(locate=lambda wanted: 7 if wanted == ID else None),
            front=SimpleNamespace(
                find_transaction=lambda wanted: None, read_entry_at=lambda position: None
            ),
            receipts=SimpleNamespace(pending=lambda wanted: None),
            replicas=SimpleNamespace(applied=lambda copies: 0),
            ordered=ordered,
        )
        node = Node(parts)
        assert await node.find(ID) is None
        ordered.advance(7)
        receipt = await node.find(ID)
        assert receipt is not None
        assert (receipt.level, receipt.position, receipt.outcome) == (Level.ORDERED, 7, None)

    asyncio.run(main())
