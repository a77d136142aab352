"""What is declared of a route: the callers that it allows, what it takes and what it answers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from starlette.convertors import IntegerConvertor, register_url_convertor

from sparktxlog.errors import InvalidRequestError
from sparktxlog.service.routing.query import Query

#: Most bytes of a document that is not a submit: settings, reports of thousands of tables.
DOCUMENT_BYTES = 16 << 20

#: Types of bodies and answers.
JSON, MSGPACK = "application/json", "application/msgpack"
RUN, ARROW = "application/vnd.sparktxlog.run", "application/vnd.apache.arrow.stream"
BINARY, PLAIN, HTML, CSV = "application/octet-stream", "text/plain", "text/html", "text/csv"
PROMETHEUS = f"{PLAIN}; version=0.0.4"
#: Beginnings of the paths whose clients are our own: other clients may add parameters of theirs.
_OWN = ("/v1/", "/livez", "/readyz", "/metrics", "/openapi.json", "/docs")


class _Number(IntegerConvertor):
    """A number of up to 18 digits; a path with another one does not match."""

    regex = "[0-9]{1,18}"


register_url_convertor("number", _Number())


class Role(Enum):
    """What a caller must prove to be."""

    #: Health and the description of the interface, which reveal nothing of the log.
    ANYBODY = "anybody"
    #: Submits and reads: client-token, or the admin token.  A worker's token is good for what is
    #: read (GET).
    CLIENT = "client"
    #: Pages for people: as CLIENT; the token may be the password of HTTP Basic.
    BROWSER = "browser"
    #: What a worker reports to its node: the token that the node put into its data directory, or
    #: the admin token; where there is no client token everybody.
    WORKER = "worker"
    #: Changes of the cluster or the node: admin-token, or the client token if none is configured.
    ADMIN = "admin"
    #: Requests between nodes: a certificate, or a signature by cluster-secret.
    PEER = "peer"
    #: Files of a replica that are pinned for one copy: the token of its lease.
    LEASE = "lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route.

    The parameters of its handler name what it takes: values of path and query, `body` (decoded),
    `sender` (the peer), `token` (of the lease).
    """

    method: str
    path: str
    role: Role
    #: Name of the handler, and of the operation in OpenAPI.
    name: str
    summary: str
    description: str = ""
    query: tuple[Query, ...] = ()
    #: Type that a body is decoded to; `bytes` = not decoded, None = not read.
    body: Any = None
    body_type: str = JSON
    #: Type of the answer; `bytes` = of media type `answer_type`, None = no content.
    answer: Any = None
    answer_type: str = JSON
    #: Other media types in which the same is answered to a caller that asks for them.
    other_types: tuple[str, ...] = ()
    #: Most bytes of the body; None = the node's `body-limit`.
    body_bytes: int | None = DOCUMENT_BYTES
    #: Whether a witness answers it.
    at_witness: bool = False
    #: For clients and workers: whether a node that does not know the log yet answers it: the answer
    #: has nothing of tables, transactions and positions.
    before_log: bool = False
    #: Whether it changes the log, or what the members decide: a follower refuses it (P38).
    at_member: bool = False
    #: Matched first; its handler takes the raw request, and reads query and body itself.
    hot: bool = False

    @property
    def key(self) -> str:
        """Return method and path."""
        return f"{self.method} {self.path}"

    @property
    def is_act(self) -> bool:
        """Whether it changes something for its caller; what peers send is the protocol's."""
        return self.method != "GET" and self.role is not Role.PEER

    @property
    def template(self) -> str:
        """Return the path as OpenAPI writes it: parameters without their types."""
        return re.sub(r":\w+}", "}", self.path)

    @property
    def is_public(self) -> bool:
        """Whether OpenAPI describes it: it is for clients, workers or operators."""
        return self.path.startswith("/v1/")

    def check_names(self, given: Iterable[str]) -> None:
        """Refuse parameters of a query that the route does not have, or that are given twice.

        What they ask is not answered.  Pages, the catalog and peers of other releases may send
        more.

        Args:
            given: Each as often as it is given.

        Raises:
            InvalidRequestError: With the names that there are; `field` (definite).
        """
        if not self.path.startswith(_OWN):
            return
        names, shown = [query.name for query in self.query], list(given)
        if unknown := [name for name in shown if name not in names]:
            raise InvalidRequestError(
                f"{self.path} has no parameter {unknown[0][:40]!r}",
                hint=f"It has {', '.join(names)}." if names else "It has none.",
                field=unknown[0][:40],
            )
        if repeated := [name for name in names if shown.count(name) > 1]:
            raise InvalidRequestError(
                f"{self.path} takes one {repeated[0]!r}, and {shown.count(repeated[0])} are given",
                hint="Give it once.",
                field=repeated[0],
            )


def get(path: str, name: str, summary: str, answer: Any, *query: Query, **more: Any) -> Route:
    """Return a route that reads, by default for clients."""
    values: dict[str, Any] = {"role": Role.CLIENT, "query": query, "answer": answer} | more
    return Route(method="GET", path=path, name=name, summary=summary, **values)
