"""Proves the sender of a request between nodes, and the receiver's start: no forgery, no replay.

Over mutual TLS the certificate names its sender, and nobody else reads, changes or repeats it.
Over plain HTTP it is signed: HMAC-SHA256 with the cluster's secret.  The signature covers method,
path with query, SHA-256 of the body, the sender's node id and boot id, the receiver's boot id, and
a counter that rises with each request of the sender's boot:

- altered or without the secret → 401, before the body is read: a header claims its digest;
- `to` is not the receiver's boot (it restarted, or the request was recorded earlier) → 409, and
  the sender greets it again;
- a counter seen before → 401 "replayed" (sliding window, so that requests may overtake);
- a boot that another boot of the same node has replaced → 401, sealed like an answer.

A sender without a session is refused with a *challenge* (409): this boot, with the number of the
node's sessions so far.  It greets with that as `to`.  So a late greeting of a dead process does not
replace a session that was opened since.

The headers with both boots and the counter are sent in either case: they also keep apart the
starts of one node, of which a late request of a dead one may still arrive.

While the secret is replaced, a node signs with one and also believes another one.

A recorded request is therefore useless: now (window), after the receiver's restart (`to`), and
after the sender's (retired boot).
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sparktxlog.errors import UnauthorizedError
from sparktxlog.transport.node_certificate import NodeCertificate

NODE = "x-txlog-node"
BOOT = "x-txlog-boot"
TO = "x-txlog-to"
COUNTER = "x-txlog-counter"
SIGNATURE = "x-txlog-signature"
#: SHA-256 of the body, so that the signature can be checked before the body is read.
DIGEST = "x-txlog-digest"
#: Counters that are lower than the highest one by this are refused, seen or not.
WINDOW = 4_096
_MAX_RETIRED = 1_024


class StaleSessionError(UnauthorizedError):
    """The request was meant for an earlier start of this node; the sender must greet again."""

    code = "stale-session"
    retryable = True
    http_status = 409


class ReplacedStartError(UnauthorizedError, code="replaced-start"):
    """Another process was taken for the sender since its start was greeted."""


class Signer:
    """Proves the sender of the requests of one start of one node.

    Args:
        secret: The cluster's; empty = peers are spoken with by TLS only.
        node_id: This node.
        boot: This start of it.
        certificate: This node's, None = it has none.
        also: Another secret that answers may be sealed with; empty = none.
    """

    def __init__(
        self,
        secret: str,
        node_id: str,
        boot: str,
        certificate: NodeCertificate | None = None,
        also: str = "",
    ) -> None:
        self._secret = secret.encode()
        self._believed = _believed(secret, also)
        self._node_id = node_id
        self.boot = boot
        self._certificate = certificate
        self._counter = itertools.count(1)

    def certified(self, url: str) -> bool:
        """Return whether certificates prove the identity of both sides of a connection."""
        return self._certificate is not None and url.startswith("https:")

    def tls(self, url: str, node_id: str) -> dict[str, Any]:
        """Return how a connection to a peer is made; see `NodeCertificate.arguments`."""
        return {} if self._certificate is None else self._certificate.arguments(url, node_id)

    def headers(
        self, method: str, target: str, body: bytes, to: str, url: str = ""
    ) -> dict[str, str]:
        """Return the headers of a request for the node with boot id `to`.

        They sign it, unless the certificates of a connection to `url` say all that a signature
        would.
        """
        counter = str(next(self._counter))
        if self.certified(url):
            return {NODE: self._node_id, BOOT: self.boot, TO: to, COUNTER: counter}
        digest = hashlib.sha256(body).hexdigest()
        text = _signed_text(method, target, digest, self._node_id, self.boot, to, counter)
        return {
            NODE: self._node_id,
            BOOT: self.boot,
            TO: to,
            COUNTER: counter,
            DIGEST: digest,
            SIGNATURE: _sign(self._secret, text),
        }

    def answer_signature(self, request_signature: str, body: bytes) -> str:
        """Return the signature of an answer, bound to the request with that signature."""
        return _sign(self._secret, _sealed_text(request_signature, body))

    def is_sealed(self, request_signature: str, body: bytes, seal: str) -> bool:
        """Return whether an answer proves that a node with a secret gave it to that request."""
        return _is_signed(self._believed, _sealed_text(request_signature, body), seal)


def _believed(*secrets: str) -> tuple[bytes, ...]:
    return tuple(secret.encode() for secret in secrets if secret)


def _sign(secret: bytes, text: bytes) -> str:
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


def _is_signed(secrets: tuple[bytes, ...], text: bytes, signature: str) -> bool:
    shown = signature.encode()
    return any(hmac.compare_digest(_sign(secret, text).encode(), shown) for secret in secrets)


def _sealed_text(request_signature: str, body: bytes) -> bytes:
    return b"answer\n" + request_signature.encode() + b"\n" + hashlib.sha256(body).digest()


def _sender(headers: Mapping[str, str]) -> tuple[str, str, str, str]:
    """Return the sender and receiver that a request names: node, boot, receiver's boot, counter."""
    node, boot, to = headers.get(NODE, ""), headers.get(BOOT, ""), headers.get(TO, "")
    counter = headers.get(COUNTER, "")
    if not counter.isascii() or not counter.isdigit() or len(counter) > 18 or len(boot) > 64:
        raise UnauthorizedError(f"a request of node {node!r} is not signed", node=node)
    return node, boot, to, counter


def _signed_text(
    method: str, target: str, digest: str, node: str, boot: str, to: str, counter: str
) -> bytes:
    return f"{method}\n{target}\n{digest}\n{node}\n{boot}\n{to}\n{counter}".encode()


