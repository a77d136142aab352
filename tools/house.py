"""Checks what linters have no rules for: sizes, words, docstrings; one line for each break.

    python -m tools.house

`make lint` runs it.  Exit codes: 0 = nothing found, 1 = something was.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70
MAX_MODULES = 15
#: Rooms whose layout the formatter does not decide yet.
LAID_OUT_BY_HAND = tuple(f"tests/verification/{name}/" for name in ("simulation", "nodes", "model"))
#: Written so that this file does not hold what it looks for.
UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X|NotImplemented[E]rror)\b")
MACHINE_PATH = re.compile("/[w]ork/|/[t]mp/t1|/[r]oot/|/[h]ome/[a-z]")
LAYOUT_MARK = "# {}: skip".format("fmt")
ANYTHING = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
BINARY = {".parquet", ".zip", ".gz", ".png", ".ico", ".sqlite", ".bin", ".arrow", ".woff2"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """What breaks a rule, and where; line 0 = the whole file."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.text}"


@dataclass(frozen=True)
class Source:
    """A committed text, its path relative to the repository."""

    path: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """The text's lines."""
        return self.text.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        """The file, parsed."""
        return ast.parse(self.text, self.path)

    @property
    def is_shipped(self) -> bool:
        """Whether it is a module of the package."""
        return self.path.startswith("src/")

    def found(self, line: int, text: str) -> Finding:
        """Return a finding in this file."""
        return Finding(self.path, line, text)


Rule = Callable[[Source], Iterator[Finding]]


def machine_paths(source: Source) -> Iterator[Finding]:
    """No file names a directory of the machine it was written on."""
    if MACHINE_PATH.search(source.text):
        for number, line in enumerate(source.lines, start=1):
            if MACHINE_PATH.search(line):
                yield source.found(number, f"names a machine's path: {line.strip()[:80]}")


def long_file(source: Source) -> Iterator[Finding]:
    """No file has more than 800 lines."""
    if len(source.lines) > MAX_FILE_LINES:
        yield source.found(0, f"has {len(source.lines)} lines, at most {MAX_FILE_LINES}")


def unfinished(source: Source) -> Iterator[Finding]:
    """Nothing is left as a mark in the text: what is not there yet stands in the changelog."""
    if UNFINISHED.search(source.text):
        for number, line in enumerate(source.lines, start=1):
            if UNFINISHED.search(line):
                yield source.found(number, f"is unfinished: {line.strip()[:60]}")


def long_functions(source: Source) -> Iterator[Finding]:
    """No function has more than 70 lines."""
    for node in ast.walk(source.tree):
        if isinstance(node, FUNCTIONS):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                yield source.found(node.lineno, f"{node.name} has {length} lines")


def layout_by_hand(source: Source) -> Iterator[Finding]:
    """A `skip` of the formatter keeps the rows of a module's or a class's table, nothing else."""
    if LAYOUT_MARK not in source.text or source.path.startswith(LAID_OUT_BY_HAND):
        return
    classes = [node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)]
    bodies = [source.tree.body, *(node.body for node in classes)]
    kinds = (ast.Assign, ast.AnnAssign)
    tables = {n.end_lineno for body in bodies for n in body if isinstance(n, kinds)}
    for number, line in enumerate(source.lines, start=1):
        if LAYOUT_MARK in line and number not in tables:
            yield source.found(number, "the formatter decides the layout")


def swallowed_errors(source: Source) -> Iterator[Finding]:
    """No handler outside tests catches everything and goes on as if nothing were."""
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        wide = {"Exception", "BaseException"}
        catches_all = node.type is None or any(
            isinstance(name, ast.Name) and name.id in wide for name in caught
        )
        if catches_all and all(isinstance(step, (ast.Pass, ast.Continue)) for step in node.body):
            yield source.found(node.lineno, "catches everything and does nothing")


