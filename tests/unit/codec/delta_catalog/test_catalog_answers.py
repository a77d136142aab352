"""Credentials as the API for lists says them."""

from __future__ import annotations

import msgspec
import pytest

from sparktxlog.codec.delta_catalog.catalog_answers import (
    ShownTable,
    StorageCredential,
    temporary_credentials,
)

SHOWN = ShownTable(name="s.t", uuid="u", location="s3://b/u", placed=None)
AWS = {"access_key_id": "k", "secret_access_key": "s", "session_token": "t"}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.session-token": "t"},
            {"aws_temp_credentials": AWS},
        ),
        ({"azure.sas-token": "sig"}, {"azure_user_delegation_sas": {"sas_token": "sig"}}),
    ],
)
def test_a_credential_is_that_of_its_provider(
    config: dict[str, str], said: dict[str, object]
) -> None:
    given = StorageCredential(
        prefix="s3://b/u", operation="READ", config=config, expiration_time_ms=7
    )
    found = msgspec.to_builtins(temporary_credentials(SHOWN, [given]))
    assert found == {"url": "s3://b/u", "expiration_time": 7} | said


def test_none_is_given_where_clients_have_their_own() -> None:
    assert msgspec.to_builtins(temporary_credentials(SHOWN, [])) == {"url": "s3://b/u"}
