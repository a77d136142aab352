"""What went wrong at a bucket, from the text of its library: an error of ours, and a way out.

Texts of the library hold whole requests and answers, which may name credentials.  So an error says
only what is taken from them here: the status of HTTP, and the code that the store gave.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sparktxlog.errors import (
    BucketMissingError,
    DiskFullError,
    ObjectMissingError,
    StorageError,
    StoreForbiddenError,
    StoreUnavailableError,
)
from sparktxlog.model.buckets import SCHEMES, Provider

_STATUS = re.compile(r"status code: (\d{3})")
#: Of S3's answer to a removal of several keys the library says `code`.
_CODE = re.compile(r"(?:<Code>|\(code: )([A-Za-z0-9.]{1,80})(?:</Code>|\))")
#: How often the library repeated a request that failed in the end.
_REPEATED = re.compile(r"\bretries: [1-9]")
_CUT = re.compile(r"kind: (Body|Decode)\b")
#: Where the library begins to repeat itself, as a value of its language.
_DEBUG = "\n\nDebug source"
#: Kinds of failures in the library's text, the surest first.
_ENDS = {
    "Connect": "no connection",
    "Timeout": "no answer in time",
    "Body": "the answer broke off",
    "Decode": "the answer broke off",
    "Request": "the connection broke",
    "Interrupted": "the connection broke",
}


_S3, _AZURE, _GOOGLE = Provider.S3, Provider.AZURE, Provider.GOOGLE
_READER, _WRITER = "the role Storage Blob Data Reader", "the role Storage Blob Data Contributor"
_READ = {
    # S3 says of what is not there that it is forbidden, to those that may not list.
    _S3: "s3:GetObject on objects and s3:ListBucket on the bucket",
    _AZURE: _READER,
    _GOOGLE: "storage.objects.get and storage.objects.list",
}
_WRITE = {
    _S3: "s3:PutObject on objects",
    _AZURE: _WRITER,
    # Who overwrites deletes.
    _GOOGLE: "storage.objects.create and storage.objects.delete",
}
#: What is asked for → what its credentials must be allowed to do.
_PERMISSIONS = {
    "look at it": _READ,
    "read it": _READ,
    "list it": {
        _S3: "s3:ListBucket on the bucket",
        _AZURE: _READER,
        _GOOGLE: "storage.objects.list",
    },
    "create it": _WRITE,
    "write it": _WRITE,
    "replace it": _WRITE,
    "exchange it": _WRITE,
    "copy to it": {
        _S3: "s3:PutObject on objects, and s3:GetObject on what is copied",
        _AZURE: _WRITER,
        _GOOGLE: "storage.objects.create, and storage.objects.get on what is copied",
    },
    "remove it": {
        _S3: "s3:DeleteObject on objects",
        _AZURE: _WRITER,
        _GOOGLE: "storage.objects.delete",
    },
}
#: What is asked for that changes something.
_WRITES = frozenset(_PERMISSIONS) - {"look at it", "read it", "list it"}


@dataclass(frozen=True, slots=True)
class _Known:
    """A way to fail, what it means and what to do."""

    #: Found in the codes, or the text, of the answer.
    sign: re.Pattern[str]
    error: type[StorageError]
    #: Follows the URL.
    says: str
    hint: str


def _known(sign: str, error: type[StorageError], says: str, hint: str) -> _Known:
    return _Known(re.compile(sign), error, says, hint)


#: Codes of an answer, and the text of Google, that has none.
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "InvalidBucketName")
#: Also 400, but that has many reasons, which its code says.
_NO_WAY = (405, 411, 501)
_NO_WAY_CODES = ("InvalidArgument", "InvalidRequest", "NotImplemented")
_NO_BUCKET_OF_GOOGLE = "The specified bucket does not exist"
#: Codes of a quota that is used up.
_FULL = r"QuotaExceeded|StorageFull|InsufficientStorage"

_KNOWN = (
    _known(
        "|".join((*_NO_BUCKET, _NO_BUCKET_OF_GOOGLE)),
        BucketMissingError,
        "has no such bucket",
        "Create the bucket, or correct its name in the URL, or the endpoint and region.",
    ),
    _known(
        r"RequestTimeTooSkewed|RequestExpired",
        StoreForbiddenError,
        "refuses requests by this machine's clock",
        "Set this machine's clock, for example with NTP: 15 minutes are too many.",
    ),
    _known(
        r"ExpiredToken|TokenRefreshRequired|TokenExpired|InvalidToken",
        StoreForbiddenError,
        "says that the credentials have expired",
        "Renew the credentials, in the environment or in the file that the settings name.",
    ),
    _known(
        r"InvalidAccessKeyId|SignatureDoesNotMatch|AuthenticationFailed|InvalidAuthenticationInfo",
        StoreForbiddenError,
        "does not accept the credentials",
        "Correct the credentials, in the environment or in the file that the settings name; "
        "and look at this machine's clock.",
    ),
    _known(
        r"PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint"
        r"|incorrectly configured region|[Rr]edirect without LOCATION|status code: 301",
        StoreForbiddenError,
        "is in another region",
        "Name the region that the bucket is in.",
    ),
    _known(
        r"169\.254\.\d+\.\d+|metadata\.google\.internal|No credentials|no credentials",
        StoreForbiddenError,
        "needs credentials, and there are none",
        "Give the node credentials: in its environment, in a file that the settings name, or by a "
        "role of its machine.",
    ),
    _known(
        rf"{_FULL}|status code: 507",
        DiskFullError,
        "has no room left",
        "Raise the bucket's quota, or remove what is not needed; then try again.",
    ),
    _known(
        r"BadScheme",
        StoreForbiddenError,
        "has an endpoint that is not encrypted",
        "Name one with https://, or allow http for a network that nobody else reads.",
    ),
    _known(
        r"NotPartial",
        StorageError,
        "sends whole objects where a part was asked for",
        "Use a store that knows the header Range.",
    ),
    _known(
        r"PermissionDenied|Unauthenticated|AccessDenied|status code: 40[13]",
        StoreForbiddenError,
        "does not allow that",
        "",
    ),
    _known(
        r"SlowDown|status code: (429|408|5\d\d)|error sending request|timed out"
        r"|kind: (Connect|Timeout|Request|Interrupted|Body|Decode)",
        StoreUnavailableError,
        "is throttled, down or out of reach",
        "",
    ),
)


def failure_of(error: BaseException, url: str, action: str) -> StorageError:
    """Return the error of this project for one of the library; raise it `from None`.

    It is definite only if no attempt before the last one may have done what was asked for.

    Args:
        url: What it was about.
        action: What was asked for: a key of `_PERMISSIONS`.
    """
    text = f"{type(error).__name__}: {error}"
    answer = _answer_of(text)
    fields = {"url": url, "action": action, "answer": answer}
    for known in _KNOWN:
        if known.sign.search(text):
            message = f"{url} {known.says}, asked to {action}: {answer}"
            if known.error.definite and action in _WRITES and was_repeated(error):
                message += "; an attempt before that had no answer, and may have been carried out"
                return StoreUnavailableError(message, hint=known.hint, **fields)
            if known.error is StoreForbiddenError and not known.hint:
                return _not_permitted(message, fields)
            return known.error(message, hint=known.hint, **fields)
    return StorageError(f"{url} failed, asked to {action}: {answer}", **fields)


def _not_permitted(message: str, fields: Mapping[str, str]) -> StoreForbiddenError:
    """Return the error for a request that needs a permission, which it names."""
    provider = SCHEMES.get(fields["url"].partition("://")[0], Provider.S3)
    needed = _PERMISSIONS[fields["action"]][provider]
    return StoreForbiddenError(
        message,
        hint=f"These credentials need {needed}, by a policy of theirs or of the bucket; none may "
        "deny it.  Or name others.",
        **fields,
        permission=needed,
    )


def as_unknown(error: StorageError) -> StorageError:
    """Return the error of a look at what is there already: nobody knows who put it."""
    if not error.definite:
        return error
    message = f"something is there already, and whose it is cannot be seen: {error.message}"
    return StorageError(message, hint=error.hint, **error.fields)


def missing(url: str, action: str) -> ObjectMissingError:
    """Return the error for a key that has nothing."""
    return ObjectMissingError(f"nothing is at {url}, asked to {action}", url=url, action=action)


def status_of(error: BaseException) -> int | None:
    """Return the status of HTTP that a store answered with, None = no answer came."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def says_no_bucket(error: BaseException) -> bool:
    """Return whether the answer's text says why nothing is there: there is no such bucket."""
    head = str(error).partition(_DEBUG)[0]
    code = _CODE.search(head)
    return (code is not None and code[1] in _NO_BUCKET) or _NO_BUCKET_OF_GOOGLE in head


