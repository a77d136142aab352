"""The description of the client API is complete and its examples are real."""

from __future__ import annotations

import re
import uuid
from types import SimpleNamespace

import msgspec

from sparktxlog.codec.requests import decode_request, prepare
from sparktxlog.codec.runs import RunLimits
from sparktxlog.model.receipt import Receipt
from sparktxlog.service.client import client_routes
from sparktxlog.service.openapi import TRANSACTION_EXAMPLE, client_document


def test_every_route_is_described_and_no_other() -> None:
    node = SimpleNamespace(
        config=SimpleNamespace(
            run_limit_transactions=1, run_limit_bytes=1, body_limit=1, is_witness=False
        )
    )
    routes = {
        (route.path, method.lower())
        for route in client_routes(node)  # type: ignore[arg-type]
        for method in route.methods or ()
        if method != "HEAD" and route.path.startswith("/v1/")
    }
    paths = client_document()["paths"]
    assert {(path, method) for path, item in paths.items() for method in item} == routes


def test_parameters_of_paths_are_described() -> None:
    for path, item in client_document()["paths"].items():
        for operation in item.values():
            named = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))


def test_acts_of_operators_want_their_token() -> None:
    wanted = {
        (path, method): next(iter(operation["security"][0]))
        for path, item in client_document()["paths"].items()
        for method, operation in item.items()
    }
    assert set(wanted.values()) <= set(client_document()["components"]["securitySchemes"])
    assert wanted["/v1/peers/{id}/replace", "post"] == "adminToken"
    assert wanted["/v1/settings", "patch"] == "adminToken"
    assert wanted["/v1/settings", "get"] == "clientToken"


def test_references_lead_somewhere() -> None:
    document = client_document()
    text = msgspec.json.encode(document).decode()
    schemas = document["components"]["schemas"]
    names = set(re.findall(r"#/components/schemas/(\w+)", text))
    assert {"TransactionRequest", "Receipt", "Problem", "Segment", "WorkerReport"} <= names
    assert names <= set(schemas)


def test_the_example_is_a_transaction_that_the_node_takes() -> None:
    request = decode_request(msgspec.json.encode(TRANSACTION_EXAMPLE))
    prepared = prepare(request, uuid.uuid4().bytes, {}, RunLimits())
    assert [o.kind.value for o in prepared.operations] == ["create_table", "upsert", "delete_where"]


def test_the_example_of_a_receipt_is_one() -> None:
    example = client_document()["components"]["schemas"]["Receipt"]["examples"][0]
    assert msgspec.convert(example, Receipt).position == 117
