"""The client API over plain HTTP: what a node answers, refuses and leaves undone."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.node_processes import NodeProcess, free_ports, run_payload, wait_until

from sparktxlog import Client
from sparktxlog.codec.containers.sections import write_section
from sparktxlog.errors import UnauthorizedError, UnreachableError
from sparktxlog.service.routing.openapi import TRANSACTION_EXAMPLE

ARROW = "application/vnd.apache.arrow.stream"
RUN = "application/vnd.sparktxlog.run"


def ask(
    node: NodeProcess,
    path: str,
    body: bytes | dict[str, Any] | None = None,
    kind: str = "application/json",
    method: str | None = None,
    **headers: str,
) -> tuple[int, Any]:
    """Return status and JSON of one request."""
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    headers = {"content-type": kind, **headers}
    request = Request(node.url + path, data=data, headers=headers, method=method)
    try:
        with urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        with error:
            problem = json.loads(error.read())
            problem["content-type"] = error.headers["content-type"]
            return error.code, problem


def position(node: NodeProcess) -> int:
    found: int = ask(node, "/v1/info")[1]["position"]
    return found


@pytest.fixture(scope="module")
def table(node: NodeProcess) -> str:
    with Client(node.url) as client:
        client.create_table("t", {"id": "bigint", "v": "string"})
        client.create_table("keyed", {"id": "bigint", "v": "string"}, keys=["id"])
        client.create_table(
            "parts", {"id": "bigint", "day": "date"}, keys=["id"], partition_by=["day"]
        )
    return "t"


def test_the_example_of_the_documentation(node: NodeProcess) -> None:
    status, receipt = ask(node, "/v1/transactions", TRANSACTION_EXAMPLE)
    assert status == 200
    assert receipt["transaction_id"] == TRANSACTION_EXAMPLE["transaction_id"]
    assert (receipt["level"], receipt["outcome"]) == ("ordered", "committed")
    assert receipt["rows"] == 2
    told = ask(node, f"/v1/transactions/{receipt['transaction_id']}")[1]
    assert told == {**receipt, "rows": None}


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/transactions", b"{", 400, "invalid-request"),
        ("/v1/transactions", b"", 400, "invalid-request"),
        ("/v1/transactions", {"operations": []}, 400, "invalid-request"),
        ("/v1/transactions", {**TRANSACTION_EXAMPLE, "transaction_id": "x"}, 400, "invalid-name"),
        ("/v1/transactions?level=done", {"operations": []}, 400, "invalid-request"),
        ("/v1/transactions?timeout=-1", {"operations": []}, 400, "invalid-request"),
        ("/v1/transactions?timeout=nan", {"operations": []}, 400, "invalid-request"),
        ("/v1/transactions?timeout=301", {"operations": []}, 400, "invalid-request"),
        ("/v1/runs", b"no run", 422, "manifest-mismatch"),
        ("/v1/runs?level=applied(99)", b"", 422, "manifest-mismatch"),
        ("/v1/tables/t/rows", b"no arrow", 400, "invalid-request"),
        ("/v1/tables/t/rows?kind=merge", b"", 400, "invalid-request"),
        ("/v1/tables/t/rows?kind=delete_where", b"", 400, "invalid-request"),
        ("/v1/tables/nope/rows", b"", 404, "unknown-table"),
        ("/v1/tables/a%2Fb/rows", b"", 404, "not-found"),
        ("/v1/tables/t/rows?kind=upsert", b"", 400, "invalid-request"),
        ("/v1/tables/t/rows?schema_version=0", b"", 400, "invalid-request"),
        ("/v1/tables/t/rows?schema_version=2", b"", 409, "stale-schema"),
        ("/v1/worker/reports", b"{}", 400, "invalid-request"),
        ("/v1/tables/nope", None, 404, "unknown-table"),
        ("/v1/tables/..", None, 400, "invalid-name"),
        ("/v1/transactions/0f8fad5b-d9cb-469f-a165-70867728950e", None, 404, "not-found"),
        ("/v1/transactions/x", None, 400, "invalid-name"),
        ("/v1/queue?after=x", None, 400, "invalid-request"),
        ("/v1/queue?limit=5000", None, 400, "invalid-request"),
        ("/v1/published?at_least=-1", None, 400, "invalid-request"),
        ("/v1/worker/segments?wait=1e9", None, 400, "invalid-request"),
        ("/v1/probe/..", None, 400, "invalid-name"),
        ("/v1/probe/none", None, 422, "payload-store"),
        ("/v1/nothing", None, 404, "not-found"),
        ("/v1/runs", None, 405, "invalid-request"),
    ],
)
def test_requests_that_are_refused(
    node: NodeProcess, table: str, path: str, body: Any, status: int, code: str
) -> None:
    before = position(node)
    found, problem = ask(node, path, body)
    assert (found, problem["title"]) == (status, code)
    assert problem["content-type"] == "application/problem+json"
    assert problem["status"] == status and problem["definite"] is True
    assert problem["type"] == f"urn:sparktxlog:error:{code}"
    assert position(node) == before


def deletion(predicate: str) -> dict[str, Any]:
    return {"operations": [{"kind": "delete_where", "table": "parts", "predicate": predicate}]}


@pytest.mark.parametrize(
    ("operation", "status"),
    [
        (deletion("day = '2024-01-31' and id = 0e99999999999999999999BD"), 400),
        (deletion("id in (" + "1," * 10_000 + "1)"), 400),
        (deletion("true or " * 9_000 + "true"), 400),
        ({"operations": [*deletion("true or " * 6_000 + "true")["operations"] * 6]}, 413),
        ({"operations": deletion("true")["operations"] * 1_001}, 400),
        (
            {"operations": [{"kind": "append", "table": "t", "rows": [{"id": 10**400, "v": ""}]}]},
            422,
        ),
        (
            {
                "operations": [
                    {
                        "kind": "create_table",
                        "table": "wide",
                        "columns": [{"name": f"c{i}", "type": "int"} for i in range(2_001)],
                    }
                ]
            },
            400,
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_too_much_or_overflows_is_the_clients_fault(
    node: NodeProcess, table: str, operation: dict[str, Any], status: int
) -> None:
    found, problem = ask(node, "/v1/transactions", operation)
    assert (found, problem["definite"]) == (status, True)


def test_a_scale_above_the_precision_is_refused(node: NodeProcess, table: str) -> None:
    rows = pa.table({"id": pa.array([1], pa.decimal128(10, 9)), "v": ["x"]})
    data = write_section(rows).replace(
        (10).to_bytes(4, "little") + (9).to_bytes(4, "little"),
        (10).to_bytes(4, "little") + (11).to_bytes(4, "little"),
    )
    status, problem = ask(node, "/v1/tables/t/rows", data, ARROW)
    assert (status, problem["title"]) == (422, "schema-mismatch")
    nulls = write_section(pa.table({"id": pa.nulls(1 << 24), "v": pa.nulls(1 << 24)}), "zstd")
    status, problem = ask(node, "/v1/tables/t/rows", nulls, ARROW)
    assert (status, problem["title"]) == (413, "oversize")


def test_a_body_over_the_limit(node: NodeProcess, table: str) -> None:
    before = position(node)
    status, problem = ask(node, "/v1/transactions", b" " * ((8 << 20) + 1))
    assert (status, problem["title"]) == (413, "oversize")
    assert problem["fields"]["limit_bytes"] == 8 << 20
    assert position(node) == before


def test_a_body_without_length_is_cut_off_at_the_limit(node: NodeProcess) -> None:
    host, port = node.url.removeprefix("http://").split(":")
    piece = b"%x\r\n%s\r\n" % (1 << 20, b" " * (1 << 20))
    with socket.create_connection((host, int(port))) as link:
        link.sendall(
            b"POST /v1/transactions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        try:
            for _ in range(12):
                link.sendall(piece)
            link.sendall(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass
        link.settimeout(10)
        assert b" 413 " in link.recv(65536).partition(b"\r\n")[0]


def test_rows_as_one_transaction(node: NodeProcess, table: str) -> None:
    body = write_section(pa.table({"v": ["a", "b"], "id": [1, 2]}))
    wanted = str(uuid.uuid4())
    status, receipt = ask(node, f"/v1/tables/t/rows?transaction_id={wanted}", body, ARROW)
    assert (status, receipt["transaction_id"], receipt["n"]) == (200, wanted, 1)


def test_rows_as_many_transactions(node: NodeProcess, table: str) -> None:
    before = position(node)
    rows = pa.table({"id": [1, 2, 3], "v": ["a"] * 3, "__txlog_tx": pa.array([0, 0, 1])})
    status, receipt = ask(node, "/v1/tables/t/rows", write_section(rows), ARROW)
    assert (status, receipt["n"], receipt["position"]) == (200, 2, before + 1)
    assert len({*receipt["ids"]}) == 2
    last = ask(node, f"/v1/transactions/{receipt['ids'][1]}")[1]
    assert last["position"] == before + 2


@pytest.mark.parametrize("txs", [[1, 1, 2], [0, 2, 3], [0, 1, 0], [0, None, 1], ["a", "b", "c"]])
def test_rows_whose_transactions_make_no_sense(
    node: NodeProcess, table: str, txs: list[Any]
) -> None:
    rows = pa.table({"id": [1, 2, 3], "v": ["a"] * 3, "__txlog_tx": txs})
    status, problem = ask(node, "/v1/tables/t/rows", write_section(rows), ARROW)
    assert (status, problem["title"]) == (400, "invalid-request")
    assert "__txlog_tx" in problem["detail"]


def test_a_run_passes_and_a_repeat_is_the_same_run(node: NodeProcess, table: str) -> None:
    payload = run_payload(1000, 77)
    status, receipt = ask(node, "/v1/runs", payload, RUN)
    assert (status, receipt["n"], receipt["transaction_id"]) == (200, 1000, None)
    assert ask(node, "/v1/runs", payload, RUN)[1]["position"] == receipt["position"]
    assert position(node) == receipt["position"] + 999


def test_an_altered_run_is_refused(node: NodeProcess, table: str) -> None:
    before = position(node)
    payload = bytearray(run_payload(10, 78))
    payload[-20] ^= 1
    status, problem = ask(node, "/v1/runs", bytes(payload), RUN)
    assert (status, problem["title"]) == (422, "manifest-mismatch")
    assert position(node) == before


# -- staged files ---------------------------------------------------------------------------------


def stage(root: Path, rows: pa.Table, name: str = "a.parquet") -> tuple[str, dict[str, Any]]:
    """Write a file as Spark would; return the transaction id and its entry."""
    transaction_id = str(uuid.uuid4())
    path = root / transaction_id / "parts" / name
    path.parent.mkdir(parents=True)
    pq.write_table(rows, path)
    return transaction_id, {
        "path": f"{transaction_id}/parts/{name}",
        "size_bytes": path.stat().st_size,
        "rows": rows.num_rows,
        "digest": hashlib.sha256(path.read_bytes()).hexdigest(),
        "partition": {"day": "2024-01-31"},
    }


def submit_files(node: NodeProcess, transaction_id: str, *files: dict[str, Any]) -> tuple[int, Any]:
    return ask(
        node,
        "/v1/transactions",
        {
            "transaction_id": transaction_id,
            "operations": [
                {"kind": "append", "table": "t", "rows": [{"id": 1, "v": "beside"}]},
                {"kind": "append", "table": "parts", "files": list(files)},
            ],
        },
    )


def test_staged_files_are_taken(node: NodeProcess, table: str, payload_root: Path) -> None:
    transaction_id, file = stage(payload_root, pa.table({"id": [1, 2, 3]}))
    status, receipt = submit_files(node, transaction_id, file)
    assert (status, receipt["outcome"]) == (200, "committed")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"digest": "0" * 64}, "manifest-mismatch"),
        ({"size_bytes": 1}, "manifest-mismatch"),
        ({"rows": 9}, "manifest-mismatch"),
        ({"partition": {}}, "schema-mismatch"),
        ({"partition": {"day": "yesterday"}}, "schema-mismatch"),
        ({"path": "../secret"}, "invalid-name"),
        ({"path": "a\x00b"}, "invalid-name"),
    ],
)
def test_staged_files_that_are_not_as_told(
    node: NodeProcess, table: str, payload_root: Path, change: dict[str, Any], code: str
) -> None:
    before = position(node)
    transaction_id, file = stage(payload_root, pa.table({"id": [1, 2, 3]}))
    status, problem = submit_files(node, transaction_id, file | change)
    assert problem["title"] == code and problem["definite"] is True and status in (400, 422)
    assert position(node) == before
    assert ask(node, f"/v1/transactions/{transaction_id}")[0] == 404


def test_a_file_that_is_not_there(node: NodeProcess, table: str, payload_root: Path) -> None:
    transaction_id, file = stage(payload_root, pa.table({"id": [1]}))
    (payload_root / file["path"]).unlink()
    status, problem = submit_files(node, transaction_id, file)
    assert (status, problem["title"]) == (422, "payload-store")
    assert ask(node, f"/v1/transactions/{transaction_id}")[0] == 404


def test_a_link_out_of_the_store_is_not_followed(
    node: NodeProcess, table: str, payload_root: Path, tmp_path: Path
) -> None:
    transaction_id, file = stage(payload_root, pa.table({"id": [1]}))
    inside = payload_root / file["path"]
    inside.rename(tmp_path / "outside.parquet")
    inside.symlink_to(tmp_path / "outside.parquet")
    status, _ = submit_files(node, transaction_id, file)
    assert status in (400, 422)
    assert ask(node, f"/v1/transactions/{transaction_id}")[0] == 404


def test_the_store_can_be_probed(node: NodeProcess, payload_root: Path) -> None:
    name = uuid.uuid4().hex
    (payload_root / "probe").mkdir(exist_ok=True)
    (payload_root / "probe" / name).write_bytes(b"seen")
    assert ask(node, f"/v1/probe/{name}") == (
        200,
        {"size_bytes": 4, "digest": hashlib.sha256(b"seen").hexdigest()},
    )


def test_a_position_of_another_log_is_refused_at_once(node: NodeProcess, table: str) -> None:
    rows = [{"id": 1, "v": "x"}]
    operations = [{"kind": "append", "table": table, "rows": rows}]
    receipt = ask(node, "/v1/transactions", {"operations": operations})[1]
    own, wanted = receipt["log_id"], receipt["position"]
    assert ask(node, f"/v1/published?at_least={wanted}&log_id={own}&timeout=20")[0] == 200
    for path in ("published", "snapshot"):
        # Before any wait: its positions mean nothing here.
        status, problem = ask(node, f"/v1/{path}?at_least={10**9}&log_id=other&timeout=300")
        assert (status, problem["title"], problem["definite"]) == (409, "foreign", True)
        assert problem["fields"] == {"log_id": own, "position": 10**9}


# -- workers, levels, description -----------------------------------------------------------------


def test_segments_cover_the_published_queue(node: NodeProcess, table: str) -> None:
    wanted = position(node)
    assert ask(node, f"/v1/published?at_least={wanted}&timeout=20")[1]["position"] >= wanted
    answer = ask(node, "/v1/worker/segments?after=0&limit=1000")[1]
    assert answer["position"] >= wanted and answer["log_id"]
    ends = [(item["first"], item["last"]) for item in answer["segments"]]
    assert ends[0][0] == 1
    assert all(a[1] + 1 == b[0] for a, b in pairwise(ends))
    names = {item["name"] for item in ask(node, "/v1/worker/tables")[1]}
    assert {"t", "keyed", "parts"} <= names


NOTHING = {
    "transaction_id": None,
    "n": 0,
    "level": "ordered",
    "late": False,
    "run": None,
    "position": None,
    "outcome": "committed",
    "rejections": [],
    "ordered_at": None,
    "rows": 0,
    "ids": [],
    "log_id": None,
    "holders": None,
    "prepared_at": None,
    "held_up": None,
}


@pytest.mark.parametrize("kind", ["append", "upsert", "delete_keys"])
def test_no_rows_change_nothing_and_are_recorded_under_an_id_only(
    node: NodeProcess, table: str, kind: str
) -> None:
    before = position(node)
    empty = {"operations": [{"kind": kind, "table": "keyed", "rows": []}]}
    assert ask(node, "/v1/transactions", empty) == (200, NOTHING)
    names = ["id"] if kind == "delete_keys" else ["id", "v"]
    types = {"id": pa.int64(), "v": pa.string()}
    stream = write_section(pa.schema([(name, types[name]) for name in names]).empty_table())
    path = f"/v1/tables/keyed/rows?kind={kind}"
    assert ask(node, path, stream, ARROW) == (200, NOTHING)
    status, problem = ask(node, "/v1/tables/keyed/rows", write_section(pa.table({"x": []})), ARROW)
    assert (status, problem["title"]) == (422, "schema-mismatch")
    assert position(node) == before
    for number, answer in enumerate(
        (
            lambda identity: ask(node, "/v1/transactions", {**empty, "transaction_id": identity}),
            lambda identity: ask(node, f"{path}&transaction_id={identity}", stream, ARROW),
        ),
        start=1,
    ):
        identity = str(uuid.uuid4())
        status, receipt = answer(identity)
        assert (status, receipt["transaction_id"], receipt["n"]) == (200, identity, 1)
        assert (receipt["rows"], receipt["position"]) == (0, before + number)
        assert answer(identity) == (200, receipt)
        assert ask(node, f"/v1/transactions/{identity}")[1]["outcome"] == "committed"
    assert position(node) == before + 2


def test_an_overwrite_with_no_rows_is_recorded_as_what_it_does(
    node: NodeProcess, table: str
) -> None:
    before = position(node)
    body = {"operations": [{"kind": "overwrite", "table": "keyed", "rows": []}]}
    status, receipt = ask(node, "/v1/transactions", body)
    assert (status, receipt["position"], receipt["rows"]) == (200, before + 1, 0)
    ask(node, f"/v1/published?at_least={before + 1}&timeout=30")
    (segment,) = ask(node, f"/v1/worker/segments?after={before}")[1]["segments"]
    (effect,) = segment["effects"]
    assert (effect["table"], effect["kind"], effect["predicate"]) == (
        "keyed",
        "delete_where",
        "TRUE",
    )


def test_a_submit_waits_for_the_position_that_it_shall_come_after(node: NodeProcess) -> None:
    """A table whose creation is ordered elsewhere is known here once this node has got there."""
    before, name = position(node), f"t{uuid.uuid4().hex[:8]}"
    append = {"operations": [{"kind": "append", "table": name, "rows": [{"id": 1}]}]}
    rows = write_section(pa.table({"id": [1]}))
    columns = [{"name": "id", "type": "bigint"}]
    create = {"operations": [{"kind": "create_table", "table": name, "columns": columns}]}
    after = f"after={before + 1}"
    asked: dict[str, Future[tuple[int, Any]]] = {}
    assert ask(node, f"/v1/transactions?after={before}", append)[1]["title"] == "unknown-table"
    with ThreadPoolExecutor() as pool:
        asked["json"] = pool.submit(ask, node, f"/v1/transactions?{after}", append)
        asked["rows"] = pool.submit(ask, node, f"/v1/tables/{name}/rows?{after}", rows, ARROW)
        asked["table"] = pool.submit(ask, node, f"/v1/tables/{name}?{after}")
        assert not wait(asked.values(), timeout=0.3).done
        assert ask(node, "/v1/transactions", create)[1]["position"] == before + 1
    assert {key: found.result()[0] for key, found in asked.items()} == dict.fromkeys(asked, 200)
    assert asked["json"].result()[1]["position"] > before + 1
    assert asked["table"].result()[1]["name"] == name


@pytest.mark.parametrize("path", ["/v1/transactions", "/v1/runs", "/v1/tables/t/rows"])
def test_a_position_that_does_not_come_is_a_refusal_that_may_be_tried_again(
    node: NodeProcess, table: str, path: str
) -> None:
    far = position(node) + 10**9
    status, problem = ask(node, f"{path}?after={far}&timeout=0.1", b"{}")
    assert (status, problem["title"]) == (503, "position-not-reached")
    assert problem["definite"] and problem["retryable"]
    assert problem["fields"] == {"after": far, "position": position(node)}
    assert ask(node, f"/v1/tables?after={far}&timeout=0.1")[1]["title"] == "position-not-reached"
    status, problem = ask(node, f"{path}?after=-1", b"{}")
    assert (status, problem["title"]) == (400, "invalid-request")


def test_a_long_poll_ends_without_holding_others_up(node: NodeProcess, table: str) -> None:
    began = time.monotonic()
    answers: list[Any] = []
    path = f"/v1/worker/segments?after={position(node) + 1000}&wait=3"
    poll = threading.Thread(target=lambda: answers.append(ask(node, path)))
    poll.start()
    assert ask(node, "/v1/info")[0] == 200
    assert not answers
    poll.join()
    assert answers[0][1]["segments"] == [] and time.monotonic() - began >= 3


def test_a_level_not_reached_in_time(node: NodeProcess, table: str) -> None:
    body = {"operations": [{"kind": "append", "table": "t", "rows": [{"id": 1, "v": "x"}]}]}
    status, receipt = ask(node, "/v1/transactions?level=applied&timeout=2", body)
    assert (status, receipt["level"], receipt["late"]) == (200, "ordered", True)
    assert receipt["outcome"] == "committed" and receipt["position"] == position(node)
    again = {**body, "transaction_id": receipt["transaction_id"]}
    assert ask(node, "/v1/transactions?level=applied&timeout=2", again) == (200, receipt)
    assert ask(node, f"/v1/transactions/{receipt['transaction_id']}")[1] == {
        **receipt,
        "late": False,
        "rows": None,
    }
    status, problem = ask(node, "/v1/transactions?level=applied(2)", body)
    assert (status, problem["title"]) == (400, "invalid-request")


def test_the_description_is_served(node: NodeProcess) -> None:
    status, document = ask(node, "/openapi.json")
    assert status == 200 and "/v1/transactions" in document["paths"]
    with urlopen(f"{node.url}/docs") as page:
        text = page.read().decode()
    assert "/v1/transactions" in text and "<script" not in text


# -- token ----------------------------------------------------------------------------------------


def _answers(client: Client) -> bool:
    try:
        return bool(client.info())
    except UnreachableError:
        return False


@pytest.fixture(scope="module")
def guarded_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path_factory.mktemp("guarded"), "G", free_ports(1)[0], {})
    process.start("client-token=a-token-of-clients")
    try:
        with Client(process.url, "a-token-of-clients") as client:
            wait_until(lambda: _answers(client), what="the node is up")
        yield process
    finally:
        process.stop()


@pytest.mark.parametrize("token", [None, "another", ""])
def test_every_route_wants_the_token(guarded_node: NodeProcess, token: str | None) -> None:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    routes = [
        (path.replace("{table}", "t").replace("{id}", "x").replace("{name}", "x"), method.upper())
        for path, methods in ask(guarded_node, "/openapi.json")[1]["paths"].items()
        for method in methods
    ]
    assert len(routes) >= 14
    for path, method in routes:
        body = None if method == "GET" else b"{}"
        status, problem = ask(guarded_node, path, body, method=method, **headers)
        assert (status, problem["title"]) == (401, "unauthorized"), path


def test_the_client_shows_its_token(
    guarded_node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(guarded_node.url, "a-token-of-clients") as client:
        client.create_table("t", {"id": "int"})
    with Client(guarded_node.url, "wrong") as client, pytest.raises(UnauthorizedError):
        client.append("t", [{"id": 1}])
    monkeypatch.setenv("SPARKTXLOG_CLIENT_TOKEN", "a-token-of-clients")
    with Client(guarded_node.url) as client:
        assert client.append("t", [{"id": 1}]).outcome == "committed"
