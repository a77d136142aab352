"""Checks of a node's directories: space, kind of file system, hard links, fsync, files' modes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sparktxlog.cli.doctor.findings import Finding, good, graded, problem, warning
from sparktxlog.config.exposure import readers
from sparktxlog.files.durability import link_new

_LEAST_FREE = 1 << 30
#: Files that can still be made, below which a disk counts as full.
_LEAST_FILES = 10_000
_SYNCS = 20
_BLOCK = b"\0" * 4096
#: Seconds of one fsync: below the first it is none; above the others it is slow, and much too slow.
_NO_SYNC_S, _SLOW_S, _TOO_SLOW_S = 10e-6, 20e-3, 200e-3
#: Kinds of file systems, and what is wrong with a node's state on them.
_KINDS = {
    "tmpfs": "is in memory: all is lost when the machine stops",
    "ramfs": "is in memory: all is lost when the machine stops",
    "nfs": "is on a network: its locks and fsync may not hold",
    "nfs4": "is on a network: its locks and fsync may not hold",
    "cifs": "is on a network: its locks and fsync may not hold",
    "9p": "is of another machine: its locks and fsync may not hold",
}
#: Pairs between which files get second names; across file systems they are copied.
_LINKED = (("payload-dir", "lake-dir"), ("commit-table-dir", "reader-table-dir"))
_OTHER_USERS = "Run doctor as the node's user, or let that user write the directory."


def check_disks(directories: Mapping[str, Path], log_limit: int | None) -> Iterator[Finding]:
    """Yield what is found of a node's directories.

    Args:
        directories: Setting → directory, `data-dir` among them; those that do not exist yet are
            looked at where they will be.
        log_limit: Bytes that the log may have; None = not known.
    """
    places = {key: _existing(path) for key, path in directories.items()}
    yield from check_space(places, log_limit)
    yield check_kind(places["data-dir"])
    yield from check_links(places)
    yield check_fsync(places["data-dir"])


def check_space(places: Mapping[str, Path], log_limit: int | None) -> Iterator[Finding]:
    """Check how much is free on each file system of the directories."""
    devices: dict[int, list[str]] = {}
    for key, path in places.items():
        devices.setdefault(path.stat().st_dev, []).append(key)
    for keys in devices.values():
        path = places[keys[0]]
        usage = shutil.disk_usage(path)
        names = ", ".join(keys)
        yield from _check_files(path, names)
        text = f"{usage.free:,} of {usage.total:,} bytes are free at {path} ({names})"
        if usage.free < _LEAST_FREE:
            yield problem("disk", text, "Make room: a node without any takes no transactions.")
        elif usage.free < usage.total // 10:
            yield warning("disk", text, "Make room before it is full.")
        elif "data-dir" in keys and log_limit is not None and usage.free < log_limit:
            text += f"; the log may grow to {log_limit:,}"
            yield warning("disk", text, "Make room, or set tx-log-max-bytes to less.")
        else:
            yield good("disk", text)


def _check_files(path: Path, names: str) -> Iterator[Finding]:
    """Check how many more files a file system takes: with no inode left it is full, too."""
    found = os.statvfs(path)
    if not found.f_files:  # file systems that make inodes as they need them
        return
    text = f"{found.f_favail:,} of {found.f_files:,} inodes are free at {path} ({names})"
    if found.f_favail < _LEAST_FILES:
        yield problem("disk", text, "Remove files: each file needs an inode, however small it is.")
    elif found.f_favail < found.f_files // 20:
        yield warning("disk", text, "Remove files, or move the directory, before none is left.")


def check_kind(path: Path) -> Finding:
    """Check the kind of file system of the node's state."""
    kind = file_system_of(path, _mounts())
    if kind in _KINDS:
        fix = "Name a data-dir on a local disk."
        return warning("disk", f"{path} ({kind}) {_KINDS[kind]}", fix)
    return good("disk", f"{path} is on a local file system ({kind or 'kind not known'})")


