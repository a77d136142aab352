"""Child process: reads streams in which one bit is another, within bounds of memory.

Prints how many were refused and how many were taken.  A crash is its exit code.
"""

from __future__ import annotations

import resource
import sys
from collections import Counter

import pyarrow as pa

from sparktxlog.codec.containers.sections import write_section
from sparktxlog.codec.submits.validation import check_rows, read_rows
from sparktxlog.errors import CommitRejectedError
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import TX_COLUMN, OperationKind

#: Type of the table's column → values that a sender may give for it.
GIVEN = {
    "decimal(20,4)": pa.array([None, 1], pa.decimal128(10, 2)),
    "decimal(38,2)": pa.array([None, 1], pa.decimal256(40, 2)),
    "string": pa.array(["a", None], pa.dictionary(pa.int8(), pa.string())),
    "timestamp": pa.array([1, None], pa.timestamp("ms", "Europe/Berlin")),
    "bigint": pa.array([1, 2], pa.uint32()),
    "double": pa.array([1, 2], pa.float16()),
    "binary": pa.array([b"ab", None], pa.binary(2)),
    "date": pa.array([None, 86_400_000], pa.date64()),
    "array<int>": pa.array([[1, 2], None], pa.list_(pa.int16(), 2)),
    "struct<a:string,b:int>": pa.array(
        [{"a": "x", "b": None}, None], pa.struct([("a", pa.string_view()), ("b", pa.null())])
    ),
    "map<string,int>": pa.array([[("k", 1)], None], pa.map_(pa.large_string(), pa.int8())),
}
LIMIT = 1 << 20
#: Address space above what the process has when it begins, bytes.
ROOM = 256 << 20


def flip(kind: str, found: Counter[str]) -> None:
    """Flip each bit of a stream of one column in turn."""
    definition = TableDefinition(name="t", columns=(Column(name="c", type=kind),))
    rows = pa.table({"c": GIVEN[kind], TX_COLUMN: pa.array([0, 1], pa.int32())})
    stream = write_section(rows)

    def read(data: bytes) -> None:
        try:
            table = read_rows(
                data, definition, OperationKind.APPEND, LIMIT, marks=(TX_COLUMN,)
            ).drop_columns([TX_COLUMN])
            check_rows(definition, OperationKind.APPEND, table)
            found["taken"] += 1
        except CommitRejectedError:
            found["refused"] += 1

    before = found["taken"]
    read(stream)
    assert found["taken"] == before + 1, kind
    for bit in range(8 * len(stream)):
        flipped = bytearray(stream)
        flipped[bit // 8] ^= 1 << bit % 8
        read(bytes(flipped))


def main() -> None:
    """Flip each bit of a stream for each type."""
    with open("/proc/self/statm") as status:
        bound = int(status.read().split()[0]) * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    found: Counter[str] = Counter()
    for kind in GIVEN:
        flip(kind, found)
    sys.stdout.write(f"{found['refused']} {found['taken']}\n")


if __name__ == "__main__":
    main()
