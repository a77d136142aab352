"""Checks of the ways to nodes: the port of a node, addresses of its peers, tokens of this user."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from sparktxlog.cli.doctor.findings import Finding, good, problem, warning
from sparktxlog.http.tokens import ADMIN_TOKEN_VARIABLE, TOKEN_VARIABLE, notes_directory

_TIMEOUT_S = 3.0


def check_port(listen: tuple[str, int], answers: bool, owner: int | None = None) -> Finding:
    """Check that a node's port is its own, or free for it.

    Args:
        listen: Host and port on which it listens.
        answers: Whether it answers now at the URL that was asked.
        owner: Process that runs the node on its data directory, None = none does.
    """
    host, port = listen
    where = f"{host}:{port}"
    if answers:
        return good("ports", f"the node listens on {where}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE and owner is not None:
            # The asked URL leads elsewhere: to a proxy, or another machine.
            return good("ports", f"the node runs as process {owner}, and {where} is in use")
        if error.errno == errno.EADDRINUSE:
            fix = "Stop the process that listens there, or set listen to another port."
            return problem("ports", f"another process listens on {where}", fix)
        fix = "Set listen to an address of this machine and a port that this user may open."
        return problem("ports", f"{where} cannot be opened: {error.strerror}", fix)
    return good("ports", f"{where} is free")


def check_addresses(peers: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Check that something listens at the configured addresses of peers, without a node's help."""
    for name, urls in peers.items():
        for url in urls:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            try:
                socket.create_connection((parts.hostname or "", port), _TIMEOUT_S).close()
            except OSError as error:
                yield warning(
                    "peers",
                    f"peer {name} is not reached at {url}: {error}",
                    "Start its node, or look at names, routes and firewalls between the machines.",
                )
            else:
                yield good("peers", f"something listens at {url}, for peer {name}")


def token_source(shown: str | None, variables: Mapping[str, str]) -> Finding:
    """Say which token commands of this user send.

    Args:
        shown: The token, None = there is none.
        variables: Those of the environment.
    """
    for name in (TOKEN_VARIABLE, ADMIN_TOKEN_VARIABLE):
        if variables.get(name):
            return good("tokens", f"{name} names the token that commands send")
    if shown is not None:
        where = notes_directory()
        return good("tokens", f"commands send the token of a file that a node noted in {where}")
    return good("tokens", "commands send no token: none is in the environment or noted by a node")
