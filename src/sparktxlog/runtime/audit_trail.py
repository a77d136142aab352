"""The audit trail: acts at this node and refusals, each with its author.

The journal keeps three rings of the latest `HISTORY` entries each, so that requesters with few
rights push out no entries of the others.

- Acts of operators, members that came and went, dropped tables.  An act is durable before its
  effect: after a crash its entry says `begun`.  What the members decide, and what drops a table, is
  written together with it.
- Acts and refusals of clients and workers; refusals of strangers.  They may come by thousands a
  second.  So equal ones within `SPAN_S` are one entry with a count, and entries are written once a
  second.

An entry never holds a token.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from itertools import islice
from typing import Any

import msgspec
import structlog

from sparktxlog.model.administration_answers import AuditEntry
from sparktxlog.model.ids import NodeId
from sparktxlog.protocol.messages.actions import Action, PersistQueue, PersistView
from sparktxlog.protocol.messages.view import View
from sparktxlog.runtime.clock import wall_us
from sparktxlog.storage.interfaces import PutValue, Write
from sparktxlog.storage.journal.value_ring import ValueRing

_log = structlog.get_logger("sparktxlog.audit")

#: Entries of a ring.
HISTORY = 1_000
#: Ring, named by the authors of its entries → its prefix.
RINGS = {"operators": "audit:", "clients": "audit-client:", "strangers": "audit-stranger:"}
_SECRET, _MAX_TEXT = "audit-secret:", 2_000
#: Seconds within which equal acts are counted as one entry, and characters of its texts.
SPAN_S = 3_600
_COUNTED_TEXT = 500
#: Counted entries of a ring that are written in a second, and that may begin in it.  What would
#: begin more is counted under the address `OTHERS`.
MOST_A_SECOND, OTHERS = 64, "others"
#: Tables that an entry names.
_NAMED = 20
#: Bytes that are kept of a secret's digest: they show another secret, and do not help to guess it.
_DIGEST_BYTES = 4
#: Outcome of an act that has not ended, or whose end a crash kept out.
BEGUN, DONE = "begun", "done"

#: The requester of this request: a role, or the name of a grant; and the address.
OPERATOR, ANYBODY, NOBODY = "operator", "anybody", "nobody"
asks: ContextVar[str] = ContextVar("asks", default="node")
asks_from: ContextVar[str] = ContextVar("asks_from", default="")
_about: ContextVar[str] = ContextVar("about", default="")

WriteThen = Callable[[Sequence[Write], Callable[[], None]], None]
Later = Callable[[float, Callable[[], None]], object]


def tell_about(things: Iterable[str]) -> None:
    """Say what this request is about, for its entry."""
    found = list(dict.fromkeys(things))
    more = [f"and {len(found) - _NAMED:,} more"] if len(found) > _NAMED else []
    _about.set(", ".join([*found[:_NAMED], *more]))


class CountedActs:
    """Acts and refusals of which there may be many: a ring of entries with counts.

    Args:
        write_then: See `AuditTrail`.
        later: Calls a function after seconds; default: the event loop's.
    """

    def __init__(
        self, ring: ValueRing[AuditEntry], write_then: WriteThen, later: Later | None
    ) -> None:
        self._ring, self._write_then, self._later = ring, write_then, later
        #: What makes acts equal → number of their entry.
        self._numbers: dict[tuple[str, ...], int] = {}
        #: Number of an entry that is to be written → its count when it was written last.
        self._changed: dict[int, int] = {}
        self._new = 0
        self._waits = False

    def count(self, entry: AuditEntry, kind: str) -> None:
        """Count an act in the entry of its equals, or let it begin one.

        Args:
            kind: Kind of its outcome; outcomes of one kind may have different texts.
        """
        found = self._equal(entry, kind)
        if found is None and self._new >= MOST_A_SECOND:
            entry = {**entry, "address": OTHERS, "detail": ""}
            found = self._equal(entry, kind)
        if found is None:
            self._new += 1
            found, _ = self._ring.add(entry)
            self._numbers.pop(_key(entry, kind), None)
            self._numbers[_key(entry, kind)] = found
            if len(self._numbers) > HISTORY:
                del self._numbers[next(iter(self._numbers))]
            self._changed[found] = 0
        else:
            known = self._ring.entries[found]
            self._changed.setdefault(found, known["count"])
            known["count"] += 1
            known["until"] = entry["at"]
        self._write_soon()

    def _write_soon(self) -> None:
        if not self._waits:
            self._waits = True
            (self._later or asyncio.get_running_loop().call_later)(1.0, self.write)

    def write(self) -> None:
        """Write what was counted since the last time."""
        self._new, self._waits = 0, True  # a disk that is full gets one write, not one a second
        writes: list[Write] = []
        for number in list(islice(self._changed, MOST_A_SECOND)):
            before, entry = self._changed.pop(number), self._ring.entries.get(number)
            if entry is None:  # a thousand others began meanwhile
                continue
            if not before or len(str(entry["count"])) > len(str(before)):
                _log.info("audit", **entry)  # the first one, the tenth, the hundredth, …
            writes.append(self._ring.put(number, entry))
        if writes:
            self._write_then(writes, self._written)
        else:
            self._written()

    def _written(self) -> None:
        self._waits = False
        if self._changed:
            self._write_soon()

    def _equal(self, entry: AuditEntry, kind: str) -> int | None:
        number = self._numbers.get(_key(entry, kind))
        known = None if number is None else self._ring.entries.get(number)
        if known is None or entry["at"] - known["at"] > SPAN_S * 1_000_000:
            return None
        return number


def _key(entry: AuditEntry, kind: str) -> tuple[str, ...]:
    return entry["who"], entry["address"], entry["action"], entry["detail"], kind


class AuditTrail:
    """The entries of one node; belongs to the event loop.

    Args:
        saved: Named values of the journal.
        write_then: Makes writes durable in order, then calls a function.
        later: See `CountedActs`.
    """

    def __init__(
        self,
        node_id: NodeId,
        saved: Mapping[str, bytes],
        view: View,
        write_then: WriteThen,
        now: Callable[[], int] = wall_us,
        later: Later | None = None,
    ) -> None:
        self._node_id, self._view = str(node_id), view
        self._write_then, self._now = write_then, now
        self._rings = {whose: _ring(prefix, saved) for whose, prefix in RINGS.items()}
        self._ring = self._rings["operators"]
        self._clients = CountedActs(self._rings["clients"], write_then, later)
        self._strangers = CountedActs(self._rings["strangers"], write_then, later)
        self._secrets = {name: v for name, v in saved.items() if name.startswith(_SECRET)}

    def latest(self, limit: int | None = None, whose: str = "") -> list[AuditEntry]:
        """Return the latest entries, newest first.

        Args:
            limit: None = all.
            whose: Name of the ring; empty = all.
        """
        rings = self._rings.values() if not whose else (self._rings[whose],)
        found = [entry for ring in rings for entry in ring.newest_first()]
        return sorted(found, key=lambda entry: -entry["until"])[:limit]

    # -- acts and refusals of which there may be many ----------------------------------------------

    def count(self, who: str, address: str, action: str, kind: str, outcome: str) -> None:
        """Note an act of a client or a worker, or a refusal; it is durable a second later.

        Args:
            kind: `done` or the code of the error: acts with the same one are counted together.
            outcome: As in an entry.
        """
        is_stranger = who == NOBODY
        # What a stranger names is text of a stranger.
        detail = "" if is_stranger else _about.get()
        entry = self._entry(who, action, detail[:_COUNTED_TEXT], outcome[:_COUNTED_TEXT])
        entry["address"] = address
        (self._strangers if is_stranger else self._clients).count(entry, kind)

    def close(self) -> None:
        """Write what was counted; called while writes are carried out."""
        self._clients.write()
        self._strangers.write()

    # -- acts of operators -------------------------------------------------------------------------

    def begin(self, action: str, detail: str) -> int:
        """Note that the requester begins an act; return its number for `end`."""
        number, writes = self._add(asks.get(), action, detail, BEGUN)
        self._write_then(writes, lambda: None)
        return number

    def end(self, number: int, outcome: str, then: Callable[[], None] = lambda: None) -> None:
        """Note how an act ended; call `then` when that is durable."""
        entry = self._ring.entries.get(number)
        if entry is None:  # a thousand others began meanwhile
            then()
            return
        entry["outcome"], entry["until"] = outcome[:_MAX_TEXT], self._now()
        _log.info("audit", **entry)
        self._write_then([self._ring.put(number, entry)], then)

    # -- what happens without one ------------------------------------------------------------------

    def note_secrets(self, secrets: Mapping[str, str | None], salt: bytes) -> None:
        """Note at the start which secrets have changed since the last start.

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

    def writes_with(self, action: Action) -> Sequence[Write]:
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
        where = f"epoch {view.epoch} of {view.log_id}"
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
        entry = self._entry(who, action, detail[:_MAX_TEXT], outcome)
        number, write = self._ring.add(entry)
        if outcome != BEGUN:
            _log.info("audit", **entry)
        return number, [write]

    def _entry(self, who: str, action: str, detail: str, outcome: str) -> AuditEntry:
        at = self._now()
        return {
            "at": at,
            "node": self._node_id,
            "who": who,
            "action": action,
            "detail": detail,
            "outcome": outcome,
            "address": asks_from.get(),
            "count": 1,
            "until": at,
        }


def _ring(prefix: str, saved: Mapping[str, bytes]) -> ValueRing[AuditEntry]:
    return ValueRing[Any](prefix, HISTORY, dict[str, Any], saved, msgspec.json)


def _digest(secret: str, salt: bytes) -> bytes:
    return hashlib.sha256(salt + secret.encode()).digest()[:_DIGEST_BYTES]
