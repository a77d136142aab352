"""Texts made from the settings: an example file, and the values in force."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparktxlog.config import SETTINGS, Setting, load_config
from sparktxlog.model.ids import check_new_name, check_node_id

_GIVEN = ("node-id", "master-url", "data-dir", "client-token-file")


def write_token(path: Path) -> None:
    """Write a new token that only this user can read; an existing one stays, clients use it."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as target:
            target.write(secrets.token_urlsafe(32) + "\n")


def places_in(store: str) -> dict[str, str]:
    """Return the settings of a site that keeps in a prefix of a bucket whatever can lie there."""
    root = store.rstrip("/")
    return {
        "commit-table-url": f"{root}/tables",
        "lake-url": f"{root}/rows",
        "payload-url": f"{root}/payloads",
    }


def example_config(
    *, node_id: str, port: int, token_file: Path | None = None, store: str | None = None
) -> str:
    """Return a TOML file that starts a single node; all other settings are comments.

    Args:
        store: Prefix in a bucket for tables and staged files; None = they lie below data-dir.
    """
    places = {} if store is None else places_in(store)
    check_new_name(check_node_id(node_id))
    lines = [
        "# Configuration of a sparktxlog node.  Environment variables SPARKTXLOG_<KEY> and",
        "# --set KEY=VALUE override this file; relative paths are relative to the",
        "# directory the node is started in.",
        "",
        f'node-id = "{node_id}"',
        f'master-url = "http://127.0.0.1:{port}"',
        f'data-dir = "data/{node_id.lower()}"',
        "",
        "# Peers of the other sites; all members need the same secret.",
        '# cluster-secret-file = "conf/cluster-secret"',
        "",
    ]
    if token_file is not None:
        lines += [
            "# File of the token that clients send; clients of this user on this machine find it.",
            f"client-token-file = {json.dumps(str(token_file))}",
            "",
        ]
    for setting in SETTINGS:
        if setting.key in _GIVEN:
            continue
        lines.append(f"# {setting.description}")
        if setting.key in places:
            lines.append(f"{setting.key} = {_toml(places[setting.key])}")
        else:
            lines.append(f"# {setting.key} = {_toml(setting.default)}".rstrip())
        lines.append("")
    # Keys after a [table] would belong to it, so peers come last.
    lines += ["# [peer.1]", '# id = "B"', '# url = "http://10.0.0.2:7070"']
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if value is None:
        return '""'
    if isinstance(value, tuple):
        return json.dumps(list(value))
    return json.dumps(value)


def setting_rows(path: Path | None, overrides: Mapping[str, str]) -> list[list[str]]:
    """Return (key, value, meaning) of all settings; secrets are hidden."""
    if path is None and not overrides:
        return [[s.key, _shown(s, s.default), s.description] for s in SETTINGS]
    config = load_config(path, overrides)
    rows = [[s.key, _shown(s, getattr(config, s.attribute)), s.description] for s in SETTINGS]
    for number, peer in enumerate(config.peers, start=1):
        rows.append([f"peer.{number}.id", peer.id, "Name of a peer."])
        rows.append([f"peer.{number}.url", peer.url, "URL of a peer, or several."])
        rows.append([f"peer.{number}.weight", str(peer.weight), "Votes of a peer."])
        roles = "witness" if peer.witness else "follower" if peer.follower else "master"
        rows.append([f"peer.{number}.roles", roles, "What a peer does."])
    return rows


def _shown(setting: Setting, value: Any) -> str:
    if value is None:
        return "-"
    if setting.secret:
        return "(hidden)"
    if isinstance(value, tuple):
        separator = ":" if setting.key == "listen" else ", "
        return separator.join(str(part) for part in value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
