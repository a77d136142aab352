"""`sparktxlog doctor` beside a real node: what it asks is there, and a sound one is fine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.command_line import invoke
from tests.support.node_processes import NodeProcess, free_ports

from sparktxlog.cli.doctor import disks, software


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node that nobody has written to: of rows without a worker it would warn."""
    process = NodeProcess(tmp_path, "A", free_ports(1)[0], {})
    process.start()
    try:
        process.wait_ready()
        yield process
    finally:
        process.stop()


def test_a_sound_node_has_no_problem(
    node: NodeProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its configuration, and by its URL alone, which shows where its directories are."""
    monkeypatch.setattr(software, "_installed", lambda _: None)
    monkeypatch.setattr(disks, "measure_fsync", lambda _: (1e-3, 2e-3))
    node.config.chmod(0o600)
    for arguments in (("--config", str(node.config)), ("--url", node.url)):
        assert invoke(monkeypatch, "doctor", "--json", *arguments) == 0
        found = json.loads(capsys.readouterr().out)["findings"]
        grades = {one["check"]: one["grade"] for one in found}
        assert {"disk", "fsync", "links", "node", "tokens"} <= set(grades)
        (said,) = (one["text"] for one in found if one["check"] == "node")
        assert said == "node A answers"
        if "--config" in arguments:
            (port,) = (one for one in found if one["check"] == "ports")
            assert port["grade"] == "ok" and "the node listens on 127.0.0.1:" in port["text"]
