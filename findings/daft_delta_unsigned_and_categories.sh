#!/usr/bin/env bash
# daft 0.7.26: write_deltalake commits unsigned integers that it then reads as NULL, and categories as pickles.
#
# Versions: daft 0.7.26 with pyiceberg 0.12.0 (which its writer loads), deltalake 1.6.6, duckdb 1.5.5 with
# duckdb-extension-delta 1.5.5, pyarrow 25.0.1.
#
# Delta has signed integers only.  daft calls uint8 a `byte` in the schema of the table, uint16 a `short` and so on, and
# leaves the files unsigned.  The write succeeds, also of values that the type has not.  Then daft reads NULL in their
# place without an error, PySpark 4.2.0 with delta-spark 4.4.0 (not installed here) reads -56 for 200, and QueryBuilder and
# DuckDB fail at each query of the table.
# A dictionary of texts, as pandas' categories are one, becomes a column `binary`, whose bytes are Python pickles of the
# texts.  deltalake's own writer refuses the first with an error, and writes the second as a column of texts.
#
# Output seen (Python 3.11, Linux):
#   uint8 [200, 1]       deltalake DeltaError
#   uint8 [200, 1]       daft byte, daft [None, 1], QueryBuilder fails, DuckDB fails
#   uint64 [2**63, 1]    deltalake DeltaError
#   uint64 [2**63, 1]    daft long, daft [None, 1], QueryBuilder fails, DuckDB fails
#   categories [a, b]    deltalake string, QueryBuilder ['a', 'b']
#   categories [a, b]    daft binary, QueryBuilder pickles of ['a', 'b']
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    daft==0.7.26 pyiceberg==0.12.0 deltalake==1.6.6 duckdb==1.5.5 duckdb-extension-delta==1.5.5 pyarrow==25.0.1
cd "$work"
cat >run.py <<'PY'
import os
import pickle
from pathlib import Path

import daft
import duckdb
import duckdb_extension_delta
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

(extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
duck = duckdb.connect(config={"autoload_known_extensions": "false"})
duck.execute(f"LOAD '{extension}'")


def by_query(table):
    query = QueryBuilder().register("t", DeltaTable(table)).execute("SELECT v FROM t")
    return pa.table(query.read_all())["v"].to_pylist()


def by_duckdb(table):
    return [row[0] for row in duck.execute(f"SELECT v FROM delta_scan('{table}')").fetchall()]


def fails(read, table):
    try:
        read(table)
    except Exception:
        return True
    return False


CASES = {
    "uint8 [200, 1]": pa.array([200, 1], pa.uint8()),
    "uint64 [2**63, 1]": pa.array([2**63, 1], pa.uint64()),
    "categories [a, b]": pa.array(["a", "b"]).dictionary_encode(),
}
seen = []
for number, (shown, values) in enumerate(CASES.items()):
    rows = pa.table({"v": values})
    plain, table = os.path.abspath(f"plain{number}"), os.path.abspath(f"daft{number}")
    try:
        write_deltalake(plain, rows)
        by_delta = f"{DeltaTable(plain).schema().fields[0].type.type}, QueryBuilder {by_query(plain)}"
    except Exception as error:
        by_delta = type(error).__name__
    daft.from_arrow(rows).write_deltalake(table)
    kind = DeltaTable(table).schema().fields[0].type.type
    if kind == "binary":
        by_daft = f"binary, QueryBuilder pickles of {[pickle.loads(bytes(value)) for value in by_query(table)]}"
    else:
        read = daft.read_deltalake(table).to_pydict()["v"]
        others = ["fails" if fails(reader, table) else "reads" for reader in (by_query, by_duckdb)]
        by_daft = f"{kind}, daft {read}, QueryBuilder {others[0]}, DuckDB {others[1]}"
    seen += [by_delta, by_daft]
    print(f"{shown:20} deltalake {by_delta}\n{shown:20} daft {by_daft}")
assert seen == [
    "DeltaError",
    "byte, daft [None, 1], QueryBuilder fails, DuckDB fails",
    "DeltaError",
    "long, daft [None, 1], QueryBuilder fails, DuckDB fails",
    "string, QueryBuilder ['a', 'b']",
    "binary, QueryBuilder pickles of ['a', 'b']",
], "it is no longer so"
PY
DAFT_PROGRESS_BAR=0 "$work/venv/bin/python" run.py
