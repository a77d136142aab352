"""`sparktxlog demo`: two sites on this machine, one order, and a node that is killed."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sparktxlog.cli.common_options import AsJson, ExitCode, app, end, local_place
from sparktxlog.cli.printing import print_json
from sparktxlog.cli.serve import require_node
from sparktxlog.errors import ConfigError
from sparktxlog.files.durability import storing

#: Ctrl-C, `kill`, and a terminal that is closed.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@app.command(epilog="Example: sparktxlog demo --keep --dir demo")
def demo(
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="Directory of the sites, new or empty; default: a temporary one.",
            parser=local_place,
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the directory, and say how to go on with it.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65534, help="Port of the first site, the other has the next; default: free."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show two sites on this machine: both write, a node is killed, and all is equal in the end.

    It makes two sites as `init --sites 2` does, and says each step. Where PySpark and Java are
    there, Spark makes the tables of both sites, and their signatures are compared. In the end, and
    after Ctrl-C, its nodes are stopped, and without --keep nothing of it is left.

    Exit code 0: the sites were equal; 4: they were not.
    """
    require_node()
    from sparktxlog.cli.demo.demo_sites import free_port
    from sparktxlog.cli.demo.demo_story import SITES, DemoStory

    with _ended_by_signals(), _place(directory, keep=keep) as root:
        story = DemoStory(root, free_port(SITES, port), as_json=as_json)
        try:
            story.play()
        finally:
            for number in _ENDS:  # what is left to do is short
                signal.signal(number, signal.SIG_IGN)
            story.stop()
        if as_json:
            print_json(story.found | {"directory": str(root) if keep else None})
        else:
            story.say_end(kept=keep)
    end(ExitCode.IN_SYNC if story.found["equal"] else ExitCode.DIVERGED)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let each of `_ENDS` raise KeyboardInterrupt."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _place(directory: Path | None, *, keep: bool) -> Iterator[Path]:
    """Yield the directory of the sites; in the end remove what was made.

    Raises:
        ConfigError: It is not empty, or no directory (definite).
        DiskFullError, StorageError: It cannot be made.
    """
    with storing(directory or "a temporary directory"):
        is_new = directory is None or not directory.exists()
        root = Path(tempfile.mkdtemp(prefix="sparktxlog-demo-")) if directory is None else directory
        root = root.absolute()
        if not is_new and (not root.is_dir() or any(root.iterdir())):
            raise ConfigError(
                f"--dir {root} is not empty" if root.is_dir() else f"--dir {root} is no directory",
                hint="Name a new directory, or leave it out for a temporary one.",
                key="dir",
                value=str(root),
            )
        root.mkdir(exist_ok=True)
    try:
        yield root
    finally:
        with storing(root):
            for path in () if keep else root.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            if is_new and not keep:
                root.rmdir()
