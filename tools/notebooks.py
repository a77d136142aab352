"""Runs the notebooks, and keeps them with outputs that are the same on each machine.

    python -m tools.notebooks                run all of them (`make notebooks`)
    python -m tools.notebooks quickstart     run some
    python -m tools.notebooks --clean        run none, only clean the outputs that there are

An id, a time of day and a path differ in each run and say nothing to a reader: ids are numbered,
the others have a fixed text of the same width, so that tables stay tables.  How long something took
stays: it is a result.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
#: Seconds that a cell may take.
_TIMEOUT_S = 600
_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
#: With its milliseconds, if there are any.
_TIME = re.compile(r"\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?")
#: Paths that only one machine has.
PATHS = re.compile(r"(?:/tmp|/home|/root|/var/folders|/private|/work)/[\w./@+-]*")
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def main(arguments: list[str]) -> None:
    """Run or clean notebooks, all or the named ones."""
    names = [one for one in arguments if not one.startswith("--")]
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not names or path.stem in names:
            notebook = nbformat.read(path, as_version=4)
            if "--clean" not in arguments:
                print(f"Running {path.name} …", flush=True)
                _run(notebook)
            clean(notebook)
            path.write_text(nbformat.writes(notebook, indent=1) + "\n")


def clean(notebook: nbformat.NotebookNode) -> None:
    """Take from a notebook the ids, times, paths and marks of a run."""
    notebook.metadata = nbformat.from_dict(_METADATA)
    ids: dict[str, str] = {}

    def steady(text: str) -> str:
        for found in _ID.findall(text):
            ids.setdefault(found, f"00000000-0000-4000-8000-{len(ids) + 1:012}")
        text = _ID.sub(lambda match: ids[match[0]], text)
        text = _TIME.sub(lambda match: f"2026-01-01 00:00:00{_zeros(match[1])}", text)
        return PATHS.sub(lambda match: "…".ljust(len(match[0])), text)

    number = 0
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type != "code":
            continue
        number += 1
        cell.execution_count = number
        # What Spark and Python say to an operator differs from machine to machine.
        cell.outputs = _joined(one for one in cell.outputs if one.get("name") != "stderr")
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
            if "text" in output:
                output.text = steady(output.text)
            for kind, value in output.get("data", {}).items():
                if kind.startswith("text/"):
                    output.data[kind] = steady(value)


def _joined(outputs: Iterable[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Join what was printed in a row: a slow kernel sends it in parts."""
    joined: list[nbformat.NotebookNode] = []
    for output in outputs:
        if joined and output.get("name") == joined[-1].get("name") == "stdout":
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _zeros(fraction: str | None) -> str:
    return re.sub(r"\d", "0", fraction or "")


def _run(notebook: nbformat.NotebookNode) -> None:
    """Run all cells in a kernel of its own and an empty directory."""
    from nbclient import NotebookClient

    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ["SPARKTXLOG_RESULTS"] = str(ROOT / "benchmarks" / "results.json")
    os.environ.pop("SPARKTXLOG_URL", None)
    os.umask(0o077)
    with tempfile.TemporaryDirectory(prefix="txlog-notebook-") as directory:
        place: dict[str, Any] = {"metadata": {"path": directory}}
        NotebookClient(notebook, timeout=_TIMEOUT_S, resources=place).execute()


if __name__ == "__main__":
    main(sys.argv[1:])
