"""A program gets both branches once this node has the kept one, until it took them (P28, V74)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.parted_queues import Node, OtherNode, append_run

from sparktxlog.protocol.messages.view import Phase
from sparktxlog.runtime.leaving_fork.branch_hook import BranchHook, note_branches
from sparktxlog.runtime.leaving_fork.node_quarantine import quarantine_node
from sparktxlog.supervision import Supervisor

_END = 9


def _program(directory: Path, text: str) -> Path:
    path = directory / "reconcile"
    path.write_text(f"#!/bin/sh\ncd {directory}\n{text}\n")
    path.chmod(0o755)
    return path


def _base(directory: Path, *, phase: Phase = Phase.NORMAL, end: int = _END) -> Any:
    return SimpleNamespace(
        config=SimpleNamespace(data_dir=directory),
        master=SimpleNamespace(phase=phase),
        ordered=SimpleNamespace(value=end),
        supervisor=Supervisor(),
    )


@asynccontextmanager
async def _watching(base: Any, program: Path) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(BranchHook(base, program).watch())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


def test_the_program_is_run_again_until_it_took_the_branches(tmp_path: Path) -> None:
    note_branches(tmp_path, "fork", {"kept": {"end": _END}, "left": {"end": 7}})
    program = _program(
        tmp_path, "cat > got; echo x >> runs; [ $(wc -l < runs) -gt 2 ] || { echo no >&2; exit 3; }"
    )

    async def main() -> None:
        base = _base(tmp_path)
        async with _watching(base, program) as task:
            await _until(lambda: base.supervisor.failing())
            (failure,) = base.supervisor.failing()
            assert str(failure.error).endswith("reconcile ended with 3: no")
            await _until((tmp_path / "branches" / "fork.told").exists)
            await _until(lambda: not base.supervisor.failing())
            assert not task.done(), "the end of a task of the node is a failure of the node"
        async with _watching(base, program):  # the node starts again
            await asyncio.sleep(0)

    asyncio.run(main())
    assert (tmp_path / "runs").read_text() == "x\n" * 3
    assert json.loads((tmp_path / "got").read_text()) == {"kept": {"end": _END}, "left": {"end": 7}}
    assert not list((tmp_path / "branches").glob("*.json"))


def test_it_waits_until_the_node_has_the_kept_branch_and_is_a_member(tmp_path: Path) -> None:
    note_branches(tmp_path, "fork", {"kept": {"end": _END}})
    program = _program(tmp_path, "echo x >> runs")

    async def main() -> None:
        base = _base(tmp_path, phase=Phase.JOINING)
        hook = BranchHook(base, program)
        assert not hook._has_reached(_END)
        base.master.phase, base.ordered.value = Phase.NORMAL, _END - 1
        assert not hook._has_reached(_END)
        base.ordered.value = _END
        async with _watching(base, program):
            await _until((tmp_path / "branches" / "fork.told").exists)

    asyncio.run(main())
    assert (tmp_path / "runs").read_text() == "x\n"


def test_a_program_that_runs_is_ended_with_the_node_and_started_again_later(tmp_path: Path) -> None:
    note_branches(tmp_path, "fork", {"kept": {"end": _END}})
    program = _program(tmp_path, "echo $$ > pid.new; mv pid.new pid; exec sleep 600")

    async def main() -> int:
        async with _watching(_base(tmp_path), program):
            await _until((tmp_path / "pid").exists)
            return int((tmp_path / "pid").read_text())

    pid = asyncio.run(main())
    assert not Path(f"/proc/{pid}").exists() or os.waitpid(pid, os.WNOHANG)
    assert [path.name for path in (tmp_path / "branches").iterdir()] == ["fork.json"]


def test_a_program_that_is_gone_is_a_failure_that_says_so(tmp_path: Path) -> None:
    note_branches(tmp_path, "fork", {"kept": {"end": _END}})

    async def main() -> str:
        base = _base(tmp_path)
        async with _watching(base, tmp_path / "none"):
            await _until(base.supervisor.failing)
            return str(base.supervisor.failing()[0].error)

    assert "none cannot be run: No such file" in asyncio.run(main())


def test_a_node_that_gives_way_notes_both_branches(node: Node, other: OtherNode) -> None:
    lost = [append_run(4, 2), append_run(6)]
    node.order(lost)
    node.write(append_run(7, ts=90))
    other.hold(lost[0])
    hooked = replace(node.config, fork_hook=Path("/bin/cat"))
    planned = quarantine_node(hooked, other, dry_run=True)
    directory = node.config.data_dir / "branches"
    assert not directory.exists()
    done = quarantine_node(hooked, other)
    assert done.quarantine_id == planned.quarantine_id
    note = json.loads((directory / f"{done.quarantine_id}.json").read_text())
    assert note["common"] == {"position": done.common, "exact": True}
    left, kept = note["left"], note["kept"]
    assert (left["ordered"], left["accepted"], left["surviving"]) == (3, 1, 2)
    assert (left["table"], left["directory"]) == (str(done.table), str(done.directory))
    assert (kept["node"], kept["log_id"], kept["url"]) == ("A", "forced", other.url)
    rows = node.kept()
    assert [one["id"] for one in left["transactions"]] == [row["transaction_id"] for row in rows]
    assert [one["survives"] for one in left["transactions"]] == [True, True, False, False]
    assert [one["position"] for one in left["transactions"]] == [7, 8, 9, None]
    assert left["all_transactions"] is True


def test_without_a_program_nothing_is_noted(node: Node, other: OtherNode) -> None:
    node.order([append_run(4)])
    quarantine_node(node.config, other)
    assert not (node.config.data_dir / "branches").exists()
