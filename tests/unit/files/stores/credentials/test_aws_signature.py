"""Signatures of requests to AWS, compared with those of its published example."""

from __future__ import annotations

from datetime import UTC, datetime

from sparktxlog.files.stores.credentials.aws_signature import AwsSigner, S3Keys, query_text

# Of the examples of AWS: "Authenticating Requests: Using the Authorization Header".
KEYS = S3Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
URL = "https://examplebucket.s3.amazonaws.com"
NOW = datetime(2013, 5, 24, tzinfo=UTC)
SIGNER = AwsSigner(KEYS, "us-east-1", "s3")


def signature(headers: dict[str, str]) -> str:
    return headers["authorization"].rpartition("Signature=")[2]


def test_a_request_for_a_range_is_signed() -> None:
    headers = SIGNER.sign("GET", f"{URL}/test.txt", headers={"Range": "bytes=0-9"}, now=NOW)
    assert signature(headers) == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    assert "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date," in headers["authorization"]


def test_a_query_is_signed() -> None:
    query = {"prefix": "J", "max-keys": "2"}
    headers = SIGNER.sign("GET", URL, query=query, now=NOW)
    assert signature(headers) == "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
    assert query_text(query) == "max-keys=2&prefix=J"
    assert query_text({"a b": "/ü"}) == "a%20b=%2F%C3%BC"


def test_a_body_is_signed() -> None:
    headers = SIGNER.sign(
        "PUT",
        f"{URL}/test%24file.text",
        headers={
            "Date": "Fri, 24 May 2013 00:00:00 GMT",
            "x-amz-storage-class": "REDUCED_REDUNDANCY",
        },
        body=b"Welcome to Amazon S3.",
        now=NOW,
    )
    assert signature(headers) == "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"


def test_a_token_is_signed_and_nothing_shows_a_secret() -> None:
    keys = S3Keys("key", "SECRET", "TOKEN")
    headers = AwsSigner(keys, "us-east-1", "sts").sign("POST", f"{URL}/", body=b"x")
    assert headers["x-amz-security-token"] == "TOKEN"
    assert ";x-amz-security-token" in headers["authorization"]
    assert "SECRET" not in f"{keys!r} {AwsSigner(keys, 'r', 's')!r} {headers['authorization']}"
    assert "TOKEN" not in repr(keys)
