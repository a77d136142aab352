"""The gate of commit files: what it lets in can be placed, listed and loaded; the rest is a 400."""

from __future__ import annotations

import copy
import json
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.delta_writer import (
    BEGIN,
    FEATURES,
    SCHEMA,
    StagedTable,
    info_of,
    lines_of,
)
from tests.support.table_updates import changes_of

from sparktxlog.codec.delta_catalog.catalog_answers import (
    ShownTable,
    listed_table,
    loaded_table,
    staging_answer,
)
from sparktxlog.codec.delta_catalog.catalog_requests import (
    CreateTableRequest,
    UpdateTableRequest,
    read_update,
)
from sparktxlog.codec.delta_catalog.lockstep import check_changes, check_created
from sparktxlog.codec.delta_catalog.new_commits import AHEAD_MS, read_new_commit
from sparktxlog.codec.delta_catalog.table_states import SYNCHRONOUS, DeltaTableState, domain_value
from sparktxlog.delta.commit_contents import LiveFiles, read_commit_file
from sparktxlog.errors import InvalidRequestError, StagedCommitError, TxLogError

UUID = str(uuid.UUID(int=7))
VECTOR = {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"}
Actions = list[dict[str, Any]]


def deep(levels: int) -> str:
    """Return nested JSON that a program writes, not what `json` can."""
    return '{"clusteringColumns":' + "[" * levels + "]" * levels + "}"


def definition() -> StagedTable:
    answer = msgspec.to_builtins(staging_answer(UUID, "file:/tables/t", ()))
    return StagedTable.of(json.loads(json.dumps(answer)))


def first_commit(*more: dict[str, Any]) -> Actions:
    table = definition()
    protocol = table.protocol | {"writerFeatures": [*FEATURES, "inCommitTimestamp", "clustering"]}
    domains = {"delta.clustering": '{"clusteringColumns":[["id"]]}', "mine": '{"a":[1]}'}
    return [
        info_of(BEGIN),
        {"metaData": table.metadata},
        {"protocol": protocol},
        *({"domainMetadata": {"domain": d, "configuration": c}} for d, c in domains.items()),
        *more,
    ]


def next_commit(*more: dict[str, Any]) -> Actions:
    return [
        info_of(BEGIN + 1),
        {"add": {"path": "a.parquet", "size": 3, "partitionValues": {}, "deletionVector": VECTOR}},
        {"remove": {"path": "b.parquet"}},
        {"cdc": {"path": "_change_data/c", "size": 1, "partitionValues": {}}},
        {"domainMetadata": {"domain": "delta.rowTracking", "configuration": deep(0)}},
        {"metaData": definition().metadata},
        *more,
    ]


def state() -> DeltaTableState:
    return read_new_commit(lines_of(*first_commit()), None, UUID, BEGIN)[1]


def says_enough(error: TxLogError) -> None:
    """Check that a refusal is one of the client's, definite, and says where and what then."""
    assert error.definite
    assert 400 <= error.http_status < 500
    assert "field" in error.fields
    assert error.hint or error.way_out


def gate(raw: bytes, before: DeltaTableState | None) -> DeltaTableState | None:
    """Return the table after a commit, None = it was refused; check what must hold for both."""
    try:
        content, after = read_new_commit(raw, before, UUID, BEGIN)
    except InvalidRequestError as error:
        says_enough(error)
        return None
    # What the placer, the journal, a list and a reader do with it.
    again = read_commit_file(raw)
    LiveFiles().follow(again)
    placed = DeltaTableState.first(again) if before is None else before.after(again)
    assert placed == after
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(after), type=DeltaTableState) == after
    shown = ShownTable(name="default.t", uuid=UUID, location="file:/tables/t", placed=after)
    msgspec.json.encode(loaded_table(shown))
    msgspec.json.encode(listed_table("tx", shown))
    assert all(file.size >= 0 for file in content.files)
    return after


