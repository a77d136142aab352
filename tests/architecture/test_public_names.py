"""What is public: the names of the package, as docs/python.md has them; examples use no others."""

from __future__ import annotations

import inspect
import json
import re

import pytest
from tests.architecture.source_tree import PACKAGE, ROOT

import sparktxlog
from sparktxlog.errors import TxLogError

_PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
_IMPORT = re.compile(
    r"^ *(?:from (sparktxlog(?:\.[\w.]+)?) import (.+)|import (sparktxlog(?:\.[\w.]+)?))",
    re.MULTILINE,
)
#: Notebooks for users; the others look inside, or at three nodes at once.
_NOTEBOOKS = ("quickstart", "bank")


def _inside(code: str) -> set[str]:
    """Return what lines of Python import of the package that is not public."""
    found = set[str]()
    for module, names, plain in _IMPORT.findall(code):
        if module == "sparktxlog":
            given = {name.strip() for name in names.split(",")} - set(sparktxlog.__all__)
            found |= {name for name in given if name not in vars(sparktxlog.errors)}
        else:
            found.add(module or plain)
    public = ("sparktxlog.errors", "sparktxlog.integrations.")
    return {name for name in found if name != "sparktxlog" and not name.startswith(public)}


def test_the_page_lists_what_is_public() -> None:
    page = (ROOT / "docs/python.md").read_text().partition("\n## What is public\n")[2]
    rows = re.findall(r"^\| (`[^|]+`) \|", page, re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(sparktxlog.__all__)


def test_type_checkers_see_the_same_names() -> None:
    text = (PACKAGE / "__init__.py").read_text()
    typed = set(re.findall(r"\b(\w+) as \1\b", text))
    assert typed | {"errors"} == {*sparktxlog.__all__, "TxLogError"}


@pytest.mark.parametrize("name", sparktxlog.__all__)
def test_each_name_is_there_and_explained(name: str) -> None:
    found = getattr(sparktxlog, name)
    assert inspect.getdoc(found)
    assert name in dir(sparktxlog)


def test_errors_are_at_the_top() -> None:
    assert sparktxlog.ConflictError is sparktxlog.errors.ConflictError
    assert issubclass(sparktxlog.ConflictError, TxLogError)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = sparktxlog.Nothing


def test_examples_import_public_names_only() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    codes = {page.name: _PYTHON.findall(page.read_text()) for page in pages}
    for name in _NOTEBOOKS:
        cells = json.loads((ROOT / f"notebooks/{name}.ipynb").read_text())["cells"]
        codes[name] = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    assert sum(map(len, codes.values())) > 40
    found = {name: set().union(*map(_inside, texts)) for name, texts in codes.items() if texts}
    assert {name: inside for name, inside in found.items() if inside} == {}
    assert _inside("from sparktxlog.api.session import build_session") == {"sparktxlog.api.session"}
    assert _inside("from sparktxlog import Level, Levels") == {"Levels"}


def test_the_quickstart_needs_one_import() -> None:
    (block,) = _PYTHON.findall((ROOT / "README.md").read_text())
    assert re.findall(r"^.*import .*$", block, re.MULTILINE) == ["import sparktxlog"]
