"""docs/adopting.md, word for word: its commands and its Python, in their order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.architecture.source_tree import ROOT
from tests.spark.api.nodes import RunningNode, start_node
from tests.support.command_line import invoke

from sparktxlog.cli.common_options import NodeApi

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.timeout(600)]

_PAGE = (ROOT / "docs" / "adopting.md").read_text()
_STEPS = _PAGE.split("# What adopting does")[0]


@pytest.fixture
def node(tmp_path: Path) -> RunningNode:
    """Do what the page's first block does, on a free port."""
    first = re.search(r"```sh\n(.*?)```", _STEPS, re.DOTALL)
    assert first is not None and "sparktxlog serve --config conf/mine.toml &" in first[1]
    return start_node(tmp_path)


@pytest.mark.thorough
@pytest.mark.usefixtures("jobs_share_spark")
def test_the_page_works(
    spark: SparkSession,
    node: RunningNode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SPARKTXLOG_URL", node.url)
    said = []
    try:
        for kind, block in re.findall(r"```(sh|python)\n(.*?)```", _STEPS, re.DOTALL)[1:]:
            text = block.replace("/tmp/shop", str(tmp_path / "shop"))
            if kind == "python":
                exec(compile(text, "docs/adopting.md", "exec"), {})
                continue
            for line in text.splitlines():
                assert invoke(monkeypatch, *shlex.split(line)[1:]) == 0, line
                said.append(capsys.readouterr().out)
        tables = {table["name"] for table in NodeApi(node.url).get("/v1/tables")}
    finally:
        node.stop()
    dry, adopted, _, verified, _, released = said
    shown = re.search(r"```text\n(.*?)\n", _STEPS, re.DOTALL)
    assert shown is not None
    assert shown[1].replace("/tmp/shop", str(tmp_path / "shop")) in dry
    assert "Transaction" in adopted and "orders" in verified
    assert "the log has it no more" in released and tables == {"orders_now"}
