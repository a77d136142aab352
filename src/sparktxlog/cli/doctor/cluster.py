"""Checks of a node and its cluster: does it answer, with which token, its links, clocks, alarms."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from sparktxlog.cli.doctor.findings import Finding, good, problem, warning
from sparktxlog.health.verdicts import alarms_of
from sparktxlog.http.tokens import ADMIN_TOKEN_VARIABLE, TOKEN_VARIABLE, notes_directory

_TIMEOUT_S = 3.0
#: Microseconds that clocks may differ: above the first a node is warned of, above the other one
#: it takes no transactions (C4).
_CLOCK_US, _STOPS_US = 1_000_000, 60_000_000
_SET_CLOCKS = "Let all nodes follow a time server, for example with chrony."


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


def check_status(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what a node's answer says of it and of its cluster."""
    yield from check_alarms(status)
    yield from check_links_of(status)
    yield from check_clocks(status)
    yield from check_observers(status.get("reachability") or {})


def check_alarms(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Repeat what the node itself warns of."""
    name = f"node {status['node_id']} ({status['phase']})"
    found = alarms_of(status)
    for alarm in found:
        grade = problem if alarm["severity"] == "alarm" else warning
        fix = alarm["way_out"] or "See `sparktxlog status`, and docs/runbooks.md."
        yield grade("node", f"{name}: {alarm['text']}", fix)
    if not found:
        yield good("node", f"{name} answers, and warns of nothing")


def check_links_of(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Check each link of the node; a refusal names what differs between the configurations."""
    for peer in status.get("peers") or []:
        name, reason = peer["id"], peer.get("reason") or "it does not answer"
        if peer.get("linked"):
            lost = [url for url, answers in (peer.get("addresses") or {}).items() if not answers]
            if lost:
                fix = "Mend that way, or take the address out of the peer's url."
                yield warning("peers", f"{name} is linked, and not at {', '.join(lost)}", fix)
            else:
                yield good("peers", f"{name} is linked")
        elif "configuration" in reason or "lineage" in reason:
            fix = "Compare `sparktxlog config show` of both nodes: shared settings must be equal."
            yield problem("configuration", f"no link to {name}: {reason}", fix)
        else:
            fix = "Start its node, or look at names, routes and firewalls between the machines."
            if "[unauthorized]" in reason:  # it answers
                fix = "Compare `sparktxlog peer list` and cluster-secret of both nodes."
            yield problem("peers", f"no link to {name} ({peer['url']}): {reason}", fix)


def check_clocks(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare the clocks of the peers with the node's."""
    offsets = {
        peer["id"]: peer["clock_offset_us"]
        for peer in status.get("peers") or []
        if peer.get("clock_offset_us") is not None
    }
    for name, offset in offsets.items():
        text = f"the clock of {name} is {offset / 1e6:+,.3f} s off that of {status['node_id']}"
        if abs(offset) >= _STOPS_US:
            yield problem("clocks", f"{text}: one of both takes no transactions", _SET_CLOCKS)
        elif abs(offset) >= _CLOCK_US:
            yield warning("clocks", text, _SET_CLOCKS)
        else:
            yield good("clocks", text)


def check_observers(reachability: Mapping[str, Any]) -> Iterator[Finding]:
    """Check whether the nodes agree on which of them are linked, and where they answer."""
    fix = "Look at the network between these nodes: a link works from one side only."
    differing = reachability.get("differing") or []
    if differing:
        yield problem("network", f"nodes disagree about the links of {', '.join(differing)}", fix)
    for node, urls in (reachability.get("differing_addresses") or {}).items():
        yield warning("network", f"not all nodes reach {node} at {', '.join(urls)}", fix)
    if len(reachability.get("linked") or ()) > 1 and not differing:
        yield good("network", "the nodes agree on which of them are linked")


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
