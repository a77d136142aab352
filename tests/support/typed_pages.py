"""Pages that a reader types from top to bottom: their commands run in one shell.

Blocks marked `sh` are typed, blocks marked `python` are files whose names stand before them, and
blocks marked `text` are what the commands before them show.  Numbers may differ: they are ports,
times, and how far a job came.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.architecture.source_tree import ROOT
from tests.support.node_processes import ports_in_a_row

_BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FIRST_PORT = 7070
_PORTS = 4
#: What a shell prints after each block.
_MARK = "-- end of a block --"
#: The processes that the page left in the background end with the shell.
_HEAD = "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n"


def typed(page: str, directory: Path, *, timeout_s: float) -> list[tuple[str, str]]:
    """Type a page of docs/; return what its `text` blocks show, and what was printed before each.

    Args:
        page: Name of the page.
        directory: In which it is typed; files that the page does not make must be there.
        timeout_s: After which all that it started is killed.
    """
    first = ports_in_a_row(_PORTS)
    text = re.sub(
        r"\b707(\d)\b", lambda m: str(first + int(m[1])), (ROOT / "docs" / page).read_text()
    )
    script, shown = [_HEAD], []
    for block in _BLOCK.finditer(text):
        kind, body = block.groups()
        if kind == "sh":
            lines = [line for line in body.splitlines() if not line.startswith("pip ")]
            script += [
                re.sub(r"^sparktxlog init .*", rf"\g<0> --port {first}", line) for line in lines
            ]
            script.append(f"echo '{_MARK}'")
            shown.append("")
        elif kind == "python":
            named = re.findall(r"`(\w+\.py)`", text[: block.start()])
            (directory / named[-1]).write_text(body)
        else:
            shown[-1] += body
    said = _run("\n".join(script), directory, f"http://127.0.0.1:{first}", timeout_s)
    return list(zip(shown, said.split(f"{_MARK}\n"), strict=False))


def lost_lines(shown: str, said: str) -> list[str]:
    """Return the lines that a page shows, and with which no line that was printed begins.

    A shown line may end with `…`.
    """
    printed = [_bare(line) for line in said.splitlines()]
    return [
        line
        for line in map(_bare, shown.splitlines())
        if line and not any(one.startswith(line.removesuffix(" …")) for one in printed)
    ]


def _bare(line: str) -> str:
    return re.sub(r"\b[0-9a-f]{12}\b|\d[\d.,:]*", "#", " ".join(line.split()))


def _run(script: str, directory: Path, url: str, timeout_s: float) -> str:
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "SPARKTXLOG_URL": url,
        "XDG_CONFIG_HOME": str(directory),  # where nodes note their tokens
    }
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=directory,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return shell.communicate(timeout=timeout_s)[0]
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.communicate()
