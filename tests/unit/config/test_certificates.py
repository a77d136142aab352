"""The files of a node that speaks TLS: each mistake is named with field, value and way out."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.architecture.source_tree import ROOT
from tests.support.certificates import Authority, Pair
from tests.support.command_line import invoke

from sparktxlog.config import NodeConfig, load_certificates, load_config
from sparktxlog.errors import CertificateTimeError, ConfigError


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def good(authority: Authority) -> Pair:
    return authority.issue("A")


def config_of(authority: Authority, pair: Pair, **changes: Any) -> NodeConfig:
    values = {
        "node-id": "A",
        "master-url": "https://127.0.0.1:7070",
        "data-dir": "/tmp/x",
        "tls-cert-file": str(pair.cert),
        "tls-key-file": str(pair.key),
        "tls-ca-file": str(authority.ca_file),
    }
    values |= {key.replace("_", "-"): value for key, value in changes.items()}
    return load_config(None, values, {})


def test_good_files(authority: Authority, good: Pair) -> None:
    found = load_certificates(config_of(authority, good))
    assert 29 < (found.expires_at - time.time()) / 86_400 < 30


def refused(config: NodeConfig, key: str, text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        load_certificates(config)
    assert caught.value.fields["key"] == key
    assert caught.value.fields["value"] in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("key", ["tls-cert-file", "tls-key-file", "tls-ca-file"])
def test_files_that_cannot_be_read(
    authority: Authority, good: Pair, tmp_path: Path, key: str
) -> None:
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.touch(0o600)
    refused(config_of(authority, good, **{key: str(missing)}), key, "No such file", "node's user")
    refused(config_of(authority, good, **{key: str(empty)}), key, "holds no", "PEM file")


def test_a_key_that_others_can_read(authority: Authority) -> None:
    pair = authority.issue("A")
    pair.key.chmod(0o644)
    refused(config_of(authority, pair), "tls-key-file", "every user of this machine", "chmod 600")


def test_a_key_of_another_certificate(authority: Authority, good: Pair) -> None:
    other = authority.issue("A")
    config = config_of(authority, Pair(cert=good.cert, key=other.key))
    refused(config, "tls-key-file", "not the key of the certificate", "was requested")


def test_certificates_that_peers_would_refuse(
    authority: Authority, good: Pair, tmp_path: Path
) -> None:
    key, other = "tls-cert-file", Authority(tmp_path, "other")
    ended = config_of(authority, authority.issue("A", days=-1))
    refused(ended, key, "has expired", "a new one")
    with pytest.raises(CertificateTimeError):
        load_certificates(ended)
    refused(config_of(other, good), key, "not signed by the authority", "right authority")
    for names in (("B",), ("a",), ()):  # `a` is another node than A
        config = config_of(authority, authority.issue(*names))
        refused(config, key, "lacks the node id 'A'", "DNS:A")
    config = config_of(authority, authority.issue("A", usage="serverAuth"))
    refused(config, key, "both sides", "clientAuth")
    config = config_of(authority, good, node_id="A" * 64)
    refused(config, key, "64 characters", "63")


def test_one_file_needs_the_others(authority: Authority, good: Pair) -> None:
    with pytest.raises(ConfigError, match="tls-key-file is required with tls-cert-file"):
        config_of(authority, good, tls_key_file=None)


def test_plain_addresses_need_a_mode_that_allows_them(authority: Authority, good: Pair) -> None:
    for changes in (
        {"master_url": "http://127.0.0.1:7070"},
        {"peer.1.id": "B", "peer.1.url": "http://127.0.0.1:7071"},
    ):
        with pytest.raises(ConfigError, match="no https address") as caught:
            config_of(authority, good, **changes)
        assert "allow-http" in caught.value.hint
        more = {"cluster_secret": "x" * 16, "tls_mode": "allow-http"}
        assert config_of(authority, good, **changes, **more).tls_mode == "allow-http"
    both = {"peer.1.id": "B", "peer.1.url": "http://127.0.0.1:7071,https://127.0.0.1:7071"}
    assert config_of(authority, good, **both).uses_tls


def test_only_without_signatures_there_is_no_secret(authority: Authority, good: Pair) -> None:
    peer = {"peer.1.id": "B", "peer.1.url": "https://127.0.0.1:7071"}
    assert config_of(authority, good, **peer).cluster_secret is None
    with pytest.raises(ConfigError, match="cluster-secret is required"):
        config_of(authority, good, **peer, tls_mode="allow-http")


def test_the_command_checks_the_files(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, path = authority.issue("A", days=-1), tmp_path / "a.toml"
    path.write_text(
        f'node-id = "A"\nmaster-url = "https://127.0.0.1:7070"\ndata-dir = "{tmp_path / "data"}"\n'
        f'tls-cert-file = "{pair.cert}"\ntls-key-file = "{pair.key}"\n'
        f'tls-ca-file = "{authority.ca_file}"\n'
    )
    assert invoke(monkeypatch, "config", "check", str(path)) == 1  # time may mend it
    fresh = authority.issue("A")
    pair.cert.write_bytes(fresh.cert.read_bytes())
    pair.key.write_bytes(fresh.key.read_bytes())
    assert invoke(monkeypatch, "config", "check", str(path)) == 0


def test_the_commands_of_the_page_make_good_files(tmp_path: Path) -> None:
    page = Path(__file__).parents[3].joinpath("docs", "access.md").read_text()
    _, _, section = page.partition("### Make an authority and certificates\n")
    commands = section.partition("```sh\n")[2].partition("```")[0]
    done = subprocess.run(
        ["bash", "-eu"], input=commands, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    values = {"node-id": "A", "master-url": "https://a.example.com:7070", "data-dir": "/tmp/x"}
    values["client-token"] = "x" * 16
    for setting, name in (("cert", "A.crt"), ("key", "A.key"), ("ca", "ca.crt")):
        values[f"tls-{setting}-file"] = str(tmp_path / name)
    days = (load_certificates(load_config(None, values, {})).expires_at - time.time()) / 86_400
    assert 364 < days < 365


def _strictly(authority: Path, certificate: Path) -> str:
    """Return what a check says that is as strict as clients with Python 3.13 or newer."""
    command = ["openssl", "verify", "-x509_strict", "-CAfile", str(authority), str(certificate)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr if done.returncode else "good"


def test_the_commands_of_the_page_make_certificates_that_strict_clients_accept(
    tmp_path: Path,
) -> None:
    page = (ROOT / "docs/access.md").read_text()
    block = re.search(r"### Make an authority.*?```sh\n(.*?)```", page, re.DOTALL)
    assert block is not None
    subprocess.run(["sh", "-ec", block[1]], cwd=tmp_path, check=True, capture_output=True)
    assert _strictly(tmp_path / "ca.crt", tmp_path / "A.crt") == "good"
    # So do those of the tests, which run with each Python.
    authority = Authority(tmp_path)
    assert _strictly(authority.ca_file, authority.issue("A").cert) == "good"
