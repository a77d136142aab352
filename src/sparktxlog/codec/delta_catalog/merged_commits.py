"""One Delta commit that does what several commits after each other do.

Statements of one transaction are versions of a plain twin; its table gets one version of them all.
What an earlier one added and a later one removed is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from sparktxlog.errors import InvalidRequestError

_Action = dict[str, Any]
#: Path of a data file, and its deletion vector.
_Key = tuple[str, str]
#: Actions of which only the last one counts, and what distinguishes two of them.
_LAST = {"protocol": "", "metaData": "", "txn": "appId", "domainMetadata": "domain"}
_ROW_VERSION = "defaultRowCommitVersion"


def merged_commits(raws: Sequence[bytes], first: int) -> bytes:
    """Return the commit file of one version that does what several did.

    Its timestamp is that of the last one.

    Args:
        raws: Commit files of the versions `first`, `first + 1`, and so on; one or more.

    Raises:
        InvalidRequestError: Their rows or changes would be described wrongly (definite).
    """
    if len(raws) == 1:
        return raws[0]
    infos, last = list[_Action](), dict[tuple[str, Any], _Action]()
    files = _DataFiles(first)
    for number, raw in enumerate(raws):
        for kind, action in _actions(raw):
            if kind == "commitInfo":
                infos.append(action)
            elif kind in _LAST:
                last[kind, action.get(_LAST[kind])] = action
            else:
                files.take(number, kind, action)
    blind = all(info.get("isBlindAppend", False) for info in infos)
    info = infos[-1] | {"readVersion": first - 1, "isBlindAppend": blind}
    lines: list[_Action] = [{"commitInfo": info}]
    lines += ({kind: action} for (kind, _), action in last.items())
    lines += files.left()
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


class _DataFiles:
    """What commits add and remove, by file and deletion vector.

    Args:
        first: Version that all of them become.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        #: Of the version before.
        self._removed: dict[_Key, _Action] = {}
        #: With the number of the commit.
        self._added: dict[_Key, tuple[int, _Action]] = {}
        #: Those of the version before that were removed and added again.
        self._again: dict[_Key, _Action] = {}
        #: Path → number of a later commit that removed it, of rows with a version of their own.
        self._rewritten: dict[str, int] = {}

    def take(self, number: int, kind: str, action: _Action) -> None:
        """Take the next action of a commit."""
        if kind not in ("add", "remove"):
            raise InvalidRequestError(
                f"several statements for one table in one transaction, of which one wrote {kind!r}",
                hint="A table with a change data feed takes one statement in a transaction: use "
                "one MERGE, or several transactions.",
                field="commits",
                value=kind,
            )
        key = (action["path"], json.dumps(action.get("deletionVector"), sort_keys=True))
        if kind == "add":
            if key in self._removed:
                self._again[key] = self._removed.pop(key)
            self._added[key] = (number, action)
        elif key not in self._added:
            self._removed[key] = action
        else:
            written, add = self._added.pop(key)
            if key in self._again:
                self._removed[key] = self._again.pop(key)
            elif written and add.get(_ROW_VERSION) is not None:
                self._rewritten[key[0]] = number

    def left(self) -> Iterator[_Action]:
        """Yield what all of them did together."""
        for path, number in self._rewritten.items():
            self._check_not_copied(path, number)
        for action in self._removed.values():
            yield {"remove": action}
        for _, action in self._added.values():
            if (action.get(_ROW_VERSION) or 0) > self._first:
                action = action | {_ROW_VERSION: self._first}
            yield {"add": action}

    def _check_not_copied(self, path: str, number: int) -> None:
        """Refuse rows that say in a file which version wrote them, if that is not this one."""
        kept = any(added == path for added, _ in self._added)
        copies = any(at == number for at, _ in self._added.values())
        if copies and not kept:
            raise InvalidRequestError(
                f"statement {number + 1} of the transaction copies rows that an earlier one wrote "
                "to the same table, which tracks its rows",
                hint="Use one MERGE for both, deletion vectors, or several transactions.",
                field="commits",
                value=path[:120],
            )


def _actions(raw: bytes) -> Iterator[tuple[str, _Action]]:
    for line in filter(None, raw.splitlines()):
        yield from json.loads(line).items()
