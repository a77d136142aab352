"""What a site may say of its buckets."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparktxlog.errors import ConfigError
from sparktxlog.files.stores.credentials.aws_signature import S3Keys
from sparktxlog.files.stores.opening import store_at
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.model.buckets import BucketUrl, Provider


@pytest.mark.parametrize("endpoint", ["minio:9000", "ftp://host", "https://k:secret@host"])
def test_an_endpoint_is_a_url_without_credentials(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="endpoint") as caught:
        StoreSettings(endpoint=endpoint)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
@pytest.mark.parametrize("endpoint", ["ftp://host", "http://k:secret@h"])
def test_an_endpoint_of_the_environment_is_a_url(
    monkeypatch: pytest.MonkeyPatch, name: str, endpoint: str
) -> None:
    """The library takes it as it is."""
    monkeypatch.setenv(name, endpoint)
    with pytest.raises(ConfigError, match=f"{name} of the environment") as caught:
        store_at("s3://bucket/x", StoreSettings.of_environment())
    assert "secret" not in str(caught.value) and caught.value.fields["key"] == name
    store_at("s3://bucket/x", StoreSettings(endpoint="https://host:9000"))


def test_a_variable_that_cannot_be_read_is_refused_without_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "secret")
    with pytest.raises(ConfigError, match=r"variable of the environment.*AWS_…") as caught:
        store_at("s3://bucket/x", StoreSettings.of_environment())
    assert "secret" not in str(caught.value)


def test_what_is_not_encrypted_is_allowed_by_name() -> None:
    with pytest.raises(ConfigError, match="not encrypted"):
        StoreSettings(endpoint="http://host:9000")
    assert StoreSettings(endpoint="http://host:9000", allow_http=True).endpoint


def test_credentials_come_from_a_file(tmp_path: Path) -> None:
    assert StoreSettings().read_credentials(Provider.S3) == {}
    file = tmp_path / "credentials"
    file.write_text("# of the site\n\nAWS_ACCESS_KEY_ID = k=1\nAWS_SECRET_ACCESS_KEY='secret'\n")
    settings = StoreSettings(credentials_file=file)
    assert settings.read_credentials(Provider.S3) == {
        "aws_access_key_id": "k=1",
        "aws_secret_access_key": "secret",
    }
    assert "secret" not in repr(settings)


@pytest.mark.parametrize("line", ["secret", "PATH=secret", "AWS_ACCESS_KEY_ID=", "[secret]"])
def test_other_lines_are_refused_by_number(tmp_path: Path, line: str) -> None:
    file = tmp_path / "credentials"
    file.write_text(f"AWS_ACCESS_KEY_ID=k\n{line}\n")
    with pytest.raises(ConfigError, match="line 2") as caught:
        StoreSettings(credentials_file=file).read_credentials(Provider.S3)
    assert "secret" not in str(caught.value)


def test_a_file_without_a_secret_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("AWS_ACCESS_KEY_ID=k\n")
    with pytest.raises(ConfigError, match="lacks AWS_SECRET_ACCESS_KEY"):
        StoreSettings(credentials_file=file).read_credentials(Provider.S3)
    with pytest.raises(ConfigError, match="line 1"):
        StoreSettings(credentials_file=file).read_credentials(Provider.AZURE)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*gone"):
        StoreSettings(credentials_file=tmp_path / "gone").read_credentials(Provider.S3)


def test_a_bucket_of_another_provider_is_another_extra() -> None:
    assert [provider.value for provider in Provider] == ["s3", "azure", "gcs"]
    assert BucketUrl(Provider.S3, "b", "").account == ""


def test_keys_come_from_the_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="the role of a machine does not give") as caught:
        StoreSettings().s3_keys()
    assert caught.value.fields["key"] == "store-vend-role" and caught.value.hint
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert StoreSettings().s3_keys() == S3Keys("key", "secret")
    path = tmp_path / "store.env"
    path.write_text("AWS_ACCESS_KEY_ID=k\nAWS_SECRET_ACCESS_KEY=s\nAWS_SESSION_TOKEN=t\n")
    given = StoreSettings(credentials_file=path)
    assert given.s3_keys() == S3Keys("k", "s", "t")
    both = StoreSettings(credentials_file=path, keys=S3Keys("own", "s"))
    assert both.read_credentials(Provider.S3) == {
        "aws_access_key_id": "own",
        "aws_secret_access_key": "s",
    }
