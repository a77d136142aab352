"""Checks once, before anything is staged, that all processes see the same payload store."""

from __future__ import annotations

import hashlib
import shutil
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from sparktxlog.errors import NotFoundError, PayloadStoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Directory of probe files in the payload store.
PROBES = "probe"
_HINT = (
    "Mount one directory at that path for the node, the Spark driver and all executors "
    "(setting `payload-dir` of the node), or run the node where Spark runs."
)


def check_store(spark: SparkSession, root: Path, get: Callable[..., Any], url: str) -> None:
    """Check a file on the way of staged rows: executor, driver, node.

    Args:
        spark: Session whose executor writes, with Spark's own writer.
        root: The node's payload store, as the node names it.
        get: Returns the JSON answer of the node's `GET path`.
        url: The node's URL, for messages.

    Raises:
        PayloadStoreError: One of the three sees another store; the message names both
            (definite).
    """
    check_directory(root, url)
    uri, here = root.as_uri(), _driver()
    name = str(uuid.uuid4())
    folder, file = root / PROBES / f"{name}.d", root / PROBES / name
    try:
        one = spark.range(1, numPartitions=1).select(F.lit(name).alias("value"))
        one.write.text(folder.as_uri())
        parts = list(folder.glob("part-*")) if folder.is_dir() else []
        if len(parts) != 1:
            raise PayloadStoreError(
                f"an executor wrote to {folder.as_uri()}; {here} does not see the file there, "
                f"nor would the node at {url}, whose payload store is {uri}",
                hint=_HINT,
                node_uri=uri,
            )
        parts[0].rename(file)
        wrong = _differing(file, get)
        if wrong:
            raise PayloadStoreError(
                f"driver and executors wrote {file.as_uri()} on {socket.gethostname()}; the node "
                f"at {url} {wrong} in its payload store {uri}",
                hint=_HINT,
                node_uri=uri,
                spark_uri=file.as_uri(),
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        file.unlink(missing_ok=True)


def check_directory(root: Path, url: str) -> None:
    """Check that the directory of the node's payload store exists at the driver.

    Raises:
        PayloadStoreError: It does not (definite).
    """
    if not root.is_dir():
        uri = root.as_uri()
        raise PayloadStoreError(
            f"the node at {url} keeps its payload store at {uri}; {_driver()} has no such "
            "directory",
            hint=_HINT,
            node_uri=uri,
        )


def _driver() -> str:
    return f"the driver on {socket.gethostname()}"


def _differing(file: Path, get: Callable[..., Any]) -> str:
    """Return in which way the node does not see the file, empty = it sees it."""
    try:
        seen = get(f"/v1/probe/{file.name}")
    except (NotFoundError, PayloadStoreError):
        return "does not see it"
    same = seen.get("digest") == hashlib.sha256(file.read_bytes()).hexdigest()
    return "" if same else "sees another file"
