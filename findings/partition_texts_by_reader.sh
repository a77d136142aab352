#!/bin/bash
# How readers of Delta tables take the text of a partition value that is written in another form than Spark's.
#
# Versions: deltalake 1.6.6, duckdb 1.5.5 with duckdb-extension-delta 1.5.5, pyarrow 23.0.1, Python 3.11 or later.
#
# Partition values are texts in the log.  Each table below has one file, and is the same but for the type and the text.
# PySpark 4.2.0 with delta-spark 4.4.0 (not installed here) casts the text and reads: 1.50, 2.00, 1, 2024-01-05 10:00:00 for
# both timestamps without a zone, true, the empty text (not NULL) for the last one.  The specification says of the last one
# that an empty text is NULL.
#
# Behaviour: delta-rs and DuckDB read no row of the table if one text has another scale than the decimal, or a T in a timestamp
# without a zone; both read the empty text as NULL.  Exit code 0 while that is so for delta-rs.
#
# Output seen (delta-rs, DuckDB): 1.50 -> 1.50, 1.50; 1.5, 2 and 1.0 -> "Failed to parse value", "Failed to unpack scan data";
# the timestamp with a blank -> read by both, with T -> the same two errors; TRUE -> true, true; the empty text -> NULL, NULL.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/env" && "$work/env/bin/pip" -q install deltalake==1.6.6 duckdb==1.5.5 \
    duckdb-extension-delta==1.5.5 pyarrow==23.0.1 || exit 2
cat > "$work/read.py" <<'PYTHON'
import json
import sys
import uuid
from pathlib import Path

import duckdb
import duckdb_extension_delta
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

CASES = [
    ("decimal(10,2)", "1.50"),
    ("decimal(10,2)", "1.5"),
    ("decimal(10,2)", "2"),
    ("decimal(5,0)", "1.0"),
    ("timestamp_ntz", "2024-01-05 10:00:00"),
    ("timestamp_ntz", "2024-01-05T10:00:00"),
    ("boolean", "TRUE"),
    ("string", ""),
]


def table(path, kind, text):
    (path / "_delta_log").mkdir(parents=True)
    fields = [
        {"name": name, "type": of, "nullable": True, "metadata": {}} for name, of in (("id", "long"), ("p", kind))
    ]
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    if kind == "timestamp_ntz":
        feature = ["timestampNtz"]
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": feature, "writerFeatures": feature}
    pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), path / "0.parquet")
    actions = [
        {"protocol": protocol},
        {"metaData": {
            "id": str(uuid.uuid4()), "format": {"provider": "parquet", "options": {}}, "configuration": {},
            "schemaString": json.dumps({"type": "struct", "fields": fields}), "partitionColumns": ["p"],
        }},
        {"add": {
            "path": "0.parquet", "partitionValues": {"p": text}, "size": (path / "0.parquet").stat().st_size,
            "modificationTime": 0, "dataChange": True,
        }},
    ]
    (path / "_delta_log" / f"{0:020}.json").write_text("".join(json.dumps(one) + "\n" for one in actions))
    return str(path)


def shown(read, path):
    try:
        return repr(read(path))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"


def by_duckdb(path):
    (extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    connection = duckdb.connect(config={"autoload_known_extensions": "false"})
    connection.execute(f"LOAD '{extension}'")
    return connection.execute(f"SELECT CAST(p AS VARCHAR) FROM delta_scan('{path}')").fetchone()[0]


READERS = {
    "delta-rs": lambda path: DeltaTable(path).to_pyarrow_table()["p"].cast(pa.string())[0].as_py(),
    "duckdb": by_duckdb,
}
found = {}
for number, (kind, text) in enumerate(CASES):
    path = table(Path(sys.argv[1]) / str(number), kind, text)
    for name, read in READERS.items():
        found[kind, text, name] = shown(read, path)
        print(f"{kind:15} {text!r:24} {name:9} {found[kind, text, name]}")
refused = [("decimal(10,2)", "1.5"), ("decimal(10,2)", "2"), ("decimal(5,0)", "1.0"), ("timestamp_ntz", "2024-01-05T10:00:00")]
sys.exit(0 if all("Failed to parse" in found[*one, "delta-rs"] for one in refused) else 1)
PYTHON
"$work/env/bin/python" "$work/read.py" "$work/tables"
