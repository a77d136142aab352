"""What a site may say of its buckets."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from sparktxlog.errors import ConfigError
from sparktxlog.files.stores.bucket import BucketStore
from sparktxlog.files.stores.credentials.aws_signature import S3Keys
from sparktxlog.files.stores.donor_buckets import DonorBuckets
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


@pytest.mark.parametrize("name", ["AWS_SERVER_SIDE_ENCRYPTION", "AWS_SSE_CUSTOMER_KEY_BASE64"])
def test_keys_that_each_request_brings_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Other processes of the site would read nothing."""
    monkeypatch.setenv(name, "SSE-C")
    for settings in (StoreSettings(), StoreSettings(endpoint="https://host:9000")):
        with pytest.raises(ConfigError, match=r"\(SSE-C\) are not supported"):
            store_at("s3://bucket/x", settings)
    store_at("abfss://container@account.dfs.core.windows.net/x", StoreSettings())


def test_what_the_environment_says_of_payer_and_key_is_in_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = list[tuple[str, str | None, str | None]]()

    class Answers(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            payer, key = "x-amz-request-payer", "x-amz-server-side-encryption-aws-kms-key-id"
            seen.append((self.command, self.headers.get(payer), self.headers.get(key)))
            self.send_response(200)
            for name, value in (("ETag", '"x"'), ("Content-Length", "0")):
                self.send_header(name, value)
            self.send_header("Last-Modified", "Mon, 02 Jan 2023 00:00:00 GMT")
            self.end_headers()

        do_PUT = do_HEAD = answer

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("AWS_REQUEST_PAYER", "requester")
    monkeypatch.setenv("AWS_SERVER_SIDE_ENCRYPTION", "aws:kms")
    monkeypatch.setenv("AWS_SSE_KMS_KEY_ID", "a-key")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url, keys = f"http://127.0.0.1:{server.server_port}", S3Keys("k", "s", "")
        settings = StoreSettings(endpoint=url, region="x", allow_http=True, keys=keys)
        store = store_at("s3://bucket/x", settings)
        assert isinstance(store, BucketStore)
        store.create("a", b"x")
        store.find("a")
        place = BucketUrl(Provider.S3, "bucket", "x")
        donor = BucketUrl(Provider.S3, "donor", "x")
        DonorBuckets(store, place, [donor], settings).copy("b", 1, "0" * 64)
        server.shutdown()
    put, head = ("PUT", "requester", "a-key"), ("HEAD", "requester", None)
    assert seen == [put, head, put, head], "also in a copy from the bucket of another site"


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
