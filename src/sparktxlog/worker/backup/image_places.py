"""The images that a path or a URL names."""

from __future__ import annotations

from pathlib import Path

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
