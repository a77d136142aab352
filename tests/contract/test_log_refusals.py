"""What a node refuses a worker, by its code and not by its status alone."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from tests.contract.test_log_source import Node, node, source_of

from sparktxlog.errors import (
    ApplyError,
    ExpiredError,
    InternalError,
    InvalidRequestError,
    LocalProtocolError,
    NotFoundError,
    RemoteProtocolError,
    TransportError,
    TxLogError,
    UnauthorizedError,
)
from sparktxlog.worker.replica.replica_driver import Fault, fault_of

__all__ = ["node"]

SEGMENTS = "/v1/worker/segments"


@pytest.mark.parametrize(
    ("told", "kind", "fault"),
    [
        (ExpiredError("gone"), ExpiredError, Fault.UNAVAILABLE),
        (UnauthorizedError("no"), UnauthorizedError, Fault.REFUSED),
        (LocalProtocolError("not now"), LocalProtocolError, Fault.REFUSED),
        (InvalidRequestError("what?"), InvalidRequestError, Fault.REFUSED),
        (NotFoundError("who?"), NotFoundError, Fault.REFUSED),
        (InternalError("a bug"), TransportError, Fault.TRANSPORT),
    ],
)
def test_only_expired_says_that_the_log_is_gone(
    node: Node, told: TxLogError, kind: type[TxLogError], fault: Fault
) -> None:
    node.answers[SEGMENTS] = (told.http_status, json.dumps(told.to_problem()).encode())
    with closing(source_of(node)) as source, pytest.raises(TxLogError) as caught:
        source.segments(0, wait_s=0.0)
    assert type(caught.value) is kind and told.message in str(caught.value)
    assert fault_of(caught.value) is fault


@pytest.mark.parametrize(
    ("status", "content"),
    [(410, b"<h1>gone</h1>"), (404, b"[]"), (405, b"{}"), (200, b'{"position": "a"}'), (302, b"")],
)
def test_what_is_no_answer_of_a_node_is_no_reason_to_copy(
    node: Node, status: int, content: bytes
) -> None:
    node.answers[SEGMENTS] = (status, content)
    with closing(source_of(node)) as source, pytest.raises(RemoteProtocolError) as caught:
        source.segments(0, wait_s=0.0)
    assert caught.value.definite and "one release" in caught.value.hint
    assert fault_of(caught.value) is Fault.REFUSED


def test_a_refused_copy_keeps_the_nodes_reason(node: Node) -> None:
    told = LocalProtocolError("no copy for worker 'w': no healthy donor", hint="See status.")
    node.answers["/v1/worker/copies"] = (told.http_status, json.dumps(told.to_problem()).encode())
    with closing(source_of(node)) as source, pytest.raises(ApplyError) as caught:
        source.copy_ticket("w", forced=False)
    assert "no healthy donor" in str(caught.value) and caught.value.hint == told.hint
