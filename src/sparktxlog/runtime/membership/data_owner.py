"""The owner of a data directory: a journal names its node, its cluster, and the log's founders.

Two nodes with one history would promise and order under the same numbers; and a node that takes up
another one's directory by mistake would look healthy.  So the first start writes the owner into the
journal, and each start and `sparktxlog config check` compare it.

Name and members of a log follow from the configuration until its first epoch ends.  So another list
of peers would make another log of what is on the disk, and all workers would be strangers to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from sparktxlog.config import NodeConfig, not_usable
from sparktxlog.errors import CorruptLogError
from sparktxlog.files.durability import storing
from sparktxlog.runtime.leaving_fork.leftover_log import find_remains, journal_lost
from sparktxlog.storage.interfaces import JournalState, PutValue
from sparktxlog.storage.journal.journal import JOURNAL_NAME
from sparktxlog.storage.journal.sqlite_schema import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    read_named_value,
)

_OWNER = "owner"
#: The journal of commits before version 1; or the id of its application, in its first bytes.
_OLDER, _OLDER_ID, _ID_AT = "front.sqlite", b"TXLG", 68
#: Where its format is.
_FORMAT_AT = 60
#: Ids of the nodes that founded the log.
_FOUNDERS = "founders"
#: Their addresses then, until the nodes decide upon some: else a copy of a log looks like the log.
_ADDRESSES = "founding-addresses"


def claim(config: NodeConfig, state: JournalState, *, joins: bool) -> list[PutValue]:
    """Return the writes that make a journal this node's, none if it is already.

    Args:
        state: Of the journal; at the first start it names neither owner nor founders.
        joins: The node has an order to join a log, which says the members.

    Raises:
        ConfigError: It is another node's, or its log was founded with other peers (definite).
    """
    _compare(config, state.values.get(_OWNER))
    writes = [] if _OWNER in state.values else [PutValue(name=_OWNER, value=_name(config))]
    founders, core = state.values.get(_FOUNDERS), state.core
    listed = ", ".join(place.id for place in config.places)
    if joins or core.view is not None or founders == listed.encode():
        return writes  # decided members are those of the view, whatever the configuration lists
    if founders is not None and (core.base.position or core.incoming or core.announcements):
        why = f"its log was founded by {founders.decode()}, the configuration lists {listed}"
        hint = (
            "List the peers as before, start, and then run `sparktxlog peer add` or `sparktxlog "
            "peer remove`: they reach all nodes."
        )
        raise not_usable(config, "data-dir", config.data_dir, why, hint)
    urls = msgspec.json.encode({place.id: place.url for place in config.places})
    founded = [PutValue(name=_FOUNDERS, value=listed.encode())]
    return [*writes, *founded, PutValue(name=_ADDRESSES, value=urls)]


def founding_addresses(values: Mapping[str, bytes]) -> dict[str, str]:
    """Return node → its addresses when the log began; empty = not known."""
    return msgspec.json.decode(values.get(_ADDRESSES, b"{}"), type=dict[str, str])


def refuse_older(config: NodeConfig) -> None:
    """Refuse the data directory of a commit before the first release.

    Raises:
        ConfigError: It is one (definite).
    """
    older, journal = config.data_dir / _OLDER, config.data_dir / JOURNAL_NAME
    if journal.exists() and _is_older(_begins(journal)):
        older = journal
    if older.exists():
        why = f"a commit before version 1 wrote it ({older.name}), and this release cannot read it"
        hint = "Begin with an empty data-dir.  Adopt the tables of the lake to keep their rows."
        raise not_usable(config, "data-dir", config.data_dir, why, hint)


def check_data_dir(config: NodeConfig) -> None:
    """Check that a node could start with what is in its data directory; changes nothing.

    Raises:
        ConfigError: It is another node's, its journal is damaged, or a commit before the first
            release wrote it (definite).
        NewerReleaseError: A newer release wrote it (definite).
        JournalLostError: Its journal is lost, and there is no peer to join (definite).
    """
    refuse_older(config)
    journal = config.data_dir / JOURNAL_NAME
    if journal.exists():
        try:
            _compare(config, read_named_value(journal, _OWNER))
        except CorruptLogError as error:
            if type(error) is not CorruptLogError:
                raise
            hint = error.hint
            raise not_usable(config, "data-dir", config.data_dir, error.message, hint) from error
    elif not config.peers and (found := find_remains(config)):
        raise journal_lost(config, found)


def _is_older(begins: bytes) -> bool:
    owner, version = begins[_ID_AT:], int.from_bytes(begins[_FORMAT_AT : _FORMAT_AT + 4])
    ours = owner == APPLICATION_ID.to_bytes(4)
    return owner == _OLDER_ID or (ours and version < SCHEMA_VERSION)


def _begins(journal: Path) -> bytes:
    with storing(journal), journal.open("rb") as file:
        found: bytes = file.read(_ID_AT + len(_OLDER_ID))
        return found


def _name(config: NodeConfig) -> bytes:
    return f"node {config.node_id} of cluster {config.cluster}".encode()


def _compare(config: NodeConfig, owner: bytes | None) -> None:
    if owner in (None, _name(config)):
        return
    known = owner.decode("utf-8", "replace")
    why = f"it belongs to {known}, this is {_name(config).decode()}"
    hint = "Name the data-dir of this node; a new node begins with an empty one."
    raise not_usable(config, "data-dir", config.data_dir, why, hint)
