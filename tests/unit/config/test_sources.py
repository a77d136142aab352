"""Reading configuration: sources, precedence, and errors that name file, key and value."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tools.reference import configuration_page

from sparktxlog.config import SETTINGS, NodeConfig, Setting, load_config, variable_of
from sparktxlog.config.sources import _from_environment
from sparktxlog.errors import ConfigError

BASE: dict[str, Any] = {
    "node-id": "A",
    "master-url": "http://127.0.0.1:7001",
    "data-dir": "data/a",
}
PEER: dict[str, Any] = {
    "peer.1.id": "B",
    "peer.1.url": "http://127.0.0.1:7002",
    "cluster-secret": "0123456789abcdef",
}


def load(**changes: Any) -> NodeConfig:
    return load_config(None, BASE | {k: v for k, v in changes.items() if v is not ...}, {})


def error_of(overrides: dict[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as raised:
        load_config(None, BASE | overrides, {})
    return raised.value


def test_defaults_of_the_sources() -> None:
    config = load()
    assert config.listen == ("127.0.0.1", 7001)
    assert (config.tx_log_max_size, config.tx_log_max_depth) == (100_000, 168.0)
    assert config.net_speed_bits_per_sec == 104_857_600
    assert config.full_replication_time_factor == 1.3
    assert config.min_time_to_consider_full_replication_s == 600
    assert config.lake_dir == config.data_dir / "lake"
    assert config.payload_dir == config.data_dir / "payloads"
    assert config.roles == ("master", "replica")


def test_a_link_to_a_directory_that_readers_would_not_find_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a%20b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a%20b")
    assert "without %20" in str(error_of({"data-dir": str(tmp_path / "link" / "node")}))
    assert load(**{"data-dir": "/x/100%/y%zz"}).data_dir == Path("/x/100%/y%zz")


def test_every_setting_is_described_and_has_a_field() -> None:
    config = load()
    for setting in SETTINGS:
        assert len(setting.description) > 20, setting.key
        assert hasattr(config, setting.attribute), setting.key


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_the_variable_by_the_rule_of_the_page_is_read(setting: Setting) -> None:
    page = configuration_page()
    assert "is `SPARKTXLOG_` and its key in capitals, with `_` for `-` and `.`," in page
    assert f"\n| `{setting.key}` | " in page
    name = "SPARKTXLOG_" + setting.key.upper().replace("-", "_").replace(".", "_")
    assert name == variable_of(setting.key)
    assert re.fullmatch(r"[A-Z0-9_]+", name), "no shell could set it"
    assert _from_environment({name: "x"}) == [(setting.key, "x", name)]


def test_compression_is_turned_off_by_the_environment() -> None:
    config = load_config(None, BASE, {"SPARKTXLOG_REPLICATION_COMPRESSION": "false"})
    assert not config.replication_compression and load().replication_compression


def test_flag_beats_environment_beats_file(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(
        'node-id = "A"\nmaster-url = "http://127.0.0.1:7001"\ndata-dir = "d"\n'
        "idle-round-max = 5\nid-window = 2000\nsignature-interval = 10\n"
    )
    environ = {"SPARKTXLOG_ID_WINDOW": "3000", "SPARKTXLOG_SIGNATURE_INTERVAL": "20"}
    config = load_config(file, {"signature-interval": "30"}, environ)
    assert (config.idle_round_max, config.id_window, config.signature_interval) == (5, 3000, 30)


def test_properties_and_peers_in_tables(tmp_path: Path) -> None:
    text = "\n".join(f"{key}={value}" for key, value in (BASE | PEER).items())
    properties = tmp_path / "site.properties"
    properties.write_text(f"# comment\n{text}\n")
    toml = tmp_path / "site.toml"
    lines = [f'{key} = "{value}"' for key, value in BASE.items()]
    lines += [
        'cluster-secret = "0123456789abcdef"',
        "[peer.1]",
        'id = "B"',
        'url = "http://127.0.0.1:7002/"',
    ]
    toml.write_text("\n".join(lines))
    assert load_config(properties, environ={}) == load_config(toml, environ={})
    by_environment = load_config(
        None,
        BASE,
        {
            "SPARKTXLOG_PEER_1_ID": "B",
            "SPARKTXLOG_PEER_1_URL": "http://127.0.0.1:7002",
            "SPARKTXLOG_CLUSTER_SECRET": "0123456789abcdef",
            "SPARKTXLOG_IVY": "/ignored",
        },
    )
    assert by_environment == load_config(toml, environ={})


@pytest.mark.parametrize(
    ("changes", "key", "part"),
    [
        ({"node-id": None}, "node-id", "is required"),
        ({"master-url": None}, "master-url", "is required"),
        ({"data-dir": None}, "data-dir", "is required"),
        ({"node-id": "a b"}, "node-id", "Use letters"),
        ({"master-url": "127.0.0.1:7001"}, "master-url", "expected a URL"),
        ({"master-url": "http://a:99999"}, "master-url", "port"),
        ({"master-url": "http://a/path?x=1"}, "master-url", "scheme, host and port"),
        ({"master-url": "http://a/../b"}, "master-url", "scheme, host and port"),
        ({"master-url": "http://a//b"}, "master-url", "scheme, host and port"),
        ({"data-dir": "/x/a%20b"}, "data-dir", "without %20 in its path"),
        ({"lake-dir": "/x/100%25/lake"}, "lake-dir", "without %25 in its path"),
        ({"commit-table-dir": "/x/a%2Fb"}, "commit-table-dir", "without %2F in its path"),
        ({"reader-table-dir": "/x/a%e4b"}, "reader-table-dir", "without %e4 in its path"),
        ({"store-endpoint": "http://10.0.0.9:9000"}, "store-endpoint", "is not encrypted"),
        ({"listen": "nowhere"}, "listen", "expected host:port"),
        ({"listen": "0.0.0.0:7001"}, "client-token", "is required when listening"),
        ({"id-window": "many"}, "id-window", "expected a number"),
        ({"id-window": 5}, "id-window", "expected a number from 1000"),
        ({"id-window": 2000.5}, "id-window", "whole"),
        ({"id-window": True}, "id-window", "expected a number"),
        ({"roles": "slave"}, "roles", "expected one of"),
        ({"roles": "witness"}, "roles", "leave no member"),
        ({"roles": ["witness", "replica"]}, "roles", "only votes"),
        ({"weight": 0}, "weight", "no node has a vote"),
        ({**PEER, "roles": "follower", "weight": 2}, "weight", "a follower has no vote"),
        (
            {**PEER, "peer.1.role": "follower", "peer.1.weight": 1},
            "peer.1.weight",
            "a follower has no vote",
        ),
        ({"eviction": "never"}, "eviction", "auto, unheard, manual"),
        ({"eviction-guard": "A+"}, "eviction-guard", "not empty"),
        ({"eviction-guard": 3}, "eviction-guard", "sets of node ids"),
        ({"eviction-guard": ["A+Z"]}, "eviction-guard", "Z is no member"),
        ({**PEER, "peer.1.role": "witness", "eviction-guard": "A+B"}, "eviction-guard", "B is no"),
        ({"check-addresses": "both"}, "check-addresses", "all, first, second, none"),
        ({**PEER, "peer.1.url": "http://b,http://b"}, "peer.1.url", "given twice"),
        ({**PEER, "peer.1.weight": -1}, "peer.1.weight", "number from 0"),
        ({**PEER, "peer.1.role": "x"}, "peer.1.role", "expected one of"),
        ({"roles": ["replica"]}, "roles", "needs the role"),
        ({"log-format": "xml"}, "log-format", "json, console"),
        ({"acquisition-quorum": "most"}, "acquisition-quorum", "majority, all or a number"),
        ({"acquisition-quorum": 2}, "acquisition-quorum", "there are 1 members"),
        ({"idle-round-min": 9, "idle-round-max": 3}, "idle-round-max", "is less than"),
        ({"worker-heartbeat": 9, "worker-dead-after": 8}, "worker-dead-after", "is less than"),
        ({**PEER, "cluster-secret": None}, "cluster-secret", "is required with peers"),
        ({**PEER, "cluster-secret": "short"}, "cluster-secret", "shorter than 16"),
        ({**PEER, "peer.1.url": None}, "peer.1.url", "is required"),
        ({**PEER, "peer.1.id": "A"}, "peer.1.id", "already given by node-id"),
        ({**PEER, "peer.1.url": BASE["master-url"]}, "peer.1.url", "given by master-url"),
        ({**PEER, "peer.2.id": "B", "peer.2.url": "http://b"}, "peer.2.id", "peer.1.id"),
        ({"cluster-secret-file": "/no/such/file"}, "cluster-secret-file", "No such file"),
    ],
)
def test_wrong_values_are_named(changes: dict[str, Any], key: str, part: str) -> None:
    error = error_of(changes)
    assert error.fields["key"] == key
    assert part in str(error)


#: Directories and files; `peer.…` has none.
_PLACES = [one.key for one in SETTINGS if one.key.endswith(("-dir", "-file"))]


@pytest.mark.parametrize("key", _PLACES)
def test_a_place_in_an_object_store_is_refused_and_a_url_of_a_file_is_its_path(key: str) -> None:
    for place in ("s3://bucket/lake", "abfss://c@account.dfs.core.windows.net/x", "HDFS:/x"):
        error = error_of({key: place})
        assert error.fields["key"] == key
        assert place in str(error) and "object stores" in str(error), error
    assert "other machines" in str(error_of({key: "file://host/lake"}))
    if key.endswith("-dir"):
        found = load_config(None, BASE | {key: "file:///data/lake:1"}, {})
        assert getattr(found, key.replace("-", "_")) == Path("/data/lake:1")


def test_unknown_keys_get_the_nearest_valid_one() -> None:
    error = error_of({"idle-rounds-min": 3})
    assert error.fields["key"] == "idle-rounds-min"
    assert "'idle-round-min'" in error.hint
    assert "'NetSpeedBitsPerSec'" in error_of({"netspeedbitspersecond": 3}).hint


def test_a_dropped_key_gives_one_warning_and_no_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [f'{key} = "{value}"' for key, value in BASE.items()]
    plain = tmp_path / "plain.toml"
    plain.write_text("\n".join(lines))
    old = tmp_path / "old.toml"
    old.write_text("\n".join([*lines, "IncrementalUpdateLimit = 100000"]))
    assert load_config(old, environ={}) == load_config(plain, environ={})
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "IncrementalUpdateLimit is not supported any more" in record.getMessage()
    assert str(old) in record.getMessage()


def test_origins_say_where_a_value_was_given(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text('node-id = "A"\nid-window = 2000\n')
    given = {key: value for key, value in BASE.items() if key != "node-id"}
    config = load_config(file, given, {"SPARKTXLOG_SIGNATURE_INTERVAL": "20"})
    assert config.origins == {
        "node-id": f"file {file}",
        "id-window": f"file {file}",
        "signature-interval": "environment variable SPARKTXLOG_SIGNATURE_INTERVAL",
        "master-url": "command line",
        "data-dir": "command line",
    }
    assert "id-window" not in repr(config)


def test_secrets_never_show() -> None:
    config = load(**PEER, **{"client-token": "hush-hush-hush-hush"})
    assert "0123456789abcdef" not in repr(config)
    assert "hush-hush" not in repr(config)
    assert "hush" not in str(error_of({"client-tokn": "hush"}))
    assert "short" not in error_of({**PEER, "cluster-secret": "short"}).fields["value"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "missing.toml", environ={})
    broken = tmp_path / "broken.toml"
    broken.write_text("node-id = ")
    with pytest.raises(ConfigError, match=r"broken\.toml"):
        load_config(broken, environ={})
    secret = tmp_path / "secret"
    secret.write_text("  a secret from a file\n")
    secret.chmod(0o640)
    config = load(**{**PEER, "cluster-secret": ..., "cluster-secret-file": str(secret)})
    assert config.cluster_secret == "a secret from a file"


def test_quorum_and_names_are_the_same_on_all_members() -> None:
    def member(own: str, others: str) -> NodeConfig:
        values = dict(
            BASE, **{"node-id": own, "master-url": f"http://h{own}", "listen": "127.0.0.1:0"}
        )
        for number, other in enumerate(others, start=1):
            values |= {f"peer.{number}.id": other, f"peer.{number}.url": f"http://h{other}"}
        return load_config(None, values | {"cluster-secret": "0123456789abcdef"}, {})

    three = [member("A", "BC"), member("B", "CA"), member("C", "AB")]
    assert {config.members for config in three} == {("A", "B", "C")}
    assert len({config.log_id for config in three}) == 1
    assert len({config.shared_hash() for config in three}) == 1
    assert [config.acquisition_quorum for config in three] == [2, 2, 2]
    assert member("A", "B").acquisition_quorum == 2
    assert member("A", "BCDE").acquisition_quorum == 3
    assert member("A", "B").log_id != three[0].log_id


def test_places_votes_and_addresses_of_epochs() -> None:
    config = load_config(
        None,
        {
            **BASE,
            **PEER,
            "weight": 2,
            "peer.1.url": "http://b:1, http://b:2",
            "peer.2.id": "W",
            "peer.2.url": "http://w",
            "peer.2.roles": "witness",
            "peer.2.weight": "3",
        },
        {},
    )
    assert [(p.id, p.weight, p.witness) for p in config.places] == [
        ("A", 2, False),
        ("B", 1, False),
        ("W", 3, True),
    ]
    assert config.members == ("A", "B")
    assert config.peers[0].urls == ("http://b:1", "http://b:2")
    assert (config.quorum_rule, config.acquisition_quorum) == ("default", 2)
    assert (config.suspect_timeout, config.start_timeout, config.eviction) == (10.0, 30.0, "auto")
    other = load_config(
        None,
        {
            **BASE,
            **PEER,
            "node-id": "W",
            "master-url": "http://w",
            "roles": "witness",
            "listen": "127.0.0.1:1",
            "weight": 3,
            "peer.1.id": "A",
            "peer.1.url": BASE["master-url"],
            "peer.1.weight": 2,
            "peer.2.id": "B",
            "peer.2.url": "http://b:1",
        },
        {},
    )
    assert other.founding_hash() == config.founding_hash()
    assert other.log_id == config.log_id
    assert other.is_witness
