"""Copies over links of a set rate (requirement R27), over loopback, and what the donor notices."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.writer.properties import WriterProperties

from benchmarks.copy_target import TABLE, TOKEN
from benchmarks.links import DONOR, TARGET, ShapedLink, usable
from benchmarks.results import Figure, at_least, at_most, informing

#: Rate of the link, bit/s → bytes of the table that is copied.
LINKS = {1_000_000_000: 600 << 20, 100_000_000: 100 << 20}
LOOPBACK_BYTES = 1 << 30
#: Seconds of the measurement of the donor's writes.
WRITE_S = 8.0
_FILE_ROWS = 2 << 20


def run(short: bool) -> list[Figure]:
    """Measure the four cases of the table, then loopback."""
    figures = []
    problem = usable()
    if problem:
        print(f"copying over shaped links left out: {problem}", file=sys.stderr)
    else:
        for bits, size in LINKS.items():
            figures += _over_link(bits, size // 16 if short else size, 0 if short else WRITE_S)
    found, _ = _measure(None, LOOPBACK_BYTES // 16 if short else LOOPBACK_BYTES, False, 0)
    best = found["copies"][-1]
    rate = best["size_bytes"] / best["seconds"] / 1e6
    figures.append(at_least("copy over loopback, digests and fsync", rate, "MB/s", 300))
    return figures


def _over_link(bits: int, size: int, write_s: float) -> list[Figure]:
    name = f"copy at {bits // 1_000_000:,} Mbit/s"
    plain, line = _measure(bits, size, False, write_s)
    packed, _ = _measure(bits, size, True, 0)
    first, second = plain["copies"][1], packed["copies"][1]
    rate = first["size_bytes"] / first["seconds"]
    shrunk = second["size_bytes"] / second["wire_bytes"]
    figures = [
        informing(f"{name}: {first['size_bytes'] / 1e6:,.0f} MB plain", first["seconds"], "s"),
        informing(f"{name}: the same, compressed {shrunk:.2f} x", second["seconds"], "s"),
        at_least(f"{name}: plain, of the line rate", rate / line, "x", 0.92),
        at_least(
            f"{name}: compressed, of the plain rate", first["seconds"] / second["seconds"], "x", 2.1
        ),
        at_most(f"{name}: bytes for unchanged files", plain["unchanged_wire_bytes"], "bytes", 0),
    ]
    for kind, copy in (("plain", first), ("compressed", second)):
        off = copy["estimated_s"] / copy["seconds"]
        figures.append(
            at_most(f"{name}: estimate against actual, {kind}", max(off, 1 / off), "x", 2)
        )
    if write_s:
        kept = plain["during"][0] / plain["writes"]
        figures.append(at_least(f"{name}: donor's writes during a copy", kept, "x", 0.9))
    return figures


def _measure(
    bits: int | None, size: int, compressed: bool, write_s: float
) -> tuple[dict[str, Any], float]:
    """Run two nodes and the target's end; return what it measured, and the line rate, bytes/s."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txlog-bench-")))
        link = None if bits is None else stack.enter_context(ShapedLink(bits))
        line = 0.0 if link is None or bits is None else link.line_bytes_per_s(int(bits / 8 * 2))
        donor, target = (DONOR, TARGET) if link else ("127.0.0.1", "127.0.0.1")
        urls = {"A": f"http://{donor}:7940", "B": f"http://{target}:7941"}
        version = _make_table(directory / "a" / "lake" / TABLE, size)
        secret = secrets.token_hex(16)
        for node, end in (("A", "donor"), ("B", "target")):
            _write_config(directory, node, urls, secret, compressed, bits)
            prefix = link.prefix(end) if link else []
            log = stack.enter_context((directory / f"{node}.log").open("ab"))
            command = [sys.executable, "-m", "sparktxlog.cli", "serve",
                       "--config", str(directory / f"{node}.toml")]  # fmt: skip
            process = subprocess.Popen([*prefix, *command], stdout=log, stderr=log)
            stack.callback(_end, process)
        command = [sys.executable, "-m", "benchmarks.copy_target", urls["A"], urls["B"],
                   str(directory / "b" / "lake"), str(version), str(write_s)]  # fmt: skip
        done = subprocess.run(
            [*(link.prefix("target") if link else []), *command],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            logs = [(directory / f"{node}.log").read_text()[-1_500:] for node in "AB"]
            raise RuntimeError("\n".join((done.stderr[-3_000:], *logs)))
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found, line


def _write_config(
    directory: Path, node: str, urls: dict[str, str], secret: str, compressed: bool,
    bits: int | None,
) -> None:  # fmt: skip
    (directory / node.lower()).mkdir(exist_ok=True)
    peer = "B" if node == "A" else "A"
    (directory / f"{node}.toml").write_text(
        f'node-id = "{node}"\nmaster-url = "{urls[node]}"\ncluster-secret = "{secret}"\n'
        f'data-dir = "{directory / node.lower()}"\nlog-level = "warning"\n'
        f'client-token = "{TOKEN}"\n'
        f'"replication.compression" = {"true" if compressed else "false"}\n'
        + (f"NetSpeedBitsPerSec = {bits}\n" if bits else "")
        + f'[peer.1]\nid = "{peer}"\nurl = "{urls[peer]}"\n'
    )


def _make_table(path: Path, size: int) -> int:
    """Make a Delta table of uncompressed files that zstd shrinks 2.4 times; return the version."""
    chance = np.random.default_rng(11)
    left = size // 16
    while left > 0:
        rows = min(left, _FILE_ROWS)
        data = {name: chance.integers(0, 1 << 24, rows) for name in ("a", "b")}
        properties = WriterProperties(compression="UNCOMPRESSED", default_column_properties=None)
        write_deltalake(path, pa.table(data), mode="append", writer_properties=properties)
        left -= rows
    return DeltaTable(path).version()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