@dataclass(slots=True)
class _Session:
    """Requests received from one start of one node."""

    boot: str
    highest: int = 0
    #: Counters seen within the window below `highest`.
    seen: set[int] = field(default_factory=set)

    def take(self, counter: int) -> bool:
        """Note a counter; False if it was seen or is below the window."""
        if counter <= self.highest - WINDOW or counter in self.seen:
            return False
        self.seen.add(counter)
        self.highest = max(self.highest, counter)
        if len(self.seen) > 2 * WINDOW:
            floor = self.highest - WINDOW
            self.seen = {value for value in self.seen if value > floor}
        return True


class Verifier:
    """Checks requests that claim to come from configured nodes.

    Args:
        secret: The cluster's; empty = no signature is believed.
        boot: This start of this node.
        also: Another secret that requests may be signed with; empty = none.
    """

    def __init__(self, secret: str, boot: str, also: str = "") -> None:
        self._believed = _believed(secret, also)
        self._boot = boot
        self._sessions: dict[str, _Session] = {}
        self._retired: dict[tuple[str, str], None] = {}
        #: Node → number of sessions opened.
        self._opened: dict[str, int] = {}

    def claimed_digest(self, headers: Mapping[str, str]) -> str:
        """Return the digest that a request claims for its body.

        Raises:
            UnauthorizedError: It claims none, or is not signed (definite).
        """
        digest = headers.get(DIGEST, "")
        if not digest:
            node = headers.get(NODE, "")
            lacks = "lacks the digest" if SIGNATURE in headers else "is not signed"
            raise UnauthorizedError(f"a request of node {node!r} {lacks}", node=node)
        return digest

    def check(
        self, headers: Mapping[str, str], method: str, target: str, digest: str, *, greeting: bool
    ) -> str:
        """Return the sender's node id if the request is genuine, new and for this start.

        Args:
            digest: SHA-256 of the body, hexadecimal; the caller compares a claimed one.
            greeting: True for the hello request, which needs no session; `admit` opens one.

        Raises:
            StaleSessionError: Right secret, but the node must greet first (definite).
            ReplacedStartError: Another start of the sender was admitted since (definite).
            UnauthorizedError: Wrong or replayed signature (definite).
        """
        return self._take(
            *self._check_signature(headers, method, target, digest), greeting=greeting
        )

    def _check_signature(
        self, headers: Mapping[str, str], method: str, target: str, digest: str
    ) -> tuple[str, str, str, str]:
        node, boot, to, counter = _sender(headers)
        signature = headers.get(SIGNATURE, "")
        if not self._believed or not signature:
            raise UnauthorizedError(f"a request of node {node!r} is not signed", node=node)
        text = _signed_text(method, target, digest, node, boot, to, counter)
        if not _is_signed(self._believed, text, signature):
            raise UnauthorizedError(
                f"a request of node {node!r} has a wrong signature",
                hint="cluster-secret must be the same on all members; while it is replaced, "
                "cluster-secret-also names the other one (docs/access.md).",
                node=node,
            )
        return node, boot, to, counter

    def knows_secret(
        self, headers: Mapping[str, str], method: str, target: str, digest: str
    ) -> bool:
        """Return whether a request is signed with the right secret, by any sender at any time."""
        with suppress(UnauthorizedError):
            self._check_signature(headers, method, target, digest)
            return True
        return False

    def check_certified(self, headers: Mapping[str, str], *, greeting: bool) -> str:
        """Return the sender of a request whose connection proves it; errors and rest as `check`."""
        return self._take(*_sender(headers), greeting=greeting)

    def _take(self, node: str, boot: str, to: str, counter: str, *, greeting: bool) -> str:
        if to.partition(".")[0] != self._boot:
            raise StaleSessionError(f"node {node!r} must greet this start first", node=node)
        if (node, boot) in self._retired:
            raise ReplacedStartError(f"this start of node {node!r} was replaced", node=node)
        session = self._sessions.get(node)
        if session is None or session.boot != boot:
            if greeting and to == self.challenge(node):
                return node
            raise StaleSessionError(f"node {node!r} must greet first", node=node)
        if not session.take(int(counter)):
            raise UnauthorizedError(f"a request of node {node!r} was replayed", node=node)
        return node

    def expel(self, node: str) -> None:
        """End a node's session: it has to greet before its next request."""
        self._sessions.pop(node, None)

    def challenge(self, node: str) -> str:
        """Return the `to` with which a node's greeting opens a session."""
        return f"{self._boot}.{self._opened.get(node, 0)}"

    def admit(self, headers: Mapping[str, str]) -> None:
        """Open a session for the start of a node whose checked greeting was accepted.

        Only now its former start is retired: a refused greeting changes nothing.

        Raises:
            StaleSessionError: Another start was admitted while this greeting was judged (definite).
        """
        node, boot = headers[NODE], headers[BOOT]
        session = self._sessions.get(node)
        if session is None or session.boot != boot:
            if headers[TO] != self.challenge(node):
                raise StaleSessionError(f"node {node!r} must greet again", node=node)
            self._open(node, boot).take(int(headers[COUNTER]))

    def _open(self, node: str, boot: str) -> _Session:
        old = self._sessions.get(node)
        if old is not None:
            self._retired[node, old.boot] = None
            while len(self._retired) > _MAX_RETIRED:
                del self._retired[next(iter(self._retired))]
        self._opened[node] = self._opened.get(node, 0) + 1
        session = self._sessions[node] = _Session(boot=boot)
        return session
