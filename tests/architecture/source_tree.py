"""Reads the source tree for the architecture tests: modules, imports, definitions."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "sparktxlog"


@dataclass(frozen=True, kw_only=True)
class Module:
    """A Python file."""

    path: Path
    #: `sparktxlog.protocol.master`; scripts outside the package: their file name.
    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The file, parsed when that is first asked for."""
        return ast.parse(self.text, str(self.path))

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree; a dozen tests look through those of the whole package."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import, wherever it stands."""
        return tuple(_imports(self.tree, self, at_load=True, typing_only=False))

    @property
    def room(self) -> str:
        """First part below the package: `protocol`, `errors`; `__init__` for the package itself."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 else "__init__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module."""

    target: str
    line: int
    #: False: inside a function, so it is loaded only when that runs.
    at_load: bool
    #: True: under `if TYPE_CHECKING`, never executed.
    typing_only: bool


@cache
def package_modules() -> tuple[Module, ...]:
    """Return the modules of the package and the top-level data source module."""
    found = [_read(path) for path in sorted(PACKAGE.rglob("*.py"))]
    found += [_read(path) for path in sorted((ROOT / "src").glob("*.py"))]
    return tuple(found)


@cache
def script_modules() -> tuple[Module, ...]:
    """Return jobs, tools, benchmarks, examples and integrations."""
    return tuple(
        _read(path)
        for folder in ("jobs", "tools", "benchmarks", "examples", "integrations")
        for path in sorted((ROOT / folder).rglob("*.py"))
    )


def modules_of_tests() -> tuple[Module, ...]:
    """Return the tests; nobody keeps them, parsed they are a gigabyte."""
    return tuple(_read(path) for path in sorted((ROOT / "tests").rglob("*.py")))


def _read(path: Path) -> Module:
    relative = path.relative_to(ROOT / "src" if (ROOT / "src") in path.parents else ROOT)
    parts = list(relative.with_suffix("").parts)
    if parts[-1] == "__init__":
        parts.pop()
    return Module(path=path, name=".".join(parts), text=path.read_text())


def _imports(
    node: ast.AST, module: Module, *, at_load: bool, typing_only: bool
) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue  # an import is a statement
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            for target in _targets(child, module):
                yield Import(
                    target=target, line=child.lineno, at_load=at_load, typing_only=typing_only
                )
        inside = at_load and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
        guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        yield from _imports(child, module, at_load=inside, typing_only=typing_only or guarded)


def _targets(node: ast.AST, module: Module) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parent = module.name.split(".")[: -node.level or None]
            if module.path.name == "__init__.py" and node.level == 1:
                parent = module.name.split(".")
            base = ".".join([*parent, base]).rstrip(".")
        # `from sparktxlog.protocol import messages` imports the module, not a name of the package.
        if base == "sparktxlog" or base.startswith("sparktxlog."):
            return [
                f"{base}.{alias.name}" if _is_module(f"{base}.{alias.name}") else base
                for alias in node.names
            ]
        return [base]
    return []


@cache
def _is_module(name: str) -> bool:
    path = ROOT.joinpath("src", *name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def functions_of(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield all functions and methods, nested ones included."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


@cache
def committed_files() -> tuple[Path, ...]:
    """Return all files that git knows or would add, without ignored ones."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    names = answer.stdout.decode().split("\0")
    return tuple(ROOT / name for name in sorted(set(names)) if name and (ROOT / name).is_file())
