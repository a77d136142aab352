"""Errors of the catalog's API, in its own shape and under its own names.

Delta's client reads status and type: after 409 it loads the table and tries again with the next
version, after 400 it gives up, after 500 it asks again, and everything else is an error for its
user.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sparktxlog.errors import (
    BusyError,
    CommitStateUnknownError,
    ConflictError,
    ForbiddenError,
    InternalError,
    InvalidRequestError,
    NameTakenError,
    NotFoundError,
    NotOfferedError,
    RequirementError,
    RowTableError,
    SchemaInUseError,
    SchemaTakenError,
    StagedCommitError,
    StaleTimestampError,
    TxLogError,
    UnauthorizedError,
    UnknownSchemaError,
    UnknownTableError,
)
from sparktxlog.service.routing.endpoints import Door, json_response, problem_response

#: Error → status, its type in the API for Delta tables, and its code in that for schemas and lists.
#: The first one that fits counts.
_TYPES: tuple[tuple[type[TxLogError], int, str, str], ...] = (
    (ForbiddenError, 403, "PermissionDeniedException", "PERMISSION_DENIED"),
    (UnauthorizedError, 401, "NotAuthorizedException", "UNAUTHENTICATED"),
    (RowTableError, 403, "PermissionDeniedException", "PERMISSION_DENIED"),
    (ConflictError, 409, "CommitVersionConflictException", "COMMIT_VERSION_CONFLICT"),
    (StaleTimestampError, 409, "CommitVersionConflictException", "COMMIT_VERSION_CONFLICT"),
    (RequirementError, 409, "UpdateRequirementConflictException", "UPDATE_REQUIREMENT_CONFLICT"),
    (SchemaTakenError, 409, "AlreadyExistsException", "SCHEMA_ALREADY_EXISTS"),
    (NameTakenError, 409, "AlreadyExistsException", "TABLE_ALREADY_EXISTS"),
    (SchemaInUseError, 409, "UpdateRequirementConflictException", "FAILED_PRECONDITION"),
    (UnknownSchemaError, 404, "NoSuchSchemaException", "SCHEMA_NOT_FOUND"),
    (UnknownTableError, 404, "NoSuchTableException", "TABLE_NOT_FOUND"),
    (NotFoundError, 404, "NotFoundException", "ENDPOINT_NOT_FOUND"),
    (NotOfferedError, 501, "NotImplementedException", "UNIMPLEMENTED"),
    (BusyError, 429, "TooManyRequestsException", "RESOURCE_EXHAUSTED"),
    (CommitStateUnknownError, 500, "CommitStateUnknownException", "COMMIT_STATE_UNKNOWN"),
    (InternalError, 500, "CommitStateUnknownException", "INTERNAL"),
    (StagedCommitError, 400, "InvalidParameterValueException", "INVALID_ARGUMENT"),
    (InvalidRequestError, 400, "BadRequestException", "INVALID_ARGUMENT"),
)


class CatalogErrors(Door):
    """Requests of the catalog's API: as those of clients, with its own errors.

    Args:
        as_known: See `Door`; that of the doors that answer clients.
    """

    def __init__(self, as_known: Callable[[TxLogError], TxLogError], *args: Any) -> None:
        super().__init__(*args)
        self._as_known = as_known

    def refuse(self, request: Request, error: TxLogError) -> Response:
        return self.failed(self._as_known(error))

    def failed(self, error: TxLogError) -> Response:
        return catalog_failure(error)


def catalog_failure(error: TxLogError) -> Response:
    """Return an error as both parts of the API say it."""
    status, kind, code = _named(error)
    message = f"{error.message}  {error.hint}" if error.hint else error.message
    answer: dict[str, Any] = {
        "error": {"message": message, "type": kind, "code": status},
        # As the API for schemas says it.
        "error_code": code,
        "message": message,
        "details": [{"reason": error.code, "metadata": error.to_problem()["fields"]}],
    }
    response = json_response(answer)
    response.status_code = status
    for name, value in problem_response(error, status).headers.items():
        if name in ("www-authenticate", "retry-after"):
            response.headers[name] = value
    return response


def _named(error: TxLogError) -> tuple[int, str, str]:
    for kind, status, name, code in _TYPES:
        if isinstance(error, kind):
            return status, name, code
    if not error.definite:
        return 500, "CommitStateUnknownException", "COMMIT_STATE_UNKNOWN"
    if 400 <= error.http_status < 500:
        return error.http_status, "BadRequestException", "INVALID_ARGUMENT"
    return max(error.http_status, 500), "InternalServerErrorException", "INTERNAL"
