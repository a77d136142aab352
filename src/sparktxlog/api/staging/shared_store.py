"""Finds out once, before anything is staged, whether all processes see the same payload store."""

from __future__ import annotations

import hashlib
import logging
import shutil
import socket
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from sparktxlog.api.spark_paths import spark_url
from sparktxlog.api.staging.executor_uploads import UploadTarget
from sparktxlog.api.staging.frame_staging import StagingPlace
from sparktxlog.errors import ConfigError, NotFoundError, PayloadStoreError, first_lines
from sparktxlog.files.durability import link_new
from sparktxlog.http.link import Http

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

#: How executors hand over staged files; see `connect`.
Staging = Literal["auto", "shared", "http"]
#: Directory of probe files in the payload store.
PROBES = "probe"
_HINT = (
    "Let executors upload their files (staging='http', and no apply='inline'), or mount one "
    "directory at that path for the node, the Spark driver and all executors (setting "
    "`payload-dir` of the node)."
)


def check_staging(staging: str) -> None:
    """Check the name of a way of staging.

    Raises:
        ConfigError: There is no such way (definite).
    """
    if staging not in get_args(Staging):
        raise ConfigError(f"staging={staging!r} is unknown", hint="Use 'auto', 'shared' or 'http'.")


def staging_place(
    staging: Staging, spark: SparkSession, info: Mapping[str, Any], home: Http
) -> StagingPlace:
    """Return where a session's executors stage rows.

    Args:
        staging: What the user says.
        info: The node's answer to `GET /v1/info`.
        home: The node.

    Raises:
        ConfigError: There is no such way (definite).
        PayloadStoreError: "shared", and the store is not, see `check_store`; or executors do not
            reach the node (definite).
    """
    check_staging(staging)
    shared = StagingPlace(
        root=Path(info["payload_root"]), inline_limit_bytes=int(info["inline_limit"])
    )
    if staging != "http":
        try:
            check_store(spark, shared.root, home.get, home.url)
            return shared
        except PayloadStoreError as error:
            if staging == "shared":
                raise
            _log.warning("executors upload staged files over HTTP: %s", error.message)
    target = UploadTarget.of(home)
    target.check(spark)
    return replace(shared, uploads=target)


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
    uri, here = spark_url(root), _driver()
    name = str(uuid.uuid4())
    folder, file = root / PROBES / f"{name}.d", root / PROBES / name
    try:
        one = spark.range(1, numPartitions=1).select(F.lit(name).alias("value"))
        try:
            one.write.text(spark_url(folder))
        except (PySparkException, Py4JError) as error:
            raise PayloadStoreError(
                f"an executor cannot write to {spark_url(folder)}: {first_lines(error)}",
                hint=_HINT,
                node_uri=uri,
            ) from error
        parts = list(folder.glob("part-*")) if folder.is_dir() else []
        if len(parts) != 1:
            raise PayloadStoreError(
                f"an executor wrote to {spark_url(folder)}; {here} does not see the file there, "
                f"nor would the node at {url}, whose payload store is {uri}",
                hint=_HINT,
                node_uri=uri,
            )
        link_new(parts[0], file)
        wrong = _differing(file, get)
        if wrong:
            raise PayloadStoreError(
                f"driver and executors wrote {spark_url(file)} on {socket.gethostname()}; the node "
                f"at {url} {wrong} in its payload store {uri}",
                hint=_HINT,
                node_uri=uri,
                spark_uri=spark_url(file),
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
        uri = spark_url(root)
        raise PayloadStoreError(
            f"the node at {url} keeps its payload store at {uri}; {_driver()} has no such "
            "directory",
            hint=_HINT,
            node_uri=uri,
        )


def _driver() -> str:
    return f"the driver on {socket.gethostname()}"


def _differing(file: Path, get: Callable[..., Any]) -> str:
    """Return how the node fails to see the file, empty = it sees it."""
    try:
        seen = get(f"/v1/probe/{file.name}")
    except (NotFoundError, PayloadStoreError):
        return "does not see it"
    same = seen.get("digest") == hashlib.sha256(file.read_bytes()).hexdigest()
    return "" if same else "sees another file"
