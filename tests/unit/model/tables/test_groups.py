"""Groups: their form, what a run needs of them, and which files of it a site holds (V04, V14)."""

from __future__ import annotations

import pytest

from sparktxlog.errors import InvalidNameError, InvalidRequestError, NotHeldHereError
from sparktxlog.model.tables.groups import (
    GROUPS,
    CopiesNeeded,
    Group,
    check_groups,
    copies_needed,
    is_held_at,
    missing_text,
)
from sparktxlog.model.tables.table import Column, TableDefinition
from sparktxlog.model.transactions.operation import Block, OperationKind, RunManifest, StagedFile
from sparktxlog.storage.interfaces import Segment, TableEffect
from sparktxlog.worker.replica.source import LogTail

_EU = Group(name="eu", sites=("B", "C"), copies=2)
_US = Group(name="us", sites=("A",))


def _table(name: str, group: Group | None = None) -> TableDefinition:
    properties = {} if group is None else group.table_properties()
    return TableDefinition(
        name=name,
        columns=(Column(name="id", type="bigint"),),
        properties=tuple(sorted(properties.items())),
    )


def _tables(*groups: Group) -> dict[str, TableDefinition]:
    said = tuple((f"group.{one.name}", one.to_value()) for one in groups)
    own = TableDefinition(name=GROUPS, columns=(Column(name="name", type="string"),))
    of_groups = TableDefinition(name=GROUPS, columns=own.columns, properties=said)
    return {GROUPS: of_groups, "e": _table("e", _EU), "u": _table("u", _US), "p": _table("p")}


def test_sites_are_kept_once_in_their_order() -> None:
    found = Group(name="eu", sites=("C", "B", "C"), copies=2, schemas=("Sales",)).checked()
    assert (found.sites, found.schemas) == (("B", "C"), ("sales",))


@pytest.mark.parametrize(
    ("group", "error", "text"),
    [
        (Group(name="eu", sites=()), InvalidRequestError, "cannot have 0 sites"),
        (Group(name="eu", sites=("A",), copies=0), InvalidRequestError, "cannot have 0 copies"),
        (Group(name="eu", sites=("A",), copies=2), InvalidRequestError, "cannot have 2 copies"),
        (Group(name="", sites=("A",)), InvalidNameError, "cannot name a group"),
        (Group(name="eu", sites=("A,B",)), InvalidNameError, "cannot name a site"),
        (Group(name="eu", sites=("A",), schemas=("a.b",)), InvalidNameError, "name a schema"),
    ],
)
def test_a_group_that_cannot_be_is_refused(group: Group, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        group.checked()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("other", _EU.to_value()),
        ("group.n w", _EU.to_value()),
        ("group.eu", "[]"),
        ("group.eu", '{"sites": "B", "copies": 1}'),
        ("group.eu", '{"sites": ["B"], "copies": true}'),
        ("group.eu", '{"sites": ["C", "B"], "copies": 1}'),
        ("group.eu", '{"sites": ["B"], "copies": 1, "more": 1}'),
    ],
)
def test_only_groups_as_they_are_written_are_kept(name: str, value: str) -> None:
    with pytest.raises((InvalidRequestError, InvalidNameError)):
        check_groups({}, {name: value})


def test_a_run_needs_copies_of_each_group_that_it_writes_to() -> None:
    tables = _tables(_EU, _US)
    assert copies_needed(["p"], tables) == ()
    both = copies_needed(["u", "e", "p"], tables)
    assert both == (
        CopiesNeeded(group="eu", sites=("B", "C"), copies=2, tables=("e",)),
        CopiesNeeded(group="us", sites=("A",), copies=1, tables=("u",)),
    )
    # Of a group that nobody knows, all its sites have to have it.
    assert copies_needed(["e"], _tables(_US))[0].copies == 2
    assert "missing: C" in missing_text(both, ["A", "B", "D"])
    assert "'us' needs 1 of its 1 sites" in missing_text(both, ["B", "C"])
    assert missing_text(both, ["A", "B", "C"]) == ""


def test_a_site_holds_the_files_of_its_groups_and_of_no_group() -> None:
    files = {name: StagedFile(path=name, size_bytes=1, rows=1, digest="") for name in "eup"}
    manifest = RunManifest(
        n=1,
        ids=bytes(16),
        submitted_at=0,
        blocks=tuple(
            Block(table=name, kind=OperationKind.APPEND, files=(file,))
            for name, file in files.items()
        ),
        copies=copies_needed("eup", _tables(_EU, _US)),
    )
    held = {site: {file.path for file in manifest.files_at(site)} for site in "ABD"}
    assert held == {"A": {"u", "p"}, "B": {"e", "p"}, "D": {"p"}}
    assert [file.path for file in manifest.other_files] == ["p"]
    assert len(manifest.staged_files) == 3
    assert is_held_at(_table("e", _EU), "B") and not is_held_at(_table("e", _EU), "A")
    assert is_held_at(_table("p"), "A") and is_held_at(None, "A")


def test_a_worker_leaves_out_what_its_site_does_not_hold() -> None:
    effects = tuple(
        TableEffect(table=name, kind="append", first=1, last=1, schema_version=1) for name in "ep"
    )
    segment = Segment(
        first=1,
        last=1,
        from_hash="",
        to_hash="h",
        epoch=1,
        transactions=1,
        rejected=0,
        effects=effects,
    )
    tail = LogTail(
        position=1, log_id="l", epoch=1, segments=(segment,), elsewhere={"e": ("B", "C")}
    )
    (kept,) = tail.of_site().segments
    assert [effect.table for effect in kept.effects] == ["p"]
    tail.check_held("p")
    for asked in ((), ("e",)):
        with pytest.raises(NotHeldHereError, match="sites B, C"):
            tail.check_held(*asked)
