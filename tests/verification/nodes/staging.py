"""Staged files in a simulated history: written by clients, fetched by peers, harmed by faults.

Links read files in a thread by `http.client`; here such a request takes the way of all others, and
its thread waits in lockstep.  A file goes from its origin, damaged or gone, while others still want
it: the run is withdrawn, or waits until the file is back.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pyarrow as pa
import pyarrow.parquet as pq
from tests.verification.nodes.network import Network
from tests.verification.nodes.virtual import LIFE

from sparktxlog.errors import PeerTimeoutError, TransportError
from sparktxlog.files.durability import sync_directory, sync_file
from sparktxlog.model.ids import transaction_id_to_text
from sparktxlog.model.transactions.operation import StagedFile
from sparktxlog.storage.payloads.payload_store import PayloadStore
from sparktxlog.transport import exchange, peer_link
from sparktxlog.transport.kept_connections import Patience, Received

if TYPE_CHECKING:
    from tests.verification.nodes.world import World

#: Runs with more staged bytes are announced; the file below is larger.
INLINE_LIMIT = 400


def parquet(rows: pa.Table) -> bytes:
    """Return a file of rows."""
    written = io.BytesIO()
    pq.write_table(rows, written, compression="none", use_dictionary=False)
    return written.getvalue()


class StagedFiles:
    """What clients staged, and what became of it.

    Args:
        world: Where.
        rows: Of each file.
    """

    def __init__(self, world: World, rows: pa.Table) -> None:
        self._world = world
        self._rows = rows.num_rows
        self._content = parquet(rows)
        #: Places of files that were harmed.
        self._harmed: set[Path] = set()
        self._repaired = False
        #: Names of all files that ever were.
        self._ever = set[str]()

    def file_of(self, identity: bytes) -> StagedFile:
        """Return the file of a transaction."""
        return StagedFile(
            path=f"{transaction_id_to_text(identity)}/t/part-0.parquet",
            size_bytes=len(self._content), rows=self._rows,
            digest=hashlib.sha256(self._content).hexdigest(),
        )  # fmt: skip

    def stage(self, file: StagedFile, store: PayloadStore) -> None:
        """Write a file into a node's store, and sync it, as a submit does."""
        path = Path(store.path(file.path))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._content)
        self._harmed.discard(path)
        store.verify(file)

    def harm(self, file: StagedFile, store: PayloadStore) -> None:
        """Damage a file, or remove it."""
        path = Path(store.path(file.path))
        if self._repaired or not path.exists():
            return
        self._world.checks.happened("staged file harmed")
        self._harmed.add(path)
        self._ever.add(file.path)
        path.unlink()  # links of it elsewhere are whole still
        if self._world.random.random() < 0.5:
            path.write_bytes(self._content[:-1] + b"?")

    def copied(self, disk: Path, copy: Path) -> None:
        """See a node's directory copied, with what is harmed there."""
        harmed = [path.relative_to(disk) for path in self._harmed if path.is_relative_to(disk)]
        self._harmed |= {copy / path for path in harmed}

    def was_harmed(self, identity: bytes, distrusted: Iterable[Path]) -> bool:
        """Return whether a file of a transaction was harmed anywhere, or is distrusted."""
        path = self.file_of(identity).path
        return path in self._ever or any(one.as_posix().endswith(path) for one in distrusted)

    def is_here(self, file: StagedFile, store: PayloadStore) -> bool:
        """Return whether a store has a whole file, or had it until it was harmed."""
        path = Path(store.path(file.path))
        return path in self._harmed or (
            path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == file.digest
        )

    def repair(self) -> None:
        """Put good copies into the places of all that were harmed, and harm no more.

        They are synced: a fault that began before may still end with a power loss.
        """
        for path in self._harmed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._content)
            sync_file(path)
            sync_directory(path.parent)
        self._harmed.clear()
        self._repaired = True


def install(network: Network) -> None:
    """Let links read files over the simulated wire, for the rest of this process."""

    def stream(
        url: str, target: str, headers: Mapping[str, str], offset: int, timeout_s: float, tls: Any
    ) -> Iterator[bytes]:
        sent = {**headers, "Range": f"bytes={offset}-"} if offset else dict(headers)
        life = LIFE.get()
        assert life is not None, "a node reads"
        told: Future[Received] = Future()
        connections, patience = network.connections(), Patience(total_s=timeout_s)

        async def ask() -> None:
            try:
                told.set_result(
                    await connections.request("GET", url, target, headers=sent, patience=patience)
                )
            except OSError as error:
                told.set_exception(error)

        network.loop.own_task(life, ask())
        try:
            answer = told.result()
        except TimeoutError as error:
            raise PeerTimeoutError(f"{url} was silent for {timeout_s:g} s") from error
        except OSError as error:
            raise TransportError(f"fetching a file from {url} broke off: {error!r}") from error
        exchange.check_file_status(answer.status, url, target, offset)
        network.watch.happened("staged file fetched")
        yield answer.body

    async def run_at_once(work: Any, *arguments: Any, **_: Any) -> Any:
        return work(*arguments)

    patched: Any = peer_link
    patched.stream_file = stream
    threads: Any = anyio.to_thread
    threads.run_sync = run_at_once
