"""Short runs are checked on the event loop; what takes longer is checked in a thread."""

from __future__ import annotations

import asyncio
import os
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pyarrow as pa
import pytest

from sparktxlog.codec.containers.assembly import as_ids, assemble_rows
from sparktxlog.codec.containers.runs import RunLimits
from sparktxlog.errors import ManifestMismatchError
from sparktxlog.model.tables.table import Column, TableDefinition, Tables
from sparktxlog.model.transactions.operation import OperationKind, RunManifest
from sparktxlog.service.handlers.submit_routes import SHORT_BYTES, SHORT_ROWS, SubmitRoutes

EVENTS = TableDefinition(
    name="events",
    columns=(Column(name="id", type="bigint"), Column(name="v", type="string")),
)


def run_of(rows: int, text: str, compression: str | None = None) -> bytes:
    """Return a run of one transaction with rows of that text."""
    table = pa.table({"id": pa.array(range(rows), pa.int64()), "v": pa.array([text] * rows)})
    return assemble_rows(
        "events",
        OperationKind.APPEND,
        1,
        table,
        np.zeros(rows, np.int32),
        as_ids(os.urandom(16)),
        7,
        compression=compression,
    )[1]


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Note what is done in threads, and do it."""
    found: list[Any] = []

    async def to_thread(work: Any, *given: Any) -> Any:
        found.append(work)
        return work(*given)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    return found


def check(payload: bytes) -> RunManifest:
    node = MagicMock(tables=lambda: Tables({"events": EVENTS}))
    node.base.run_limits, node.config.body_limit = RunLimits(), RunLimits().size_bytes
    return asyncio.run(SubmitRoutes(node, MagicMock())._validated(payload))


@pytest.mark.parametrize(
    ("payload", "takes_long"),
    [
        (run_of(1, "x"), False),
        (run_of(1_000, "x" * 200), False),
        (run_of(SHORT_ROWS, "x"), False),
        (run_of(SHORT_ROWS + 1, "x"), True),
        (run_of(1_000, "x" * 1_000), True),  # a MB
        (run_of(4_000, "x" * 2_000, "zstd"), True),  # a few KB, which inflate to 8 MB
    ],
    ids=["one", "usual", "rows", "more rows", "bytes", "inflates"],
)
def test_what_takes_long_is_checked_in_a_thread(
    in_threads: list[Any], payload: bytes, takes_long: bool
) -> None:
    assert check(payload).n == 1
    assert len(in_threads) == takes_long


def test_a_run_that_hides_its_rows_is_refused_where_it_is_read(in_threads: list[Any]) -> None:
    payload = run_of(SHORT_ROWS + 1, "x")
    few = payload.replace(b"\xa4rows\xcd\x10\x01", b"\xa4rows\xcd\x00\x01", 1)
    assert few != payload
    assert len(few) <= SHORT_BYTES
    with pytest.raises(ManifestMismatchError, match="4,097 rows, the manifest says 1"):
        check(few)
    assert not in_threads