def says_no_way(error: BaseException) -> bool:
    """Return whether a server refused a request because it does not have any of its kind."""
    status, code = status_of(error), _CODE.search(str(error).partition(_DEBUG)[0])
    return status in _NO_WAY or (status == 400 and code is not None and code[1] in _NO_WAY_CODES)


def says_full(text: str) -> bool:
    """Return whether what another library says of a bucket names a quota that is used up."""
    return re.search(_FULL, text) is not None


def was_repeated(error: BaseException) -> bool:
    """Return whether it was asked for more than once: what failed last may be done already."""
    said = (str(error), *getattr(error, "__notes__", ()))
    return any(_REPEATED.search(text) is not None for text in said)


def note_repeated(error: BaseException) -> None:
    """Note that an attempt came before that of an error, which the library does not know."""
    error.add_note("retries: 1")


def is_cut(error: BaseException) -> bool:
    """Return whether an answer began and was cut: the library does not ask again then."""
    return _CUT.search(str(error)) is not None


def _answer_of(text: str) -> str:
    head = text.partition(_DEBUG)[0]
    status, code = _STATUS.search(head), _CODE.search(head)
    words = [found[1] for found in (status, code) if found]
    if not words:
        kinds = re.findall(r"kind: (\w+)", text)
        words = [end for kind, end in _ENDS.items() if kind in kinds][:1]
    return " ".join(words) or text.partition(":")[0]
