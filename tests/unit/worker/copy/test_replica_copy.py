"""A swap happens on exactly the version that was exported, whoever writes and whoever is killed.

The steps that need Spark are stood in for: exporting notes the version, swapping checks it as
Delta's transaction does and writes the copy's commit.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.worker.apply.test_tables import ADD, metadata, write
from tests.unit.worker.repair.test_examining import DEFINITION

from sparktxlog.attic.attic import Attic, Entry, Kind
from sparktxlog.delta.log_files import newest_commit
from sparktxlog.delta.log_state import LogState
from sparktxlog.errors import ApplyError, CopyConflictError, TransportError
from sparktxlog.files.tasks import Fetched
from sparktxlog.model.copying import CopyTicket, Decision, Lease, OfferedFile, OfferedTable
from sparktxlog.model.signature import EMPTY_SIGNATURE
from sparktxlog.worker.apply.tables import OwnCommit, read_commit
from sparktxlog.worker.copy import swap
from sparktxlog.worker.copy.copy_terms import CopyOptions
from sparktxlog.worker.copy.layout import Way
from sparktxlog.worker.copy.replica_copy import ReplicaCopy
from sparktxlog.worker.copy.swap import StagedTable
from sparktxlog.worker.lakes.disk_lake import DiskLake
from sparktxlog.worker.repair.table_quarantine import TableQuarantine
from sparktxlog.worker.replica.source import Answer
from sparktxlog.worker.replica.state import ReplicaDirectory, ReplicaState, ReplicaTable


class Killed(BaseException):
    """The process ended here."""


class Site:
    """A lake with one table at version 0, written to by others, and copies of it."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.lake = root / "lake"
        self.table = self.lake / "t"
        self.donor = root / "donor"
        #: Versions of the old table that were exported, in order.
        self.exported: list[int] = []
        #: Happens once, before a step of that name does its work.
        self.before: dict[str, Callable[[], None]] = {}
        self.position = 5
        self.backup_dir = ""
        write(self.table, 0, ADD, userMetadata=metadata(2))
        write(self.donor, 0, ADD, userMetadata=metadata(5))
        known = ReplicaTable(definition=DEFINITION, version=0)
        with closing(ReplicaDirectory(self.lake)) as directory:
            directory.save(ReplicaState(worker_id="w", log_id="l", position=2, tables={"t": known}))
        patch.setattr(TableQuarantine, "_export", self._export)
        patch.setattr(DiskLake, "add_files", lambda *rest: None)
        patch.setattr(swap, "forget_log", lambda *rest: None)
        patch.setattr(swap, "tagged", _nothing)
        patch.setattr(DiskLake, "settle", lambda *rest: None)
        patch.setattr(swap, "log_transaction", self._begin)
        patch.setattr(LogState, "read", lambda *rest: LogState())
        patch.setattr(swap, "swap_actions", lambda *rest, **named: [])
        patch.setattr("sparktxlog.worker.repair.table_quarantine.forget_log", lambda *rest: None)

    def report(self) -> Answer:
        self._at("report")
        return Answer(verdict="IN_SYNC", plan="up-to-date")

    def foreign(self) -> None:
        """Let somebody else commit."""
        write(self.table, newest_commit(self.table) + 1, ADD)

    def _at(self, step: str) -> None:
        self.before.pop(step, lambda: None)()

    def _export(self, definition: Any, version: int, donor: Any, at: int, to: Path, _: Any) -> int:
        self._at("export")
        self.exported.append(version)
        to.mkdir()
        return version

    def _begin(self, session: Any, lake: DiskLake, name: str) -> Any:
        self._at("begin")
        table = lake.root / name
        base = newest_commit(table)

        def commit(actions: Any, own: OwnCommit) -> int:
            self._at("commit")
            if newest_commit(table) != base:
                raise CopyConflictError("written by somebody else during the swap")
            write(table, base + 1, ADD, userMetadata=own.to_text())
            self._at("committed")
            return base + 1

        return SimpleNamespace(version=base, commit=commit)

    def copy(self, way: Way = Way.COMMIT) -> Any:
        """Copy in a process of its own: begin, or go on with what the journal says."""
        source: Any = SimpleNamespace(record_transfer=lambda transfer: None)
        fetcher: Any = SimpleNamespace(release=lambda: None, remove=lambda: None)
        staged = self.staged(way)
        with closing(ReplicaDirectory(self.lake)) as directory:
            copy = ReplicaCopy(
                None,  # type: ignore[arg-type]
                source,
                directory,
                directory.load(),
                SimpleNamespace(node_id="A", backup_dir=self.backup_dir),  # type: ignore[arg-type]
                report=lambda state: self.report(),
                open_fetcher=lambda lake, copy_id: fetcher,
                options=CopyOptions(),
            )
            copy.ticket = CopyTicket(
                copy_id="ticket",
                decision=Decision(worker_id="w", plan="copy", reason=""),
                lease=self.lease(staged.offered),
            )
            copy.back_up()
            copy._staging = SimpleNamespace(  # type: ignore[assignment]
                staged={"t": staged}, standing={}, ways={}, fetched=Fetched()
            )
            try:
                return copy.restart()
            finally:
                self.in_place = copy.in_place

    def staged(self, way: Way) -> StagedTable:
        path = self.donor.with_name(f"staged-{self.position}")
        if way is Way.RENAME:
            write(path, 0, ADD, userMetadata=metadata(self.position))
        commit = path / "_delta_log" / f"{0:020}.json"
        files: tuple[OfferedFile, ...] = ()
        if commit.exists():
            status = commit.stat()
            files = (
                OfferedFile(
                    path=f"_delta_log/{commit.name}",
                    size_bytes=status.st_size,
                    modified_at=status.st_mtime_ns // 1000,
                ),
            )
        offered = OfferedTable(
            definition=DEFINITION, version=0, signature=EMPTY_SIGNATURE, files=files
        )
        log = LogState(version=0)
        return StagedTable(offered=offered, path=path, log=log, way=way)

    def lease(self, offered: OfferedTable) -> Lease:
        return Lease(
            lease_id="lease",
            token="",
            node_id="b",
            url="",
            log_id="l",
            epoch=1,
            position=self.position,
            chain_hash="h",
            chunk_bytes=1,
            lease_s=1.0,
            tables=(offered,),
        )

    def kept(self, kind: Kind = Kind.ROWS) -> list[Entry]:
        return Attic.of_lake(self.lake).entries(kind, "t")

    def state(self) -> ReplicaState:
        with closing(ReplicaDirectory(self.lake)) as directory:
            return directory.load()

    def check_swapped_upon_the_exported(self) -> None:
        """The copy's commit follows directly upon the version that was exported last."""
        version = self.state().tables["t"].version
        assert self.state().copying is None
        own = read_commit(self.table, version).own
        assert isinstance(own, OwnCommit) and own.copy_id
        assert self.exported[-1] == version - 1 == self.kept()[-1].facts["version"]


