"""Errors as RFC 9457 problem documents and back: the one table of code, class and HTTP status.

A node answers with `encode_problem`; callers of a node decode its answer with `error_of`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sparktxlog import errors
from sparktxlog.errors import CommitRejectedError, TransportError, TxLogError

#: Code → class of error, which knows the HTTP status: the first one in `errors` that has the code;
#: its subclasses without a code of their own never leave a node.
ERROR_CLASSES: dict[str, type[TxLogError]] = {
    found.code: found
    for found in reversed(vars(errors).values())
    if isinstance(found, type) and issubclass(found, TxLogError)
}


class ProblemDocument(msgspec.Struct, kw_only=True):
    """An RFC 9457 problem document, as a node sends it."""

    type: str
    #: Stable code, such as `unknown-table`.
    title: str
    status: int
    detail: str
    hint: str = ""
    #: True: certainly nothing happened.
    definite: bool
    #: True: the same call may succeed later.
    retryable: bool
    fields: dict[str, Any]


def encode_problem(error: TxLogError, status: int | None = None) -> bytes:
    """Return an error as a problem document, by default with the status of its class."""
    document = error.to_problem()
    return msgspec.json.encode(document if status is None else document | {"status": status})


def error_of(body: bytes, status: int, url: str) -> TxLogError:
    """Return the error of a problem document, in its class.

    Args:
        body: The answer of a node.
        status: Its HTTP status.
        url: URL of the caller's request, for the message if the answer is not a problem document.
    """
    try:
        problem = msgspec.json.decode(body)
        code, detail = str(problem["title"]), str(problem["detail"])
        fields = dict(problem.get("fields") or {})
        definite = bool(problem.get("definite", False))
        hint = str(problem.get("hint", ""))
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError, ValueError):
        text = body[:200].decode("utf-8", "replace")
        return TransportError(
            f"{url} answered with HTTP status {status}, but not as a sparktxlog node: {text}",
            hint="Check the URL.",
            url=url,
            status=status,
        )
    kind = ERROR_CLASSES.get(code)
    if kind is None:  # a newer node knows more codes
        kind = CommitRejectedError if definite else TransportError
        fields["code"] = code
    fields.pop("message", None)
    fields.pop("hint", None)
    return kind(detail, hint=hint, **fields)
