"""Where a site has its files: nothing else may be put there.

Node, worker and upkeep remove there what they do not know, and a table of the log that is made
later takes what has its name for its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.buckets import bucket_url
from sparktxlog.model.ids import local_path

#: Of the answer of `/v1/info`.
_ROOTS = (
    "payload_root",
    "lake_root",
    "commit_table_root",
    "reader_table_root",
    "log_root",
    "payload_url",
    "lake_url",
    "commit_table_url",
)


def roots_of(info: Mapping[str, Any]) -> list[str]:
    """Return the directories and prefixes of a site, as its node says them.

    Args:
        info: Answer of `/v1/info`; what it lacks is left out.
    """
    lakes = (info.get("replica_lakes") or {}).values()
    return [root for root in (*map(info.get, _ROOTS), *lakes) if root]


def check_apart(
    place: str, roots: Iterable[str], *, what: str = "images", field: str = "directory"
) -> None:
    """Refuse a place among the files of a site; blocks, looks at links of directories.

    Args:
        place: Of what is kept: a path or a URL.
        roots: Of the site's tables and staged files.
        what: Is kept there.
        field: Name of the option.

    Raises:
        InvalidRequestError: It would lie there (definite).
    """
    wanted = one_form(place)
    for root in roots:
        if f"{wanted}/".startswith(f"{one_form(root)}/"):
            raise InvalidRequestError(
                f"{place} is in {root}, where files of the site lie",
                hint=f"Name a place of its own for {what}.",
                field=field,
                value=place,
            )


def one_form(place: str) -> str:
    """Return a path or a URL so that equal places have one text.

    Raises:
        ConfigError: No store here has such URLs (definite).
        InvalidRequestError: It is no path of this machine (definite).
    """
    found = bucket_url(place, "place")
    return os.path.realpath(local_path(place, "place")) if found is None else found.url
