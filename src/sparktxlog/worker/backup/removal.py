"""Removes old images, replaced files and entries of the attic when an operator asks for it.

    <store>/images, files            images from which no log can be replayed; files of no image
    lake/_sparktxlog/attic/          what was set aside (`attic`)
    <backup-dir>/<copy id>/          files that copies replaced (`old_files`)

Nothing is removed automatically.  An image may be removed when no worker can replay from it,
because the log begins after its position, and the site has newer ones.  What is in
the attic and old files are removed only if they are older than an operator's number of days.  Each
removal may be repeated: the next run removes what a crash left of a directory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparktxlog.attic.attic import Attic
from sparktxlog.errors import InvalidRequestError, LockedError, TxLogError
from sparktxlog.storage.durability import sync_directory
from sparktxlog.worker.backup.image_store import Image, ImageStore
from sparktxlog.worker.replica.state import read_state

#: Newest images of a site that are always kept.
KEEP_IMAGES = 3
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwanted:
    """What to remove."""

    #: Directory of images; None = no image.
    images: Path | None = None
    #: Newest images of the site to keep, ≥ 1.
    keep_images: int = KEEP_IMAGES
    #: Remove what was put into the attic of the lake more days ago, ≥ 1; None = nothing.
    attic_days: int | None = None
    #: Remove files that copies replaced more days ago, ≥ 1; None = none.
    backup_days: int | None = None
    dry_run: bool = False

    @property
    def anything(self) -> bool:
        """Whether there is anything to remove."""
        days = (self.attic_days, self.backup_days)
        return self.images is not None or any(age is not None for age in days)

    def check(self, *, old_files: bool) -> None:
        """Refuse impossible values.

        Args:
            old_files: The node's workers keep the files that copies replace (`backup-dir`).

        Raises:
            InvalidRequestError: With field and value (definite).
        """
        for name, value in (
            ("keep-images", self.keep_images),
            ("empty-attic-older-than", self.attic_days),
            ("drop-backups-older-than", self.backup_days),
        ):
            if value is not None and value < 1:
                raise InvalidRequestError(
                    f"{name} is {value}", hint="1 is the least.", field=name, value=value
                )
        if self.images is not None and not (self.images / "images").is_dir():
            raise InvalidRequestError(
                f"there are no backup images in {self.images}",
                hint="Name the directory that `sparktxlog backup` writes to.",
                field="images",
                value=str(self.images),
            )
        if self.backup_days is not None and not old_files:
            raise InvalidRequestError(
                "no old files are kept: backup-dir of the node is not set",
                hint="Leave --drop-backups-older-than out.",
                field="drop-backups-older-than",
                value=self.backup_days,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLog:
    """What a site's node says about itself and its log."""

    node_id: str
    lineage: str
    #: The log can be replayed after this position; 0 = all of it.
    kept_after: int
    backup_dir: Path | None = None

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> SiteLog:
        """Read a node's answer of `/v1/info`."""
        return cls(
            node_id=info["node_id"],
            lineage=info["lineage"],
            kept_after=info["kept_after"],
            backup_dir=Path(info["backup_dir"]) if info.get("backup_dir") else None,
        )


@dataclass(slots=True, kw_only=True)
class Removal:
    """What was removed of one kind; in a dry run what would be removed."""

    #: `images`, `attic`, `backups`, `directories of no table` or `leftovers`.
    kind: str
    #: Names of images, or paths.
    removed: list[str]
    #: Images, or directories, that stay.
    kept: int = 0
    files: int = 0
    #: Of the removed names; a file with another hard link still takes its space.
    size_bytes: int = 0
    #: What was skipped, and why; a later run may do it.
    skipped: str = ""
    #: The error.
    failed: str = ""

    def describe(self) -> str:
        """Return a line for people."""
        text = (
            f"{self.kind}: {len(self.removed):,} removed ({', '.join(self.removed) or 'none'}), "
            f"{self.kept:,} kept; {self.files:,} files of {self.size_bytes:,} bytes"
        )
        for label, reason in (("skipped", self.skipped), ("FAILED", self.failed)):
            text += f"; {label}: {reason}" if reason else ""
        return text


