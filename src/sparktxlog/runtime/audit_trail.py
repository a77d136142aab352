"""Who changed what at this node: acts of operators, members that came and went, dropped tables.

The journal keeps the latest `HISTORY` entries in a ring of named values.  An act is durable before
its effect: after a crash its entry says `begun`.  What the members decide, and what drops a table,
is written together with it.  An entry never holds a token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar

import msgspec
import structlog

from sparktxlog.model.answers import AuditEntry
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.words.actions import Action, PersistQueue, PersistView
from sparktxlog.protocol.words.view import View
from sparktxlog.runtime.clock import wall_us
from sparktxlog.storage.interfaces import PutValue, Write
from sparktxlog.storage.journal.value_ring import ValueRing

_log = structlog.get_logger("sparktxlog.audit")

#: Entries that are kept.
HISTORY = 1_000
_PREFIX, _SECRET = "audit:", "audit-secret:"
_MAX_TEXT = 2_000
#: Bytes that are kept of a secret's digest: they tell another secret, and are no use to guess it.
_DIGEST_BYTES = 4
#: Outcome of an act that has not ended, or whose end a crash kept out.
BEGUN, DONE = "begun", "done"

#: Who asks in this request: a role, or the name of a grant.
OPERATOR = "operator"
asks: ContextVar[str] = ContextVar("asks", default="node")


class AuditTrail:
    """The entries of one node; belongs to the event loop.

    Args:
        saved: Named values of the journal.
        write_then: Makes writes durable in order, then calls a function.
    """

    def __init__(
        self,
        node_id: NodeId,
        saved: Mapping[str, bytes],
        view: View,
        write_then: Callable[[Sequence[Write], Callable[[], None]], None],
        now: Callable[[], int] = wall_us,
    ) -> None:
        self._node_id, self._view = str(node_id), view
        self._write_then, self._now = write_then, now
        self._ring = ValueRing[AuditEntry](_PREFIX, HISTORY, AuditEntry, saved, msgspec.json)
        self._secrets = {name: v for name, v in saved.items() if name.startswith(_SECRET)}

    def latest(self, limit: int) -> list[AuditEntry]:
        """Return the latest entries, newest first."""
        return self._ring.newest_first()[:limit]

    # -- acts of operators -------------------------------------------------------------------------

    def begin(self, action: str, detail: str) -> int:
        """Note that whoever asks begins an act; return its number for `end`."""
        number, writes = self._add(asks.get(), action, detail, BEGUN)
        self._write_then(writes, lambda: None)
        return number

    def end(self, number: int, outcome: str, then: Callable[[], None] = lambda: None) -> None:
        """Note how an act ended; call `then` when that is durable."""
        entry = self._ring.entries.get(number)
        if entry is None:  # a thousand others began meanwhile
            then()
            return
        entry["outcome"] = outcome[:_MAX_TEXT]
        _log.info("audit", **entry)
        self._write_then([self._ring.put(number, entry)], then)

    # -- what happens without one ------------------------------------------------------------------

    def note_secrets(self, secrets: Mapping[str, str | None], salt: bytes) -> None:
        """Note at the start which secrets are others than at the last one.

        Args:
            secrets: Setting → its value, None = it is not set.
            salt: Of this node's journal.
        """
        for setting, value in secrets.items():
            name = _SECRET + setting
            digest = b"" if value is None else _digest(value, salt)
            before = self._secrets.get(name)
            writes: list[Write] = [PutValue(name=name, value=digest or b"-")]
            if before is not None and before != (digest or b"-"):
                how = "removed" if value is None else "added" if before == b"-" else "replaced"
                writes += self._add("start", "secret", f"{setting} {how}", DONE)[1]
            if before != (digest or b"-"):
                self._write_then(writes, lambda: None)

    def beside(self, action: Action) -> Sequence[Write]:
        """Return the entries that become durable together with an action of the core."""
        match action:
            case PersistView():
                before, self._view = self._view, action.view
                return self._of_view(before, action.view, forced=action.forced)
            case PersistQueue() if action.tables or action.commit_tables:
                return self._of_queue(action)
        return ()

    def _of_view(self, before: View, view: View, *, forced: bool) -> list[Write]:
        came = [str(one) for one in view.members if one not in before.members]
        left = [str(one) for one in before.members if one not in view.members]
        places = {str(seat.node_id) for seat in view.roster}
        left = [one if one in places else f"{one}, with its place" for one in left]
        where = f"epoch {view.epoch} of {view.lineage}"
        facts = [
            ("forced", f"{where} goes on alone" if forced else ""),
            ("admitted", f"{where}: {', '.join(came)}" if came else ""),
            ("evicted", f"{where}: {', '.join(left)}" if left else ""),
        ]
        members = "vote" if not forced else "operator"
        return [w for name, text in facts if text for w in self._add(members, name, text, DONE)[1]]

    def _of_queue(self, action: PersistQueue) -> list[Write]:
        dropped = [(at, table.name) for at, table in action.tables if table.is_dropped]
        dropped += [
            (table.position, table.name) for table in action.commit_tables if table.is_dropped
        ]
        found: list[Write] = []
        for at, name in dropped:
            origin = next(
                (e.header.origin for e in reversed(action.entries) if e.position <= at), "a site"
            )
            found += self._add(f"site {origin}", "drop_table", f"{name} at position {at}", DONE)[1]
        return found

    def _add(self, who: str, action: str, detail: str, outcome: str) -> tuple[int, list[Write]]:
        entry: AuditEntry = {
            "at": self._now(),
            "node": self._node_id,
            "who": who,
            "action": action,
            "detail": detail[:_MAX_TEXT],
            "outcome": outcome,
        }
        number, write = self._ring.add(entry)
        if outcome != BEGUN:
            _log.info("audit", **entry)
        return number, [write]


def _digest(secret: str, salt: bytes) -> bytes:
    return hashlib.sha256(salt + secret.encode()).digest()[:_DIGEST_BYTES]
