"""Pins the base image of deploy/Dockerfile to the digest that its registry has for its tag.

    python tools/pin_base.py             # ask the registry, and write NAME:TAG@sha256:… as ARG BASE
    python tools/pin_base.py --check     # 1 if no digest is there, or the registry has another one

A tag is whatever its registry says today; a digest is the bytes that somebody looked at.  It is of
the index of all platforms, and is compared with the bytes that came.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

DOCKERFILE = Path(__file__).resolve().parent.parent / "deploy" / "Dockerfile"
HUB = "https://registry-1.docker.io"
_BASE = re.compile(
    r"(?m)^ARG BASE=(?P<name>[^:@\s]+(?::\d+/[^:@\s]+)?):(?P<tag>[\w.-]+)"
    r"(?:@(?P<digest>\S+))?$"
)
_KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_TIMEOUT_S = 30.0


class PinError(Exception):
    """Why the base image could not be pinned."""


def digest_of(name: str, tag: str, registry: str = "") -> str:
    """Return the digest of an image's index, as its registry has it now.

    Args:
        name: As in a Dockerfile: `python`, `OWNER/IMAGE` of Docker's hub, or `HOST/IMAGE`.
        registry: Its URL; default: that which the name says.

    Raises:
        PinError: The registry does not answer, or with other bytes than it says.
    """
    host, _, rest = name.partition("/")
    if rest and ("." in host or ":" in host):
        registry, path = registry or f"https://{host}", rest
    else:
        registry, path = registry or HUB, name if rest else f"library/{name}"
    url = f"{registry}/v2/{path}/manifests/{tag}"
    try:
        said, body = _asked(url)
    except OSError as error:
        raise PinError(f"{url}: {error}") from error
    found = f"sha256:{hashlib.sha256(body).hexdigest()}"
    if said != found:
        raise PinError(f"{url}: the registry says {said or 'no digest'}, its bytes have {found}")
    return found


def _asked(url: str) -> tuple[str, bytes]:
    """Return the digest that a registry says, and the bytes; it may want a token for anybody."""
    headers = {"accept": ", ".join(_KINDS)}
    try:
        return _answer(url, headers)
    except urllib.error.HTTPError as error:
        challenge = error.headers.get("www-authenticate", "")
        if error.code != 401 or not challenge.lower().startswith("bearer "):
            raise
    said = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    query = "&".join(f"{key}={said[key]}" for key in ("service", "scope") if key in said)
    found = json.loads(_answer(f"{said['realm']}?{query}", {})[1])
    token = found.get("token") or found["access_token"]
    return _answer(url, headers | {"authorization": f"Bearer {token}"})


def _answer(url: str, headers: dict[str, str]) -> tuple[str, bytes]:
    if not url.startswith(("https://", "http://127.0.0.1:")):  # a registry says where tokens are
        raise PinError(f"{url} is no https address")
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        return answer.headers.get("docker-content-digest", ""), answer.read()


def pin(dockerfile: Path, *, check: bool, registry: str = "") -> str:
    """Pin the base image of a Dockerfile, or look whether it is; return what was found.

    Raises:
        PinError: It could not be pinned, or is not.
    """
    text = dockerfile.read_text()
    found = _BASE.search(text)
    if found is None:
        raise PinError(f"{dockerfile} has no line ARG BASE=NAME:TAG")
    name, tag, before = found["name"], found["tag"], found["digest"] or ""
    if check and not before:
        raise PinError(f"{name}:{tag} has no digest; run make pin-base where a registry answers")
    digest = digest_of(name, tag, registry)
    if check and digest != before:
        raise PinError(f"{name}:{tag} is {digest} by now, pinned is {before}; run make pin-base")
    pinned = f"{name}:{tag}@{digest}"
    if not check:
        dockerfile.write_text(_BASE.sub(f"ARG BASE={pinned}", text))
    return pinned


def main() -> int:
    """Do what the command line says."""
    try:
        print(pin(DOCKERFILE, check="--check" in sys.argv[1:]))
    except PinError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
