"""Commit tables are recounted from their files, compared among sites, and mended from peers."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.service.local_nodes import until
from tests.service.test_catalog_api import catalog
from tests.service.test_travelling_commits import (
    Site,
    forget_files_of_versions,
    site_of,
    sites,
)
from tests.support.command_line import invoke
from tests.support.delta_writer import path_of

from sparktxlog.errors import InvalidRequestError, UnknownTableError
from sparktxlog.model.tables.commit_table import commit_file_name
from sparktxlog.model.tables.table_checks import CommitTableCheckRequest, FileFault
from sparktxlog.runtime.commit_tables import scheduled_checks, table_records
from sparktxlog.worker.replica.source import HttpLogSource
from sparktxlog.worker.verify.table_verification import (
    CommitTableResult,
    verify_commit_tables,
)

T = "default.t"


async def verified(site: Site, **how: Any) -> CommitTableResult:
    """Verify the table of a site, as the command does."""

    def run() -> tuple[CommitTableResult, ...]:
        with closing(HttpLogSource(site.caller.node.config.master_url, None)) as source:
            return verify_commit_tables(source, **how)

    (found,) = await asyncio.to_thread(run)
    return found


def states_of(site: Site) -> tuple[str, list[str]]:
    """Return state of the table in the status, and codes of the warnings about tables."""
    status = site.caller.node.status(tables=True)
    (line,) = status["commit_tables"]["tables"]
    codes = [warning["code"] for warning in status["warnings"]]
    if line["state"] != "in-sync":
        assert codes.pop() == "site-not-whole"
    return line["state"], codes


def test_damage_is_found_told_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Each answer has one version.
    monkeypatch.setattr(table_records, "PAGE_BYTES", 1)

    async def main() -> None:
        async with sites(tmp_path, "ABC") as (a, b, c):
            removed = a.table.add(b"gone")
            commit = a.table.stage(1, removed, a.table.add(b"one"))
            assert (await a.caller.commit(a.table.update(commit)))[0] == 200
            await a.write(2, {"remove": {"path": removed["add"]["path"]}})
            await a.write(3)
            await b.placed(3)
            await c.placed(3)
            sound = await verified(b)
            assert sound.sound and sound.compared_sites == ("A", "C") and sound.absent == ()
            assert (sound.version, sound.files) == (3, 9)
            before = a.files()
            assert b.files() == before
            # A file of an old version that no reader needs may go; the others may not.
            (b.directory / removed["add"]["path"]).unlink()
            assert (await verified(b)).sound
            records = b.caller.node.base.journal.read_version_files(b.table.table_id, -1, 9)
            lost, changed = (records[v].brought[-1].path for v in (0, 2))
            (b.directory / lost).unlink()
            (b.directory / changed).write_bytes(b"swor")
            b.table.published(3).write_bytes(b"{}")
            b.table.published(4).write_bytes(b"foreign")
            found = await verified(b, tables=[T])
            assert [(one.version, one.file, one.fault) for one in found.findings] == [
                (0, lost, FileFault.MISSING),
                (2, changed, FileFault.CHANGED),
                (3, commit_file_name(3), FileFault.CHANGED),
                (4, commit_file_name(4), FileFault.FOREIGN),
            ]
            said = "\n".join(found.lines())
            assert "DIFFERS default.t version 3" in said
            assert f"version 2: file '{changed}' is changed at site B" in said
            assert "version 4" in said and "is of no transaction" in said
            assert states_of(b) == ("diverged", ["commit-table-diverged"])
            assert states_of(a) == ("in-sync", [])
            url = ("--url", b.caller.node.config.master_url)
            for command in ("verify", "repair"):
                asked = ("--table", T) if command == "verify" else (T, "--dry-run")
                code = await asyncio.to_thread(invoke, monkeypatch, command, *asked, *url)
                assert code == 4
                shown = capsys.readouterr()
                assert (f"`sparktxlog repair {T}` brings" in shown.out) == (command == "verify")
                assert f"version 2: file '{changed}' is changed" in " ".join(
                    f"{shown.out}{shown.err}".replace("│", " ").split()
                )
            mended = await verified(b, tables=[T], repair=True)
            assert mended.sound and all(one.repaired for one in mended.findings)
            assert [one.fault for one in mended.findings] == [one.fault for one in found.findings]
            assert states_of(b) == ("in-sync", [])
            del before[removed["add"]["path"]]
            assert b.files() == before
            attic = b.directory.parent / ".attic"
            aside = attic / f"files-{b.directory.name}" / "content"
            assert (aside / changed).read_bytes() == b"swor"
            assert (aside / commit_file_name(4)).read_bytes() == b"foreign"
            for command in (("verify", "--table", T, "--json"), ("repair", "t")):
                code = await asyncio.to_thread(invoke, monkeypatch, *command, *url)
                assert code == 0, capsys.readouterr()
            assert "sound" in capsys.readouterr().err
            await b.write(4)

    asyncio.run(main())


def test_a_node_recounts_its_tables_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_records, "PAGE_BYTES", 1)
    monkeypatch.setattr(scheduled_checks, "_LOOK_S", 0.05)

    async def main() -> None:
        async with catalog(tmp_path, verify_interval=1e-4) as caller:
            site = site_of(caller.node, caller._session, await caller.create())
            for version in (1, 2):
                await site.write(version)
            schedule = caller.node.catalog.schedule
            await until(lambda: site.table.table_id in schedule._counted)
            first = dict(schedule._counted)
            site.table.published(2).rename(tmp_path / "2")
            await until(lambda: states_of(site) == ("diverged", ["commit-table-diverged"]))
            (tmp_path / "2").rename(site.table.published(2))
            await until(lambda: states_of(site) == ("in-sync", []))
            assert schedule._counted[site.table.table_id] > first[site.table.table_id]
            assert (await caller.ask("DELETE", path_of("t")))[0] == 204
            await until(lambda: not schedule._counted)
            await caller.create("u")
            await until(lambda: bool(schedule._counted))
        async with catalog(tmp_path, verify_interval=0) as caller:
            assert caller.node.catalog.schedule._counted, "a restart knows it"

    asyncio.run(main())


def test_a_log_that_delta_cleaned_up_is_sound(tmp_path: Path) -> None:
    """Delta removes commit files before a checkpoint, from the first one on; others may not go."""

    async def main() -> None:
        async with catalog(tmp_path) as caller:
            site = site_of(caller.node, caller._session, await caller.create())
            table, log = site.table, site.directory / "_delta_log"
            kept = table.add(b"kept")
            assert (await caller.commit(table.update(table.stage(1, kept))))[0] == 200
            await site.write(2)
            await site.write(3)

            async def faults() -> list[tuple[int, FileFault]]:
                return [(one.version, one.fault) for one in (await verified(site)).findings]

            for version in (0, 1):
                table.published(version).unlink()
            assert await faults() == [(0, FileFault.MISSING), (1, FileFault.MISSING)]
            # The checkpoint says that `kept` is needed.
            (log / "_sidecars").mkdir()
            adds = [{"path": kept["add"]["path"], "size": 4}]
            pq.write_table(pa.table({"add": adds}), log / "_sidecars" / "s.parquet")
            top = log / f"{2:020}.checkpoint.{uuid.uuid4()}.json"
            top.write_text('{"sidecar":{"path":"s.parquet"}}\n')
            assert await faults() == []
            (site.directory / kept["add"]["path"]).unlink()
            table.published(3).rename(tmp_path / "3")
            assert await faults() == [(1, FileFault.MISSING), (3, FileFault.MISSING)]
            (tmp_path / "3").rename(table.published(3))

    asyncio.run(main())


def test_sites_that_contradict_each_other(tmp_path: Path) -> None:
    """B was filled by hand, with a file that another version of the same size stands in."""

    async def main() -> None:
        async with sites(tmp_path, "ABC") as (a, b, c):
            await a.write(1)
            await b.placed(1)
            await c.placed(1)
            node, table_id = b.caller.node, b.table.table_id
            records = node.base.journal.read_version_files(table_id, -1, 9)
            path = records[1].brought[0].path
            (b.directory / path).write_bytes(b"swor")
            forget_files_of_versions(node)
            found = await verified(b)
            (one,) = found.findings
            assert (one.version, one.file, one.fault) == (1, path, FileFault.CONTRADICTED)
            assert one.sites.keys() == {"A", "B", "C"} and one.sites["A"] == one.sites["C"]
            assert "site A is right" in one.text
            assert (await verified(a)).sound, "the majority has it"
            mended = await verified(b, repair=True)
            assert [one.fault for one in mended.findings] == [
                FileFault.CONTRADICTED,
                FileFault.CHANGED,
            ]
            assert mended.sound
            assert b.files() == a.files()
            assert (await verified(b)).findings == ()

    asyncio.run(main())


def test_two_sites_need_somebody_who_says_which_one_is_right(tmp_path: Path) -> None:
    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            await a.write(1)
            await b.placed(1)
            node, table_id = b.caller.node, b.table.table_id
            path = node.base.journal.read_version_files(table_id, 0, 1)[0].brought[0].path
            (b.directory / path).write_bytes(b"swor")
            forget_files_of_versions(node)
            for repair in (False, True):
                found = await verified(b, repair=repair)
                assert [one.fault for one in found.findings] == [FileFault.CONTRADICTED]
                assert "no majority" in found.findings[0].text and not found.sound
                # Neither site is wrong by its own record: a repair alone would do nothing.
                assert f"`sparktxlog repair {T} --right SITE`" in found.way_out(by_repair=repair)
                assert found.way_out().endswith("A or B")
            warned = b.caller.node.status()["warnings"]
            assert any(f"`sparktxlog repair {T} --right SITE`" in one["text"] for one in warned)
            mended = await verified(b, repair=True, right="A")
            assert mended.sound and b.files() == a.files() and not mended.way_out()
            check = node.catalog.recounts.check
            with pytest.raises(InvalidRequestError, match="'X' is no site"):
                await check(CommitTableCheckRequest(table=T, repair=True, right="X"))
            with pytest.raises(UnknownTableError):
                await check(CommitTableCheckRequest(table="default.u"))
            await until(lambda: states_of(b) == ("in-sync", []))

    asyncio.run(main())


def test_what_no_peer_has_is_said(tmp_path: Path) -> None:
    async def main() -> None:
        async with sites(tmp_path) as (a, b):
            await a.write(1)
            await b.placed(1)
            records = b.caller.node.base.journal.read_version_files(b.table.table_id, 0, 1)
            path = records[0].brought[0].path
            for site in (a, b):
                (site.directory / path).unlink()
            found = await verified(b, repair=True)
            (one,) = found.findings
            assert not one.repaired and not found.sound
            assert one.text.endswith(
                f"it cannot be repaired: no peer has file {path!r} of version 1"
            )
            assert states_of(b)[0] == "diverged"

    asyncio.run(main())
