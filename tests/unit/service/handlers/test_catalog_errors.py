"""What each error of the node is to a client of the catalog's API."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from starlette.requests import Request

from sparktxlog.errors import (
    BusyError,
    CommitStateUnknownError,
    CorruptLogError,
    DiskFullError,
    ForbiddenError,
    InternalError,
    InvalidRequestError,
    NameTakenError,
    NotOfferedError,
    RequirementError,
    StagedCommitError,
    StaleTimestampError,
    TxLogError,
    UnauthorizedError,
    UnknownSchemaError,
    UnknownTableError,
    VersionConflictError,
)
from sparktxlog.runtime.tokens.budgets import Budget
from sparktxlog.service.connections.bodies import Bodies
from sparktxlog.service.handlers.catalog_errors import CatalogErrors

BODIES = Bodies(1 << 20, Budget("bytes", 3 << 19, ""))
DOOR = CatalogErrors(lambda error: error, lambda request, route: {}, BODIES)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (VersionConflictError("x"), 409, "CommitVersionConflictException"),
        (StaleTimestampError("x"), 409, "CommitVersionConflictException"),
        (RequirementError("x"), 409, "UpdateRequirementConflictException"),
        (NameTakenError("x"), 409, "AlreadyExistsException"),
        (StagedCommitError("x"), 400, "InvalidParameterValueException"),
        (InvalidRequestError("x"), 400, "BadRequestException"),
        (UnauthorizedError("x"), 401, "NotAuthorizedException"),
        (ForbiddenError("x"), 403, "PermissionDeniedException"),
        (UnknownSchemaError("x"), 404, "NoSuchSchemaException"),
        (UnknownTableError("x"), 404, "NoSuchTableException"),
        (BusyError("x"), 429, "TooManyRequestsException"),
        (NotOfferedError("x"), 501, "NotImplementedException"),
        # Whoever reads one of these asks again, and never takes the commit for lost.
        (CommitStateUnknownError("x"), 500, "CommitStateUnknownException"),
        (InternalError("x"), 500, "CommitStateUnknownException"),
        (CorruptLogError("x"), 500, None),
        (DiskFullError("x"), None, None),
    ],
)
def test_an_error_has_the_name_that_delta_acts_on(
    error: TxLogError, status: int | None, kind: str | None
) -> None:
    response = DOOR.refuse(cast(Request, None), error)
    told: dict[str, Any] = json.loads(bytes(response.body))
    assert told["error"]["code"] == response.status_code
    assert told["message"].startswith("x")
    assert told["details"][0]["reason"] == error.code
    if status is not None:
        assert response.status_code == status
    if kind is not None:
        assert told["error"]["type"] == kind
    else:  # a failure of this site: neither a conflict nor the client's mistake
        assert response.status_code >= 500
