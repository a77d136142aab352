"""Where values come from: command line, else environment, else file, else default.

The environment's names are `SPARKTXLOG_<KEY>` with `_` for `-` and `.`.  Relative paths begin at
the directory the process starts in.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparktxlog.config.checking import check_key, resolve
from sparktxlog.config.node_config import ENV_PREFIX, SETTINGS, NodeConfig, variable_of
from sparktxlog.errors import ConfigError

#: Makes a node speak up to this wire version, like another release; for tests of upgrades.
WIRE_VERSION = "SPARKTXLOG_WIRE_VERSION"
_MAX_FILE_BYTES = 1 << 20
#: Former keys without effect: one warning, then ignored.
_DROPPED_KEYS = ("IncrementalUpdateLimit",)

_log = logging.getLogger("sparktxlog.config")


def load_config(
    path: str | os.PathLike[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> NodeConfig:
    """Read and check a node's configuration.

    Args:
        path: A `.toml` or `.properties` file; None = no file.
        overrides: Values of the command line by key (`node-id`, `peer.1.url`); None is skipped.
        environ: Environment variables; default: those of the process.

    Raises:
        ConfigError: Unknown key or wrong value; fields `file`, `key`, `value` (definite).
    """
    environ = os.environ if environ is None else environ
    values: dict[str, tuple[Any, str]] = {}
    given = {} if path is None else _without_dropped(_read_file(Path(path)), str(path))
    for key, value in given.items():
        check_key(key, value, str(path))
        values[key] = (value, str(path))
    for key, value, name in _from_environment(environ):
        values[key] = (value, f"environment variable {name}")
    for key, value in _without_dropped(overrides or {}, "command line").items():
        if value is not None:
            check_key(key, value, "command line")
            values[key] = (value, "command line")
    where = str(path) if path is not None else "configuration"
    config = resolve(values, where)
    wire_version = environ.get(WIRE_VERSION, "")
    return replace(config, wire_version=int(wire_version)) if wire_version else config


def _without_dropped(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return values without former keys, with one warning for each of those."""
    for key in _DROPPED_KEYS:
        if key in values:
            _log.warning("%s: %s is not supported any more and has no effect", where, key)
    return {key: value for key, value in values.items() if key not in _DROPPED_KEYS}


def _read_file(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}",
            hint="Name an existing file with --config.",
            file=str(path),
        ) from error
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path}: is larger than 1 MiB", file=str(path))
    try:
        text = data.decode()
        if path.suffix == ".properties":
            return _read_properties(text)
        return _flatten(tomllib.loads(text))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, ValueError) as error:
        raise ConfigError(f"{path}: {error}", file=str(path)) from error


def _read_properties(text: str) -> dict[str, Any]:
    values = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise ValueError(f"line {number}: expected key=value")
        values[key.strip()] = value.strip()
    return values


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    found = []
    by_name = {variable_of(setting.key): setting.key for setting in SETTINGS}
    for name, value in sorted(environ.items()):
        if name in by_name:
            found.append((by_name[name], value, name))
        elif match := re.fullmatch(ENV_PREFIX + r"PEER_([0-9]{1,4})_(ID|URL|WEIGHT|ROLES?)", name):
            found.append((f"peer.{match[1]}.{match[2].lower()}", value, name))
    return found
