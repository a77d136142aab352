"""Which token a call sends: one of the environment, or that of a node on this machine.

A node whose client token is in a file notes that file's path when it starts, in the user's
directory below, under the host and port that clients call.  The note itself holds no secret: only
a user that may read the token's file (mode 0600) gets the token.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote, urlsplit

from sparktxlog.files.durability import write_at_once

TOKEN_VARIABLE = "SPARKTXLOG_CLIENT_TOKEN"  # noqa: S105 - a name, no secret
ADMIN_TOKEN_VARIABLE = "SPARKTXLOG_ADMIN_TOKEN"  # noqa: S105 - a name, no secret
WORKER_TOKEN_VARIABLE = "SPARKTXLOG_WORKER_TOKEN"  # noqa: S105 - a name, no secret
_MOST_BYTES = 4096


def token_in(variable: str) -> str | None:
    """Return the token in a variable of the environment, without white space around it."""
    return os.environ.get(variable, "").strip() or None


def client_token() -> str | None:
    """Return the environment's token for reads: that of clients, else that of operators."""
    return token_in(TOKEN_VARIABLE) or token_in(ADMIN_TOKEN_VARIABLE)


def admin_token() -> str | None:
    """Return the environment's token for changes: that of operators, else that of clients."""
    return token_in(ADMIN_TOKEN_VARIABLE) or token_in(TOKEN_VARIABLE)


def worker_token() -> str | None:
    """Return the environment's token for reports of a replica: its node's disk is elsewhere."""
    return token_in(WORKER_TOKEN_VARIABLE)


def notes_directory() -> Path:
    """Return where nodes of this user note the paths of their token files."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "sparktxlog" / "nodes"


def note_token(urls: Iterable[str], token_file: Path) -> None:
    """Note, for the URLs of a node, which file holds its client token.

    Raises:
        OSError: The user's directory cannot be written.
    """
    directory = notes_directory()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in {_name(url) for url in urls}:
        write_at_once(directory / name, f"{token_file.absolute()}\n".encode())


def local_token(url: str) -> str | None:
    """Return the client token that a node of this user noted for a URL, None if there is none."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        note = _read(notes_directory() / _name(url))
        return _read(Path(note)) or None
    return None


def _read(path: Path) -> str:
    with path.open() as source:
        return source.read(_MOST_BYTES).strip()


def _name(url: str) -> str:
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with contextlib.suppress(ValueError):
        address = ip_address(host)  # a node in a container listens at all addresses of it
        host = "localhost" if address.is_loopback or address.is_unspecified else host
    # Nodes after one reverse proxy differ by their paths.
    return f"{host.replace(':', '-').replace('/', '-')}_{port}{quote(parts.path.rstrip('/'), '')}"
