"""How nodes greet each other: who may talk at all (requirements G39–G42, G44, D23).

Greeting compares node id and URL with the configuration of both sides, the lineage, the settings
that must be equal everywhere, the wire version, and the *instance*: a UUID made with the data
directory.  A node id that appears with another instance is a second node under one id, or a node
that lost its disk; neither may go on under the old identity (protocol P21).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping

from sparktxlog.codec.wire import WIRE_VERSION, Hello
from sparktxlog.errors import ForbiddenPeerError


class Greeter:
    """Holds this node's greeting and judges those of others.

    Args:
        own: This node's greeting.
        urls: Configured peers: node id → URL.
        instances: Instances that peers showed before: node id → UUID.
        remember: Called with node id and UUID when a peer shows itself for the first time.
    """

    def __init__(
        self,
        own: Hello,
        urls: Mapping[str, str],
        instances: Mapping[str, str],
        remember: Callable[[str, str], None],
    ) -> None:
        self.own = own
        self._urls = dict(urls)
        self._instances = dict(instances)
        self._remember = remember

    def known(self, node_id: str) -> bool:
        """Return whether a node id is configured as a peer (G44)."""
        return node_id in self._urls

    def check(self, hello: Hello, expected: str) -> None:
        """Accept the greeting of the node that signed or was addressed as `expected`.

        Raises:
            ForbiddenPeerError: It is not who it should be; nothing changed (definite).
        """
        own = self.own
        if hello.node_id == own.node_id and hello.instance != own.instance:
            raise self._refusal(
                hello, f"two nodes with one id: {own.node_id!r} is this node's own",
                "Give each node its own node-id (G39).",
            )  # fmt: skip
        if hello.node_id != expected or expected not in self._urls:
            raise self._refusal(
                hello, f"node {hello.node_id!r} answers where {expected!r} is configured",
                "Compare peer.<n>.id with the peer's node-id (G41).",
            )  # fmt: skip
        for what, theirs, ours, hint in (
            ("wire version", str(hello.wire_version), str(WIRE_VERSION),
             "Run the same release on all members."),
            ("URL", hello.url.rstrip("/"), self._urls[expected],
             "Compare peer.<n>.url with the peer's master-url (G42)."),
            ("lineage", hello.lineage, own.lineage,
             "cluster and the set of members must be the same on all members."),
            ("configuration", hello.config_hash, own.config_hash,
             "URLs, quorum, signature-interval and id-window must be the same on all members."),
        ):  # fmt: skip
            if theirs != ours:
                raise self._refusal(
                    hello, f"{what} of node {expected!r} is {theirs[:120]!r}, here {ours!r}", hint
                )
        known = self._instances.get(expected)
        if known is None:
            self._instances[expected] = hello.instance
            self._remember(expected, hello.instance)
        elif not hmac.compare_digest(known, hello.instance):
            raise self._refusal(
                hello, f"two nodes with one id: {expected!r} shows another data directory",
                "Stop one of them; a node that lost its data directory must return under a new "
                "node-id.",
            )  # fmt: skip

    @staticmethod
    def _refusal(hello: Hello, message: str, hint: str) -> ForbiddenPeerError:
        return ForbiddenPeerError(message, hint=hint, node=hello.node_id[:80], url=hello.url[:200])