def bare_names(source: Source) -> Iterator[Finding]:
    """Every module, public class and public function of the package says what it is for."""
    if ast.get_docstring(source.tree) is None:
        yield source.found(0, "has no docstring")
    for node in source.tree.body:
        for bare in _undocumented(node):
            yield source.found(bare.lineno, "has no docstring")


def _undocumented(node: ast.stmt) -> list[ast.stmt]:
    if not isinstance(node, (*FUNCTIONS, ast.ClassDef)) or node.name.startswith("_"):
        return []
    found: list[ast.stmt] = [] if ast.get_docstring(node) else [node]
    if isinstance(node, ast.ClassDef):
        for child in node.body:
            decorated = isinstance(child, (*FUNCTIONS, ast.ClassDef)) and child.decorator_list
            # A method of a class with bases takes its contract from the interface it fills.
            fills = bool(node.bases) and isinstance(child, FUNCTIONS)
            if not decorated and not fills:
                found += _undocumented(child)
    return found


def vague_module(source: Source) -> Iterator[Finding]:
    """A module that could hold anything ends up holding everything."""
    if Path(source.path).stem in ANYTHING:
        yield source.found(0, "its name could hold anything")


def old_annotations(source: Source) -> Iterator[Finding]:
    """Annotations never cost imports at run time."""
    if source.tree.body[1:] and "from __future__ import annotations" not in source.text:
        yield source.found(0, "does not begin with: from __future__ import annotations")


EVERYWHERE: tuple[Rule, ...] = (machine_paths,)
IN_PYTHON: tuple[Rule, ...] = (long_file, unfinished, long_functions, layout_by_hand)
OUTSIDE_TESTS: tuple[Rule, ...] = (swallowed_errors,)
SHIPPED: tuple[Rule, ...] = (bare_names, vague_module, old_annotations)


def rules_for(path: str) -> tuple[Rule, ...]:
    """Return the rules of one file."""
    if not path.endswith(".py"):
        return EVERYWHERE
    rules = EVERYWHERE + IN_PYTHON
    rules += () if path.startswith("tests/") else OUTSIDE_TESTS
    return rules + (SHIPPED if path.startswith("src/") else ())


def full_folders(paths: Iterable[str]) -> Iterator[Finding]:
    """No folder of the package holds more than 15 modules next to its `__init__`."""
    found = [path for path in paths if path.startswith("src/") and path.endswith(".py")]
    folders = Counter(path.rpartition("/")[0] for path in found if "__init__" not in path)
    for folder, count in folders.items():
        if count > MAX_MODULES:
            yield Finding(folder, 0, f"has {count} modules, at most {MAX_MODULES}")


def names_given_twice(sources: Iterable[Source]) -> Iterator[Finding]:
    """A module's name, and a public class's name, occur once: a search finds one place."""
    first: dict[str, str] = {}
    for source in sources:
        stem = Path(source.path).stem
        classes = [node.name for node in source.tree.body if isinstance(node, ast.ClassDef)]
        names = [*([] if stem.startswith("__") else [stem]), *classes]
        for name in names:
            if not name.startswith("_") and first.setdefault(name, source.path) != source.path:
                yield source.found(0, f"{name} is also in {first[name]}")


def check(sources: Iterable[Source]) -> list[Finding]:
    """Return what breaks a rule in any of these files."""
    found: list[Finding] = []
    paths: list[str] = []
    package: list[Source] = []
    for source in sources:
        paths.append(source.path)
        for rule in rules_for(source.path):
            found += rule(source)
        if source.is_shipped and source.path.endswith(".py"):
            package.append(source)
    return sorted([*found, *full_folders(paths), *names_given_twice(package)])


def committed() -> Iterator[Source]:
    """Yield each text that git knows or would add; nobody keeps the trees of tests."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    for name in sorted(set(answer.stdout.decode().split("\0"))):
        path = ROOT / name
        if name and path.is_file() and path.suffix not in BINARY:
            yield Source(name, path.read_text(errors="replace"))


def main() -> int:
    """Print what is found; return the exit code."""
    found = check(committed())
    for one in found:
        print(one)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
