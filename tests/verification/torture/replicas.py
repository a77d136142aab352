"""Readers of the tables, one for each node: light, and still they see what a client sees.

A node holds no rows.  It publishes segments of the queue, with the rows as Parquet files in its
site's payload store, and the workers apply them to Delta tables.  A `Replica` is such a worker
without Spark: it takes the segments that its node offers (`/v1/worker/segments`), reads their
files, and keeps the tables in memory, whole segments at a time.  So a read at a position shows what
`log.table` shows there.  At the end the files that the queue table on a disk names are read once
more, without any node.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from tests.support.node_processes import HttpProblem, NodeProcess, call
from tests.verification.places import Place
from tests.verification.torture.bank import BankRead
from tests.verification.torture.list_append import Seen

from sparktxlog.errors import TxLogError
from sparktxlog.model.transactions.operation import OP_COLUMN, POSITION_COLUMN

_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class View:
    """All tables at one position; lists by table, balances of all accounts.

    `versions` says of each table with accounts how many transactions wrote to it.
    """

    node: str
    position: int
    lists: Mapping[str, Seen]
    balances: Mapping[int, int]
    versions: Mapping[str, int]


class Tables:
    """The rows of all tables: lists of elements (column `e`), and accounts (`a`, `balance`)."""

    def __init__(self, lists: Sequence[str], banks: Sequence[str]) -> None:
        self.lists: dict[str, list[int]] = {name: [] for name in lists}
        self.balances: dict[int, int] = {}
        self.versions = dict.fromkeys(banks, 0)

    def apply(self, table: str, rows: pa.Table) -> Iterator[int]:
        """Apply one file; yield each position of accounts once it is applied."""
        if table in self.lists:
            self.lists[table] += rows["e"].to_pylist()
        elif table in self.versions:
            names = (POSITION_COLUMN, "a", "balance")
            last = None
            for position, account, balance in zip(
                *(rows[name].to_pylist() for name in names), strict=True
            ):
                if position != last:
                    if last is not None:
                        yield last
                    self.versions[table] += 1
                    last = position
                self.balances[account] = balance
            if last is not None:
                yield last


class Replica:
    """The tables as the reader of one node has them; a thread follows the node.

    Args:
        payloads: Its payload store.
        tables: Still empty.
    """

    def __init__(self, node: NodeProcess, payloads: Place, tables: Tables) -> None:
        self.node = node
        #: What cannot be: segments that do not fit together, or files that are not there.
        self.wrong: list[str] = []
        #: All accounts after each segment that changed one.
        self.bank_reads: list[BankRead] = []
        self._payloads, self._tables = payloads, tables
        self._position, self._hash = 0, ""
        self._grown = threading.Condition()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following, and wait for it."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()

    def view(self, at_least: int = 0, timeout: float = 5.0) -> View | None:
        """Return the tables once they have a position, None if they have not in time."""
        with self._grown:
            if not self._grown.wait_for(lambda: self._position >= at_least, timeout):
                return None
            return View(
                self.node.name,
                self._position,
                {name: Seen(rows, len(rows)) for name, rows in self._tables.lists.items()},
                dict(self._tables.balances),
                dict(self._tables.versions),
            )

    def _follow(self) -> None:
        while not self._over.is_set():
            url = f"{self.node.url}/v1/worker/segments?after={self._position}&wait={_POLL_S}"
            try:
                segments = call(url, timeout=_POLL_S + 10)["segments"]
            except (OSError, HttpProblem, http.client.HTTPException):
                time.sleep(0.1)
                continue
            for segment in segments:
                if segment["first"] != self._position + 1 or self._hash not in (
                    "",
                    segment["from_hash"],
                ):
                    self.wrong.append(
                        f"{self.node.name}: {segment['first']} does not continue {self._position}"
                    )
                    return
                try:
                    self._apply(segment)
                except (OSError, TxLogError) as error:
                    self.wrong.append(f"{self.node.name}: what it published is not read: {error}")
                    return

    def _apply(self, segment: dict[str, Any]) -> None:
        files = [
            (effect["table"], _rows(self._payloads, file["path"]))
            for effect in segment.get("effects", ())
            if effect.get("inline")
            for file in effect.get("files", ())
        ]
        with self._grown:
            # A segment is applied as a whole, whatever the order of its tables.
            moved = [at for table, rows in files for at in self._tables.apply(table, rows)]
            self._position, self._hash = segment["last"], segment["to_hash"]
            if moved:
                balances = dict(self._tables.balances)
                self.bank_reads.append(BankRead(self.node.name, self._position, balances))
            self._grown.notify_all()


def _rows(payloads: Place, path: str) -> pa.Table:
    content = payloads.read(path)
    if content is None:
        raise FileNotFoundError(path)
    return pq.read_table(pa.BufferReader(content))


def read_published(
    node: str, data: Path, payloads: Place, lists: Sequence[str], banks: Sequence[str]
) -> tuple[View, list[BankRead]]:
    """Read the files that a stopped node's queue table names: all tables, all states of accounts.

    The state of the accounts is taken after every single transaction, not only at the ends of
    segments.
    """
    queue = DeltaTable(str(data / "log" / "synchronized_queue")).to_pyarrow_table(
        columns=["position", "inline"]
    )
    order: dict[str, None] = {}
    for paths in queue.sort_by("position")["inline"].to_pylist():
        order.update(dict.fromkeys(paths or ()))
    parts: dict[str, list[pa.Table]] = {}
    for path in order:
        # The path ends with TABLE-KIND.parquet.
        parts.setdefault(Path(path).name.split("-")[0], []).append(_rows(payloads, path))
    tables, reads = Tables(lists, banks), list[BankRead]()
    for name in lists:
        for rows in parts.get(name, ()):
            list(tables.apply(name, rows))
    moves = [
        part.append_column("of", pa.array([name] * part.num_rows, pa.string()))
        for name in banks
        for part in parts.get(name, ())
    ]
    for position, table, rows in _by_transaction(moves):
        list(tables.apply(table, rows))
        if reads and reads[-1].position == position:
            reads.pop()
        reads.append(BankRead(f"the disk of {node}", position, dict(tables.balances)))
    found = {name: Seen(rows, len(rows)) for name, rows in tables.lists.items()}
    return View(node, queue.num_rows, found, tables.balances, tables.versions), reads


def _by_transaction(moves: list[pa.Table]) -> Iterator[tuple[int, str, pa.Table]]:
    """Yield (position, table, rows) of transactions on accounts in their order."""
    if not moves:
        return
    keys = [(name, "ascending") for name in (POSITION_COLUMN, "of", OP_COLUMN)]
    rows = pa.concat_tables(moves).sort_by(keys)
    names = list(zip(rows[POSITION_COLUMN].to_pylist(), rows["of"].to_pylist(), strict=True))
    begin = 0
    for end in range(1, len(names) + 1):
        if end == len(names) or names[end] != names[begin]:
            yield *names[begin], rows.slice(begin, end - begin)
            begin = end