def remove_expired(
    lake: str | Path, unwanted: Unwanted, site: SiteLog, *, now_us: int
) -> list[Removal]:
    """Remove what is unwanted, one kind after the other; hold `one_at_a_time`.

    A kind that fails says so in its line, and the others are done.

    Args:
        now_us: Wall clock, microseconds since 1970 UTC.

    Raises:
        InvalidRequestError: An age or number is impossible, the directory of images has none, or
            the node keeps no old files (definite: nothing was removed).
    """
    lake = Path(lake).absolute()
    unwanted.check(old_files=site.backup_dir is not None)
    done = []
    if unwanted.images is not None:
        done.append(_attempt("images", lambda: _remove_images(lake, unwanted, site)))
    if unwanted.attic_days is not None:
        attic_us = now_us - unwanted.attic_days * _DAY_US
        done.append(_attempt("attic", lambda: _empty_attic(lake, attic_us, unwanted.dry_run)))
    if unwanted.backup_days is not None and site.backup_dir is not None:
        root, limit_us = site.backup_dir, now_us - unwanted.backup_days * _DAY_US
        done.append(
            _attempt("backups", lambda: _remove_backups(lake, root, limit_us, unwanted.dry_run))
        )
    return done


def _attempt(kind: str, work: Callable[[], Removal]) -> Removal:
    try:
        return work()
    except LockedError as error:
        return Removal(kind=kind, removed=[], skipped=error.message)
    except (TxLogError, OSError) as error:
        return Removal(kind=kind, removed=[], failed=str(error)[:400])


# --- images -----------------------------------------------------------------------------------


def _remove_images(lake: Path, unwanted: Unwanted, site: SiteLog) -> Removal:
    assert unwanted.images is not None
    store = ImageStore(unwanted.images)
    state = read_state(lake)
    worker_id = state.worker_id if state is not None else None
    with store.writing():
        # All are read first: if a manifest is damaged, its files are not known.
        images = store.images()
        own = [image for image in images if _is_own(image, site, worker_id)]
        gone = outlived(own, site.kept_after, unwanted.keep_images)
        names = [image.name for image in gone]
        if not unwanted.dry_run:
            for name in names:
                store.remove(name)
        swept = store.sweep(without=names, dry_run=unwanted.dry_run)
    return Removal(
        kind="images",
        removed=names,
        kept=len(images) - len(names),
        files=swept.files,
        size_bytes=swept.size_bytes,
    )


def _is_own(image: Image, site: SiteLog, worker_id: str | None) -> bool:
    """Return whether an image is of this site and this log."""
    of_site = image.site == site.node_id if image.site else image.worker_id == worker_id
    return of_site and image.lineage == site.lineage


def outlived(images: Sequence[Image], kept_after: int, keep: int) -> list[Image]:
    """Return images from which no replay can begin, by position, without the newest ones."""
    ordered = sorted(images, key=lambda image: (image.position, image.created_at, image.name))
    older = ordered[: max(len(ordered) - keep, 0)]
    return [image for image in older if image.position < kept_after]


# --- the attic --------------------------------------------------------------------------------


def _empty_attic(lake: Path, before_us: int, dry_run: bool) -> Removal:
    running = _running_copy(lake)
    done = Attic.of_lake(lake).empty(
        before_us, stays=lambda entry: bool(running) and entry.mark == running, dry_run=dry_run
    )
    return Removal(
        kind="attic",
        removed=[entry.id for entry in done.removed],
        kept=done.kept,
        files=done.files,
        size_bytes=done.size_bytes,
    )


# --- old files of copies ----------------------------------------------------------------------


def _remove_backups(lake: Path, root: Path, before_us: int, dry_run: bool) -> Removal:
    done, running = Removal(kind="backups", removed=[]), _running_copy(lake)
    for directory in sorted(root.iterdir()) if root.is_dir() else []:
        # Manifests are written after the table's files, and say whose files these are.
        manifests = list(directory.glob("*.manifest.json"))
        written_us = max((m.stat().st_mtime_ns // 1000 for m in manifests), default=before_us)
        own = directory.name != running and all(_is_of(m, lake) for m in manifests)
        if own and written_us < before_us:
            _remove_tree(directory, done, directory.name, dry_run)
        else:
            done.kept += 1
    return done


def _is_of(manifest: Path, lake: Path) -> bool:
    """Return whether a manifest is of a copy of this lake; sites may share the directory."""
    try:
        content = json.loads(manifest.read_bytes())
        return content["copy_id"] == manifest.parent.name and Path(content["from"]).parent == lake
    except (ValueError, KeyError, TypeError):
        return False


# --- both -------------------------------------------------------------------------------------


def _running_copy(lake: Path) -> str:
    """Return the id of the unfinished copy, empty = none."""
    state = read_state(lake)
    return state.copying.copy_id if state is not None and state.copying is not None else ""


def _remove_tree(directory: Path, done: Removal, name: str, dry_run: bool) -> None:
    sizes = [path.lstat().st_size for path in directory.rglob("*") if not path.is_dir()]
    if not dry_run:
        # Manifests lie at the top and are removed last: after a crash they still say whose files
        # these are.
        for child in sorted(directory.iterdir()):
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
        shutil.rmtree(directory)
        sync_directory(directory.parent)
    done.removed.append(name)
    done.files += len(sizes)
    done.size_bytes += sum(sizes)
