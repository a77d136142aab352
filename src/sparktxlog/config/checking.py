"""Checks of single values and of all together; errors name file, key, value and what to do."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sparktxlog.config.grants import read_grants
from sparktxlog.config.node_config import (
    BY_KEY,
    LEAST_CHARACTERS,
    OTHERS,
    SECRETS,
    SETTINGS,
    ClientGrant,
    ConfiguredPeer,
    NodeConfig,
    variable_of,
)
from sparktxlog.errors import ConfigError
from sparktxlog.model.buckets import bucket_url
from sparktxlog.model.ids import NodeId
from sparktxlog.model.values import (
    MAX_WEIGHT,
    counted,
    is_loopback,
    read_node_id,
    read_roles,
    read_text,
    read_urls,
    split_urls,
)

#: A node has all of them, or none.
_TLS_FILES = ("tls-cert-file", "tls-key-file", "tls-ca-file")
#: Pairs of settings whose first one must not be greater than the second.
_ASCENDING = (("idle-round-min", "idle-round-max"), ("worker-heartbeat", "worker-dead-after"))
_PEER_KEY = re.compile(r"peer\.([0-9]{1,4})\.(id|url|weight|role|roles)")


def check_key(key: str, value: Any, where: str) -> None:
    """Check that a key is known.

    Raises:
        ConfigError: With the nearest valid one (definite).
    """
    if key in BY_KEY or _PEER_KEY.fullmatch(key):
        return
    names = [*BY_KEY, *(f"peer.1.{part}" for part in _PEER_READERS)]
    lowered = {name.lower(): name for name in names}
    near = difflib.get_close_matches(key.lower(), list(lowered), n=1, cutoff=0.4)
    meant = BY_KEY.get(lowered[near[0]]) if near else None
    shown = "(hidden)" if meant is not None and meant.secret else repr(value)[:120]
    raise ConfigError(
        f"{where}: unknown key {key[:80]!r} (value {shown})",
        hint=f"Did you mean {lowered[near[0]]!r}?" if near else "See `sparktxlog config show`.",
        file=where,
        key=key,
        value=shown,
    )


def _wrong(where: str, key: str, value: Any, why: str, hint: str = "") -> ConfigError:
    setting = BY_KEY.get(key)
    is_secret = (setting is not None and setting.secret) or re.search("://[^/]*@", str(value))
    shown = "(hidden)" if is_secret else repr(value)[:120]
    return ConfigError(
        f"{where}: {key} = {shown}: {why}",
        hint=hint or (setting.description if setting is not None else ""),
        file=where,
        key=key,
        value=shown,
    )


def _missing(where: str, key: str, why: str = "is required") -> ConfigError:
    hint = BY_KEY[key].description if key in BY_KEY else ""
    return ConfigError(f"{where}: {key} {why}", hint=hint, file=where, key=key, value="")


def resolve(values: Mapping[str, tuple[Any, str]], where: str) -> NodeConfig:
    """Return the settings, read and checked as a whole.

    Args:
        values: Key → value and where it was given; keys are known.
        where: Place that errors about missing values name.

    Raises:
        ConfigError: A value is wrong or missing; fields `file`, `key`, `value` (definite).
    """
    read: dict[str, Any] = {setting.key: setting.default for setting in SETTINGS}
    for setting in SETTINGS:
        if setting.key in values:
            read[setting.key] = _read(setting.read, setting.key, *values[setting.key])
    for key in ("node-id", "master-url", "data-dir"):
        if read[key] is None:
            raise _missing(where, key)
    origins = {
        key: f"file {source}" if source == where else source for key, (_, source) in values.items()
    }
    peers = _resolve_peers(values, read, where)
    _resolve_places(read)
    _resolve_secrets(read, origins, where)
    _check_tls(read, values, where)
    _check_secrets(read, where, peers)
    grants = _resolve_grants(read, where)
    rule = _resolve_quorum(read, values, where, peers)
    _check_guard(read, values, peers)
    if (hook := read["fork-hook"]) and not (hook.is_file() and os.access(hook, os.X_OK)):
        raise _wrong(
            values["fork-hook"][1], "fork-hook", str(hook), "is no program that this user can run"
        )
    if read["commit-table-url"] and read["reader-table-dir"]:
        raise _wrong(
            values["reader-table-dir"][1],
            "reader-table-dir",
            str(read["reader-table-dir"]),
            "is not kept for commit tables in a bucket (commit-table-url)",
        )
    for key, other in combinations(("payload-url", "lake-url", "commit-table-url"), 2):
        one, two = read[key], read[other]
        if one and two and _is_in(one, two) | _is_in(two, one):
            raise _wrong(
                values[key][1],
                key,
                one,
                f"is the prefix {two} of {other}, or one of them is in the other",
                "Give each a prefix of its own, such as s3://bucket/site-a and "
                "s3://bucket/rows-of-a.",
            )
    _check_stores(read, values)
    for low, high in _ASCENDING:
        if read[low] > read[high]:
            source = values.get(high, values.get(low, (None, where)))[1]
            raise _wrong(source, high, read[high], f"is less than {low}")
    fields = {setting.attribute: read[setting.key] for setting in SETTINGS}
    return NodeConfig(**fields, quorum_rule=rule, peers=peers, grants=grants, origins=origins)


def _check_stores(read: Mapping[str, Any], values: Mapping[str, tuple[Any, str]]) -> None:
    for key in ("store-endpoint", "store-sts-endpoint"):
        if read[key].startswith("http://") and not read["store-allow-http"]:
            raise _wrong(
                values[key][1],
                key,
                read[key],
                "is not encrypted",
                "Write https://, or store-allow-http = true for a network that nobody else reads.",
            )
    if donors := read["store-copy-from"]:
        source, own = values["store-copy-from"][1], [read["payload-url"], read["commit-table-url"]]
        if not any((url or "").startswith("s3://") for url in own):
            why = "needs payload-url or commit-table-url in a bucket of S3"
            raise _wrong(source, "store-copy-from", ",".join(donors), why)
        for url in own:
            for donor in donors:
                if url and _is_in(donor, url) | _is_in(url, donor):
                    why = f"is this site's own {url}, or one of them is in the other"
                    raise _wrong(source, "store-copy-from", donor, why)
    if read["store-vend-sas"] and not (read["commit-table-url"] or "").startswith("abfs"):
        why = "needs commit-table-url in a container of Azure, abfss://…"
        raise _wrong(values["store-vend-sas"][1], "store-vend-sas", True, why)
    if role := read["store-vend-role"]:
        source = values["store-vend-role"][1]
        if not (read["commit-table-url"] or "").startswith("s3://"):
            raise _wrong(
                source, "store-vend-role", role, "needs commit-table-url in a bucket of S3"
            )
        if read["store-endpoint"] and not read["store-sts-endpoint"]:
            raise _missing(
                source, "store-sts-endpoint", "is required with store-vend-role and store-endpoint"
            )


def _read(reader: Callable[[Any], Any], key: str, value: Any, source: str) -> Any:
    try:
        return reader(value)
    except ValueError as error:
        raise _wrong(source, key, value, str(error)) from error


def check_directories(config: NodeConfig) -> None:
    """Check that this user can write a node's directories, or make those that are missing.

    Nothing is made or changed.

    Raises:
        ConfigError: A directory cannot be used (definite).
    """
    for key, path in (
        ("data-dir", config.data_dir),
        ("payload-dir", config.payload_dir),
        ("commit-table-dir", config.commit_table_dir),
        ("reader-table-dir", config.reader_table_dir),
    ):
        if path is None:
            continue
        try:
            why = _unusable(path) or (_sealed(path) if key == "data-dir" else "")
        except OSError as error:
            why = f"cannot be used: {error.strerror}"
        if why:
            raise not_usable(config, key, path, why)


def make_data_dir(config: NodeConfig) -> None:
    """Make a node's data directory if it is missing; only its user may look into it.

    Raises:
        ConfigError: It cannot be made; what `check_directories` asks does not say so everywhere.
    """
    try:
        config.data_dir.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        why = f"cannot be made: {error.strerror}"
        raise not_usable(config, "data-dir", config.data_dir, why) from error


def not_usable(config: NodeConfig, key: str, path: Path, why: str, hint: str = "") -> ConfigError:
    """Return the error of a directory that a node cannot use: with file, key and value."""
    source = config.origins.get(key, config.origins.get("data-dir", "defaults"))
    hint = hint or "Name a directory that the node's user can write."
    return _wrong(source, key, str(path), why, hint)


def _unusable(path: Path) -> str:
    """Return why a node cannot write or make a directory; empty = it can."""
    there = path.absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return f"{there} is not a directory" if there != path else "is not a directory"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} is not writable" if there != path else "is not writable"
    return ""


def _sealed(directory: Path) -> str:
    """Return which entry of a data directory is not writable; empty = none."""
    entries = os.scandir(directory) if directory.exists() else ()
    return next(
        (f"{e.name} in it is not writable" for e in entries if not os.access(e.path, os.W_OK)), ""
    )


def _is_in(one: str, other: str) -> bool:
    """Return whether a prefix of a bucket is another one, or in it; an account has two hosts."""
    return f"{_one_form(one)}/".startswith(f"{_one_form(other)}/")


def _one_form(url: str) -> str:
    place = bucket_url(url, "prefix")
    assert place is not None, "the settings take no path"
    return place.url


def _resolve_places(read: dict[str, Any]) -> None:
    if read["listen"] is None:
        parts = urlsplit(read["master-url"])
        port = parts.port or (443 if parts.scheme == "https" else 80)
        read["listen"] = (parts.hostname or "127.0.0.1", port)
    for key, folder in (
        ("lake-dir", "lake"),
        ("commit-table-dir", "commit_tables"),
        ("payload-dir", "payloads"),
    ):
        read[key] = read[key] or read["data-dir"] / folder


_PEER_READERS: dict[str, Callable[[Any], Any]] = {
    "id": read_node_id,
    "url": read_urls,
    "weight": counted(0, MAX_WEIGHT),
    "roles": read_roles,
}


def _resolve_peers(
    values: Mapping[str, tuple[Any, str]], read: Mapping[str, Any], where: str
) -> tuple[ConfiguredPeer, ...]:
    numbers: dict[int, dict[str, tuple[Any, str]]] = {}
    for key, (value, source) in values.items():
        if match := _PEER_KEY.fullmatch(key):
            part = "roles" if match[2] == "role" else match[2]
            found = _read(_PEER_READERS[part], key, value, source)
            numbers.setdefault(int(match[1]), {})[part] = (found, source)
    taken = {read["node-id"]: "node-id", read["master-url"]: "master-url"}
    peers = []
    for number, parts in sorted(numbers.items()):
        for name in ("id", "url"):
            key = f"peer.{number}.{name}"
            if name not in parts:
                raise _missing(where, key)
            value, source = parts[name]
            for one in split_urls(value):
                if one in taken:
                    raise _wrong(source, key, value, f"is already given by {taken[one]}")
                taken[one] = key
        roles = parts.get("roles", ((), ""))[0]
        peers.append(
            ConfiguredPeer(
                id=NodeId(parts["id"][0]),
                url=parts["url"][0],
                weight=_votes(roles, f"peer.{number}.weight", *parts.get("weight", (None, ""))),
                witness="witness" in roles,
                follower="follower" in roles,
            )
        )
    return tuple(peers)


def _votes(roles: Sequence[str], key: str, weight: int | None, source: str) -> int:
    """Return the votes of a node, which a follower has none of.

    Args:
        weight: That is given, with its source; None = none is.
    """
    follows = "follower" in roles
    if follows and weight:
        raise _wrong(
            source,
            key,
            weight,
            "a follower has no vote",
            f"Leave {key} out.  `sparktxlog peer set NODE --role master` makes it a member later.",
        )
    return 0 if follows else 1 if weight is None else weight


def _resolve_secrets(read: dict[str, Any], origins: Mapping[str, str], where: str) -> None:
    for key in (one.key for one in SECRETS):
        file = read[f"{key}-file"]
        if file is not None:
            given, held = read[key], _read_secret(f"{key}-file", file, where)
            if given not in (None, held):
                # Use neither: the variable may be meant for clients of another node.
                raise _wrong(
                    where,
                    f"{key}-file",
                    str(file),
                    f"the {key} in this file, which {origins[f'{key}-file']} names, differs from "
                    f"that of {origins[key]}",
                    f"Remove one of them, for example with `env -u {variable_of(key)}`.",
                )
            read[key] = held
        if read[key] is not None and len(read[key]) < LEAST_CHARACTERS:
            raise _wrong(
                where,
                key,
                read[key],
                f"is shorter than {LEAST_CHARACTERS} characters",
                f"Make one with `openssl rand -hex 32`, best in a file of its own: {key}-file, "
                "chmod 600.",
            )


def _check_tls(read: Mapping[str, Any], values: Mapping[str, tuple[Any, str]], where: str) -> None:
    given = [key for key in _TLS_FILES if read[key] is not None]
    if not given:
        return
    for key in _TLS_FILES:
        if read[key] is None:
            raise _missing(where, key, f"is required with {given[0]}")
    if read["tls-mode"] != "require":
        return
    for key, (value, source) in values.items():
        match = _PEER_KEY.fullmatch(key)
        if key != "master-url" and (match is None or match[2] != "url"):
            continue
        if not any(url.startswith("https:") for url in split_urls(read_urls(value))):
            why = "is no https address, and tls-mode is require"
            hint = "Write https://host:port; tls-mode = allow-http takes both for a while."
            raise _wrong(source, key, value, why, hint)


def _resolve_grants(read: Mapping[str, Any], where: str) -> tuple[ClientGrant, ...]:
    if read["grants-file"] is None:
        return ()
    if read["client-token"] is None:
        raise _missing(where, "client-token", "is required with grants-file: else all may write")
    taken = tuple(read[one.key] for one in SECRETS)
    return read_grants(read["grants-file"], taken)


def _check_secrets(read: Mapping[str, Any], where: str, peers: tuple[ConfiguredPeer, ...]) -> None:
    certified = read["tls-cert-file"] is not None and read["tls-mode"] == "require"
    if peers and read["cluster-secret"] is None and not certified:
        raise _missing(where, "cluster-secret", "is required with peers, unless all speak TLS")
    for key in ("cluster-secret", "client-token"):
        if read[f"{key}-also"] is not None and read[key] is None:
            raise _missing(where, key, f"is required with {key}-also")
    host = read["listen"][0]
    if read["client-token"] is None and not is_loopback(host):
        raise _missing(where, "client-token", f"is required when listening on {host!r}")
    for key in (one.key for one in SECRETS if one.key != "admin-token"):
        if read["admin-token"] is not None and read["admin-token"] == read[key]:
            raise _wrong(
                where,
                "admin-token",
                read["admin-token"],
                f"is the same as {key}",
                "Choose another token for operators.",
            )


def _read_secret(key: str, file: Path, where: str) -> str:
    """Return the content of a secret's file, if only its owner and group can read and write it."""
    try:
        if file.stat().st_mode & OTHERS:
            raise _wrong(
                where,
                key,
                str(file),
                "every user of this machine can read or write it",
                f"chmod 600 {file}, or 640 for a group, and replace the secret: it may be known.",
            )
        return read_text(file.read_text())
    except (OSError, ValueError) as error:
        raise _wrong(where, key, str(file), str(error)) from error