#: Values that no writer of Delta writes there.
ODD: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, True, -1, 0, 2**31, 2**63 - 1, 2**63, 2**70, 1.5, "", "-1", [], {}]),
    st.sampled_from(["//[x", "a%00b", "../x", "_delta_log", "%ff", "x" * 950, "s3://b/c", "é/è"]),
    st.sampled_from([deep(0), deep(150), deep(800), deep(5_000), '{"type":"struct"}', "{", "[1]"]),
    st.text(max_size=8),
    st.recursive(st.integers(), lambda of: st.lists(of) | st.dictionaries(st.text(), of)),
)


def places(value: Any, found: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to each value in a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    ways = []
    for key, one in inner:
        ways.append((*found, key))
        if isinstance(one, dict | list):
            ways += places(one, (*found, key))
    return ways


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """Return JSON of which one to three values are others, or are not there."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        way = draw(st.sampled_from(places(value) or [()]))
        if not way:
            break
        target = value
        for key in way[:-1]:
            target = target[key]
        if draw(st.integers(0, 4)):
            target[way[-1]] = draw(ODD)
        else:
            del target[way[-1]]
    return value


@settings(max_examples=60, deadline=None)
@given(data=st.data(), is_first=st.booleans())
def test_a_mutated_commit_is_refused_or_of_use(data: st.DataObject, is_first: bool) -> None:
    actions = data.draw(mutated(first_commit() if is_first else next_commit()))
    raw = b"".join(json.dumps(one).encode() + b"\n" for one in actions)
    cut = data.draw(st.integers(0, len(raw)) | st.just(len(raw)))
    gate(raw[:cut] + data.draw(st.just(b"") | st.binary(max_size=4)), None if is_first else state())


def creation() -> dict[str, Any]:
    table = definition()
    return table.creation() | {"domain-metadata": {"mine": {"a": [1]}}}


@settings(max_examples=40, deadline=None)
@given(body=mutated(creation()))
def test_a_mutated_creation_is_refused_or_agrees(body: Any) -> None:
    try:
        request = msgspec.json.decode(json.dumps(body), type=CreateTableRequest)
    except msgspec.MsgspecError:
        return  # the door says 400
    try:
        check_created(request, state())
    except InvalidRequestError as error:
        says_enough(error)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_mutated_update_is_refused_or_agrees(data: st.DataObject) -> None:
    before = state()
    content, _ = read_new_commit(lines_of(*next_commit()), before, UUID, BEGIN)
    commit = {
        "version": 1,
        "timestamp": BEGIN + 1,
        "file-name": f"{1:020}.{UUID}.json",
        "file-size": 7,
        "file-modification-timestamp": 7,
    }
    body = definition().update(commit, *changes_of(before, content))
    try:
        request = msgspec.convert(data.draw(mutated(body)), UpdateTableRequest)
    except msgspec.MsgspecError:
        return
    try:
        update = read_update(request)
        if update.commit is not None:
            _ = update.commit.transaction_id
        check_changes(update, before, content)
    except TxLogError as error:
        says_enough(error)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a negative size": ({"add": {"path": "a", "size": -1}}, "add.size"),
    "a size of no file": ({"add": {"path": "a", "size": 2**70}}, "add.size"),
    "a negative offset": (
        {"add": {"path": "a", "size": 1, "deletionVector": VECTOR | {"offset": -4}}},
        "add.size",
    ),
    "brackets of no address": ({"add": {"path": "//[x", "size": 1}}, "add.path"),
    "the log itself": ({"add": {"path": "_delta_log", "size": 1}}, "add.path"),
    "a path for one site only": ({"add": {"path": "é" * 451, "size": 1}}, "add.path"),
    "a domain that cannot be shown": (
        {"domainMetadata": {"domain": "mine", "configuration": deep(401)}},
        "domainMetadata.mine",
    ),
    "a domain that cannot be decoded": (
        {"domainMetadata": {"domain": "mine", "configuration": deep(5_000)}},
        "domainMetadata.mine",
    ),
    "clustering by what is no name": (
        {"domainMetadata": {"domain": "delta.clustering", "configuration": deep(3)}},
        "domainMetadata.delta.clustering",
    ),
    "a mark of no row": (
        {
            "domainMetadata": {
                "domain": "delta.rowTracking",
                "configuration": json.dumps({"rowIdHighWaterMark": 2**70}),
            }
        },
        "domainMetadata.delta.rowTracking",
    ),
    "a version of no protocol": (
        {"protocol": definition().protocol | {"minReaderVersion": 2**70}},
        "protocol",
    ),
}


@pytest.mark.parametrize(("action", "field"), REFUSED.values(), ids=REFUSED)
def test_what_no_reader_could_use_is_refused(action: dict[str, Any], field: str) -> None:
    raw = lines_of(info_of(BEGIN + 1), action)
    with pytest.raises(StagedCommitError) as refused:
        read_new_commit(raw, state(), UUID, BEGIN)
    assert refused.value.fields["field"] == field


def test_a_vector_with_a_negative_offset_does_not_hide_after_another_one() -> None:
    adds = [
        {"add": {"path": name, "size": 1, "deletionVector": VECTOR | {"offset": offset}}}
        for name, offset in (("a", 4), ("b", -4), ("c", 90))
    ]
    with pytest.raises(StagedCommitError, match="offset"):
        read_new_commit(lines_of(info_of(BEGIN + 1), *adds), state(), UUID, BEGIN)


def test_the_name_in_files_of_a_column_is_a_text() -> None:
    fields = [SCHEMA["fields"][0] | {"metadata": {"delta.columnMapping.physicalName": {}}}]  # type: ignore[operator]
    metadata = definition().metadata | {"schemaString": json.dumps(SCHEMA | {"fields": fields})}
    with pytest.raises(StagedCommitError, match="physicalName"):
        read_new_commit(lines_of(info_of(BEGIN + 1), {"metaData": metadata}), state(), UUID, BEGIN)


def test_a_schema_that_cannot_be_loaded_is_refused() -> None:
    kind: Any = "long"
    for _ in range(101):
        kind = {"type": "array", "elementType": kind, "containsNull": True}
    field = {"name": "a", "type": kind, "nullable": True, "metadata": {}}
    metadata = definition().metadata | {
        "schemaString": json.dumps({"type": "struct", "fields": [field]})
    }
    with pytest.raises(StagedCommitError, match="is no column type"):
        read_new_commit(lines_of(info_of(BEGIN + 1), {"metaData": metadata}), state(), UUID, BEGIN)


def test_a_time_far_ahead_is_refused_unless_the_table_is_there_already() -> None:
    def commit(timestamp: int, before: DeltaTableState | None) -> DeltaTableState:
        more = first_commit()[1:] if before is None else [{"txn": {"appId": "a", "version": 1}}]
        return read_new_commit(lines_of(info_of(timestamp), *more), before, UUID, BEGIN)[1]

    for before in (None, state()):
        assert commit(BEGIN + AHEAD_MS, before).timestamp == BEGIN + AHEAD_MS
        with pytest.raises(StagedCommitError, match="24 hours after the clock"):
            commit(BEGIN + AHEAD_MS + 1, before)
    ahead = state().after(read_commit_file(lines_of(info_of(BEGIN + 9 * AHEAD_MS))))
    assert commit(ahead.timestamp + 1, ahead).version == 2


def test_a_domain_that_cannot_be_read_says_nothing() -> None:
    assert domain_value(deep(5_000)) == {}


@pytest.mark.parametrize("wrong", ["yes", "TRUE", ""])
def test_a_table_is_synchronous_by_a_property_with_two_values(wrong: str) -> None:
    def changed(value: str | None) -> bytes:
        given = {} if value is None else {SYNCHRONOUS: value}
        configuration = definition().metadata["configuration"] | given
        metadata = {"metaData": definition().metadata | {"configuration": configuration}}
        return lines_of(info_of(BEGIN + 1), metadata)

    assert not state().is_sync
    on = read_new_commit(changed("true"), state(), UUID, BEGIN)[1]
    assert on.is_sync
    for value in ("false", None):
        assert not read_new_commit(changed(value), state(), UUID, BEGIN)[1].is_sync
    with pytest.raises(StagedCommitError, match="'true' or 'false'") as raised:
        read_new_commit(changed(wrong), state(), UUID, BEGIN)
    assert raised.value.fields == {"field": f"properties.{SYNCHRONOUS}", "value": wrong}
