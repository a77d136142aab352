#!/usr/bin/env bash
# deltalake 1.6.6: a negative decimal with a fraction cannot be the value of a partition column.
#
# write_deltalake fails, for it writes -1.05 as `-1.-5`.  to_pyarrow_table of a table that another
# engine wrote, with `-1.05` in its log, fails as well; QueryBuilder reads it.  Positive values and
# whole negative ones work.
#
# Output seen (Python 3.11, Linux):
#   write 1.05    written
#   write -2.00   written
#   write -1.05   DeltaError: Kernel error: Failed to parse value '-1.-5' as 'decimal(10,2)'
#   read -1.05    ArrowInvalid: The string '-1.-5' is not a valid decimal128 number
#   QueryBuilder  [(1, '-1.05')]
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1
cd "$work"
cat >run.py <<'PY'
import json
import os
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, write_deltalake


def tried(act):
    try:
        return act() or "written"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def write(value):
    price = pa.array([Decimal(value)], pa.decimal128(10, 2))
    rows = pa.table({"id": pa.array([1], pa.int64()), "price": price})
    return tried(lambda: write_deltalake(f"t{value}", rows, partition_by=["price"]))


os.makedirs("t/_delta_log")
pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), "t/f.parquet")
kinds = {"id": "long", "price": "decimal(10,2)"}
field = {"nullable": True, "metadata": {}}
fields = [{"name": name, "type": kind} | field for name, kind in kinds.items()]
actions = [
    {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
    {
        "metaData": {
            "id": "t",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": ["price"],
            "configuration": {},
        }
    },
    {
        "add": {
            "path": "f.parquet",
            "partitionValues": {"price": "-1.05"},
            "size": os.path.getsize("t/f.parquet"),
            "modificationTime": 0,
            "dataChange": True,
        }
    },
]
with open(f"t/_delta_log/{0:020}.json", "w") as log:
    log.writelines(json.dumps(action) + "\n" for action in actions)
written = {value: write(value) for value in ("1.05", "-2.00", "-1.05")}
for value, said in written.items():
    print(f"write {value:7} {said}")
read = tried(lambda: DeltaTable("t").to_pyarrow_table().to_pylist())
print("read -1.05   ", read)
query = QueryBuilder().register("t", DeltaTable("t"))
found = pa.table(query.execute("SELECT id, price FROM t").read_all()).to_pylist()
print("QueryBuilder ", [(row["id"], str(row["price"])) for row in found])
assert written["1.05"] == written["-2.00"] == "written"
assert "-1.-5" in written["-1.05"] and "-1.-5" in read, "deltalake is no longer so"
PY
"$work/venv/bin/python" run.py
