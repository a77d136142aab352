#!/usr/bin/env bash
# DuckDB 1.5.5 with its unity_catalog extension 1.5.5: BEGIN … COMMIT over two tables of a catalog is
# a commit of each, one after the other, and a session goes on reading the version that it read first.
#
# If the catalog refuses the second commit, because somebody else was faster, COMMIT fails and the
# first table keeps its new row.  A session that has read a table, and not written it, sees nothing
# of what others commit to it until it detaches the catalog and attaches it again.  DETACH fails as if
# there were no such database, and detaches it.
#
# The catalog here is a small server of the public API, with two tables that it manages.
#
# Output seen (Python 3.11, Linux):
#   COMMIT                 Failed to commit
#   rows of both tables    3
#   before another's row   2
#   after it               2
#   DETACH                 database not found
#   attached again         3
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check duckdb==1.5.5 pyarrow==26.0.1 \
    duckdb-extension-{httpfs,delta,unity-catalog}==1.5.5
cd "$work"
cat >run.py <<'PY'
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

FEATURES = ["catalogManaged", "inCommitTimestamp", "v2Checkpoint", "vacuumProtocolCheck"]
COLUMN = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
tables = {name: 0 for name in ("a", "b", "c")}  # name → newest version
refuse = set()


def log_of(name):
    return Path(name).absolute() / "_delta_log"


def make(name):
    os.makedirs(log_of(name))
    path = f"{name}/rows.parquet"
    pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), path)
    configuration = {"delta.enableInCommitTimestamps": "true", "io.unitycatalog.tableId": name}
    metadata = {
        "id": name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": [COLUMN]}),
        "partitionColumns": [],
        "configuration": configuration,
    }
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [one for one in FEATURES if one != "inCommitTimestamp"],
        "writerFeatures": FEATURES,
    }
    add = {"path": "rows.parquet", "partitionValues": {}, "size": os.path.getsize(path)}
    add |= {"modificationTime": 0, "dataChange": True}
    info = {"inCommitTimestamp": 1, "timestamp": 1, "operation": "CREATE"}
    actions = ({"commitInfo": info}, {"protocol": protocol}, {"metaData": metadata}, {"add": add})
    lines = (json.dumps(action) + "\n" for action in actions)
    (log_of(name) / f"{0:020}.json").write_text("".join(lines))


def shown(name):
    column = COLUMN | {"type_text": "bigint", "type_name": "LONG", "position": 0}
    column |= {"type_precision": 0, "type_scale": 0, "type_json": json.dumps(COLUMN)}
    return {
        "name": name,
        "table_type": "MANAGED",
        "data_source_format": "DELTA",
        "storage_location": f"file:{Path(name).absolute()}",
        "table_id": name,
        "columns": [column],
        "properties": {"delta.feature.catalogManaged": "supported"},
    }


class Catalog(BaseHTTPRequestHandler):
    def log_message(self, *given):
        pass

    def answer(self, found, status=200):
        raw = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def loaded(self, name):
        return {"metadata": {"etag": "0"}, "commits": [], "latest-table-version": tables[name]}

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path.endswith("/schemas"):
            self.answer({"schemas": [{"name": "s"}]})
        elif path.endswith("/unity-catalog/tables"):
            self.answer({"tables": [shown(name) for name in tables]})
        elif path.endswith("/credentials"):
            self.answer({"storage-credentials": []})
        else:
            self.answer(self.loaded(path.rpartition("/")[2]))

    def do_POST(self):
        name = self.path.rpartition("/")[2]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        commit = body["updates"][0]["commit"]
        if refuse == {"the next but one"}:
            refuse.clear()
            refuse.add("the next")
        elif refuse or commit["version"] != tables[name] + 1:
            error = {"message": "lost", "type": "CommitVersionConflictException", "code": 409}
            return self.answer({"error": error}, 409)
        staged = log_of(name) / "_staged_commits" / commit["file-name"]
        os.link(staged, log_of(name) / f"{commit['version']:020}.json")
        tables[name] += 1
        self.answer(self.loaded(name))


server = ThreadingHTTPServer(("127.0.0.1", 0), Catalog)
threading.Thread(target=server.serve_forever, daemon=True).start()
for name in tables:
    make(name)
ATTACH = "ATTACH 'cat' AS cat (TYPE unity_catalog, DEFAULT_SCHEMA 's')"


def session():
    database = duckdb.connect(config={"autoload_known_extensions": "false"})
    for name in ("httpfs", "delta", "unity_catalog"):
        package = __import__(f"duckdb_extension_{name}")
        (extension,) = Path(package.__path__[0]).rglob("*.duckdb_extension")
        database.execute(f"LOAD '{extension}'")
    url = f"http://127.0.0.1:{server.server_port}"
    secret = f"TYPE unity_catalog, TOKEN 'x', ENDPOINT '{url}', AWS_REGION 'none'"
    database.execute(f"CREATE SECRET ({secret})")
    database.execute(ATTACH)
    return database


def rows(database, *names):
    count = "SELECT count(*) FROM cat.s."
    return sum(database.execute(count + name).fetchone()[0] for name in names)


one, other = session(), session()
refuse.add("the next but one")
one.execute("BEGIN")
one.execute("INSERT INTO cat.s.a VALUES (2)")
one.execute("INSERT INTO cat.s.b VALUES (2)")
try:
    one.execute("COMMIT")
    ended = "committed"
except duckdb.Error as error:
    ended = "Failed to commit" if "Failed to commit" in str(error) else str(error)
refuse.clear()
both = rows(other, "a", "b")
other.execute("INSERT INTO cat.s.c VALUES (2)")
reader, found = session(), []
found.append(rows(reader, "c"))
other.execute("INSERT INTO cat.s.c VALUES (3)")
found.append(rows(reader, "c"))
try:
    reader.execute("DETACH cat")
    detached = "detached"
except duckdb.Error as error:
    detached = "database not found" if "database not found" in str(error) else str(error)
reader.execute(ATTACH)
found.append(rows(reader, "c"))
print("COMMIT                ", ended)
print("rows of both tables   ", both)
print("before another's row  ", found[0])
print("after it              ", found[1])
print("DETACH                ", detached)
print("attached again        ", found[2])
assert (ended, both, found) == ("Failed to commit", 3, [2, 2, 3]), "DuckDB is no longer so"
assert detached == "database not found", "DuckDB is no longer so"
PY
"$work/venv/bin/python" run.py
