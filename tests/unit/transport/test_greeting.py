"""Greetings: G39–G42, G44 and two nodes under one id."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparktxlog.codec.wire import Hello
from sparktxlog.errors import ForbiddenPeerError
from sparktxlog.transport.greeting import Greeter

A = Hello(node_id="A", url="http://a", instance="ia", boot="1", lineage="l", config_hash="c")
B = replace(A, node_id="B", url="http://b", instance="ib", boot="2")


def greeter(**instances: str) -> tuple[Greeter, list[tuple[str, str]]]:
    kept: list[tuple[str, str]] = []
    made = Greeter(A, {"B": "http://b"}, instances, lambda node, i: kept.append((node, i)))
    return made, kept


def test_the_right_peer_is_remembered_once() -> None:
    judge, kept = greeter()
    judge.check(B, "B")
    judge.check(replace(B, boot="3", url="http://b/"), "B")
    assert kept == [("B", "ib")]
    assert judge.known("B")
    assert not judge.known("X")


@pytest.mark.parametrize(
    ("hello", "expected", "part"),
    [
        (replace(B, node_id="X"), "B", "answers where 'B' is configured"),
        (replace(B, node_id="X"), "X", "is configured"),
        (replace(B, url="http://c"), "B", "URL of node 'B'"),
        (replace(B, lineage="other"), "B", "lineage"),
        (replace(B, config_hash="d"), "B", "configuration"),
        (replace(B, wire_version=9), "B", "wire version"),
        (replace(A, instance="other"), "A", "two nodes with one id"),
    ],
)
def test_who_is_not_who_it_should_be(hello: Hello, expected: str, part: str) -> None:
    judge, kept = greeter()
    with pytest.raises(ForbiddenPeerError, match=part):
        judge.check(hello, expected)
    assert kept == []


def test_another_data_directory_under_a_known_id() -> None:
    judge, kept = greeter(B="ib")
    with pytest.raises(ForbiddenPeerError, match="two nodes with one id"):
        judge.check(replace(B, instance="new"), "B")
    judge.check(B, "B")
    assert kept == []