def _check_guard(
    read: Mapping[str, Any],
    values: Mapping[str, tuple[Any, str]],
    peers: tuple[ConfiguredPeer, ...],
) -> None:
    """Refuse a set with a node that has no data here: it would never be whole (P40)."""
    if guard := read["eviction-guard"]:
        members = {peer.id for peer in peers if peer.may_be_member}
        members |= {read["node-id"]} if "master" in read["roles"] else set()
        if strange := sorted({node for one in guard for node in one} - members):
            source = values["eviction-guard"][1]
            text = f"{strange[0]} is no member in this configuration: {', '.join(sorted(members))}"
            raise _wrong(source, "eviction-guard", values["eviction-guard"][0], text)


def _resolve_quorum(
    read: dict[str, Any],
    values: Mapping[str, tuple[Any, str]],
    where: str,
    peers: tuple[ConfiguredPeer, ...],
) -> str:
    """Replace the acquisition quorum by a number of members; return its rule."""
    own_roles = read["roles"]
    own_member = "master" in own_roles
    members = sum((own_member, *(peer.may_be_member for peer in peers)))
    if members == 0:
        raise _missing(where, "roles", "leave no member: all nodes are witnesses or followers")
    given = (read["weight"], values["weight"][1]) if "weight" in values else (None, "")
    own_weight = _votes(own_roles, "weight", *given)
    if own_weight + sum(peer.weight for peer in peers) == 0:
        raise _wrong(where, "weight", 0, "no node has a vote")
    rule = read["acquisition-quorum"]
    wanted = rule or ("all" if members <= 2 else "majority")
    number = {"all": members, "majority": members // 2 + 1}.get(wanted, wanted)
    if not isinstance(number, int) or number > members:
        source = values["acquisition-quorum"][1]
        raise _wrong(source, "acquisition-quorum", wanted, f"there are {members} members")
    read["acquisition-quorum"] = number
    return "default" if rule is None else str(rule)