@contextmanager
def _nothing(*rest: Any) -> Iterator[None]:
    yield


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


def kill() -> None:
    raise Killed


def be_away() -> None:
    raise TransportError("no answer")


def test_a_copy_is_in_place_before_it_is_reported(site: Site) -> None:
    site.before["begin"] = kill
    with pytest.raises(Killed):
        site.copy()
    assert not site.in_place
    site.before["report"] = be_away
    with pytest.raises(TransportError):
        site.copy()
    assert site.in_place and site.state().position == site.position


def test_files_are_kept_once_and_as_they_were_before_the_copy(site: Site) -> None:
    site.backup_dir = str(site.lake.parent / "old")
    site.before["committed"] = kill
    with pytest.raises(Killed):
        site.copy()
    site.copy()
    (kept,) = Attic(Path(site.backup_dir)).entries(Kind.BACKUP, "t")
    assert newest_commit(kept.path) == 0 and newest_commit(site.table) == 1
    # Where nothing can be kept, no file is asked for.
    site.backup_dir = str(site.lake / "t" / "_delta_log" / f"{0:020}.json")
    with pytest.raises(ApplyError, match="cannot be backed up"):
        site.copy()
    assert newest_commit(site.table) == 1


def test_a_table_of_this_log_alone_is_not_exported(site: Site) -> None:
    site.copy()
    assert site.exported == []
    assert site.state().tables["t"].version == 1


@pytest.mark.parametrize("step", ["export", "begin", "commit"])
def test_who_commits_before_the_swap_is_exported_first(site: Site, step: str) -> None:
    site.foreign()
    site.before[step] = site.foreign
    outcome = site.copy()
    assert site.exported == [1, 2]
    assert outcome.quarantined == {"t": 2}
    site.check_swapped_upon_the_exported()


@pytest.mark.parametrize("step", ["begin", "commit"])
def test_a_kill_between_the_conflict_and_the_second_export_loses_nothing(
    site: Site, step: str
) -> None:
    site.foreign()

    def foreign_then_killed() -> None:
        site.foreign()
        site.before["export"] = kill

    site.before[step] = foreign_then_killed
    with pytest.raises(Killed):
        site.copy()
    # The entry says which version the export covers: an older one than stands there.
    assert [one.facts["version"] for one in site.kept()] == [1] and newest_commit(site.table) == 2
    pending = site.state().copying
    assert pending is not None and pending.swapped == ("t",)
    site.copy()
    assert site.exported == [1, 2]
    # The later export has the rows of the earlier one.
    assert [one.facts["version"] for one in site.kept()] == [2]
    site.check_swapped_upon_the_exported()