def _mounts() -> list[tuple[str, str]]:
    """Return directory and kind of all mounts; empty on systems that do not list them."""
    listed = Path("/proc/mounts")
    if not listed.exists():
        return []
    lines = (line.split(" ") for line in listed.read_text().splitlines())
    return [(words[1].encode().decode("unicode_escape"), words[2]) for words in lines]


def file_system_of(path: Path, mounts: Sequence[tuple[str, str]]) -> str:
    """Return the kind of the innermost mount that holds a path, empty = not known."""
    whole = path.resolve()
    holding = [(len(where), kind) for where, kind in mounts if whole.is_relative_to(where)]
    # If two mounts are at one place, the later one is seen.
    return max(reversed(holding), key=lambda one: one[0])[1] if holding else ""


def check_links(places: Mapping[str, Path]) -> Iterator[Finding]:
    """Check between which directories files can get second names."""
    for source, target in _LINKED:
        if source not in places or target not in places:
            continue
        names = f"{source} and {target}"
        try:
            with (
                tempfile.NamedTemporaryFile(dir=places[source], prefix=".doctor-") as probe,
                tempfile.TemporaryDirectory(dir=places[target], prefix=".doctor-") as there,
            ):
                link_new(Path(probe.name), Path(there) / "linked", copies=False)
        except PermissionError as error:
            yield warning("links", f"{names} cannot be tried: {error}", _OTHER_USERS)
        except OSError as error:
            text = f"files of {source} get no second name in {target} ({error.strerror})"
            fix = "Put both on one file system with hard links, else each file is copied."
            yield warning("links", text, fix)
        else:
            yield good("links", f"{names} are on one file system with hard links")


def check_fsync(directory: Path) -> Finding:
    """Measure how long a small write takes until it is on the disk."""
    try:
        median, slowest = measure_fsync(directory)
    except OSError as error:
        return warning("fsync", f"cannot be measured in {directory}: {error}", _OTHER_USERS)
    text = (
        f"a write is on the disk after {median * 1e3:,.2f} ms (median of {_SYNCS}, slowest "
        f"{slowest * 1e3:,.2f} ms) in {directory}; each commit waits for at least one"
    )
    if median < _NO_SYNC_S:
        text += ", and none can be that fast: a loss of power would lose commits"
        return warning("fsync", text, "Use a file system that carries out fsync.")
    if median > _SLOW_S:
        grade = problem if median > _TOO_SLOW_S else warning
        return grade("fsync", text, "Put data-dir on a faster disk, or end what else writes there.")
    return good("fsync", text)


def measure_fsync(directory: Path) -> tuple[float, float]:
    """Return median and slowest of some fsyncs in seconds.

    Raises:
        OSError: The directory cannot be written.
    """
    took = []
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".doctor-", buffering=0) as probe:
        for _ in range(_SYNCS):
            probe.write(_BLOCK)
            begun = time.perf_counter()
            os.fsync(probe.fileno())
            took.append(time.perf_counter() - begun)
    took.sort()
    return took[len(took) // 2], took[-1]


def check_modes(secrets: Mapping[str, Path]) -> list[Finding]:
    """Check that no other user reads or writes files with secrets, or the node's directory.

    Args:
        secrets: What it is → file or directory; those that do not exist are left out.
    """
    found = {name: users for name, path in secrets.items() if (users := readers(path)) is not None}
    wrong = [
        f"{name}: {users} can read or change {secrets[name]}"
        for name, users in found.items()
        if users
    ]
    fix = "Run chmod 600 on a file, 700 on a directory, and replace a secret that was open."
    return graded(
        "modes", wrong, fix, f"{len(found):,} files with secrets are closed to other users"
    )


def _existing(path: Path) -> Path:
    """Return a directory, or the one in which it will be made."""
    path = path.absolute()
    while not path.is_dir() and path != path.parent:
        path = path.parent
    return path
