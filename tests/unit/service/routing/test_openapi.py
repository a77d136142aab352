"""The description of the client API is complete and its examples are real."""

from __future__ import annotations

import ast
import re
import uuid
from collections.abc import Iterator

import msgspec
from tests.architecture.source_tree import package_modules

from sparktxlog.codec.containers.runs import RunLimits
from sparktxlog.codec.submits.requests import decode_request, prepare
from sparktxlog.model.transactions.receipt import Receipt
from sparktxlog.service.routing.openapi import TRANSACTION_EXAMPLE, client_document, document_page
from sparktxlog.service.routing.routes import ROUTES


def test_every_route_of_clients_is_described_and_no_other() -> None:
    paths = client_document()["paths"]
    assert {(path, method) for path, item in paths.items() for method in item} == {
        (route.template, route.method.lower()) for route in ROUTES if route.path.startswith("/v1/")
    }


def test_the_example_for_people_calls_the_node_that_shows_it() -> None:
    for url in ("https://b.example.com:7171", "http://127.0.0.1:7072"):
        assert f"curl -s {url}/v1/transactions" in document_page(url).decode()


def test_every_answer_of_clients_has_a_schema() -> None:
    for path, item in client_document()["paths"].items():
        for operation in item.values():
            answer = operation["responses"].get("200", {"content": None})
            assert answer.get("content", {}) != {}, path
    status = client_document()["components"]["schemas"]["StatusAnswer"]
    assert {"position", "peers", "replicas", "waiting_for"} <= set(status["required"])


def _paths_of_callers() -> Iterator[tuple[str, str]]:
    """Yield (module, path) of every path that a caller of nodes spells out."""
    for module in package_modules():
        if module.room not in ("service", "errors"):
            nodes = module.nodes
            parts_of_texts = {
                id(part)
                for node in nodes
                if isinstance(node, ast.JoinedStr)
                for part in node.values
            }
            for node in nodes:
                text = ""
                if id(node) in parts_of_texts:
                    continue
                if isinstance(node, ast.JoinedStr):
                    parts = (n.value if isinstance(n, ast.Constant) else "x" for n in node.values)
                    text = "".join(map(str, parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    text = node.value
                if re.fullmatch(r"/((peer|replica)/)?v1/[^ ]*", text):
                    yield module.name, text.partition("?")[0]


def test_callers_use_declared_paths() -> None:
    patterns = [re.sub(r"{[\w:]+}", "[^/]+", route.path) for route in ROUTES]
    found = set(_paths_of_callers())
    assert len(found) > 20
    unknown = {
        (module, path)
        for module, path in found
        # The beginning of a path is completed elsewhere.
        if not any(
            re.fullmatch(f"{path.rstrip('/')}(/.*)?", one) or re.fullmatch(one, path)
            for one in patterns
        )
    }
    assert unknown == set()


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
    assert {"TransactionRequest", "Receipt", "ProblemDocument", "Segment", "OwnReport"} <= names
    assert names <= set(schemas)


def test_the_example_is_a_transaction_that_the_node_takes() -> None:
    request = decode_request(msgspec.json.encode(TRANSACTION_EXAMPLE))
    prepared = prepare(request, uuid.uuid4().bytes, {}, RunLimits())
    assert [o.kind.value for o in prepared.operations] == ["create_table", "upsert", "delete_where"]


def test_the_example_of_a_receipt_is_one() -> None:
    example = client_document()["components"]["schemas"]["Receipt"]["examples"][0]
    assert msgspec.convert(example, Receipt).position == 117
