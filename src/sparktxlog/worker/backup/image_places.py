"""The images that a path or a URL names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.buckets import bucket_url
from sparktxlog.worker.backup.disk_images import DiskImages
from sparktxlog.worker.backup.image_store import ImageStore


def images_at(place: str | Path) -> ImageStore:
    """Return the images in a directory, or below a prefix of a bucket; nothing is asked of it yet.

    Raises:
        ConfigError: No store here has such URLs, or the environment does not fit (definite).
        InvalidRequestError: As `DiskImages` (definite).
        MissingDependencyError: The extra for the bucket's provider is not installed (definite).
    """
    if isinstance(place, Path) or bucket_url(place, "directory of images") is None:
        return DiskImages(place)
    from sparktxlog.worker.backup.bucket_images import BucketImages

    return BucketImages(place)


def check_apart(images: ImageStore, urls: Iterable[str]) -> None:
    """Refuse images among the files of a site, whose worker or node would take them for its own.

    Args:
        urls: Of the site's tables and staged files in buckets.

    Raises:
        InvalidRequestError: They would lie there (definite).
    """
    for url in urls:
        if f"{images.url}/".startswith(f"{url}/"):
            raise InvalidRequestError(
                f"{images.url} is in {url}, where files of the site lie",
                hint="Name a prefix of its own for images.",
                field="directory",
                value=images.url,
            )
