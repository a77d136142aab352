"""Where a stream stands in the log, and the options that say where it begins and how far it goes.

A position means the same at every site, a Delta version does not.  So an offset is a position, with
the name of the log and the chain hash there: any site can check whether it is of its own log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparktxlog.api.staging.staged_append import timeout_of, whole_option
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.ids import table_name

EARLIEST, LATEST = "earliest", "latest"
#: Of all readers, and of streams; `connect` names those of writers too.
_KNOWN = (
    "url", "token", "caFile", "staging", "after", "timeout", "path", "view", "table",
    "startingPosition", "endingPosition", "maxRowsPerTrigger", "maxTransactionsPerTrigger",
    "skipChangeCommits", "deleteMarkers",
)  # fmt: skip
#: Options that users of Delta and Kafka know, and what they are here.
_ELSEWHERE = {
    "startingversion": "startingPosition",
    "startingoffsets": "startingPosition",
    "startingtimestamp": "startingPosition",
    "endingversion": "endingPosition",
    "endingoffsets": "endingPosition",
    "maxoffsetspertrigger": "maxRowsPerTrigger or maxTransactionsPerTrigger",
    "maxfilespertrigger": "maxRowsPerTrigger or maxTransactionsPerTrigger",
    "maxbytespertrigger": "maxRowsPerTrigger or maxTransactionsPerTrigger",
    "ignoredeletes": "skipChangeCommits or deleteMarkers",
    "ignorechanges": "skipChangeCommits",
    "readchangefeed": "table alone: a stream of a table has its changes",
}


@dataclass(frozen=True, slots=True)
class LogOffset:
    """A place in the log.

    Args:
        log_id: Name of the log.
        position: All transactions up to here are read, 0 = none.
        chain_hash: Chain hash of the run that holds the position, hexadecimal; empty = not known.
    """

    log_id: str
    position: int
    chain_hash: str

    def to_json(self) -> dict[str, Any]:
        """Return it as Spark keeps it in a checkpoint."""
        return {
            "log_id": self.log_id,
            "position": self.position,
            "chain_hash": self.chain_hash,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> LogOffset:
        """Read what `to_json` wrote.

        Raises:
            InvalidRequestError: The checkpoint is of another source (definite).
        """
        log_id, position = found.get("log_id"), found.get("position")
        chain_hash = found.get("chain_hash")
        whole = type(position) is int and position >= 0
        if not (whole and isinstance(log_id, str) and isinstance(chain_hash, str)):
            raise InvalidRequestError(
                f"the checkpoint's offset {str(found)[:80]} is none of 'txlog'",
                hint="Give this query a checkpoint of its own.",
            )
        return cls(log_id, int(position), chain_hash)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a stream, checked."""

    #: None: the queue.
    table: str | None
    #: First position to read, or `EARLIEST` or `LATEST`.
    starting: int | str
    #: Last position to read, None = all that come.
    ending: int | None
    #: Most rows and transactions of a batch, None = no limit.
    max_rows: int | None
    max_transactions: int | None
    #: Whether only appended rows are delivered.
    appends_only: bool
    #: Whether a delete by predicate is delivered as a row.
    markers: bool
    #: Seconds to wait for a node, or for a position that it has not reached.
    timeout_s: float

    @property
    def is_limited(self) -> bool:
        """Whether a batch has a limit."""
        return self.max_rows is not None or self.max_transactions is not None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """Read the options of a data source, whose names are in lower case.

        Raises:
            InvalidRequestError: An option is unknown, or has a wrong value (definite).
        """
        for name in options:
            _check_known(name)
        table = options.get("table")
        appends_only = _yes(options, "skipChangeCommits")
        markers = _yes(options, "deleteMarkers")
        if appends_only and markers:
            raise InvalidRequestError(
                "skipChangeCommits leaves out what deleteMarkers shows", hint="Give one of them."
            )
        if table is None and (appends_only or markers):
            raise InvalidRequestError(
                "skipChangeCommits and deleteMarkers are about the changes of a table",
                hint="Add .option('table', name).",
            )
        return cls(
            table=None if table is None else table_name(table),
            starting=_starting(options),
            ending=_least_one(options, "endingPosition", "a position from 1"),
            max_rows=_least_one(options, "maxRowsPerTrigger", "a whole number from 1"),
            max_transactions=_least_one(
                options, "maxTransactionsPerTrigger", "a whole number from 1"
            ),
            appends_only=appends_only,
            markers=markers,
            timeout_s=timeout_of(options),
        )


def _check_known(name: str) -> None:
    if name in {known.lower() for known in _KNOWN}:
        return
    here = _ELSEWHERE.get(name)
    raise InvalidRequestError(
        f"the option {name[:40]!r} is unknown",
        hint=f"Use {here}." if here else f"Options: {', '.join(_KNOWN)}.",
        value=name[:40],
    )


def _starting(options: Mapping[str, str]) -> int | str:
    text = options.get("startingposition", "1")
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    expected = f"a position from 1, {EARLIEST!r} or {LATEST!r}"
    return _least_one(options, "startingPosition", expected) or 1


def _least_one(options: Mapping[str, str], name: str, expected: str) -> int | None:
    found = whole_option(options, name, -1, expected)
    if found == 0:
        raise InvalidRequestError(f"the option {name!r} is '0', expected {expected}", value="0")
    return None if found < 0 else found


def _yes(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name.lower(), "false").lower()
    if text not in ("true", "false"):
        raise InvalidRequestError(
            f"the option {name!r} is {text[:40]!r}, expected true or false", value=text[:40]
        )
    return text == "true"
