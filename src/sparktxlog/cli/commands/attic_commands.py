"""Commands `attic …`: what a site has set aside is listed, taken back, removed, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparktxlog.cli.common_options import (
    DEFAULT_URL,
    AsJson,
    NodeApi,
    Url,
    app,
    local_place,
    places_by,
)
from sparktxlog.cli.dry_runs import DryRun, print_plan
from sparktxlog.cli.printing import Columns, print_json, show
from sparktxlog.errors import InvalidRequestError, NotFoundError
from sparktxlog.model.shown import time_text

if TYPE_CHECKING:
    from sparktxlog.attic.attic import Attic, Entry
    from sparktxlog.attic.bucket_attic import BucketAttic

attic_app = typer.Typer(
    help="What a site has set aside: dropped tables, and what copies and repairs replaced.",
    no_args_is_help=True,
)
app.add_typer(attic_app, name="attic")
Lake = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="Only the attic of this lake, or of its URL; asks no node."),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Configuration of the site, instead of asking a node."),
]
EntryId = Annotated[str, typer.Argument(metavar="ID", help="As `attic list` shows it.")]


@attic_app.command("list", epilog="Example: sparktxlog attic list --kind dropped --json")
def list_entries(
    kind: Annotated[str | None, typer.Option(help="Only this kind, as dropped or rows.")] = None,
    table: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this table.")] = None,
    lake: Lake = None,
    config: Config = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List what the site has set aside, oldest first; run it where its directories are."""
    from sparktxlog.attic.attic import Kind

    kinds = [one.value for one in Kind]
    if kind not in (None, *kinds):
        raise InvalidRequestError(
            f"kind is {kind!r}", hint=f"One of {', '.join(kinds)}.", field="kind", value=kind
        )
    wanted = None if kind is None else Kind(kind)
    entries = [
        _document(entry)
        for attic in _attics(lake, config, url).attics
        for entry in attic.entries(wanted, table)
    ]
    entries.sort(key=lambda entry: entry["at"])
    columns: Columns = {
        "id": "id",
        "kind": "kind",
        "table": "table",
        "put there (UTC)": lambda entry: time_text(entry["at"]) if entry["at"] else "",
        "why": "why",
    }
    show(entries, as_json, "attic", columns)


@attic_app.command("show", epilog="Example: sparktxlog attic show dropped-orders-57")
def show_entry(
    entry_id: EntryId,
    lake: Lake = None,
    config: Config = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show what an entry is, why and when it was put there, and how large it is."""
    attic, entry = _found(_attics(lake, config, url), entry_id)
    files, size_bytes = attic.measured(entry)
    found = _document(entry) | {"files": files, "size_bytes": size_bytes}
    if as_json:
        print_json(found)
        return
    found["at"] = time_text(found["at"]) if found["at"] else ""
    for name, value in (found | found.pop("facts")).items():
        if value not in ("", None, []):
            typer.echo(f"{name}: {value}")


@attic_app.command(
    "restore", epilog="Example: sparktxlog attic restore dropped-orders-57 /data/orders-again"
)
def restore_entry(
    entry_id: EntryId,
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A directory that does not exist.", parser=local_place),
    ],
    lake: Lake = None,
    config: Config = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Give a new directory the files of an entry; the entry stays.

    PATH appears when it is whole.  On the same file system files get a second name, else they are
    copied.  `table adopt` then brings a Delta table into the log.
    """
    from sparktxlog.worker.lakes.site_roots import check_apart

    attics = _attics(lake, config, url)
    attic, entry = _found(attics, entry_id)
    target = path.absolute()
    what = "it; `sparktxlog table adopt` brings a Delta table into the log"
    check_apart(str(target), attics.roots, what=what, field="path")
    attic.restore(entry, target)
    if as_json:
        print_json(_document(entry) | {"restored": str(target)})
    else:
        typer.echo(f"{target} has the files of {entry.id}, which stays in the attic.")


@attic_app.command("remove", epilog="Example: sparktxlog attic remove dropped-orders-57 --dry-run")
def remove_entries(
    entry_ids: Annotated[
        list[str], typer.Argument(metavar="ID…", help="As `attic list` shows them.")
    ],
    lake: Lake = None,
    config: Config = None,
    url: Url = DEFAULT_URL,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove entries for ever; `maintain --empty-attic-older-than` removes what is old."""
    attics = _attics(lake, config, url)
    found = [_found(attics, one) for one in dict.fromkeys(entry_ids)]
    document = {"removed": [_document(entry) for _, entry in found]}
    if dry_run:
        print_plan(as_json, document, [f"{entry.id}: {entry.why}" for _, entry in found])
        return
    for attic, entry in found:
        attic.remove(entry)
    if as_json:
        print_json(document)
    else:
        typer.echo(f"Removed: {', '.join(entry.id for _, entry in found)}.")


@dataclass(frozen=True, slots=True)
class _SiteAttics:
    #: That of the lake first.
    attics: tuple[Attic | BucketAttic, ...]
    #: Directories and prefixes of the site, or of the lake that is named.
    roots: Sequence[str]


def _attics(lake: str | None, config: Path | None, url: str) -> _SiteAttics:
    from sparktxlog.attic.attic import Attic, attics_of
    from sparktxlog.worker.lakes.lake_places import (
        attic_of,
        attics_beside,
        is_in_bucket,
    )
    from sparktxlog.worker.lakes.site_roots import roots_of

    if lake is not None and is_in_bucket(lake):
        return _SiteAttics((attic_of(lake),), (lake,))
    if lake is not None:
        places: dict[str, Any] = {}
        found = Attic.of_lake(local_place(lake).absolute())
    else:
        places = _places(config, url)
        found = attics_of(places)[0]
    root = found.root.parents[1]
    if not root.is_dir():
        raise InvalidRequestError(
            f"{root} is not on this machine, so its attic cannot be read",
            hint="Run it where the site's directories are, or name the lake with --lake.",
            field="lake",
            value=str(root),
        )
    lake_url = places.get("lake_url")
    own = [attic_of(lake_url)] if lake_url else []
    roots = roots_of(places) if places else [str(root)]
    return _SiteAttics((*own, found, *(attics_beside(places) if places else ())), roots)


def _places(config: Path | None, url: str) -> dict[str, Any]:
    """Return the places of a site, as a node's answer of `/v1/info` has them."""
    if config is None:
        found: dict[str, Any] = NodeApi(url).get("/v1/info")
        return found
    from sparktxlog.config import load_config

    return places_by(load_config(config))


def _found(site: _SiteAttics, entry_id: str) -> tuple[Attic | BucketAttic, Entry]:
    for attic in site.attics:
        for entry in attic.entries():
            if entry.id == entry_id:
                return attic, entry
    raise NotFoundError(
        f"no attic of the site has an entry {entry_id!r}",
        hint="`sparktxlog attic list` shows them; run it where the site's directories are.",
        field="id",
        value=entry_id,
    )


def _document(entry: Entry) -> dict[str, Any]:
    shown = ("id", "kind", "table", "why", "source", "at", "facts")
    return {name: getattr(entry, name) for name in shown} | {"path": entry.place}
