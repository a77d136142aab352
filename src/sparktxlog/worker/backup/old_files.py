"""Keeps the old files of a replica before a copy replaces them.

Hard links cost nothing, and keep a file when its name is removed; Delta never changes a finished
file.  On another file system the files are copied.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from sparktxlog.errors import ApplyError
from sparktxlog.storage.durability import link_or_copy, sync_directory


def back_up(lake: Path, backup_dir: Path, copy_id: str, tables: Iterable[str]) -> None:
    """Keep the tables' files in `<backup-dir>/<copy id>/<table>/`, each with a manifest.

    A table that has a manifest is skipped: after a crash the lake may hold new files.

    Raises:
        ApplyError: A file cannot be kept; the copy must not begin (definite).
    """
    for name in sorted(tables):
        target = backup_dir / copy_id / name
        manifest = target.with_name(f"{name}.manifest.json")
        if manifest.exists() or not (lake / name).is_dir():
            continue
        try:
            files = link_tree(lake / name, target)
            content = {"copy_id": copy_id, "table": name, "from": str(lake / name), "files": files}
            with open(manifest, "w", encoding="utf-8") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            sync_directory(target.parent)
        except OSError as error:
            raise ApplyError(
                f"table {name!r} cannot be backed up to {target}: {error}",
                hint="No file was asked for yet.  Make room there, or unset backup-dir.",
                table=name,
                path=str(target),
            ) from error


def link_tree(source: Path, target: Path) -> list[dict[str, object]]:
    """Link, or else copy, all files of a directory; return path, size and time of each.

    Raises:
        OSError: A file can neither be linked nor copied.
    """
    listed: list[dict[str, object]] = []
    for folder, _, names in os.walk(source):
        inside = Path(folder).relative_to(source)
        (target / inside).mkdir(parents=True, exist_ok=True)
        for name in sorted(names):
            link_or_copy(source / inside / name, target / inside / name)
            status = (target / inside / name).stat()
            listed.append(
                {
                    "path": str(inside / name),
                    "size_bytes": status.st_size,
                    "modified_at": status.st_mtime_ns // 1000,
                }
            )
        sync_directory(target / inside)
    return listed
