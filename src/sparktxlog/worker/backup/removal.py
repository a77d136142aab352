"""Removes old images and entries of attics when an operator asks for it.

    places of images        images from which no log can be replayed; rests of killed backups
    attics of the site      what was set aside (`attic`)

Nothing is removed automatically.  An image may be removed when no worker can replay from it,
because the log begins after its position, and the site has newer ones.  An entry of
an attic goes only if it is older than an operator's number of days.  Each removal may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparktxlog.attic.attic import Attic, Entry, Kind
from sparktxlog.attic.bucket_attic import BucketAttic
from sparktxlog.errors import InvalidRequestError, LockedError, StorageError, TxLogError
from sparktxlog.model.buckets import bucket_url
from sparktxlog.worker.backup.image import Image
from sparktxlog.worker.backup.image_places import images_at
from sparktxlog.worker.lakes.lake_places import attic_of, attics_beside
from sparktxlog.worker.replica.state import read_state

#: Newest images of a site that are always kept.
KEEP_IMAGES = 3
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwanted:
    """What to remove."""

    #: Directory of images, or URL of a prefix; None = no image.
    images: Path | str | None = None
    #: Newest images of the site to keep, ≥ 1.
    keep_images: int = KEEP_IMAGES
    #: Remove what was put into an attic of the site more days ago, ≥ 1; None = nothing.
    attic_days: int | None = None
    dry_run: bool = False

    @property
    def anything(self) -> bool:
        """Whether there is anything to remove."""
        return self.images is not None or self.attic_days is not None

    def check(self) -> None:
        """Refuse impossible values.

        Raises:
            InvalidRequestError: With field and value (definite).
        """
        for name, value in (
            ("keep-images", self.keep_images),
            ("empty-attic-older-than", self.attic_days),
        ):
            if value is not None and value < 1:
                raise InvalidRequestError(
                    f"{name} is {value}", hint="1 is the least.", field=name, value=value
                )
        if self.images is not None and not images_at(self.images).names():
            raise InvalidRequestError(
                f"there are no backup images in {self.images}",
                hint="Name the place that `sparktxlog backup` writes to.",
                field="images",
                value=str(self.images),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLog:
    """What a site's node says about itself and its log."""

    node_id: str
    log_id: str
    #: The log can be replayed after this position; 0 = all of it.
    kept_after: int
    #: Attics of the site other than that of the lake.
    attics: tuple[Attic | BucketAttic, ...] = ()

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> SiteLog:
        """Read a node's answer of `/v1/info`.

        Raises:
            ConfigError, MissingDependencyError: Its commit tables lie in a bucket that this process
                cannot open (definite).
        """
        return cls(
            node_id=info["node_id"],
            log_id=info["log_id"],
            kept_after=info["kept_after"],
            attics=attics_beside(info),
        )


@dataclass(slots=True, kw_only=True)
class Removal:
    """What was removed of one kind; in a dry run what would be removed."""

    #: `images`, `attic`, `places of no table` or `leftovers`.
    kind: str
    #: Names of images, or paths.
    removed: list[str]
    #: Images, or directories, that stay.
    kept: int = 0
    files: int = 0
    #: Of an image those that no other one has; of an attic those of the removed names, and a file
    #: with another hard link still takes its space.
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
        InvalidRequestError: An age or number is impossible, or the directory of images has none
            (definite: nothing was removed).
    """
    place = bucket_url(str(lake), "lake")
    lake = Path(lake).absolute() if place is None else place.url
    unwanted.check()
    done = []
    if unwanted.images is not None:
        done.append(_attempt("images", lambda: _remove_images(lake, unwanted, site)))
    if unwanted.attic_days is not None:
        before_us = now_us - unwanted.attic_days * _DAY_US
        own = Attic.of_lake(Path(lake)) if place is None else attic_of(place.url)
        attics = (own, *site.attics)
        done.append(_attempt("attic", lambda: _empty(attics, lake, before_us, unwanted.dry_run)))
    return done


def _attempt(kind: str, work: Callable[[], Removal]) -> Removal:
    try:
        return work()
    except LockedError as error:
        return Removal(kind=kind, removed=[], skipped=error.message)
    except (TxLogError, OSError) as error:
        return Removal(kind=kind, removed=[], failed=str(error)[:400])


# --- images -----------------------------------------------------------------------------------


def _remove_images(lake: str | Path, unwanted: Unwanted, site: SiteLog) -> Removal:
    assert unwanted.images is not None
    store = images_at(unwanted.images)
    state = read_state(lake)
    worker_id = state.worker_id if state is not None else None
    with store.writing() as writer:
        # All are read first: if a manifest is damaged, nobody knows which ones are the newest.
        images = store.images()
        own = [image for image in images if _is_own(image, site, worker_id)]
        gone = outlived(own, site.kept_after, unwanted.keep_images)
        names = [image.name for image in gone]
        files, size_bytes = writer.remove(names, dry_run=unwanted.dry_run)
    return Removal(
        kind="images",
        removed=names,
        kept=len(images) - len(names),
        files=files,
        size_bytes=size_bytes,
    )


def _is_own(image: Image, site: SiteLog, worker_id: str | None) -> bool:
    """Return whether an image is of this site and this log."""
    of_site = image.site == site.node_id if image.site else image.worker_id == worker_id
    return of_site and image.log_id == site.log_id


def outlived(images: Sequence[Image], kept_after: int, keep: int) -> list[Image]:
    """Return images from which no replay can begin, by position, without the newest ones.

    Those of replicas with another set of tables are counted apart: none replaces one of all tables.
    """
    ordered = sorted(images, key=lambda image: (image.position, image.created_at, image.name))
    newest = set[str]()
    for only in {image.only for image in ordered}:
        newest.update([image.name for image in ordered if image.only == only][-keep:])
    return [one for one in ordered if one.name not in newest and one.position < kept_after]


# --- attics -----------------------------------------------------------------------------------


def _empty(
    attics: Iterable[Attic | BucketAttic], lake: str | Path, before_us: int, dry_run: bool
) -> Removal:
    state, done = read_state(lake), Removal(kind="attic", removed=[])
    running = None if state is None or state.copying is None else state.copying.copy_id

    def stays(entry: Entry) -> bool:
        # Sites may share a directory of backups.
        of_others = entry.kind is Kind.BACKUP and entry.source.rpartition("/")[0] != str(lake)
        return of_others or entry.mark == running

    for attic in attics:
        try:
            found = attic.empty(before_us, stays=stays, dry_run=dry_run)
        except StorageError as error:
            if isinstance(error.__cause__, PermissionError):
                done.skipped = error.message  # that of a node which another user runs
            else:
                done.failed = error.message
            continue
        done.removed += [entry.id for entry in found.removed]
        done.kept += found.kept
        done.files += found.files
        done.size_bytes += found.size_bytes
    return done
