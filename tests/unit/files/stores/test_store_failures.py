"""What errors of the library become: a type, what was asked for, a way out, and no secret."""

from __future__ import annotations

import pytest
from obstore import exceptions

from sparktxlog.errors import (
    BucketMissingError,
    DiskFullError,
    StorageError,
    StoreForbiddenError,
    StoreUnavailableError,
)
from sparktxlog.files.stores.store_failures import (
    as_unknown,
    failure_of,
    is_cut,
    missing,
    says_no_bucket,
    status_of,
)

URL = "s3://lake/a/k"


def _answer(status: str, code: str, rest: str = "") -> str:
    return (
        f"Generic S3 error: Error performing PUT https://lake.s3/a/k?sig=SECRET in 5ms - Server "
        f"returned non-2xx status code: {status}: <?xml version='1.0'?><Error><Code>{code}</Code>"
        f"<Message>text</Message><AWSAccessKeyId>SECRET</AWSAccessKeyId>{rest}</Error>\n\n"
        f"Debug source:\nGeneric {{ headers: SECRET }}"
    )


def _broken(kind: str) -> str:
    return (
        "Generic S3 error: Error performing GET http://u:SECRET@host/k in 1s, after 2 retries - "
        f"HTTP error: error\n\nDebug source:\nHttpError {{ kind: {kind}, source: SECRET }}"
    )


@pytest.mark.parametrize(
    ("text", "kind", "answer", "way_out"),
    [
        (
            _answer("404 Not Found", "NoSuchBucket"),
            BucketMissingError,
            "404 NoSuchBucket",
            "Create",
        ),
        (_answer("404 Not Found", "ContainerNotFound"), BucketMissingError, "404", "Create"),
        (_answer("403 Forbidden", "AccessDenied"), StoreForbiddenError, "403", "s3:PutObject"),
        (_answer("403 Forbidden", "RequestTimeTooSkewed"), StoreForbiddenError, "403", "clock"),
        (_answer("400 Bad Request", "ExpiredToken"), StoreForbiddenError, "400", "Renew"),
        (_answer("403 Forbidden", "InvalidAccessKeyId"), StoreForbiddenError, "403", "Correct"),
        (_answer("403 Forbidden", "SignatureDoesNotMatch"), StoreForbiddenError, "403", "Correct"),
        (_answer("301 Moved", "PermanentRedirect"), StoreForbiddenError, "301", "region"),
        (_answer("400 Bad", "AuthorizationHeaderMalformed"), StoreForbiddenError, "400", "region"),
        (_answer("403 Forbidden", "QuotaExceeded"), DiskFullError, "403 QuotaExceeded", "quota"),
        (_answer("507 Insufficient Storage", "Any"), DiskFullError, "507 Any", "quota"),
        (_answer("400 Bad", "XMinioAdminBucketQuotaExceeded"), DiskFullError, "400", "quota"),
        (
            (
                "Generic S3 error: DeleteObjects request failed for key SECRET: Access Denied. "
                "(code: AccessDenied)\n\nDebug source: SECRET"
            ),
            StoreForbiddenError,
            "AccessDenied",
            "s3:PutObject",
        ),
        (_answer("503 Slow Down", "SlowDown"), StoreUnavailableError, "503 SlowDown", "tries"),
        (_answer("429 Too Many", "Any"), StoreUnavailableError, "429 Any", "tries"),
        (_answer("500 Internal", "InternalError"), StoreUnavailableError, "500", "tries"),
        (_broken("Connect"), StoreUnavailableError, "no connection", "tries"),
        (_broken("Timeout"), StoreUnavailableError, "no answer in time", "tries"),
        (_broken("Interrupted"), StoreUnavailableError, "the connection broke", "tries"),
        (_broken("Body"), StoreUnavailableError, "the answer broke off", "tries"),
        (
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1s",
            StoreForbiddenError,
            "GenericError",
            "Give the node credentials",
        ),
        (_answer("400 Bad Request", "EntityTooLarge"), StorageError, "400 EntityTooLarge", ""),
        ("HTTP error: builder error BadScheme", StoreForbiddenError, "GenericError", "allow http"),
        ("Generic S3 error: NotPartial", StorageError, "GenericError", "Range"),
        ("something else SECRET", StorageError, "GenericError", ""),
    ],
)
def test_each_failure_has_a_type_and_a_way_out(
    text: str, kind: type[StorageError], answer: str, way_out: str
) -> None:
    error = failure_of(exceptions.GenericError(text), URL, "write it")
    assert type(error) is kind
    assert URL in error.message and "asked to write it" in error.message
    assert answer in error.fields["answer"] and error.fields["url"] == URL
    assert way_out in error.hint
    assert error.definite is (kind not in (StorageError, StoreUnavailableError))
    assert "SECRET" not in f"{error} {error!r} {error.to_problem()} {error.__notes__}"


@pytest.mark.parametrize(
    "given", [exceptions.PermissionDeniedError("x"), exceptions.UnauthenticatedError("x")]
)
def test_a_refusal_without_a_body_is_one(given: Exception) -> None:
    assert type(failure_of(given, URL, "look at it")) is StoreForbiddenError


@pytest.mark.parametrize(
    ("url", "action", "needed"),
    [
        (URL, "look at it", "s3:GetObject"),
        (URL, "read it", "s3:GetObject"),
        (URL, "list it", "s3:ListBucket"),
        (URL, "copy to it", "s3:PutObject"),
        (URL, "remove it", "s3:DeleteObject"),
        ("gs://lake/a/k", "remove it", "storage.objects.delete"),
        ("abfss://lake@a.dfs.core.windows.net/k", "read it", "Storage Blob Data Reader"),
        ("abfss://lake@a.dfs.core.windows.net/k", "create it", "Storage Blob Data Contributor"),
    ],
)
def test_the_permission_that_is_missing_is_named(url: str, action: str, needed: str) -> None:
    error = failure_of(exceptions.PermissionDeniedError("x"), url, action)
    assert needed in error.hint and needed in error.fields["permission"]


def test_nobody_knows_who_put_what_cannot_be_seen() -> None:
    forbidden = failure_of(exceptions.PermissionDeniedError("x"), URL, "look at it")
    error = as_unknown(forbidden)
    assert not error.definite and URL in error.message and error.hint == forbidden.hint
    down = failure_of(exceptions.GenericError(_broken("Connect")), URL, "look at it")
    assert as_unknown(down) is down


def test_what_is_missing_is_named() -> None:
    error = missing(URL, "copy it")
    assert URL in error.message and error.fields == {"url": URL, "action": "copy it"}
    assert error.definite


def test_what_came_of_an_answer_is_known() -> None:
    cut, whole = Exception(_broken("Body")), Exception(_answer("416 Range", "InvalidRange"))
    assert (is_cut(cut), is_cut(whole)) == (True, False)
    assert (status_of(cut), status_of(whole)) == (None, 416)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("status code: 404 Not Found: <Error><Code>NoSuchBucket</Code></Error>", True),
        ("status code: 404 Not Found: <Error><Code>ContainerNotFound</Code></Error>", True),
        ("status code: 404 Not Found: The specified bucket does not exist.", True),
        ("status code: 404 Not Found: <Error><Code>NoSuchKey</Code></Error>", False),
        ("Object at location p=NoSuchBucket/timed out not found: status code: 404", False),
        ("status code: 404\n\nDebug source:\n <Code>NoSuchBucket</Code>", False),
    ],
)
def test_an_answer_says_why_nothing_is_there(text: str, said: bool) -> None:
    assert says_no_bucket(FileNotFoundError(text)) is said
