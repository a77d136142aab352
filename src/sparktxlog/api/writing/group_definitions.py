"""Makes and changes groups of sites: which of them hold the rows of some tables."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from sparktxlog.http.link import Http
from sparktxlog.model.tables.groups import Group

#: Seconds that a node may take: it commits twice, and again while others change groups.
_TIMEOUT_S = 100.0


def create_group(
    node: Http, name: str, sites: Sequence[str], copies: int = 1, schemas: Sequence[str] = ()
) -> Group:
    """Make a group; the same one again is there already.

    Args:
        node: Any node that is a member.
        name: Letters, digits, `_` and `-`.
        sites: Ids of the nodes whose sites hold the tables; they stay for ever.
        copies: So many of them hold what a transaction writes before it is ordered.
        schemas: New tables of these schemas belong to the group.

    Raises:
        NameTakenError: There is another group of that name (definite).
        InvalidNameError, InvalidRequestError: Which field has which value is said (definite).
        TxLogError: As a commit.
    """
    said = {"sites": list(sites), "copies": copies, "schemas": list(schemas)}
    return _asked(node, "PUT", name, said)


def alter_group(
    node: Http,
    name: str,
    *,
    copies: int | None = None,
    schemas: Sequence[str] | None = None,
) -> Group:
    """Change how many copies transactions of a group need from now on, or its schemas.

    Raises:
        UnknownGroupError: There is none (definite).
        InvalidRequestError: Nothing is changed, or it has fewer sites than copies (definite).
        TxLogError: As a commit.
    """
    said: dict[str, object] = {
        "copies": copies,
        "schemas": None if schemas is None else list(schemas),
    }
    return _asked(node, "PATCH", name, said)


def _asked(node: Http, method: str, name: str, said: dict[str, object]) -> Group:
    body = msgspec.json.encode(said)
    path = f"/v1/groups/{quote(name, safe='')}"
    answer = node.request(method, path, body=body, timeout_s=_TIMEOUT_S)
    return msgspec.json.decode(answer, type=Group)
