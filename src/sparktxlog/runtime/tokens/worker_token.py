"""The token with which a worker proves that it belongs to this node.

The node writes it to its data directory, readable by its user only; a worker shares disk and user
with its node.  It stays as long as the file exists.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from sparktxlog.files.durability import storage_error, write_at_once

_NAME = "worker.token"


def worker_token_file(data_dir: Path) -> Path:
    """Return where a node keeps the token of its workers."""
    return data_dir / _NAME


def make_worker_token(data_dir: Path) -> str:
    """Return the token; make it if there is none.

    Raises:
        StorageError: It can be neither read nor written (definite).
    """
    path = worker_token_file(data_dir)
    try:
        if path.exists() and (kept := path.read_text("ascii").strip()):
            return kept
        token = secrets.token_urlsafe(32)
        write_at_once(path, f"{token}\n".encode(), mode=0o600)
    except OSError as error:
        raise storage_error(error, path) from error
    return token
