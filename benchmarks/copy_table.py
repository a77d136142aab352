"""Copies beside those of a reference, an older system: link x compression, in seconds.

`python -m benchmarks.copy_table` prints it from benchmarks/results.json, without measuring.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

#: Of 41 GB: link in Mbit/s → seconds plain and compressed.
_REFERENCE = {1_000: (390.074, 190.519), 100: (3_458.210, 1_438.711)}
_REFERENCE_GB = 41.0
#: Of the reference on a good day, at 1 Gbit/s.
_GOOD_DAY_S_PER_GB = 20.0
_PLAIN = re.compile(r"copy at ([\d,]+) Mbit/s: ([\d,]+) MB plain")
_PACKED = re.compile(r"copy at ([\d,]+) Mbit/s: the same, compressed .*")


def copy_table(seconds: Mapping[str, float]) -> str:
    """Return the table as Markdown, empty where not both copies of some link were measured.

    Args:
        seconds: Name of a figure of `benchmarks.copying` → its value.
    """
    plain, packed, sizes = {}, {}, {}
    for name, value in seconds.items():
        if found := _PLAIN.fullmatch(name):
            plain[_number(found[1])], sizes[_number(found[1])] = value, _number(found[2]) / 1e3
        elif found := _PACKED.fullmatch(name):
            packed[_number(found[1])] = value
    lines = [
        "| link | plain | compressed | ratio | reference | plain, s/GB | reference |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for link in sorted(plain.keys() & packed.keys() & _REFERENCE.keys(), reverse=True):
        theirs, theirs_packed = _REFERENCE[link]
        lines.append(
            f"| {link:,} Mbit/s, {sizes[link] * 1e3:,.0f} MB | {plain[link]:,.1f} s "
            f"| {packed[link]:,.1f} s | {plain[link] / packed[link]:.2f} "
            f"| {theirs / theirs_packed:.2f} | {plain[link] / sizes[link]:,.1f} "
            f"| {theirs / _REFERENCE_GB:,.1f} |"
        )
    if len(lines) == 2:
        return ""
    return "\n".join(
        [*lines, "", f"On a good day the reference needed {_GOOD_DAY_S_PER_GB:g} s/GB at 1 Gbit/s."]
    )


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def main() -> int:
    """Print the table of the recorded figures."""
    figures = json.loads(Path(__file__).with_name("results.json").read_text())
    table = copy_table({figure["name"]: figure["value"] for figure in figures})
    print(table or "no copy was measured")
    return 0 if table else 1


if __name__ == "__main__":
    sys.exit(main())
