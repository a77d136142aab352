"""Commands `backup` and `restore`: images of a site's replica, without Spark and without a node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from sparktxlog.cli.node_api import DEFAULT_URL, NodeApi
from sparktxlog.cli.options import AsJson, Url
from sparktxlog.cli.output import ExitCode, print_json, print_rows, time_text

if TYPE_CHECKING:
    from sparktxlog.worker.image_store import Image
    from sparktxlog.worker.imaging import Progress


class _DirectoryFirst(TyperGroup):
    """`backup DIR` is short for `backup create DIR`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["create", *args]
        return super().parse_args(ctx, args)


backup_app = typer.Typer(
    cls=_DirectoryFirst,
    no_args_is_help=True,
    help="Back up a site's replica: `backup DIR` stores an image, list and verify look at them.",
)
Directory = Annotated[Path, typer.Argument(help="Directory of the images.")]


@backup_app.command(
    "create", epilog="Example: sparktxlog backup /backups/site-a --config conf/site-a.toml"
)
def create(
    directory: Directory,
    name: Annotated[
        str | None, typer.Option(help="Name of the image; default: the time, UTC.")
    ] = None,
    lake: Annotated[
        Path | None, typer.Option(help="Root of the replica's tables; default: the node's.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Configuration of the site; no node is asked then."),
    ] = None,
    url: Url = DEFAULT_URL,
    no_compression: Annotated[
        bool, typer.Option("--no-compression", help="Store all files as they are.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Store the replica's newest whole batch as an image; only what is new is stored.

    `sparktxlog backup DIR` is short for it.  The worker may go on meanwhile.
    """
    from sparktxlog.worker.image_store import ImageStore
    from sparktxlog.worker.imaging import back_up_replica, image_name

    site, root, compress = _source(lake, config, url)
    store = ImageStore(directory, compress=compress and not no_compression)
    begun = time.monotonic()
    with _bar("backing up") as tell:
        done = back_up_replica(
            root, store, name=name or image_name(time.time_ns() // 1000), site=site, tell=tell
        )
    result = _summary(done.image) | {
        "read_files": done.read_files,
        "new_files": done.new_files,
        "added_bytes": done.added_bytes,
        "repeated": done.repeated,
        "seconds": round(time.monotonic() - begun, 3),
    }
    if as_json:
        print_json(result)
    else:
        typer.echo(
            f"Image {done.image.name}: position {done.image.position:,}, {done.image.files:,} "
            f"files of {done.image.size_bytes:,} bytes.  New: {done.new_files:,} files, "
            f"{done.added_bytes:,} bytes on disk, in {result['seconds']:,} s."
        )


@backup_app.command("list", epilog="Example: sparktxlog backup list /backups/site-a")
def list_images(directory: Directory, as_json: AsJson = False) -> None:
    """List the images of a directory, oldest first."""
    from sparktxlog.worker.image_store import ImageStore

    images = ImageStore(directory).images()
    if as_json:
        print_json([_summary(image) for image in images])
        return
    print_rows(
        f"images in {directory}",
        ("image", "made (UTC)", "site", "lineage", "position", "tables", "files", "bytes"),
        [
            [image.name, time_text(image.created_at), image.site, image.lineage, image.position,
             len(image.tables), image.files, image.size_bytes]
            for image in images
        ],
    )  # fmt: skip


@backup_app.command("verify", epilog="Example: sparktxlog backup verify /backups/site-a 20260101")
def verify_image(
    directory: Directory,
    name: Annotated[str, typer.Argument(help="Name of the image.")],
    as_json: AsJson = False,
) -> None:
    """Read an image's files and compare their digests; exit code 1 names the damaged ones."""
    from sparktxlog.worker.image_store import ImageStore
    from sparktxlog.worker.restoring import damaged_files

    store = ImageStore(directory)
    image = store.image(name)
    with _bar("verifying") as tell:
        damaged = damaged_files(store, image, tell=tell)
    if as_json:
        print_json(_summary(image) | {"damaged": damaged})
    elif damaged:
        print_rows(f"image {name} is damaged", ("table", "file", "stored as"), _rows(damaged))
    else:
        typer.echo(f"Image {name}: all {image.files:,} files have their digests.")
    if damaged:
        raise typer.Exit(int(ExitCode.ERROR))


def restore(
    directory: Directory,
    lake: Annotated[Path, typer.Option(help="New root of the replica's tables; it must be empty.")],
    name: Annotated[
        str | None,
        typer.Argument(help="Name of the image; default: the one with the highest position."),
    ] = None,
    at_most: Annotated[
        int | None, typer.Option(min=1, help="Take no image beyond this position.")
    ] = None,
    force_clean: Annotated[
        bool, typer.Option("--force-clean", help="Remove what a broken-off restore left.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Recount the signatures afterwards, with Spark.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write an image into a new lake; a worker replays the rest of the log from there.

    Digests of files are compared; signatures of rows only with --verify.
    """
    from sparktxlog.worker.image_store import ImageStore
    from sparktxlog.worker.restoring import choose_image, restore_replica

    store = ImageStore(directory)
    image = choose_image(store, name, at_most)
    begun = time.monotonic()
    with _bar("restoring") as tell:
        state = restore_replica(store, image, lake, force_clean=force_clean, tell=tell)
    restored_s = round(time.monotonic() - begun, 3)
    wrong = _recount(lake) if verify else {}
    result = _summary(image) | {
        "lake": str(lake),
        "worker_id": state.worker_id,
        "seconds": restored_s,
        "digests": "equal",
        "signatures": ("differ" if wrong else "equal") if verify else "not counted",
        "differing": wrong,
    }
    if as_json:
        print_json(result)
    else:
        typer.echo(
            f"Image {image.name} is in {lake}: position {image.position:,}, {image.files:,} files, "
            f"{image.size_bytes:,} bytes in {restored_s:,} s."
        )
        typer.echo(
            f"Digests of all files are equal; signatures: {result['signatures']}."
            + ("" if verify else "  --verify counts them.")
        )
        for table, (recorded, counted) in wrong.items():
            typer.echo(f"table {table}: recorded {recorded}, counted {counted}")
    if wrong:
        raise typer.Exit(int(ExitCode.DIVERGED))


def _source(lake: Path | None, config: Path | None, url: str) -> tuple[str, Path, bool]:
    """Return site, lake and whether to compress, from the first source that is named."""
    if config is not None:
        from sparktxlog.config import load_config

        checked = load_config(config)
        return checked.node_id, lake or checked.lake_dir, checked.replication_compression
    if lake is not None:
        return "", lake, True
    info = NodeApi(url).get("/v1/info")
    return str(info["node_id"]), Path(info["lake_root"]), True


def _recount(lake: Path) -> dict[str, tuple[str, str]]:
    from sparktxlog.api.session import build_session
    from sparktxlog.worker.verify import recount_tables

    spark = build_session("local[*]", app_name="sparktxlog-restore")
    try:
        return recount_tables(spark, lake)
    finally:
        spark.stop()


def _summary(image: Image) -> dict[str, Any]:
    return {
        "image": image.name,
        "created_at": image.created_at,
        "site": image.site,
        "lineage": image.lineage,
        "epoch": image.epoch,
        "position": image.position,
        "chain_hash": image.chain_hash,
        "files": image.files,
        "size_bytes": image.size_bytes,
        "tables": {
            name: {"version": table.version, "signature": table.signature.to_text()}
            for name, table in sorted(image.tables.items())
        },
    }


def _rows(damaged: Sequence[dict[str, str]]) -> list[list[str]]:
    return [[item["table"], item["path"], item["stored"]] for item in damaged]


@contextmanager
def _bar(what: str) -> Iterator[Callable[[Progress], None]]:
    """Show progress on stderr if somebody is watching."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(bar_width=40),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    with bars:
        task = bars.add_task(what, total=None)

        def tell(progress: Progress) -> None:
            bars.update(
                task,
                total=progress.total_bytes,
                completed=progress.size_bytes,
                description=f"{what} {progress.table}",
            )

        yield tell
