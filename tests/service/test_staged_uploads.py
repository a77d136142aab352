"""Staged files that come over HTTP, in parts: resumed, checked, bounded, and refused."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import numpy as np
import pyarrow as pa
import pytest
from tests.service.local_nodes import config_of, serving
from tests.support.storage_samples import parquet_bytes, staged_of
from yarl import URL

from sparktxlog.errors import (
    DiskFullError,
    ManifestMismatchError,
    PeerTimeoutError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.http import upload_link
from sparktxlog.http.upload_link import UploadLink
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.runtime.node import Node
from sparktxlog.service.handlers import staged_uploads
from sparktxlog.service.routing.routes import PART_BYTES
from sparktxlog.storage.payloads.local_store import LocalPayloadStore

CLIENT, REPORTS = "a token of the clients", "a token of the reports"
#: More than two parts, which no codec makes shorter.
LARGE = parquet_bytes(pa.table({"n": np.random.default_rng(7).integers(0, 1 << 62, 1_200_000)}))
ROWS = 1_200_000


def file_of(content: bytes = LARGE, rows: int = ROWS, **fields: object) -> StagedFile:
    return staged_of(f"{uuid.uuid4()}/0-t-x/p=a%2Fb/part-0.parquet", content, rows=rows, **fields)


def target_of(file: StagedFile, offset: int = 0, table: str = "t") -> str:
    query = f"table={table}&size={file.size_bytes}&rows={file.rows}&digest={file.digest}"
    return f"/v1/staged/{quote(file.path)}?{query}&offset={offset}"


@asynccontextmanager
async def node_of(directory: Path, **settings: Any) -> AsyncIterator[Node]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with serving(config_of(directory, "A", {"A": port}, **settings), listener) as node:
            yield node


async def uploaded(node: Node, path: Path, file: StagedFile, **more: Any) -> None:
    """Upload as executors do."""
    link = UploadLink(node.config.master_url, token=more.pop("token", None))
    try:
        await asyncio.to_thread(link.upload, path, file, "t", **more)
    finally:
        link.close()


def in_node(directory: Path, test: Callable[[Node, Path], Any], **settings: Any) -> None:
    """Run a test with a node and a local file of the content LARGE."""
    local = directory / "local.parquet"
    local.write_bytes(LARGE)

    async def run() -> None:
        async with node_of(directory, **settings) as node:
            await test(node, local)

    asyncio.run(run())


def test_a_file_arrives_in_parts_and_is_as_good_as_a_staged_one(tmp_path: Path) -> None:
    assert len(LARGE) > 2 * PART_BYTES
    assert upload_link._PART_BYTES == PART_BYTES
    parts: list[int] = []

    async def test(node: Node, local: Path) -> None:
        take = LocalPayloadStore.receive_part

        def counted(file: StagedFile, part: list[bytes], offset: int) -> int:
            parts.append(sum(map(len, part)))
            return take(node.payloads, file, part, offset)

        node.payloads.receive_part = counted  # type: ignore[method-assign]
        file = file_of()
        await uploaded(node, local, file)
        assert Path(node.payloads.path(file.path)).read_bytes() == LARGE
        node.payloads.verify(file)
        await uploaded(node, local, file)  # again: it is there

    in_node(tmp_path, test)
    assert max(parts) == PART_BYTES and len(parts) == -(-len(LARGE) // PART_BYTES) + 1


def test_an_upload_outlives_broken_connections_and_lost_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answers are lost after the node took the part, or before, or half a part."""
    monkeypatch.setattr(upload_link, "_PAUSES_S", (0.001, 2.0))
    breaks = iter(["after", "before", "half", "full"])
    seen: list[str] = []

    async def test(node: Node, local: Path) -> None:
        take = LocalPayloadStore.receive_part

        def breaking(file: StagedFile, part: list[bytes], offset: int) -> int:
            now = next(breaks, "") if any(part) else ""
            seen.append(now)
            if now == "half":
                take(node.payloads, file, part[: len(part) // 2], offset)
            if now == "after":
                take(node.payloads, file, part, offset)
            if now == "full":
                raise DiskFullError("no space left for the upload")
            if now:
                raise ConnectionResetError("the test breaks it")
            return take(node.payloads, file, part, offset)

        node.payloads.receive_part = breaking  # type: ignore[method-assign]
        file = file_of()
        with pytest.raises(TxLogError, match="unexpected error"):
            await uploaded(node, local, file)  # a bug of the node is told at once
        with monkeypatch.context() as patched:
            # What the node answers then is what a client sees of a connection that breaks.
            patched.setattr(UploadLink, "_refused", _as_broken)
            await uploaded(node, local, file)
        node.payloads.verify(file)

    in_node(tmp_path, test)
    assert [one for one in seen if one] == ["after", "before", "half", "full"]


def _as_broken(self: UploadLink, path: str, status: int, answer: bytes) -> TxLogError:
    return PeerTimeoutError(f"{status} is lost")


def test_a_node_without_an_answer_is_given_up_in_time(tmp_path: Path) -> None:
    async def test(node: Node, local: Path) -> None:
        def full(file: StagedFile, part: list[bytes], offset: int) -> int:
            raise DiskFullError("no space left for the upload")

        node.payloads.receive_part = full  # type: ignore[method-assign]
        with pytest.raises(DiskFullError, match="no space left"):
            await uploaded(node, local, file_of(), patience_s=0.2)

    in_node(tmp_path, test)


def test_other_bytes_than_the_digest_says_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    async def test(node: Node, local: Path) -> None:
        file = file_of(digest="0" * 64)
        with pytest.raises(ManifestMismatchError):
            await uploaded(node, local, file)
        assert not Path(node.payloads.path(file.path)).exists()
        assert list((node.payloads.root / ".incoming").iterdir()) == []

    in_node(tmp_path, test)


#: Processes that share the tests must give them the same names.
_ID = "7d444840-9dc0-11d1-b245-5ffdce74fad2"


@pytest.mark.parametrize(
    "path",
    [
        "a.parquet",
        "inline/1-2/a.parquet",
        "probe/x/a.parquet",
        ".incoming/x/a.parquet",
        f"{_ID}/a.parquet",
        f"{_ID}/../{_ID[::-1]}/a.parquet",
    ],
)
def test_a_file_goes_into_a_directory_of_a_transaction_only(tmp_path: Path, path: str) -> None:
    async def test(node: Node, local: Path) -> None:
        async with aiohttp.ClientSession(node.config.master_url) as session:
            target = target_of(staged_of(path, b"PAR1")).replace("/../", "/%2e%2e/")
            async with session.put(URL(target, encoded=True), data=b"PAR1") as answer:
                assert answer.status in (400, 404), await answer.text()

    in_node(tmp_path, test)
    kept = [p for p in (tmp_path / "A" / "payloads").rglob("*") if p.is_file()]
    assert kept == []


def test_a_part_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async def test(node: Node, local: Path) -> None:
        async with aiohttp.ClientSession(node.config.master_url) as session:
            target = URL(target_of(file_of()), encoded=True)
            async with session.put(target, data=BytesIO(LARGE[: PART_BYTES + 1])) as answer:
                assert (answer.status, (await answer.json())["title"]) == (413, "oversize")
            async with session.put(target, data=b"") as answer:
                assert await answer.json() == {"received": 0}

    in_node(tmp_path, test)


def test_only_clients_upload_and_only_for_tables_that_they_may_write(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(REPORTS)
    token.chmod(0o600)
    grants = tmp_path / "grants.toml"
    grants.write_text(f'[reports]\ntoken-file = "{token}"\nwrite = ["t"]\n')

    async def test(node: Node, local: Path) -> None:
        with pytest.raises(UnauthorizedError):
            await uploaded(node, local, file_of(), token="a wrong one")
        await uploaded(node, local, file_of(), token=REPORTS)
        async with aiohttp.ClientSession(node.config.master_url) as session:
            for shown, table, status in ((REPORTS, "u", 403), (CLIENT, "u", 200)):
                target = URL(target_of(file_of(), table=table), encoded=True)
                headers = {"authorization": f"Bearer {shown}"}
                async with session.put(target, data=b"", headers=headers) as answer:
                    assert answer.status == status, await answer.text()

    in_node(tmp_path, test, client_token=CLIENT, grants_file=str(grants))


def test_uploads_wait_for_their_turn_unread_and_are_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow senders hold all turns: another one sends nothing, and is answered 429 in the end."""
    monkeypatch.setattr(staged_uploads, "_TURN_S", 0.2)

    async def test(node: Node, local: Path) -> None:
        port = int(node.config.master_url.rsplit(":", 1)[1])
        slow = []
        for _ in range(4):
            target = target_of(file_of())
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                f"PUT {target} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
                f"content-type: application/octet-stream\r\ncontent-length: {PART_BYTES}\r\n\r\n"
                "a beginning".encode()
            )
            await writer.drain()
            slow.append(writer)
        async with aiohttp.ClientSession(node.config.master_url) as session:
            target = URL(target_of(file_of()), encoded=True)

            async def refused() -> bool:
                async with session.put(target, data=BytesIO(LARGE[:PART_BYTES])) as answer:
                    if answer.status != 429:
                        return False  # not all slow ones have come in
                    assert answer.headers["retry-after"] == "1"
                    assert (await answer.json())["title"] == "share-used-up"
                    return True

            async with asyncio.timeout(20):
                while not await refused():
                    pass
            for writer in slow:
                writer.close()

            async def taken() -> bool:
                async with session.put(target, data=b"") as answer:
                    return answer.status == 200

            async with asyncio.timeout(20):
                while not await taken():
                    pass

    in_node(tmp_path, test)
