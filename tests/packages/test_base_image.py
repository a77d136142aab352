"""The base image of containers is pinned to what a registry has: here one of this machine."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tools.pin_base import DOCKERFILE, PinError, pin

INDEX = json.dumps({"schemaVersion": 2, "manifests": []}).encode()
DIGEST = f"sha256:{hashlib.sha256(INDEX).hexdigest()}"
TEXT = "# The base.\nARG BASE=python:3.11-slim-bookworm\n\nFROM ${BASE} AS site\n"


class Registry(BaseHTTPRequestHandler):
    """Wants a token that anybody gets, as public registries do."""

    said = DIGEST

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        if self.path.startswith("/token?"):
            assert "scope=repository:library/python:pull" in self.path
            self._answer(200, json.dumps({"token": "t0"}).encode())
        elif self.headers.get("authorization") != "Bearer t0":
            realm = f'Bearer realm="http://127.0.0.1:{port}/token",service="r"'
            scope = 'scope="repository:library/python:pull"'
            self._answer(401, b"", **{"www-authenticate": f"{realm},{scope}"})
        elif self.path == "/v2/library/python/manifests/3.11-slim-bookworm":
            assert "image.index" in self.headers["accept"]
            self._answer(200, INDEX, **{"docker-content-digest": self.said})
        else:
            self._answer(404, b"")

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_base_image_is_pinned_and_checked(
    tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(TEXT)
    with pytest.raises(PinError, match="has no digest"):
        pin(file, check=True, registry=registry)
    pinned = f"python:3.11-slim-bookworm@{DIGEST}"
    for _ in range(2):  # again: it is
        assert pin(file, check=False, registry=registry) == pinned
        assert file.read_text() == TEXT.replace("python:3.11-slim-bookworm", pinned)
    assert pin(file, check=True, registry=registry) == pinned
    file.write_text(file.read_text().replace(DIGEST, "sha256:" + "0" * 64))
    with pytest.raises(PinError, match="by now"):
        pin(file, check=True, registry=registry)
    monkeypatch.setattr(Registry, "said", "sha256:" + "1" * 64)
    with pytest.raises(PinError, match="its bytes have"):
        pin(file, check=False, registry=registry)
    file.write_text(TEXT.replace("bookworm", "nowhere"))
    with pytest.raises(PinError, match="404"):
        pin(file, check=False, registry=registry)
    with pytest.raises(PinError, match="refused"):
        pin(file, check=False, registry="http://127.0.0.1:1")


def test_the_dockerfile_has_one_base_that_can_be_pinned(tmp_path: Path, registry: str) -> None:
    copy = tmp_path / "Dockerfile"
    copy.write_text(DOCKERFILE.read_text())
    assert pin(copy, check=False, registry=registry).endswith(DIGEST)
    text = copy.read_text()
    assert text.count("@sha256:") == 1 and text.count("FROM ${BASE} AS") == 1
    assert not [x for x in text.splitlines() if x.startswith("FROM") and "/" in x]


def test_the_images_of_this_repository_have_a_digest() -> None:
    """Its registry need not answer for that; `--check` asks it."""
    (base,) = re.findall(r"(?m)^ARG BASE=(\S+)$", DOCKERFILE.read_text())
    assert re.fullmatch(r"python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", base)
