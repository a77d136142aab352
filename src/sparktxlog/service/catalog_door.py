"""Errors of the catalog's API, in its own shape and under its own names.

Delta's client reads status and type: after 409 it loads the table and tries again with the next
version, after 400 it gives up, after 500 it asks again, and everything else is an error for its
user.
"""

from __future__ import annotations

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
    NotOfferedError,
    RequirementError,
    RowTableError,
    SchemaInUseError,
    StagedCommitError,
    StaleTimestampError,
    TxLogError,
    UnauthorizedError,
    UnknownSchemaError,
    UnknownTableError,
)
from sparktxlog.service.endpoints import Door, json_response, problem_response

#: Error → status and type of the API; the first one that fits counts.
_TYPES: tuple[tuple[type[TxLogError], int, str], ...] = (
    (UnauthorizedError, 401, "NotAuthorizedException"),
    (ForbiddenError, 403, "PermissionDeniedException"),
    (RowTableError, 403, "PermissionDeniedException"),
    (ConflictError, 409, "CommitVersionConflictException"),
    (StaleTimestampError, 409, "CommitVersionConflictException"),
    (RequirementError, 409, "UpdateRequirementConflictException"),
    (NameTakenError, 409, "AlreadyExistsException"),
    (SchemaInUseError, 409, "UpdateRequirementConflictException"),
    (UnknownSchemaError, 404, "NoSuchSchemaException"),
    (UnknownTableError, 404, "NoSuchTableException"),
    (NotOfferedError, 501, "NotImplementedException"),
    (BusyError, 429, "TooManyRequestsException"),
    (CommitStateUnknownError, 500, "CommitStateUnknownException"),
    (InternalError, 500, "CommitStateUnknownException"),
    (StagedCommitError, 400, "InvalidParameterValueException"),
    (InvalidRequestError, 400, "BadRequestException"),
)


class CatalogDoor(Door):
    """Requests of the catalog's API: as those of clients, with its own errors."""

    def refuse(self, request: Request, error: TxLogError) -> Response:
        return self.failed(error)

    def failed(self, error: TxLogError) -> Response:
        status, kind = _named(error)
        message = f"{error.message}  {error.hint}" if error.hint else error.message
        answer: dict[str, Any] = {
            "error": {"message": message, "type": kind, "code": status},
            # As the API for schemas says it.
            "error_code": kind,
            "message": message,
            "details": [{"reason": error.code, "metadata": error.to_problem()["fields"]}],
        }
        response = json_response(answer)
        response.status_code = status
        for name, value in problem_response(error, status).headers.items():
            if name in ("www-authenticate", "retry-after"):
                response.headers[name] = value
        return response


def _named(error: TxLogError) -> tuple[int, str]:
    for kind, status, name in _TYPES:
        if isinstance(error, kind):
            return status, name
    if not error.definite:
        return 500, "CommitStateUnknownException"
    if 400 <= error.http_status < 500:
        return error.http_status, "BadRequestException"
    return max(error.http_status, 500), "InternalServerErrorException"
