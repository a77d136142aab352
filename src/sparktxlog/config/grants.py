"""Clients that may write some tables only: read from the file of `grants-file`, and checked.

    [reports]                                   # name of the client, for messages
    token-file = "/etc/sparktxlog/secrets/reports.token"  # its own; no other user may read it
    write = ["sales.*", "orders", "hr.people"]  # tables, or all tables of a schema

`orders` is `default.orders`, for row tables and commit tables alike.  Case does not count.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sparktxlog.config.node_config import (
    LEAST_CHARACTERS,
    OTHERS,
    ClientGrant,
    granted_name,
)
from sparktxlog.errors import ConfigError

KEY = "grants-file"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PATTERN = re.compile(r"(\w{1,255}\.)?(\w{1,255}|\*)")
_MAX_FILE_BYTES = 1 << 20
_WAY_OUT = (
    '[NAME], then token-file = "FILE" and write = ["schema.table", "schema.*"]; see docs/access.md.'
)


def read_grants(path: Path, taken: Collection[str | None]) -> tuple[ClientGrant, ...]:
    """Read and check a file of grants.

    Args:
        taken: Tokens that are in use already.

    Raises:
        ConfigError: It cannot be read, or says something wrong (definite).
    """
    try:
        data = path.read_bytes()
        if len(data) > _MAX_FILE_BYTES:
            raise ValueError("is larger than 1 MiB")
        said = tomllib.loads(data.decode())
    except (OSError, ValueError) as error:
        raise _wrong(path, "", str(error)) from error
    found: list[ClientGrant] = []
    for name, lines in said.items():
        file, token = _token(path, name, lines)
        if token in (*taken, *(one.token for one in found)):
            raise _wrong(path, name, "has a token that is in use already", "Give it its own.")
        patterns = lines["write"]
        if not isinstance(patterns, list):
            raise _wrong(path, name, "write is no list")
        for pattern in patterns:
            if not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern) or pattern == "*":
                raise _wrong(path, name, f"write has {pattern!r:.80}, which names no table")
        written = frozenset(granted_name(pattern) for pattern in patterns)
        found.append(ClientGrant(name=name, token=token, token_file=file, write=written))
    return tuple(found)


def _token(path: Path, name: str, lines: Any) -> tuple[Path, str]:
    if not _NAME.fullmatch(name):
        raise _wrong(path, name[:80], "is no name of a client", "Letters, digits, _, - and dots.")
    if not isinstance(lines, dict) or set(lines) != {"token-file", "write"}:
        raise _wrong(path, name, "needs token-file and write, and nothing else")
    file = Path(str(lines["token-file"])).expanduser()
    try:
        if file.stat().st_mode & OTHERS:
            why = f"every user of this machine can read or write {file}"
            raise _wrong(path, name, why, f"chmod 600 {file}, and replace the token.")
        token = file.read_text().strip()
    except (OSError, ValueError) as error:
        raise _wrong(path, name, f"token-file: {error}") from error
    if len(token) < LEAST_CHARACTERS:
        why = f"the token in {file} is shorter than {LEAST_CHARACTERS} characters"
        raise _wrong(path, name, why, "Make one with `openssl rand -hex 32`.")
    return file, token


def _wrong(path: Path, client: str, why: str, hint: str = _WAY_OUT) -> ConfigError:
    of = f" client {client!r}:" if client else ""
    return ConfigError(
        f"{KEY} = {str(path)!r}:{of} {why}", hint=hint, file=str(path), key=KEY, value=client
    )
