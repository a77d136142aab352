"""Views of the node's state as files, for readers by SQL."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparktxlog.codec.state_views import VIEWS
from sparktxlog.errors import StorageError
from sparktxlog.runtime import state_files
from sparktxlog.runtime.state_files import StateFiles
from sparktxlog.runtime.view_rows import ViewRows

#: What views ask and is a list.
LISTS = {ask for view in VIEWS.values() for ask in view.asks} - {"status", "info", "settings"}


def files_of(directory: Path, status: dict[str, Any]) -> StateFiles:
    async def run_blocking(work: Any, *given: Any) -> Any:
        return work(*given)

    async def nothing() -> list[Any]:
        return []

    base: Any = SimpleNamespace(
        config=SimpleNamespace(data_dir=directory), run_blocking=run_blocking
    )
    answers: dict[str, Any] = dict.fromkeys(LISTS, nothing)

    def told() -> dict[str, Any]:
        if "gone" in status:
            raise StorageError("a file is gone")
        return status

    answers |= {"status": told, "status_with_tables": told, "info": dict, "settings": dict}
    return StateFiles(base, ViewRows(base, answers))


def position(directory: Path) -> int:
    (line,) = (directory / "log/state/masters.json").read_text().splitlines()
    found = json.loads(line)
    assert found["as_of"].endswith("Z")
    return int(found["position"])


def test_files_are_written_from_the_first_request_on_until_somebody_removes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        beats: asyncio.Queue[None] = asyncio.Queue()
        real = asyncio.sleep

        async def beat(seconds: float) -> None:
            assert seconds == state_files.PERIOD_S
            await beats.get()

        monkeypatch.setattr(asyncio, "sleep", beat)
        status: dict[str, Any] = {"node_id": "A", "position": 1}
        files = files_of(tmp_path, status)
        watching = asyncio.create_task(files.watch())
        await real(0)
        assert not (tmp_path / "log").exists()
        answer = await files.begin()
        assert Path(answer["directory"]) == tmp_path / "log/state"
        assert {path.stem for path in (tmp_path / "log/state").glob("*.json")} == set(VIEWS)
        assert position(tmp_path) == 1
        await real(0)
        status["position"] = 2
        beats.put_nowait(None)
        for _ in range(5):
            await real(0)
        assert position(tmp_path) == 2
        # One that cannot be answered now is written the next time.
        status |= {"gone": True, "position": 3}
        beats.put_nowait(None)
        for _ in range(5):
            await real(0)
        assert position(tmp_path) == 2 and not watching.done()
        del status["gone"]
        shutil.rmtree(tmp_path / "log")
        beats.put_nowait(None)
        for _ in range(5):
            await real(0)
        assert not (tmp_path / "log").exists() and not watching.done()
        # A node that starts with the directory goes on.
        await files.begin()
        again = asyncio.create_task(files_of(tmp_path, {"node_id": "A", "position": 3}).watch())
        for _ in range(5):
            await real(0)
        assert position(tmp_path) == 3
        for task in (watching, again):
            task.cancel()

    asyncio.run(main())


def test_a_directory_that_takes_no_files_is_told(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("in the way")
    with pytest.raises(StorageError, match="views of the state cannot be written"):
        asyncio.run(files_of(tmp_path, {}).begin())