def test_an_export_is_not_repeated_for_the_version_it_covers(site: Site) -> None:
    site.foreign()
    site.before["begin"] = kill
    with pytest.raises(Killed):
        site.copy()
    site.copy()
    assert site.exported == [1]
    site.check_swapped_upon_the_exported()


def test_what_comes_upon_a_swap_that_is_done_again_is_exported_beside(site: Site) -> None:
    site.foreign()

    def foreign_and_killed() -> None:
        site.foreign()
        raise Killed

    site.before["committed"] = foreign_and_killed
    with pytest.raises(Killed):
        site.copy()
    # The donor is further by now: the table is swapped once more.
    site.position = 9
    site.copy()
    assert site.exported == [1, 3]
    _, second = site.kept()
    assert [commit["version"] for commit in second.facts["foreign"]] == [3]
    site.check_swapped_upon_the_exported()


def test_a_swap_that_is_done_again_alone_exports_nothing(site: Site) -> None:
    site.foreign()
    site.before["committed"] = kill
    with pytest.raises(Killed):
        site.copy()
    site.position = 9
    site.copy()
    assert site.exported == [1]
    assert site.state().tables["t"].version == 3


def test_a_renamed_table_is_known_again_and_what_came_upon_it_is_kept(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.foreign()
    record = ReplicaCopy._record
    monkeypatch.setattr(ReplicaCopy, "_record", lambda *rest: kill())
    with pytest.raises(Killed):
        site.copy(Way.RENAME)
    assert site.exported == [1] and newest_commit(site.table) == 0
    monkeypatch.setattr(ReplicaCopy, "_record", record)
    site.position = 9
    site.before["begin"] = site.foreign
    site.foreign()
    site.copy(Way.RENAME)
    # Exported as rows, and kept as directories: that of the old table, and that of the first swap.
    assert site.exported == [1, 1]
    assert len(site.kept()) == 2
    assert [newest_commit(one.path) for one in site.kept(Kind.TABLE)] == [1, 1]
    assert newest_commit(site.table) == 0


def test_an_export_is_not_overwritten_by_that_of_a_table_that_took_the_place(site: Site) -> None:
    site.foreign()
    site.before["begin"] = kill
    with pytest.raises(Killed):
        site.copy()
    # Somebody replaces the table by one with as many versions.
    shutil.rmtree(site.table)
    write(site.table, 0, ADD)
    write(site.table, 1, ADD, note="another one")
    os.utime(site.table / "_delta_log" / f"{1:020}.json", ns=(5_000, 5_000))
    site.copy()
    _, second = site.kept()
    assert site.exported == [1, 1]
    assert "was written by" in second.why or second.facts["foreign"]
    site.check_swapped_upon_the_exported()


def test_writers_that_never_rest_end_the_copy_and_lose_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = site._begin

    def restless(*rest: Any) -> Any:
        site.foreign()
        return begin(*rest)

    monkeypatch.setattr(swap, "log_transaction", restless)
    with pytest.raises(CopyConflictError, match="the one that was examined is"):
        site.copy()
    assert len(site.exported) == swap.SWAP_ATTEMPTS - 1
    assert newest_commit(site.table) == swap.SWAP_ATTEMPTS
    monkeypatch.setattr(swap, "log_transaction", begin)
    site.copy()
    site.check_swapped_upon_the_exported()


def test_a_donor_that_failed_is_named_when_another_lease_is_asked_for(site: Site) -> None:
    lease = site.lease(site.staged(Way.COMMIT).offered)
    asked = list[tuple[str, ...]]()

    def copy_ticket(worker_id: str, *, failed: Sequence[str], **rest: Any) -> CopyTicket:
        asked.append(tuple(failed))
        decision = Decision(worker_id=worker_id, plan="copy", reason="")
        return CopyTicket(copy_id="ticket", decision=decision, lease=lease)

    source: Any = SimpleNamespace(copy_ticket=copy_ticket, record_transfer=lambda transfer: None)
    fetcher: Any = SimpleNamespace(hold=lambda ticket: None, release=lambda: None)
    with closing(ReplicaDirectory(site.lake)) as directory:
        copy = ReplicaCopy(
            None,  # type: ignore[arg-type]
            source,
            directory,
            directory.load(),
            SimpleNamespace(node_id="A", log_id="l"),  # type: ignore[arg-type]
            report=lambda state: site.report(),
            open_fetcher=lambda lake, copy_id: fetcher,
            options=CopyOptions(),
        )
        copy.request()
        copy.fail("it burns")
        copy.request()
    assert asked == [(), ("b",)]
