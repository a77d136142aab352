"""What the project keeps of runs: outputs of notebooks, and pictures of pages."""

from __future__ import annotations

import copy
import struct
from pathlib import Path

import nbformat
import pytest
from tests.architecture.source_tree import ROOT
from tools.console_pictures import SHOWN
from tools.notebooks import NOTEBOOKS, PATHS, clean

#: Notebooks that say nothing for themselves would teach nobody: fewer of the cells than these do.
_LEAST_WITH_OUTPUT = 0.5


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_has_outputs_of_no_machine(path: Path) -> None:
    """Made by `make notebooks`: no error, no path, id or time that another run would not have."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    with_output = [cell for cell in cells if cell.outputs]
    assert len(with_output) >= _LEAST_WITH_OUTPUT * len(cells)
    outputs = [output for cell in cells for output in cell.outputs]
    assert [one for one in outputs if one.output_type == "error"] == []
    texts = [one.text for one in outputs if "text" in one]
    texts += [
        text for one in outputs for kind, text in one.get("data", {}).items() if "text" in kind
    ]
    assert [found for text in texts for found in PATHS.findall(text)] == []
    cleaned = copy.deepcopy(notebook)
    clean(cleaned)
    assert cleaned == notebook, "run `python -m tools.notebooks --clean`"


def test_ids_times_and_paths_of_a_run_become_steady() -> None:
    text = (
        "|0a1b2c3d-0000-4cff-a415-62798a48dd59|/tmp/shop/lake|2027-03-04 05:06:07.891|\n"
        "0a1b2c3d-0000-4cff-a415-62798a48dd59 ab2c4d40-e4a3-4cff-a415-62798a48dd59 2024-01-01\n"
    )
    # A slow kernel sends in parts what is printed.
    parts = [("stdout", text[:10]), ("stderr", "WARN of one machine"), ("stdout", text[10:])]
    sent = [nbformat.v4.new_output("stream", name=name, text=part) for name, part in parts]
    cell = nbformat.v4.new_code_cell("x", outputs=sent, metadata={"a": 1})
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"language_info": {"name": "r"}})
    clean(notebook)
    (kept,) = notebook.cells[0].outputs
    first, second = (f"00000000-0000-4000-8000-{number:012}" for number in (1, 2))
    assert kept.text == (
        f"|{first}|…             |2026-01-01 00:00:00.000|\n{first} {second} 2024-01-01\n"
    )
    assert [len(line) for line in kept.text.splitlines()] == [
        len(line) for line in text.splitlines()
    ]
    assert notebook.cells[0].metadata == {} and notebook.cells[0].execution_count == 1


def test_pictures_of_pages_are_those_that_are_made() -> None:
    """`python -m tools.console_pictures` makes them, of real nodes, by a real browser."""
    kept = {path.stem: path for path in (ROOT / "docs" / "pictures").glob("*.png")}
    assert set(kept) == set(SHOWN)
    for name, (_, width, height) in SHOWN.items():
        # The header of a PNG says its size.
        assert struct.unpack(">II", kept[name].read_bytes()[16:24]) == (width, height)
