"""What of a node's configuration lets others see its secrets: warnings, which stop nothing.

A file of a secret that every user can read is refused at the start (`checking`, `certificates`,
`grants`).  The log at the start, `status` and `sparktxlog doctor` report what is left.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from urllib.parse import urlsplit

from sparktxlog.config.node_config import SECRETS, NodeConfig, variable_of
from sparktxlog.model.answers import OperatorWarning
from sparktxlog.model.values import is_loopback, split_urls

HTTP_ALLOWED, OPEN_FILE, ON_COMMAND_LINE = "http-allowed", "open-secret", "secret-on-command-line"


def exposures(config: NodeConfig) -> list[OperatorWarning]:
    """Return what lets others see secrets of a node, as its files are now."""
    return [*_http(config), *_open_files(config), *_on_command_line(config)]


def _http(config: NodeConfig) -> list[OperatorWarning]:
    urls = [config.master_url, *(peer.url for peer in config.peers)]
    hosts = [
        config.listen[0],
        *(urlsplit(url).hostname or "" for one in urls for url in split_urls(one)),
    ]
    if not config.uses_tls or config.tls_mode == "require" or all(map(is_loopback, hosts)):
        return []
    text = (
        "tls-mode is allow-http: clients that use http send tokens and rows for all to read; set "
        "tls-mode = require once all clients and peers use https"
    )
    return [{"code": HTTP_ALLOWED, "text": text}]


def _open_files(config: NodeConfig) -> list[OperatorWarning]:
    found: list[OperatorWarning] = []
    for name, path in secret_files(config).items():
        if users := readers(path):
            fix = f"chmod 600 {path}, and replace its secret if that matters"
            text = f"{name}: {users} can read or change {path}; {fix}"
            found.append({"code": OPEN_FILE, "text": text})
    return found


def _on_command_line(config: NodeConfig) -> list[OperatorWarning]:
    held = {one: getattr(config, one.attribute) for one in SECRETS}
    return [
        {
            "code": ON_COMMAND_LINE,
            "text": f"{one.key} was given on the command line, which every user of this machine "
            f"can read with ps; put it in a file that {one.key}-file names, or in "
            f"{variable_of(one.key)}, and replace it",
        }
        for one, secret in held.items()
        if secret is not None and any(secret in argument for argument in sys.argv)
    ]


def secret_files(config: NodeConfig) -> dict[str, Path]:
    """Return what it is → file that others must not read; a configuration if it holds a secret."""
    found = {f"{one.key}-file": getattr(config, f"{one.attribute}_file") for one in SECRETS}
    found |= {f"token-file of client {one.name}": one.token_file for one in config.grants}
    found["tls-key-file"] = config.tls_key_file
    found["store-credentials-file"] = config.store_credentials_file
    for one in SECRETS:
        origin = config.origins.get(one.key, "")
        if origin.startswith("file "):
            found["configuration"] = Path(origin.removeprefix("file "))
    return {name: path for name, path in found.items() if path is not None}


def readers(path: Path) -> str | None:
    """Return which users may read or change a file other than its owner and this process's group.

    Empty = nobody; None = it is not there, which its own check reports.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o007:
        return f"every user of this machine (mode {mode:04o})"
    own = found.st_gid == os.getegid()
    return f"group {found.st_gid} (mode {mode:04o})" if mode & 0o060 and not own else ""
