"""Every command without an extra: it works, or says what is missing before it does anything.

Run as a program, this file calls all commands where the libraries of an extra cannot be imported.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, get_args

from sparktxlog.errors import EXTRAS

#: Arguments of some commands, with which they do something; else those that are required.
_GIVEN = {
    # Where their libraries are there, they stop at this directory and file.
    "demo": ["demo", "--dir", "/nowhere/demo"],
    "serve": ["serve", "--config", "/nowhere.toml"],
    "table adopt": ["table", "adopt", "t", "/nowhere", "--as", "commit-table"],
    "maintain --no-optimize --no-vacuum": ["maintain", "--no-optimize", "--no-vacuum"],
    "verify --compare": ["verify", "--compare"],
}
_NEED_SPARK = {
    *("apply", "catch-up", "commit", "maintain", "repair", "replicate"),
    *("table adopt", "table follow"),
}


#: They work with a node's own files, or start one.
_NEED_NODE = {"config check", "demo", "peer quarantine", "serve"}
#: Libraries that both extras install.
_OF_BOTH = {"deltalake", "rich", "structlog", "typer"}


def _told_without(libraries: set[str], tmp_path: Path) -> dict[str, str]:
    """Return what each command says where libraries are missing."""
    root = Path(__file__).parents[3]
    program = subprocess.run(
        [sys.executable, __file__, *sorted(libraries)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": f"{root / 'src'}:{root}",
            # Nothing listens there: a command that asks a node first says that instead.
            "SPARKTXLOG_URL": "http://127.0.0.1:1",
            "HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    told: dict[str, str] = json.loads(program.stdout.splitlines()[-1])
    assert len(told) > 40
    assert not {name: said for name, said in told.items() if "Traceback" in said}
    return told


def _missing(told: dict[str, str]) -> set[str]:
    return {name for name, said in told.items() if "[missing-dependency]" in said}


def test_commands_say_what_is_missing_before_they_do_anything(tmp_path: Path) -> None:
    told = _told_without({"pyspark", "py4j", "delta"}, tmp_path)
    missing = _missing(told)
    assert missing == _NEED_SPARK, {name: told.get(name) for name in missing ^ _NEED_SPARK}
    assert all("pip install 'sparktxlog[spark]'" in told[name] for name in missing)
    for name in _GIVEN.keys() - _NEED_SPARK - {"demo", "serve"}:
        assert "[unreachable]" in told[name], told[name]


def test_a_node_without_its_extra_says_so_before_it_reads_or_writes_anything(
    tmp_path: Path,
) -> None:
    libraries = {name for name, extra in EXTRAS.items() if extra == "node"} - _OF_BOTH
    assert {"fastapi", "uvloop"} <= libraries
    told = _told_without(libraries, tmp_path)
    missing = _missing(told)
    assert missing == _NEED_NODE, {name: told.get(name) for name in missing ^ _NEED_NODE}
    assert all("pip install 'sparktxlog[node]'" in told[name] for name in missing)
    assert not (tmp_path / "data").exists()


def _leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield all commands, each with a value for everything that it requires."""
    for name, one in getattr(command, "commands", {}).items():
        yield from _leaves(one, (*words, name))
    if hasattr(command, "commands"):
        return
    arguments = list(words)
    for parameter in command.params:
        if parameter.required:
            choices = get_args(parameter.bare_type) or ("1",)
            flag = [parameter.opts[0]] if parameter.param_type_name == "option" else []
            arguments += [*flag, str(choices[0])]
    yield " ".join(words), arguments


def _called(arguments: list[str]) -> str:
    from sparktxlog.cli.command_line import run

    said = io.StringIO()
    sys.argv = ["sparktxlog", *arguments]
    with redirect_stdout(said), redirect_stderr(said):
        try:
            run()
        except SystemExit:
            pass
        except BaseException:
            said.write(traceback.format_exc())
    return said.getvalue()


def main() -> None:
    """Call all commands; print what each of them says, as JSON."""
    for name in sys.argv[1:]:
        sys.modules[name] = None  # type: ignore[assignment]
    import typer

    from sparktxlog.cli import command_line  # noqa: F401 - it adds all commands
    from sparktxlog.cli.common_options import app

    commands = typer.main.get_command(app)
    # Typer would make all commands again for each call: longer than a call takes.
    typer.main.get_command = lambda typer_instance: commands
    found = dict(_leaves(commands)) | _GIVEN
    print(json.dumps({name: _called(arguments) for name, arguments in found.items()}))


if __name__ == "__main__":
    main()
