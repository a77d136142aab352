"""Free ports of a demo, and what it says of a node that ends."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sparktxlog.cli.demo.demo_sites import DemoSite, free_port
from sparktxlog.cli.example import ExampleSite
from sparktxlog.errors import ConfigError


def test_ports_that_nobody_chose_are_free_and_follow_each_other() -> None:
    first = free_port(3)
    for port in range(first, first + 3):
        socket.create_server(("127.0.0.1", port)).close()


def test_a_port_that_somebody_chose_is_taken_or_refused() -> None:
    first = free_port(2)
    assert free_port(2, first) == first
    with pytest.raises(ConfigError, match=r"port 65536 of 127\.0\.0\.1") as caught:
        free_port(2, 65535)
    assert caught.value.fields == {"key": "port", "value": 65536} and caught.value.definite


def test_a_node_that_ends_is_reported_with_its_own_error(tmp_path: Path) -> None:
    token = tmp_path / "client.token"
    token.write_text("secret")
    config = tmp_path / "site-a.toml"
    site = DemoSite(
        ExampleSite(node_id="A", port=free_port(1), path=config, token_file=token), tmp_path
    )
    site.start()
    with pytest.raises(ConfigError, match=r"node A: .*site-a\.toml") as caught:
        site.wait_until_ready()
    assert caught.value.fields == {"node": "A"}
    assert site.stop() == 6
