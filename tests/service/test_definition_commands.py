"""`sparktxlog table create` and `table alter` do what the calls of a client do, at a real node."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.service.local_nodes import cluster
from tests.support.command_line import invoke


def test_a_table_is_created_and_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def done(command: str, *arguments: str, code: int = 0) -> Any:
        assert invoke(monkeypatch, "table", command, "bronze.t", *arguments, "--json") == code
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    def work() -> None:
        columns = "id bigint not null comment 'of the shop', v string, n int"
        given = [columns, "--keys", "id", "--property", "team=sales", "--comment", "all of it"]
        assert done("create", *given)["position"] == 1
        done("create", columns, "--keys", "id")  # an equal one: does nothing
        found = done("describe")
        assert (found["keys"], found["properties"]) == (["id"], {"team": "sales"})
        assert (found["comment"], found["schema_version"]) == ("all of it", 1)
        refused = done("create", "id bigint, v string, n bigint", "--keys", "id", code=1)
        assert "column 'n' is int, not bigint" in refused["detail"]

        changed = done(
            "alter",
            *("--add", "day date comment 'of the order'", "--rename", "v=value"),
            *("--widen", "n bigint", "--keys", "id,day", "--cluster-by", "value,day"),
            *("--column-comment", "v=what it is", "--comment", ""),
            *("--property", "owner=a=b", "--unset", "team"),
        )
        found = done("describe")
        assert changed["position"] == 3
        assert {one["name"]: (one["type"], one["comment"]) for one in found["columns"]} == {
            "id": ("bigint", "of the shop"),
            "value": ("string", "what it is"),
            "n": ("bigint", ""),
            "day": ("date", "of the order"),
        }
        assert (found["keys"], found["cluster_by"]) == (["id", "day"], ["value", "day"])
        assert (found["comment"], found["properties"]) == ("", {"owner": "a=b"})
        done("alter", "--keys", "", "--cluster-by", "", "--drop", "n", "--synchronous")
        found = done("describe")
        assert (found["keys"], found["cluster_by"], found["is_sync"]) == ([], [], True)
        assert [one["name"] for one in found["columns"]] == ["id", "value", "day"]

        assert "changes nothing" in done("alter", code=2)["detail"]
        assert "'k' is NOT NULL" in done("alter", "--add", "k int not null", code=2)["detail"]
        assert invoke(monkeypatch, "table", "alter", "bronze.t", "--rename", "value") == 2
        assert "'value' has no '='" in capsys.readouterr().err
        assert invoke(monkeypatch, "table", "alter", "bronze.t", "--add", "k int") == 0
        assert "row table bronze.t is changed." in capsys.readouterr().out

    async def main() -> None:
        async with cluster(tmp_path, "A") as nodes:
            monkeypatch.setenv("SPARKTXLOG_URL", nodes["A"].config.master_url)
            await asyncio.to_thread(work)

    asyncio.run(main())
