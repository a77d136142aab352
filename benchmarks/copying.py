"""Copies over links of a set rate, over loopback, and what the donor notices."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

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
#: Seconds and rounds of the measurements of the donor's writes.
WRITE_S = 4.0
WRITE_ROUNDS = 2
#: Part of a copy after which its target is killed.
KILL_AT = 0.4
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
    size = LOOPBACK_BYTES // 16 if short else LOOPBACK_BYTES
    with _Site(None, size, compressed=False) as site:
        measured = site.measure()
        best = measured["copies"][-1]
        rate = best["size_bytes"] / best["seconds"] / 1e6
        figures.append(at_least("copy over loopback, digests and fsync", rate, "MB/s", 300))
        figures.append(_cpu("copy over loopback", best))
        figures.append(_killed(site, measured["served_bytes"]))
    return figures


def _over_link(bits: int, size: int, write_s: float) -> list[Figure]:
    name = f"copy at {bits // 1_000_000:,} Mbit/s"
    figures = []
    with _Site(bits, size, compressed=False) as site:
        plain, line = site.measure(), site.line_bytes_per_s
        if write_s:
            figures = [
                figure
                for kind in ("full", "light")
                for figure in _beside_writes(f"{name}, {kind} writer", site, kind, write_s)
            ]
    with _Site(bits, size, compressed=True) as site:
        packed = site.measure()
    first, second = plain["copies"][-1], packed["copies"][-1]
    rate = first["size_bytes"] / first["seconds"]
    shrunk = second["size_bytes"] / second["wire_bytes"]
    figures[:0] = [
        informing(f"{name}: {first['size_bytes'] / 1e6:,.0f} MB plain", first["seconds"], "s"),
        informing(f"{name}: the same, compressed {shrunk:.2f} x", second["seconds"], "s"),
        _cpu(f"{name}, plain", first),
        _cpu(f"{name}, compressed", second),
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
    return figures


def _cpu(name: str, copy: dict[str, Any]) -> Figure:
    """Return the processor time of both ends, user and system; it counts on a busy machine too."""
    used = (copy["donor_cpu_s"] + copy["target_cpu_s"]) / copy["size_bytes"]
    return informing(f"{name}: CPU of donor and target", used * 1e9, "ms/MB")


def _beside_writes(name: str, site: _Site, kind: str, seconds: float) -> list[Figure]:
    """Return what a writer at the donor keeps during a copy, and how the copy goes on."""
    alone, during, copies = [], [], []
    for _ in range(WRITE_ROUNDS):  # in turns: the machine's other loads come and go
        alone.append(site.write(kind, seconds))
        with site.copying() as copy:
            during.append(site.write(kind, seconds))
        copies.append(copy)
    kept = _sum(during, "per_s") / _sum(alone, "per_s")
    progress = _sum(copies, "fetched_bytes") / _sum(copies, "seconds") / 1e6
    waited = [1e3 * _sum(found, "p50_s") / WRITE_ROUNDS for found in (alone, during)]
    return [
        informing(f"{name}: transactions alone", _sum(alone, "per_s") / WRITE_ROUNDS, "tx/s"),
        at_least(f"{name}: kept during a copy", kept, "x", 0.9),
        informing(f"{name}: batch to ordered alone, p50", waited[0], "ms"),
        informing(f"{name}: the same during a copy", waited[1], "ms"),
        informing(f"{name}: the copy meanwhile", progress, "MB/s"),
    ]


def _sum(found: Sequence[dict[str, Any]], name: str) -> float:
    return sum(float(one[name]) for one in found)


def _killed(site: _Site, served_before: float) -> Figure:
    """Return how many chunks travel twice when the target is killed in the middle of a copy."""
    with site.target("resume") as process:
        assert process.stdout is not None
        for text in process.stdout:
            if json.loads(text).get("part", 1.0) > KILL_AT:
                break
        process.kill()
        process.wait()
    with site.target("resume") as process:
        found = _last_line(process)
    twice = (found["served_bytes"] - served_before - found["size_bytes"]) / found["chunk_bytes"]
    return at_most("chunks fetched twice after kill -9, 8 streams", twice, "chunks", 8)


class _Site:
    """Two nodes, the first with a replica, and processes at either end.

    Args:
        bits: Rate of the link, None = loopback.
        size: Bytes of the table.
    """

    def __init__(self, bits: int | None, size: int, *, compressed: bool) -> None:
        self._bits = bits
        self._size = size
        self._compressed = compressed
        self.line_bytes_per_s = 0.0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="txlog-bench-"))
            self._directory = Path(directory)
            self._link = None if self._bits is None else stack.enter_context(ShapedLink(self._bits))
            if self._link and self._bits:
                self.line_bytes_per_s = self._link.line_bytes_per_s(int(self._bits / 8 * 2))
            donor, target = (DONOR, TARGET) if self._link else ("127.0.0.1", "127.0.0.1")
            self._urls = {"A": f"http://{donor}:7940", "B": f"http://{target}:7941"}
            self._version = _make_table(self._directory / "a" / "lake" / TABLE, self._size)
            secret = secrets.token_hex(16)
            for node, end in (("A", "donor"), ("B", "target")):
                _write_config(
                    self._directory, node, self._urls, secret, self._compressed, self._bits
                )
                log = stack.enter_context((self._directory / f"{node}.log").open("ab"))
                command = [
                    "-m",
                    "sparktxlog.cli",
                    "serve",
                    "--config",
                    str(self._directory / f"{node}.toml"),
                ]
                process = subprocess.Popen([*self._at(end), *command], stdout=log, stderr=log)
                stack.callback(_end, process)
                if node == "A":
                    self._donor = process
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _at(self, end: str) -> list[str]:
        return [*(self._link.prefix(end) if self._link else []), sys.executable]

    @contextmanager
    def target(self, mode: str, *rest: str) -> Iterator[subprocess.Popen[str]]:
        """Run `copy_target` where the target is."""
        lake = self._directory / "b" / ("lake" if mode == "measure" else "other")
        command = ["-m", "benchmarks.copy_target", mode, *self._urls.values(), str(lake), *rest]
        with subprocess.Popen(
            [*self._at("target"), *command],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            yield process

    def measure(self) -> dict[str, Any]:
        """Copy several times; return what was measured."""
        with self.target("measure", str(self._version), str(self._donor.pid)) as process:
            return _last_line(process, self._directory)

    @contextmanager
    def copying(self) -> Iterator[dict[str, Any]]:
        """Copy meanwhile; afterwards the dictionary says what was fetched."""
        found: dict[str, Any] = {}
        with self.target("keep") as process:
            assert process.stdout is not None
            process.stdout.readline()
            yield found
            found |= _last_line(process, self._directory)

    def write(self, kind: str, seconds: float) -> dict[str, Any]:
        """Write at the donor's site."""
        command = ["-m", "benchmarks.copy_writer", self._urls["A"], kind, str(seconds)]
        done = subprocess.run(
            [*self._at("donor"), *command], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-3_000:])
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def _last_line(process: subprocess.Popen[str], directory: Path | None = None) -> dict[str, Any]:
    """Wait for a process to end, and return the JSON of its last line."""
    output, errors = process.communicate()
    if process.returncode != 0:
        logs = (
            []
            if directory is None
            else [(directory / f"{node}.log").read_text()[-1_500:] for node in "AB"]
        )
        raise RuntimeError("\n".join((errors[-3_000:], *logs)))
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def _write_config(
    directory: Path,
    node: str,
    urls: dict[str, str],
    secret: str,
    compressed: bool,
    bits: int | None,
) -> None:
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
