"""The admin token as a setting: read as the client token is, and never the same as another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparktxlog.config import NodeConfig, load_config
from sparktxlog.errors import ConfigError

BASE: dict[str, Any] = {"node-id": "A", "master-url": "http://127.0.0.1:7001", "data-dir": "data/a"}

HUSH, OPEN = "hush-hush-hush-hush", "open-to-all-clients"


def load(environ: dict[str, str] | None = None, /, **values: Any) -> NodeConfig:
    given = {key.replace("_", "-"): value for key, value in values.items()}
    return load_config(None, BASE | given, environ or {})


def test_it_comes_from_where_settings_come_from(tmp_path: Path) -> None:
    assert load().admin_token is None
    assert load(admin_token=f" {HUSH} ").admin_token == HUSH
    assert load({"SPARKTXLOG_ADMIN_TOKEN": HUSH}).admin_token == HUSH
    file = tmp_path / "token"
    file.write_text(f"{HUSH}\n")
    file.chmod(0o600)
    assert load(admin_token_file=str(file)).admin_token == HUSH
    assert load({"SPARKTXLOG_ADMIN_TOKEN_FILE": str(file)}).admin_token == HUSH


def test_it_does_not_replace_the_client_token() -> None:
    with pytest.raises(ConfigError, match="client-token is required when listening"):
        load(listen="0.0.0.0:7001", admin_token=HUSH)
    config = load(listen="0.0.0.0:7001", admin_token=HUSH, client_token=OPEN)
    assert (config.admin_token, config.client_token) == (HUSH, OPEN)


@pytest.mark.parametrize(
    ("values", "key", "part"),
    [
        ({"admin_token": ""}, "admin-token", "not empty"),
        ({"admin_token_file": "/no/such/file"}, "admin-token-file", "No such file"),
        ({"admin_token": HUSH, "client_token": HUSH}, "admin-token", "same as client"),
        ({"admin_token": HUSH, "cluster_secret": HUSH}, "admin-token", "same as cluster-secret"),
        ({"client_token_also": HUSH}, "client-token", "is required with client-token-also"),
        ({"client_token": OPEN, "client_token_also": HUSH[:15]}, "client-token-also", "shorter"),
        (
            {"client_token": OPEN, "client_token_also": HUSH, "admin_token": HUSH},
            "admin-token",
            "same as client-token-also",
        ),
    ],
)
def test_wrong_values_are_named_and_hidden(values: dict[str, Any], key: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        load(**values)
    assert caught.value.fields["key"] == key
    assert HUSH not in str(caught.value) + str(caught.value.fields)


def test_it_never_shows() -> None:
    assert HUSH not in repr(load(admin_token=HUSH))


@pytest.mark.parametrize("name", ["client-token", "admin-token", "cluster-secret"])
def test_what_can_be_guessed_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shorter than 16 characters") as caught:
        load(**{name: HUSH[:15]})
    assert caught.value.fields["key"] == name and HUSH[:15] not in str(caught.value)
    assert load(**{name: HUSH[:16]}) is not None
    file = tmp_path / "secret"
    file.write_text(HUSH[:15])
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="shorter than 16 characters"):
        load(**{f"{name}-file": str(file)})


@pytest.mark.parametrize("name", ["client-token", "admin-token", "cluster-secret"])
def test_a_secret_and_a_file_of_it_must_be_one(name: str, tmp_path: Path) -> None:
    """The variable that clients read is the node's setting, too: of which node, nobody knows."""
    file, variable = tmp_path / "secret", f"SPARKTXLOG_{name.upper().replace('-', '_')}"
    file.write_text(HUSH)
    file.chmod(0o600)
    given = {f"{name}-file": str(file)}
    assert getattr(load({variable: HUSH}, **given), name.replace("-", "_")) == HUSH
    with pytest.raises(ConfigError) as caught:
        load({variable: OPEN}, **given)
    shown = str(caught.value)
    assert caught.value.fields["key"] == f"{name}-file" and f"env -u {variable}" in shown
    assert f"the {name} in this file, which command line names, differs" in shown
    assert f"that of environment variable {variable}" in shown
    assert HUSH not in shown and OPEN not in shown


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644, 0o666])
def test_a_secret_that_others_can_read_or_write_is_refused(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(HUSH)
    for name in ("client-token", "admin-token", "cluster-secret"):
        file.chmod(mode)
        with pytest.raises(ConfigError, match="every user of this machine") as caught:
            load(**{f"{name}-file": str(file)})
        assert caught.value.fields["key"] == f"{name}-file" and "chmod 600" in caught.value.hint
        for private in (0o400, 0o600, 0o440, 0o640):
            file.chmod(private)
            load(**{f"{name}-file": str(file)})


#: One account has two hosts: of blobs, and of files.
AZURE = "abfss://lake@account"


@pytest.mark.parametrize(
    ("lake", "tables", "is_right"),
    [
        ("s3://lake/rows", "s3://lake/tables", True),
        ("s3://lake/a2", "s3://lake/a", True),
        ("s3://lake/a", "s3://lake/a/", False),
        ("s3://lake/a/rows", "s3://lake/a", False),
        ("s3://lake/a", "s3://lake/a/tables", False),
        (f"{AZURE}.blob.core.windows.net/a", f"{AZURE}.dfs.core.windows.net/a/tables", False),
        (f"{AZURE}.blob.core.windows.net/a", f"{AZURE}.dfs.core.windows.net/b", True),
    ],
)
def test_row_tables_and_commit_tables_have_prefixes_of_their_own(
    lake: str, tables: str, is_right: bool
) -> None:
    if is_right:
        assert load(lake_url=lake, commit_table_url=tables).lake_url == lake
        return
    with pytest.raises(ConfigError, match="a prefix of its own") as caught:
        load(lake_url=lake, commit_table_url=tables)
    assert caught.value.fields["key"] == "lake-url"


@pytest.mark.parametrize(
    "url",
    [
        "abfss://lake@account.dfs.core.example.net/a",
        "abfss://c@account.dfs.core.windows.net/a",
        "s3a://lake/a",
    ],
)
def test_a_url_that_no_store_opens_is_refused_with_its_setting(url: str) -> None:
    with pytest.raises(ConfigError, match="expected s3://bucket/prefix") as caught:
        load(lake_url=url, payload_url="s3://lake/staged")
    assert caught.value.fields["key"] == "lake-url"


ROLE = "arn:aws:iam::123456789012:role/lake"


@pytest.mark.parametrize(
    ("settings", "key", "why"),
    [
        ({"store-copy-from": "/data"}, "store-copy-from", "expected s3://bucket/prefix"),
        ({"store-copy-from": "gs://lake-b/p"}, "store-copy-from", "expected URLs of S3"),
        ({"store-copy-from": ["gs://lake-b/p"]}, "store-copy-from", "expected URLs of S3"),
        ({"store-copy-from": [7]}, "store-copy-from", "expected a text"),
        ({"store-copy-from": 7}, "store-copy-from", "expected URLs of S3"),
        (
            {"store-copy-from": "s3://lake-b/p"},
            "store-copy-from",
            "needs payload-url or",
        ),
        (
            {"store-copy-from": "s3://lake-b/p,s3://lake/a/x", "payload-url": "s3://lake/a"},
            "store-copy-from",
            "is this site's own s3://lake/a",
        ),
        ({"store-vend-sas": True}, "store-vend-sas", "needs commit-table-url in a container"),
        ({"store-vend-role": "lake"}, "store-vend-role", "expected the ARN of a role"),
        ({"store-vend-role": ROLE}, "store-vend-role", "needs commit-table-url in a bucket of S3"),
        (
            {"store-vend-role": ROLE, "commit-table-url": "gs://lake/a"},
            "store-vend-role",
            "needs commit-table-url in a bucket of S3",
        ),
        (
            {
                "store-vend-role": ROLE,
                "commit-table-url": "s3://lake/a",
                "store-endpoint": "https://minio:9000",
            },
            "store-sts-endpoint",
            "is required with store-vend-role and store-endpoint",
        ),
        ({"store-sts-endpoint": "http://minio:9000"}, "store-sts-endpoint", "is not encrypted"),
        ({"store-vend-time": 60}, "store-vend-time", "900"),
    ],
)
def test_a_role_for_sessions_needs_its_place_and_its_service(
    settings: dict[str, Any], key: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        load(**settings)
    assert caught.value.fields["key"] == key and caught.value.hint


@pytest.mark.parametrize("other", ["lake_url", "commit_table_url"])
def test_staged_files_have_a_prefix_of_their_own(other: str) -> None:
    places = {other: "s3://lake/a", "payload_url": "s3://lake/a-too"}
    assert load(**places).payload_url == "s3://lake/a-too"
    for payloads in ("s3://lake/a", "s3://lake/a/staged", "s3://lake"):
        with pytest.raises(ConfigError, match=r"is the prefix .* of ") as caught:
            load(**places | {"payload_url": payloads})
        assert caught.value.fields["key"] == "payload-url"
