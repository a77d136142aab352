"""Every command without Spark: it works, or says what is missing before it does anything.

Run as a program, this file calls all commands where PySpark cannot be imported.
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

#: It starts a node, and needs no Spark for that.
_START_NODES = {"serve"}
#: Arguments of some commands, with which they do something; else those that are required.
_GIVEN = {
    "table adopt": ["table", "adopt", "t", "/nowhere", "--as", "commit-table"],
    "maintain --no-optimize --no-vacuum": ["maintain", "--no-optimize", "--no-vacuum"],
    "verify --compare": ["verify", "--compare"],
}
_NEED_SPARK = {
    *("apply", "catch-up", "commit", "maintain", "repair", "replicate"),
    *("table adopt", "table follow"),
}


def test_commands_say_what_is_missing_before_they_do_anything(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    program = subprocess.run(
        [sys.executable, __file__],
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
    missing = {name for name, said in told.items() if "[missing-dependency]" in said}
    assert missing == _NEED_SPARK, {name: told.get(name) for name in missing ^ _NEED_SPARK}
    assert "pip install" in told["maintain"]
    for name in _GIVEN.keys() - _NEED_SPARK:
        assert "[unreachable]" in told[name], told[name]


def _leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield all commands, each with a value for everything that it requires."""
    for name, one in getattr(command, "commands", {}).items():
        yield from _leaves(one, (*words, name))
    if hasattr(command, "commands"):
        return
    arguments = list(words)
    for parameter in command.params if words[0] not in _START_NODES else ():
        if parameter.required:
            choices = get_args(parameter.bare_type) or ("1",)
            flag = [parameter.opts[0]] if parameter.param_type_name == "option" else []
            arguments += [*flag, str(choices[0])]
    yield " ".join(words), [*arguments, *(["--help"] if words[0] in _START_NODES else [])]


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
    for name in ("pyspark", "py4j", "delta"):
        sys.modules[name] = None  # type: ignore[assignment]
    import typer

    from sparktxlog.cli import command_line  # noqa: F401 - it adds all commands
    from sparktxlog.cli.common_options import app

    commands = typer.main.get_command(app)
    # Typer would make all commands again for each call: longer than a call takes.
    typer.main.get_command = lambda typer_instance: commands
    found = [*_leaves(commands), *_GIVEN.items()]
    print(json.dumps({name: _called(arguments) for name, arguments in found}))


if __name__ == "__main__":
    main()
