"""The text that is signed for a directory of Azure, and who may have what."""

from __future__ import annotations

import base64
import hmac
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from sparktxlog.errors import ConfigError
from sparktxlog.files.stores.credentials.azure_sas import AccountSigner, AzureSas
from sparktxlog.files.stores.store_settings import StoreSettings
from sparktxlog.model.buckets import BucketUrl, Provider

KEY = base64.b64encode(b"the key of an account, for tests").decode()
PLACE = BucketUrl(Provider.AZURE, "lake", "site-a", "lakeofa")


def fields(token: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(token, strict_parsing=True).items()}


def test_the_signed_text_has_the_documented_fields_in_their_order() -> None:
    """Those of "Create a service SAS", for blobs, version 2020-12-06 and later."""
    signer = AccountSigner("lakeofa", lambda: KEY, 900)
    found = fields(signer.signed("lake/site-a/u u", "d", "rle", 1_700_000_000))
    lines = (
        "rle",  # signedPermissions
        "",  # signedStart
        "2023-11-14T22:13:20Z",  # signedExpiry
        "/blob/lakeofa/lake/site-a/u u",  # canonicalizedResource
        "",  # signedIdentifier
        "",  # signedIP
        "https",  # signedProtocol
        "2020-12-06",  # signedVersion
        "d",  # signedResource
        "",  # signedSnapshotTime
        "",  # signedEncryptionScope
        "",  # rscc
        "",  # rscd
        "",  # rsce
        "",  # rscl
        "",  # rsct
    )
    signature = hmac.digest(base64.b64decode(KEY), "\n".join(lines).encode(), "sha256")
    assert found == {
        "sv": "2020-12-06",
        "sr": "d",
        "sp": "rle",
        "se": "2023-11-14T22:13:20Z",
        "spr": "https",
        "sig": base64.b64encode(signature).decode(),
    }


def test_who_reads_may_not_write() -> None:
    signer = AccountSigner("lakeofa", lambda: KEY, 900)
    given = {writes: signer.give(PLACE, "site-a/uuid", writes=writes) for writes in (False, True)}
    permissions = {writes: fields(one.keys.token)["sp"] for writes, one in given.items()}
    assert set(permissions[False]) == set("rle")
    assert set(permissions[True]) == set("racwdlme")
    assert {fields(one.keys.token)["sdd"] for one in given.values()} == {"2"}
    # Azure takes permissions in this order only.
    assert all("".join(p for p in "racwdxyltmeop" if p in sp) == sp for sp in permissions.values())
    assert given[True].keys.catalog_config == {"azure.sas-token": given[True].keys.token}


def test_no_text_shows_a_signature_or_the_key() -> None:
    signer = AccountSigner("lakeofa", lambda: KEY, 900)
    sas = AzureSas(signer.signed("lake/d", "d", "rle", 1))
    for shown in (repr(sas), sas.shown, repr(StoreSettings(keys=sas)), signer.name, repr(signer)):
        assert "sig" not in shown and KEY not in shown


def test_the_key_comes_from_the_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "no base64!")
    with pytest.raises(ConfigError, match="store-vend-sas needs") as caught:
        StoreSettings().azure_key()
    assert "no base64" not in str(caught.value)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    assert StoreSettings().azure_key() == KEY
    file = tmp_path / "credentials"
    file.write_text("AZURE_STORAGE_ACCOUNT_KEY=b3RoZXI=\n")
    assert StoreSettings(credentials_file=file).azure_key() == "b3RoZXI="
