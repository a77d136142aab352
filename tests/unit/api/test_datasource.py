"""Registering `format("txlog")`: Spark warns of a name that is registered again."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from sparktxlog.api.datasource import register_format
from sparktxlog.api.staging.staged_append import nodes_of


class _Session:
    """A session's registry of data sources."""

    def __init__(self) -> None:
        self.registered: list[type] = []

    @property
    def dataSource(self) -> Any:
        return self

    def register(self, kind: type) -> None:
        self.registered.append(kind)


def test_who_connects_again_registers_nothing_again() -> None:
    session: Any = _Session()
    for _ in range(3):
        register_format(session, url="http://a:7070", token="secret")
    assert len(session.registered) == 1
    register_format(session, url="http://b:7070", token="secret")
    assert [kind.defaults["url"] for kind in session.registered] == [
        "http://a:7070",
        "http://b:7070",
    ]
    other: Any = _Session()
    register_format(other, url="http://b:7070", token="secret")
    assert len(other.registered) == 1


def test_the_authority_of_connect_reaches_every_reader_and_writer() -> None:
    session: Any = _Session()
    register_format(session, url="https://a:7070,https://b:7070", ca_file="/etc/ca.crt")
    (kind,) = session.registered
    for options, ca_file in (({}, "/etc/ca.crt"), ({"cafile": "/other.crt"}, "/other.crt")):
        with closing(nodes_of(kind(options).options)) as nodes:
            assert [link.ca_file for link in nodes._links] == [ca_file] * 2
