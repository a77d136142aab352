"""Texts made from the settings: an example file, and the values in force."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparktxlog.config import SETTINGS, Setting, load_config
from sparktxlog.errors import ConfigError
from sparktxlog.files.durability import storage_error, storing
from sparktxlog.model.ids import check_new_name, check_node_id

_GIVEN = ("node-id", "master-url", "data-dir", "client-token-file")
_LAST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSite:
    """A site on this machine whose configuration `init` writes."""

    node_id: str
    port: int
    #: Its configuration.
    path: Path
    #: The file of the token that its clients show.
    token_file: Path
    #: Prefix in a bucket for tables and staged files; None = they lie below data-dir.
    store: str | None = None

    @property
    def url(self) -> str:
        """Its address, for clients and peers."""
        return f"http://127.0.0.1:{self.port}"


def example_sites(
    directory: Path, count: int, *, port: int, store: str | None = None
) -> list[ExampleSite]:
    """Return sites A, B, … with ports that follow each other.

    They share one client token: commands such as `verify --compare` show all sites the same.

    Args:
        directory: Gets `site-a.toml`, `site-b.toml`, … and `client.token`.
        store: Prefix in a bucket; each site has its own one below it.

    Raises:
        ConfigError: A port would be beyond the last one (definite).
    """
    if port + count - 1 > _LAST_PORT:
        raise ConfigError(
            f"{count} sites from port {port} on need ports beyond {_LAST_PORT}",
            hint=f"Use --port {_LAST_PORT - count + 1} or lower.",
            key="port",
            value=port,
        )
    return [
        ExampleSite(
            node_id=name,
            port=port + number,
            path=directory / f"site-{name.lower()}.toml",
            token_file=directory / "client.token",
            store=None if store is None else f"{store.rstrip('/')}/site-{name.lower()}",
        )
        for number, name in enumerate(string.ascii_uppercase[:count])
    ]


def write_examples(
    sites: Sequence[ExampleSite], *, secret_file: Path | None = None, force: bool = False
) -> None:
    """Write the configurations of sites that are each other's peers, and their tokens.

    Args:
        secret_file: The secret that two or more sites share; an existing one stays.
        force: Replace configurations that are there.

    Raises:
        ConfigError: A file is there already, or a value is wrong; nothing was written (definite).
        DiskFullError, StorageError: A file cannot be written; a new one is whole, or not there.
    """
    there = [site.path for site in sites if site.path.exists()]
    if there and not force:
        raise ConfigError(
            f"{there[0]} exists already",
            hint="Choose another place, or add --force.",
            file=str(there[0]),
        )
    texts = {}
    for site in sites:
        required = {"node-id": site.node_id, "master-url": site.url, "data-dir": "data"}
        places = {} if site.store is None else places_in(site.store)
        load_config(None, required | places, {})
        texts[site.path] = example_config(
            node_id=site.node_id,
            port=site.port,
            token_file=site.token_file,
            store=site.store,
            peers={one.node_id: one.url for one in sites if one is not site},
            secret_file=secret_file,
        )
    for site in sites:
        with storing(site.path.parent):
            site.path.parent.mkdir(parents=True, exist_ok=True)
        write_token(site.token_file)
    if secret_file is not None:
        write_token(secret_file)
    for path, text in texts.items():
        _write(path, os.O_TRUNC, 0o666, text)


def write_token(path: Path) -> None:
    """Write a new secret that only this user can read; an existing one stays, others know it.

    Raises:
        DiskFullError, StorageError: It is not there (definite).
    """
    with contextlib.suppress(FileExistsError):
        _write(path, os.O_EXCL, 0o600, secrets.token_urlsafe(32) + "\n")


def _write(path: Path, how: int, mode: int, text: str) -> None:
    """Write a file; a new one is there as a whole, or not at all."""
    is_new = not path.exists()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, mode)
    except FileExistsError:
        raise
    except OSError as error:
        raise storage_error(error, path) from error
    try:
        with os.fdopen(descriptor, "w") as target:
            target.write(text)
    except OSError as error:
        if is_new:
            path.unlink(missing_ok=True)
        raise storage_error(error, path) from error


def places_in(store: str) -> dict[str, str]:
    """Return the settings of a site that keeps in a prefix of a bucket whatever can lie there."""
    root = store.rstrip("/")
    return {
        "commit-table-url": f"{root}/tables",
        "lake-url": f"{root}/rows",
        "payload-url": f"{root}/payloads",
    }


def example_config(
    *,
    node_id: str,
    port: int,
    token_file: Path | None = None,
    store: str | None = None,
    peers: Mapping[str, str] | None = None,
    secret_file: Path | None = None,
) -> str:
    """Return a TOML file that starts a node; all other settings are comments.

    Args:
        store: Prefix in a bucket for tables and staged files; None = they lie below data-dir.
        peers: Node id → URL of the other sites; none for a single node.
        secret_file: File of the secret of all members, needed with peers.
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
        '# cluster-secret-file = "conf/cluster-secret"'
        if secret_file is None
        else f"cluster-secret-file = {json.dumps(str(secret_file))}",
        "",
    ]
    if token_file is not None:
        lines += [
            "# File of the token that clients send; clients of this user on this machine find it.",
            f"client-token-file = {json.dumps(str(token_file))}",
            "",
        ]
    for setting in SETTINGS:
        if setting.key in _GIVEN or (secret_file and setting.key == "cluster-secret-file"):
            continue
        lines.append(f"# {setting.description}")
        if setting.key in places:
            lines.append(f"{setting.key} = {_toml(places[setting.key])}")
        else:
            lines.append(f"# {setting.key} = {_toml(setting.default)}".rstrip())
        lines.append("")
    # Keys after a [table] would belong to it, so peers come last.
    if not peers:
        lines += ["# [peer.1]", '# id = "B"', '# url = "http://10.0.0.2:7070"']
    for number, (name, url) in enumerate((peers or {}).items(), start=1):
        lines += [f"[peer.{number}]", f'id = "{name}"', f'url = "{url}"', ""]
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
