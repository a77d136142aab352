"""A catalog that answers at once: the peer of `spark_commits`, one process without a log.

It serves the routes that Delta's client calls, over one directory, and publishes each staged commit
as it comes.  What a write through it takes is Spark's own work.
"""

from __future__ import annotations

import os
import sys
import uuid as uuids
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from sparktxlog.codec.delta_catalog.catalog_answers import (
    PROTOCOL_VERSION,
    CatalogConfig,
    CredentialsAnswer,
    MetastoreAnswer,
    ShownTable,
    listed_table,
    loaded_table,
    schema_answer,
    staging_answer,
)
from sparktxlog.codec.delta_catalog.catalog_requests import UpdateTableRequest, read_update
from sparktxlog.codec.delta_catalog.table_states import DeltaTableState
from sparktxlog.delta.commit_contents import read_commit_file


@dataclass
class _Table:
    """A table at its newest version."""

    uuid: str
    directory: Path
    state: DeltaTableState


class StandIn(ThreadingHTTPServer):
    """The tables below a directory."""

    daemon_threads = True

    def __init__(self, port: int, root: Path) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.root = root
        self.tables: dict[str, _Table] = {}

    def stage(self) -> Any:
        """Return a place for a new table."""
        uuid = str(uuids.uuid4())
        (self.root / uuid).mkdir(parents=True)
        return staging_answer(uuid, f"file:{self.root / uuid}", ())

    def create(self, body: Any) -> Any:
        """Make a table of what was written at its place."""
        directory = Path(body["location"].removeprefix("file:"))
        first = read_commit_file((directory / "_delta_log" / f"{0:020}.json").read_bytes())
        table = _Table(directory.name, directory, DeltaTableState.first(first))
        self.tables[body["name"]] = table
        return _loaded(table)

    def update(self, name: str, body: bytes) -> Any:
        """Publish a staged commit, if it has the next version."""
        table = self.tables[name]
        update = read_update(msgspec.json.decode(body, type=UpdateTableRequest))
        if update.commit is not None:
            if update.commit.version != table.state.version + 1:
                return None
            log = table.directory / "_delta_log"
            staged = log / "_staged_commits" / update.commit.file_name
            table.state = table.state.after(read_commit_file(staged.read_bytes()))
            os.link(staged, log / f"{update.commit.version:020}.json")
        return _loaded(table)


def _loaded(table: _Table) -> Any:
    return loaded_table(_shown(table))


def _shown(table: _Table, name: str = "") -> ShownTable:
    return ShownTable(
        name=name, uuid=table.uuid, location=f"file:{table.directory}", placed=table.state
    )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: StandIn

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = urlsplit(self.path).path.rstrip("/").split("/")
        try:
            found = self._answer(self.command == "POST", path, body)
        except KeyError:
            found = 404
        status = found if isinstance(found, int) else 200 if found is not None else 409
        raw = b"" if isinstance(found, int) else msgspec.json.encode(found)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _answer(self, is_post: bool, path: list[str], body: bytes) -> Any:
        server = self.server
        match path[-1], path[-2]:
            case "config", _:
                return CatalogConfig(endpoints=[], protocol_version=PROTOCOL_VERSION)
            case "metastore_summary", _:
                return MetastoreAnswer(metastore_id=str(uuids.UUID(int=0)), name="stand-in")
            case "credentials", _:
                return CredentialsAnswer()
            case "metrics", _:
                return 204
            case "staging-tables", _:
                return server.stage()
            case "tables", _ if is_post:
                return server.create(msgspec.json.decode(body))
            case name, "schemas":
                return schema_answer("tx", name.rpartition(".")[2], "", {})
            case name, "tables" if is_post:
                return server.update(name, body)
            case name, "tables" if "delta" in path:
                return _loaded(server.tables[name])
            case name, "tables":
                table = server.tables[name.rpartition(".")[2]]
                return listed_table("tx", _shown(table, name.partition(".")[2]))
        return 404


if __name__ == "__main__":
    StandIn(int(sys.argv[1]), Path(sys.argv[2])).serve_forever()
