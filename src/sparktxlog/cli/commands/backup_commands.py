"""Commands `backup` and `restore`: images of a site's replica, without a node.

Spark is started only to count rows: by `restore` without --no-verify and `backup verify --recount`.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparktxlog.api.jobs.job_options import require_spark
from sparktxlog.cli.common_options import (
    DEFAULT_URL,
    AsJson,
    ExitCode,
    NodeApi,
    Url,
    app,
    end,
    local_place,
    local_spark,
    places_by,
    short_for,
)
from sparktxlog.cli.dry_runs import DryRun, print_plan
from sparktxlog.cli.printing import Columns, print_json, print_table, progress_bar, show
from sparktxlog.errors import ExpiredError, NotOfferedError, TxLogError
from sparktxlog.model.shown import time_text

if TYPE_CHECKING:
    from sparktxlog.worker.backup.commit_table_images import KeptCommitTable
    from sparktxlog.worker.backup.image import Image
    from sparktxlog.worker.backup.image_store import ImageStore
    from sparktxlog.worker.replica.state import ReplicaTable


backup_app = typer.Typer(
    cls=short_for("create"),
    no_args_is_help=True,
    help="Back up a site's replica: `backup DIR` stores an image; see also list and verify.",
)
app.add_typer(backup_app, name="backup")
Directory = Annotated[
    str,
    typer.Argument(
        metavar="DIRECTORY",
        help="Directory of the images, or s3://bucket/prefix, abfss://…, gs://….",
    ),
]
ImageName = Annotated[
    str | None,
    typer.Argument(help="Name of the image; default: the one with the highest position."),
]
#: Table → recorded and counted signature, where they differ.
Wrong = dict[str, tuple[str, str]]


@backup_app.command(
    "create", epilog="Example: sparktxlog backup /backups/site-a --config conf/site-a.toml"
)
def create(
    directory: Directory,
    name: Annotated[
        str | None, typer.Option(help="Name of the image; default: the time, UTC.")
    ] = None,
    lake: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Root of the replica's tables, or its URL; default: the node's.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="Configuration of the site, instead of asking a node."),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Store the replica at its newest complete batch as an image; only new files are written.

    `sparktxlog backup DIR` is the short form.  The worker may run meanwhile.
    """
    from sparktxlog.worker.backup.image_places import images_at
    from sparktxlog.worker.backup.imaging import back_up_replica, image_name
    from sparktxlog.worker.lakes.site_roots import check_apart

    images, source = images_at(directory), _source(lake, config, url)
    check_apart(images.url, source.roots)
    begun = time.monotonic()
    with progress_bar("backing up") as tell:
        done = back_up_replica(
            source.lake,
            images,
            name=name or image_name(time.time_ns() // 1000),
            site=source.site,
            commit_tables=source.commit_tables,
            tell=tell,
        )
    result = _summary(done.image) | {
        "new_files": done.new_files,
        "added_bytes": done.added_bytes,
        "mended_files": done.mended_files,
        "repeated": done.repeated,
        "seconds": round(time.monotonic() - begun, 3),
    }
    if as_json:
        print_json(result)
    else:
        typer.echo(
            f"Image {done.image.name}: position {done.image.position:,}, {done.image.files:,} "
            f"files of {done.image.size_bytes:,} bytes.  New: {done.new_files:,} files, "
            f"{done.added_bytes:,} bytes, in {result['seconds']:,} s."
        )
        if done.mended_files:
            typer.echo(
                f"{done.mended_files:,} of them were stored before, and damaged or missing: the "
                "older images have them again."
            )


@backup_app.command("list", epilog="Example: sparktxlog backup list /backups/site-a")
def list_images(directory: Directory, as_json: AsJson = False) -> None:
    """List the images of a directory, oldest first."""
    from sparktxlog.worker.backup.image_places import images_at

    images = [_summary(image) for image in images_at(directory).images()]
    columns: Columns = {
        "image": "image",
        "made (UTC)": lambda image: time_text(image["created_at"]),
        "site": "site",
        "log_id": "log_id",
        "position": "position",
        "tables": lambda image: f"{len(image['tables'])}{' (a set)' if image['only'] else ''}",
        "commit tables": lambda image: len(image["commit_tables"]),
        "files": "files",
        "bytes": "size_bytes",
    }
    show(images, as_json, f"images in {directory}", columns)


@backup_app.command("verify", epilog="Example: sparktxlog backup verify /backups/site-a")
def verify_image(
    directory: Directory,
    name: ImageName = None,
    recount: Annotated[
        bool, typer.Option("--recount", help="Also recount the signatures, with Spark.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Read an image's files and compare their digests; exit code 1 if files are damaged.

    With --recount also count the rows of the image's tables where they lie: exit code 4 if those
    of a table do not match its signature.
    """
    from sparktxlog.worker.backup.disk_images import DiskImages
    from sparktxlog.worker.backup.image_places import images_at
    from sparktxlog.worker.backup.restoring import choose_image, damaged_files, tables_of

    store, root = images_at(directory), Path()
    if recount:
        if not isinstance(store, DiskImages):
            raise NotOfferedError(
                f"--recount is not offered for images in a bucket: their files in {store.url} have "
                "no names of tables",
                hint="`sparktxlog restore` into a new lake counts the rows; "
                "`sparktxlog drill --backup` does so aside.",
                directory=store.url,
            )
        require_spark()
        root = store.root
    image = choose_image(store, name, None)
    with progress_bar("verifying") as tell:
        damaged = damaged_files(store, image, tell=tell)
    counted = recount and not damaged
    wrong = _recount(root / image.name, tables_of(image)) if counted else {}
    if as_json:
        print_json(_summary(image) | {"damaged": damaged} | _counted(counted, wrong))
    elif damaged:
        columns: Columns = {"table": "table", "file": "path", "stored as": "stored"}
        print_table(f"image {image.name} is damaged", columns, damaged)
    else:
        said = _counted(counted, wrong)["signatures"]
        typer.echo(
            f"Image {image.name}: all {image.files:,} files have their digests; signatures: {said}."
        )
        print_wrong(wrong)
    if damaged:
        end(ExitCode.ERROR)
    end(ExitCode.DIVERGED if wrong else ExitCode.IN_SYNC)


@app.command(epilog="Example: sparktxlog restore /backups/site-a --lake data/a/lake")
def restore(
    directory: Directory,
    lake: Annotated[
        str,
        typer.Option(
            metavar="PATH", help="New root of the replica's tables, or its URL; it must be empty."
        ),
    ],
    name: ImageName = None,
    at_most: Annotated[
        int | None, typer.Option(min=1, help="Use only images up to this position.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="POINT",
            help="Use only images up to this restore point, which the node at --url knows.",
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    force_clean: Annotated[
        bool, typer.Option("--force-clean", help="Remove what an interrupted restore left.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option("--verify/--no-verify", help="Recount the signatures afterwards, with Spark."),
    ] = True,
    commit_tables: Annotated[
        str | None,
        typer.Option(
            "--commit-tables",
            metavar="DIR",
            help="Also restore commit tables, into commit-table-dir, or commit-table-url, of the "
            "node.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Write an image into a new lake; a worker replays the rest of the log from there.

    Digests of all files are compared, then the rows are counted: exit code 4 if the rows of a table
    do not match its signature.  --no-verify skips the count, and needs no Spark.
    """
    from sparktxlog.worker.backup.image_places import images_at
    from sparktxlog.worker.backup.restoring import choose_image

    store, place = images_at(directory), place_of_lake(lake)
    tables = None if commit_tables is None else place_of_lake(commit_tables)
    if at is not None and at_most is not None:
        raise typer.BadParameter("--at and --at-most exclude each other")
    image = (
        _image_for_point(store, name, at, NodeApi(url))
        if at
        else choose_image(store, name, at_most)
    )
    if dry_run:
        print_plan(as_json, *_restore_plan(image, place, tables, force_clean))
        return
    if verify:
        require_spark("Or add --no-verify, and count the rows later with sparktxlog verify.")
    result, wrong = _write_image(store, image, place, tables, force_clean, verify)
    if as_json:
        print_json(result)
    else:
        _tell_restored(image, result, at, wrong)
    end(ExitCode.DIVERGED if wrong else ExitCode.IN_SYNC)


def _write_image(
    store: ImageStore,
    image: Image,
    lake: str | Path,
    commit_tables: str | Path | None,
    force_clean: bool,
    verify: bool,
) -> tuple[dict[str, Any], Wrong]:
    """Do what `restore` does; return its result, and the tables that differ."""
    from sparktxlog.worker.backup.restoring import check_room, restore_replica

    begun = time.monotonic()
    # First: else commit tables are there, and the answer says that nothing was done.
    check_room(lake, force_clean=force_clean)
    restored = _restore_commit_tables(store, image, commit_tables)
    with progress_bar("restoring") as tell:
        state = restore_replica(store, image, lake, force_clean=force_clean, tell=tell)
    restored_s = round(time.monotonic() - begun, 3)
    wrong = _recount(lake) if verify else {}
    result = (
        _summary(image)
        | {
            "lake": str(lake),
            "worker_id": state.worker_id,
            "seconds": restored_s,
            "digests": "equal",
            "restored_commit_tables": restored,
        }
        | _counted(verify, wrong)
    )
    return result, wrong


def _tell_restored(image: Image, done: dict[str, Any], at: str | None, wrong: Wrong) -> None:
    typer.echo(
        f"Image {image.name} is in {done['lake']}: position {image.position:,}, {image.files:,} "
        f"files, {image.size_bytes:,} bytes in {done['seconds']:,} s."
    )
    later = "  `sparktxlog verify` counts them once a worker has reported."
    typer.echo(
        f"Digests of all files are equal; signatures: {done['signatures']}."
        + (later if done["signatures"] == "not counted" else "")
    )
    if at is not None:
        typer.echo(f"`sparktxlog apply --at {at}` brings it to the restore point.")
    print_wrong(wrong)


def _image_for_point(store: ImageStore, name: str | None, at: str, api: NodeApi) -> Image:
    """Return the newest image from which the log leads to a restore point.

    Raises:
        NotFoundError: There is no such point, or no image before it (definite).
        ExpiredError: The log no longer leads from the image to the point (definite).
        TransportError: No node answers.
    """
    from sparktxlog.api.reading.restore_points import named_point
    from sparktxlog.worker.backup.restoring import choose_image

    point, info = named_point(api.get, at), api.get("/v1/info")
    image = choose_image(store, name, point.position)
    if image.position < min(info["kept_after"], point.position):
        raise ExpiredError(
            f"restore point {at!r} is position {point.position:,}, the newest image before it is "
            f"{image.name} at {image.position:,}, and the log between them is gone: it begins "
            f"after {info['kept_after']:,}",
            hint="Name the directory of another site's images, or restore what the image has: "
            f"--at-most {image.position}.  A site that still has its versions shows the tables by "
            f"log.table(NAME, at={at!r}).",
            point=at,
            position=point.position,
        )
    return image


def _restore_plan(
    image: Image, lake: str | Path, commit_tables: str | Path | None, force_clean: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return what `restore` would do, as a document and in sentences."""
    from sparktxlog.worker.backup.restoring import check_room

    check_room(lake, force_clean=force_clean)
    lines, free = (
        [
            f"Image {image.name}, position {image.position:,}, would be written to {lake}.",
            f"{image.files:,} files of {image.size_bytes:,} bytes.",
            f"Tables: {', '.join(sorted(image.tables)) or 'none'}.",
        ],
        None,
    )
    if isinstance(lake, Path):
        there = next(path for path in (lake, *lake.absolute().parents) if path.is_dir())
        free = shutil.disk_usage(there).free
        lines.append(f"{free:,} bytes are free there.")
        if free < image.size_bytes:
            lines.append("It would not fit: make room first.")
    if force_clean and not (isinstance(lake, Path) and not lake.exists()):
        lines.append(f"What an interrupted restore left in {lake} would be removed first.")
    if image.commit_tables:
        where = f"would go to {commit_tables}" if commit_tables else "would be left out"
        lines.append(f"{len(image.commit_tables):,} commit tables {where}.")
    return _summary(image) | {"lake": str(lake), "free_bytes": free}, lines


def _restore_commit_tables(store: ImageStore, image: Image, root: str | Path | None) -> int:
    """Restore the commit tables of an image if a directory is named; return how many."""
    from sparktxlog.worker.backup.commit_table_images import restore_commit_tables

    if root is None:
        if image.commit_tables:
            typer.echo(
                f"The {len(image.commit_tables):,} commit tables of the image are not restored.  "
                "Name the node's commit-table-dir, or commit-table-url, with --commit-tables.",
                err=True,
            )
        return 0
    written, found = restore_commit_tables(store, image, root)
    tables = len(image.commit_tables)
    typer.echo(
        f"{tables:,} commit tables are in {root}: {written:,} files written, {found:,} were there.",
        err=True,
    )
    return tables


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What is backed up."""

    #: A directory, or the URL of a bucket.
    lake: str | Path
    #: Empty = no node serves the lake.
    site: str = ""
    commit_tables: Sequence[KeptCommitTable] = ()
    #: Directories and prefixes of the site's tables and staged files.
    roots: Sequence[str] = ()


def _source(given: str | None, config: Path | None, url: str) -> _Source:
    """Return site, lake and commit tables, from the first that is named.

    All but the lake come from a node that serves it.
    """
    from sparktxlog.worker.backup.commit_table_images import commit_tables_below
    from sparktxlog.worker.lakes.site_roots import roots_of

    lake = None if given is None else place_of_lake(given)
    if config is not None:
        from sparktxlog.config import load_config

        checked = load_config(config)
        return _Source(
            lake=lake or checked.lake_url or checked.lake_dir,
            site=checked.node_id,
            commit_tables=commit_tables_below(checked.commit_table_url or checked.commit_table_dir),
            roots=roots_of(places_by(checked)),
        )
    api = NodeApi(url)
    try:
        info = api.get("/v1/info")
    except TxLogError:
        # A named lake needs no node; a message below says what is missing.
        if lake is None:
            raise
        info = {}
    root = info.get("lake_url") or info.get("lake_root")
    if lake is not None and (root is None or place_of_lake(root) != lake):
        typer.echo(
            f"No node at {url} serves {lake}, so commit tables are left out.  Add --config or "
            "--url.",
            err=True,
        )
        return _Source(lake=lake, roots=(str(lake),))
    url_of_tables = info.get("commit_table_url")
    shown = {
        str(table["uuid"]): (str(table["name"]), int(table["version"]))
        for table in api.get("/v1/commit-tables")
        if table["version"] is not None
    }
    return _Source(
        lake=place_of_lake(root),
        site=str(info["node_id"]),
        commit_tables=commit_tables_below(url_of_tables or Path(info["commit_table_dir"]), shown),
        roots=roots_of(info),
    )


def place_of_lake(lake: str) -> str | Path:
    """Return a lake as it is named everywhere: a URL, or an absolute path."""
    from sparktxlog.worker.lakes.lake_places import bucket_at, is_in_bucket

    return bucket_at(lake).url if is_in_bucket(lake) else local_place(lake).absolute()


def _counted(done: bool, wrong: Wrong) -> dict[str, Any]:
    said = ("differ" if wrong else "equal") if done else "not counted"
    return {"signatures": said, "differing": wrong}


def print_wrong(wrong: Wrong) -> None:
    """Print the tables that differ."""
    for table, (recorded, counted) in wrong.items():
        typer.echo(f"table {table}: recorded {recorded}, counted {counted}")


def rehearse_image(
    directory: str, *, with_spark: bool
) -> tuple[dict[str, Any], Callable[[], tuple[float, Wrong]]]:
    """Return the newest image, and what restores it aside and counts its rows.

    Args:
        with_spark: Whether rows are counted, if there is Spark; digests always are.
    """
    from sparktxlog.worker.backup.image_places import images_at
    from sparktxlog.worker.backup.restoring import choose_image, restore_replica

    store = images_at(directory)
    image = choose_image(store, None, None)
    counts = with_spark and find_spec("pyspark") is not None

    def run() -> tuple[float, Wrong]:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="sparktxlog-restored-") as room:
            lake = Path(room) / "lake"
            with progress_bar("writing") as tell:
                restore_replica(store, image, lake, tell=tell)
            wrong = _recount(lake) if counts else {}
        return time.monotonic() - begun, wrong

    return _summary(image), run


def _recount(lake: str | Path, tables: Mapping[str, ReplicaTable] | None = None) -> Wrong:
    with local_spark("restore", [lake] if isinstance(lake, str) else []) as spark:
        from sparktxlog.worker.verify.verify import recount_tables

        return recount_tables(spark, lake, tables)


def _summary(image: Image) -> dict[str, Any]:
    return {
        "image": image.name,
        "created_at": image.created_at,
        "site": image.site,
        "log_id": image.log_id,
        "epoch": image.epoch,
        "position": image.position,
        "chain_hash": image.chain_hash,
        "only": list(image.only),
        "files": image.files,
        "size_bytes": image.size_bytes,
        "tables": {
            name: {"version": table.version, "signature": table.signature.to_text()}
            for name, table in sorted(image.tables.items())
        },
        "commit_tables": {
            uuid: {"name": table.name, "version": table.version}
            for uuid, table in sorted(image.commit_tables.items())
        },
    }
