"""Configuration of a node: one flat table of settings, read from TOML or `.properties`.

    node_config  the settings: key, reader, default, meaning; the checked ones of one node
    sources      files, environment and command line, in their order of precedence
    checking     checks that involve several values, and their errors
    certificates the files of a node that speaks TLS, tried out
    grants       clients that may write some tables only
    exposure     what lets others see secrets

Names and defaults of the systems that sparktxlog follows (`node-id`, `master-url`, `peer.<n>.id`,
`NetSpeedBitsPerSec` …) are kept.
"""

from __future__ import annotations

from sparktxlog.config.certificates import TlsContexts, load_certificates, names_of
from sparktxlog.config.checking import check_directories, make_data_dir, not_usable
from sparktxlog.config.exposure import exposures
from sparktxlog.config.node_config import (
    ENV_PREFIX,
    SECRETS,
    SETTINGS,
    ClientGrant,
    NodeConfig,
    Setting,
    variable_of,
)
from sparktxlog.config.sources import load_config

__all__ = [
    "ENV_PREFIX",
    "SECRETS",
    "SETTINGS",
    "ClientGrant",
    "NodeConfig",
    "Setting",
    "TlsContexts",
    "check_directories",
    "exposures",
    "load_certificates",
    "load_config",
    "make_data_dir",
    "names_of",
    "not_usable",
    "variable_of",
]
