"""Disks that are full, and power cuts, under real members of a cluster."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.command_line import invoke
from tests.support.epoch_views import QUICK, shows
from tests.support.node_processes import TABLE, Cluster, HttpProblem, append, call, wait_until
from tests.support.steady_load import SteadyLoad

from sparktxlog import Client
from sparktxlog.errors import DiskFullError

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

#: In a user namespace of its own a process may mount without being root.
_OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")
_MOUNT_TMPFS = 'mount -t tmpfs -o size=24m tmpfs "$0" && exec "$@"'
#: EXT4_IOC_SHUTDOWN, and its flag that drops what is not in the journal on disk yet.
_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, 2


def fill(directory: Path) -> Path:
    """Take all room that a file system has left; return the file that holds it."""
    path = directory / "filler"
    with path.open("wb", buffering=0) as file:
        for block in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(block))
            except OSError:
                continue
    return path


def begin(cluster: Cluster) -> None:
    cluster.start()
    cluster.nodes["A"].commit(TABLE)
    cluster.settle()


@pytest.mark.privileged
def test_a_full_disk_stops_one_node_until_there_is_room(tmp_path: Path) -> None:
    tried = subprocess.run([*_OWN_MOUNTS, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no mount namespace of our own: {tried.stderr.strip()}")
    cluster = Cluster(tmp_path, "ABC", settings=QUICK)
    c = cluster.nodes["C"]
    data = tmp_path / "C"
    data.mkdir()
    c.prefix = (*_OWN_MOUNTS, "sh", "-c", _MOUNT_TMPFS, str(data))
    try:
        begin(cluster)
        assert c.process is not None
        seen = Path(f"/proc/{c.process.pid}/root{data}")
        with SteadyLoad(cluster) as load:
            filler = fill(seen)
            wait_until(lambda: c.status()["disk_full"], what="C notices")
            with pytest.raises(HttpProblem) as problem:
                c.commit(append(1), "accepted", 5)
            assert problem.value.document["definite"] is True
            assert problem.value.document["title"] == "disk-full"
            load.progress("AB", 40)
            filler.unlink()
            wait_until(lambda: all(shows(node, "ABC") for node in cluster.masters()), 120)
            load.progress("ABC")
        load.check()
    finally:
        cluster.stop()


@pytest.mark.privileged
def test_a_disk_full_of_its_own_log_can_be_helped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node says what holds the space, takes orders of its operator, and starts again."""
    directory = tmp_path / "A"
    directory.mkdir()
    tmpfs = ("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(directory))
    if os.geteuid() or subprocess.run(tmpfs, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    cluster = Cluster(tmp_path, "A", settings=QUICK)
    node = cluster.nodes["A"]
    try:
        cluster.start()
        with Client(node.url, timeout=20) as client:
            client.create_table("t", {"text": "string"})

            def commit() -> None:
                client.append("t", [{"text": os.urandom(100_000).hex()}])

            with pytest.raises(DiskFullError) as refused:
                for _ in range(200):
                    commit()
            said, _ = refused.value.fields["held_by"]
            assert "the log has " in said and "in the journal" in said
            # Somebody else takes the rest of the disk, and the node starts again.
            filler = fill(directory)
            node.kill()
            node.start()
            node.wait_ready()
            assert node.status()["phase"] == "NORMAL"
            change = ("settings", "set", "tx-log-max-size", "1", "--url", node.url)
            assert invoke(monkeypatch, *change) == 0
            shortened = call(f"{node.url}/v1/maintenance", {}, timeout=20)
            assert shortened["held_by"] == ["worker of A"]
            filler.unlink()
            call(f"{node.url}/v1/maintenance", {}, timeout=20)
            wait_until(lambda: not node.status()["disk_full"], what="there is room")
            commit()
    finally:
        cluster.stop()
        subprocess.run(["umount", "-l", str(directory)], check=True)


@contextmanager
def loop_disk(image: Path, directory: Path) -> Iterator[None]:
    """Mount an ext4 file system that is a file."""
    directory.mkdir()
    with image.open("wb") as file:
        file.truncate(128 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    mount(image, directory)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def mount(image: Path, directory: Path) -> None:
    subprocess.run(["mount", "-o", "loop", str(image), str(directory)], check=True)


def cut_power(directory: Path) -> None:
    """Stop a file system as a power cut does: what was not forced to disk is gone."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.ioctl(handle, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
    finally:
        os.close(handle)


@pytest.mark.long
@pytest.mark.privileged
@pytest.mark.parametrize("victims", ["C", "AB", "ABC"])
def test_a_power_cut_costs_nothing_acknowledged(tmp_path: Path, victims: str) -> None:
    if os.geteuid() or shutil.which("mkfs.ext4") is None:
        pytest.skip("mounting a file needs root and mkfs.ext4")
    cluster = Cluster(tmp_path, "ABC", settings=QUICK)
    with power_at(tmp_path, victims) as images:
        try:
            begin(cluster)
            with SteadyLoad(cluster) as load:
                load.progress("ABC", 50)
                for name in victims:
                    cut_power(tmp_path / name)
                for name in victims:
                    cluster.nodes[name].kill()
                for name, image in images.items():
                    subprocess.run(["umount", str(tmp_path / name)], check=True)
                    mount(image, tmp_path / name)
                for name in victims:
                    cluster.nodes[name].start()
                wait_until(lambda: all(shows(node, "ABC") for node in cluster.masters()), 120)
                load.progress("ABC")
            load.check()
        finally:
            cluster.stop()


@contextmanager
def power_at(directory: Path, names: str) -> Iterator[dict[str, Path]]:
    """Put the data of some nodes on file systems of their own."""
    if not names:
        yield {}
        return
    image = directory / f"{names[0]}.ext4"
    with loop_disk(image, directory / names[0]), power_at(directory, names[1:]) as others:
        yield {names[0]: image, **others}
