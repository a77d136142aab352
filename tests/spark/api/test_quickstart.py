"""The quickstart notebook runs from its first cell to its last."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_the_quickstart_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARKTXLOG_URL", raising=False)
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{path}".rstrip(os.pathsep))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    assert all(cell.get("outputs", []) == [] for cell in notebook.cells)  # committed clean
    client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    text = "".join(
        output.get("text", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "[schema-mismatch]" in text
    assert "60 transactions, 3000 rows, 1 run" in text
    assert re.search(r"\| *Edsger\| *Austin\|", text)
    assert "|committed|" in text
