"""Values of settings: text, TOML or JSON to checked values.

Each reader raises ValueError that says what was expected; the caller names key and value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from sparktxlog.errors import InvalidNameError, InvalidRequestError
from sparktxlog.model.ids import NodeId, check_node_id
from sparktxlog.model.transactions.synchro_holders import check_expression

ROLES = ("master", "replica", "witness", "follower")
#: Most votes of one node.
MAX_WEIGHT = 1_000
#: A prefix in a bucket; its names need no escape in a URL.
_BUCKET = re.compile(
    r"(?:s3|gs)://[a-z0-9][a-z0-9._-]{1,221}(?:/(?!\.+(?:/|$))[A-Za-z0-9._-]+)*/?"
    r"|abfss://[a-z0-9][a-z0-9-]{1,62}@[a-z0-9]{3,24}\.(?:dfs|blob)\.core\.windows\.net"
    r"(?:/(?!\.+(?:/|$))[A-Za-z0-9._-]+)*/?"
)


def split_urls(text: str) -> tuple[str, ...]:
    """Return the addresses of a comma separated list."""
    return tuple(part for part in text.split(",") if part)


def is_loopback(host: str) -> bool:
    """Return whether a host, an address or a name, is this machine's own loopback."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_text(value: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("expected a text that is not empty")
    return value.strip()


def read_bucket(value: Any) -> str:
    """Read the URL of a prefix in a bucket; without `/` at its end."""
    text = read_text(value)
    match = _BUCKET.fullmatch(text)
    if match is None:
        raise ValueError(
            "expected s3://bucket/prefix, abfss://container@account.dfs.core.windows.net/prefix or "
            "gs://bucket/prefix, of letters, digits and '._-'"
        )
    return text.rstrip("/")


def read_buckets(value: Any) -> tuple[str, ...]:
    """Read URLs of prefixes in buckets of S3, a list or separated by commas; perhaps none."""
    parts = read_text(value).split(",") if isinstance(value, str) else value
    wanted = "expected URLs of S3, such as s3://lake-b/payloads,s3://lake-b/tables"
    if not isinstance(parts, (list, tuple)):
        raise ValueError(wanted)
    urls = tuple(read_bucket(part.strip() if isinstance(part, str) else part) for part in parts)
    if not all(url.startswith("s3://") for url in urls):
        raise ValueError(wanted)
    return urls


def read_role(value: Any) -> str:
    """Read the ARN of a role."""
    text = read_text(value)
    if re.fullmatch(r"arn:[a-z-]+:iam::[0-9]*:?role/[A-Za-z0-9_+=,.@/-]{1,512}", text) is None:
        raise ValueError("expected the ARN of a role, such as arn:aws:iam::123456789012:role/lake")
    return text


def read_node_id(value: Any) -> NodeId:
    """Read a node id."""
    try:
        return check_node_id(read_text(value))
    except InvalidNameError as error:
        raise ValueError(error.hint) from error


def read_node_ids(value: Any) -> tuple[NodeId, ...]:
    """Read the ids of some nodes: a list, or a text with commas between them; none twice."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)):
        raise ValueError("expected a list of node ids")
    return tuple(dict.fromkeys(read_node_id(name) for name in names if name != ""))


def read_sets(value: Any) -> tuple[tuple[NodeId, ...], ...]:
    """Read sets of nodes, as `A+B`: a list, or a text with commas between the sets; none twice."""
    sets = value.split(",") if isinstance(value, str) else value
    if not isinstance(sets, (list, tuple)) or not all(isinstance(one, str) for one in sets):
        raise ValueError("expected a list of sets of node ids, such as ['A+B', 'C+D']")
    found = [sorted({*map(read_node_id, one.split("+"))}) for one in sets if one.strip() != ""]
    return tuple(dict.fromkeys(map(tuple, found)))


#: Path of an address: where a reverse proxy has the node.
_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*")


def read_url(value: Any) -> str:
    """Read one address: scheme, host and port; a path, if the node is after a reverse proxy."""
    text = read_text(value).rstrip("/")
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError as error:
        raise ValueError("expected a port between 1 and 65535") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError("expected a URL such as http://10.0.0.1:7070")
    if parts.query or parts.fragment or "@" in parts.netloc or not _PATH.fullmatch(parts.path):
        raise ValueError("expected scheme, host and port, and perhaps a path such as /site-b")
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path}"


def read_urls(value: Any) -> str:
    """Read one URL or several with commas between them, as one text without spaces.

    Raises:
        ValueError: One of them is not a URL.
    """
    found = [read_url(part) for part in read_text(value).split(",")]
    if len(set(found)) != len(found):
        raise ValueError("an address is given twice")
    return ",".join(found)


def read_listen(value: Any) -> tuple[str, int]:
    """Read host and port to listen on."""
    host, separator, port = read_text(value).rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 <= int(port) <= 65_535:
        raise ValueError("expected host:port such as 127.0.0.1:7070")
    return host.strip("[]"), int(port)


def ranged(low: float, high: float, *, whole: bool = False) -> Callable[[Any], Any]:
    """Return a reader of numbers within bounds."""

    def read(value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = float(value) if "." in value or "e" in value.lower() else int(value)
            except ValueError as error:
                raise ValueError("expected a number") from error
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError("expected a number")
        if not low <= value <= high:  # first, because it also refuses infinity
            raise ValueError(f"expected a number from {low:g} to {high:g}")
        if whole and value != int(value):
            raise ValueError("expected a whole number")
        return int(value) if whole else float(value)

    return read


def counted(low: int, high: int) -> Callable[[Any], Any]:
    """Return a reader of whole numbers within bounds."""
    return ranged(low, high, whole=True)


def one_of(*choices: str) -> Callable[[Any], str]:
    """Return a reader of one of several words."""

    def read(value: Any) -> str:
        text = read_text(value).lower()
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text

    return read


def read_switch(value: Any) -> bool:
    """Read true or false."""
    if isinstance(value, bool):
        return value
    text = read_text(value).lower()
    if text not in ("true", "false"):
        raise ValueError("expected true or false")
    return text == "true"


def read_roles(value: Any) -> tuple[str, ...]:
    """Read the roles of a node."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not names:
        raise ValueError(f"expected a list of {', '.join(ROLES)}")
    roles = tuple(sorted({one_of(*ROLES)(name) for name in names}))
    if "witness" in roles and len(roles) > 1:
        raise ValueError("a witness only votes: it has no other role")
    if "follower" in roles and "master" in roles:
        raise ValueError("a follower is no master: write follower, or follower,replica")
    if roles == ("replica",):
        raise ValueError("a node needs the role master, follower or witness")
    return roles


def read_holders(value: Any) -> str:
    """Read how many holders a synchronous transaction needs: a count or an expression over N."""
    try:
        return check_expression(str(value))
    except InvalidRequestError as error:
        raise ValueError(error.message) from error


def read_quorum(value: Any) -> str | int:
    """Read an acquisition quorum."""
    if isinstance(value, str) and value.strip().lower() in ("majority", "all"):
        return value.strip().lower()
    try:
        return int(counted(1, 1_000)(value))
    except ValueError as error:
        raise ValueError("expected majority, all or a number of nodes") from error
