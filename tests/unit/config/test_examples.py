"""The example files of conf/ are configurations that work together."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparktxlog.config import load_config

CONF = Path(__file__).parents[3] / "conf"


def test_the_three_sites_are_each_others_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "conf" / "cluster.secret"
    secret.parent.mkdir()
    secret.write_text("0123456789abcdef")
    secret.chmod(0o600)
    monkeypatch.chdir(tmp_path)
    sites = []
    for name in "abc":
        text = (CONF / f"site-{name}.toml").read_text()
        sites.append(load_config(CONF / f"site-{name}.toml", environ={}))
        assert f'"data/site-{name}"' in text
        assert "cluster-secret = " not in text
    assert len({site.shared_hash() for site in sites}) == 1
    assert len({site.log_id for site in sites}) == 1
    assert sites[0].members == ("A", "B", "C")


def test_the_single_node_needs_nothing_else() -> None:
    config = load_config(CONF / "single.toml", environ={})
    assert config.members == ("A",)
    assert config.acquisition_quorum == 1
