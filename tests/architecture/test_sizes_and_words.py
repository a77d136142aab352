"""Sizes, words and docstrings: rules worth having are tests."""

from __future__ import annotations

import ast
import re
from collections import Counter

from tests.architecture.source_tree import (
    ROOT,
    Module,
    committed_files,
    functions_of,
    modules_of_tests,
    package_modules,
    script_modules,
)

MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70
MAX_MODULES = 15
#: Rooms that are divided: each folder holds few modules.
DIVIDED = ("protocol", "runtime", "storage", "worker")
#: Rooms whose layout the formatter does not decide yet.
LAID_OUT_BY_HAND = tuple(f"tests.verification.{name}" for name in ("simulation", "nodes", "model"))
#: Built in parts, so that this file does not hold the words it looks for.
FORBIDDEN_WORDS = tuple(
    "".join(parts)
    for parts in (("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("NotImplemented", "Error"))
)
MODULE_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
#: Paths of the machine something was written on.
MACHINE_PATH = re.compile(
    "|".join(("/wo" + "rk/", "/tm" + "p/t1", "/ro" + "ot/", "/ho" + "me/[a-z]"))
)
BINARY = {".parquet", ".zip", ".gz", ".png", ".ico", ".sqlite", ".bin", ".arrow", ".woff2"}


def _all() -> tuple[Module, ...]:
    return (*package_modules(), *script_modules(), *modules_of_tests())


def _where(module: Module, line: int = 0) -> str:
    return f"{module.path.relative_to(ROOT)}:{line}"


def test_files_stay_short() -> None:
    """No file over 800 lines."""
    long = [
        f"{_where(m)} {len(m.text.splitlines())} lines"
        for m in _all()
        if len(m.text.splitlines()) > MAX_FILE_LINES
    ]
    assert long == []


def test_folders_stay_small() -> None:
    """No folder of a divided room holds more than 15 modules beside its `__init__`."""
    folders = [m.path.parent for m in package_modules() if m.room in DIVIDED]
    many = {
        str(folder.relative_to(ROOT))
        for folder in folders
        if folders.count(folder) > MAX_MODULES + 1
    }
    assert many == set()


def test_functions_stay_short() -> None:
    """No function over 70 lines."""
    long = [
        f"{_where(module, f.lineno)} {f.name}: {(f.end_lineno or 0) - f.lineno + 1} lines"
        for module in _all()
        for f in functions_of(module.tree)
        if (f.end_lineno or 0) - f.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


def _tables(tree: ast.Module) -> set[int]:
    """Return the last lines of the assignments that stand in a module or a class."""
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    kinds = (ast.Assign, ast.AnnAssign)
    return {node.end_lineno or 0 for body in bodies for node in body if isinstance(node, kinds)}


def test_the_formatter_decides_the_layout() -> None:
    """A `fmt: skip` keeps the rows of a table that a module or a class has; nothing else does."""
    mark = "# fmt: " + "skip"
    found = [
        _where(module, number)
        for module in _all()
        if not module.name.startswith(LAID_OUT_BY_HAND)
        for number, line in enumerate(module.text.splitlines(), start=1)
        if mark in line and number not in _tables(module.tree)
    ]
    assert found == []


def test_public_names_are_documented() -> None:
    """Every module, public class and public function of the package says what it is for."""
    bare = []
    for module in package_modules():
        if ast.get_docstring(module.tree) is None:
            bare.append(_where(module))
        for node in module.tree.body:
            bare += [_where(module, child.lineno) for child in _undocumented(node)]
    assert bare == []


def _undocumented(node: ast.stmt) -> list[ast.stmt]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if not isinstance(node, kinds) or node.name.startswith("_"):
        return []
    found: list[ast.stmt] = [] if ast.get_docstring(node) else [node]
    if isinstance(node, ast.ClassDef):
        for child in node.body:
            overloaded = isinstance(child, kinds) and bool(child.decorator_list)
            if not overloaded and not _is_plain_override(node, child):
                found += _undocumented(child)
    return found


def _is_plain_override(owner: ast.ClassDef, child: ast.stmt) -> bool:
    # A method of a class with bases takes its contract from the interface it fills.
    return bool(owner.bases) and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))


def test_no_unfinished_marks() -> None:
    """Nothing is left as a mark in the text: what is not there yet stands in the changelog."""
    pattern = re.compile(r"\b(" + "|".join(FORBIDDEN_WORDS) + r")\b")
    found = [
        f"{_where(module, number)} {line.strip()[:60]}"
        for module in _all()
        for number, line in enumerate(module.text.splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []


def test_modules_are_nouns() -> None:
    """A module that could hold anything ends up holding everything."""
    assert [_where(m) for m in package_modules() if m.path.stem in MODULE_NAMES] == []


def test_a_name_means_one_thing() -> None:
    """A module's name, and a public class's name, occur once: who searches finds one place."""
    modules = [m for m in package_modules() if not m.path.stem.startswith("__")]
    stems = Counter(m.path.stem for m in modules)
    classes = Counter(
        node.name
        for m in modules
        for node in m.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, n in (stems + classes).items() if n > 1] == []


def test_no_machine_path_is_committed() -> None:
    """No file names a directory of the machine it was written on."""
    found = []
    for path in committed_files():
        if path.suffix in BINARY:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if MACHINE_PATH.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number} {line.strip()[:80]}")
    assert found == []


def test_no_error_is_swallowed() -> None:
    """No handler catches everything and goes on as if nothing were."""
    found = [
        _where(module, node.lineno)
        for module in (*package_modules(), *script_modules())
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ExceptHandler) and _catches_all(node) and _does_nothing(node)
    ]
    assert found == []


def _catches_all(handler: ast.ExceptHandler) -> bool:
    names = [handler.type] if not isinstance(handler.type, ast.Tuple) else handler.type.elts
    wide = {"Exception", "BaseException"}
    return handler.type is None or any(isinstance(n, ast.Name) and n.id in wide for n in names)


def _does_nothing(handler: ast.ExceptHandler) -> bool:
    return all(isinstance(statement, (ast.Pass, ast.Continue)) for statement in handler.body)


def test_every_shipped_module_begins_with_future_annotations() -> None:
    """One habit everywhere, so that annotations never cost imports at run time."""
    missing = [
        _where(module)
        for module in package_modules()
        if module.tree.body[1:] and "from __future__ import annotations" not in module.text
    ]
    assert missing == []
