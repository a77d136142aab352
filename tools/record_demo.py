"""Run the demo and put what it printed into docs/demo.md, between its two marks.

python tools/record_demo.py [demo arguments]
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_MARKS = re.compile(r"(<!-- demo output: begin -->\n).*?(<!-- demo output: end -->)", re.DOTALL)


#: Details that the short form of the page leaves out, and those that it keeps.
_LEFT_OUT = ("MB received", "seconds to", "│   while", "last position", "rows committed")
_KEPT = ("waiting to be ordered", "queues end", "IN_SYNC")


def _is_shown(line: str) -> bool:
    if line.startswith("  "):
        return any(part in line for part in _KEPT)
    return not any(part in line for part in _LEFT_OUT)


def main(argv: list[str]) -> int:
    """Record a run that passed; leave the page alone if it did not."""
    command = [sys.executable, "-m", "examples.demo", *argv]
    answer = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(answer.stdout)
    if answer.returncode:
        return answer.returncode
    text = "\n".join(line.rstrip() for line in answer.stdout.splitlines() if _is_shown(line))
    page = ROOT / "docs" / "demo.md"
    page.write_text(_MARKS.sub(rf"\1```text\n{text}\n```\n\2", page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
