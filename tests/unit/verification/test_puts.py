"""The judge of puts finds what is planted: each kind of mistake once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.verification.puts.judgement import judged, number_of
from tests.verification.puts.record import (
    Counted,
    Digest,
    Kind,
    OwnKey,
    Raced,
    Record,
    Told,
)

from sparktxlog.files.stores.store import Created

ONE, TWO, THREE = b"1", b"2", b"3"


def _own(*acts: Callable[[OwnKey], object]) -> OwnKey:
    key = OwnKey()
    for act in acts:
        act(key)
    return key


def _created(content: bytes, found: Created = Created.NEW) -> Callable[[OwnKey], object]:
    return lambda key: list(key.created(content, found))


def _written(
    content: Digest, told: Told = Told.DONE, *, creates: bool = False
) -> Callable[[OwnKey], object]:
    return lambda key: key.written(content, told, creates=creates)


@pytest.mark.parametrize(
    ("acts", "right", "wrong"),
    [
        ([], [None], {ONE: Kind.DOUBLED}),
        ([_created(ONE)], [ONE], {None: Kind.MISSING, TWO: Kind.WRONG}),
        ([_written(ONE, Told.UNKNOWN, creates=True)], [ONE, None], {TWO: Kind.DOUBLED}),
        ([_written(ONE, Told.REFUSED)], [None], {ONE: Kind.WRONG}),
        ([_created(ONE), _written(TWO)], [TWO], {ONE: Kind.WRONG, None: Kind.MISSING}),
        ([_created(ONE), _written(TWO, Told.UNKNOWN)], [ONE, TWO], {None: Kind.MISSING}),
        ([_created(ONE), _written(TWO, Told.UNKNOWN, creates=True)], [ONE], {TWO: Kind.WRONG}),
        ([_created(ONE), _written(TWO, Told.REFUSED)], [ONE], {TWO: Kind.WRONG}),
        ([_created(ONE), _written(None)], [None], {ONE: Kind.DOUBLED}),
        ([_created(ONE), _written(None, Told.UNKNOWN)], [None, ONE], {TWO: Kind.DOUBLED}),
    ],
)
def test_what_may_be_there_follows_from_what_was_told(
    acts: list[Callable[[OwnKey], object]], right: list[Digest], wrong: dict[Digest, Kind]
) -> None:
    for there in right:
        assert list(_own(*acts).seen(there)) == []
    for there, kind in wrong.items():
        assert [one.kind for one in _own(*acts).seen(there)] == [kind], there


@pytest.mark.parametrize(
    ("acts", "content", "found", "kind"),
    [
        ([_created(ONE)], TWO, Created.NEW, Kind.DOUBLED),
        ([], ONE, Created.EQUAL, Kind.WRONG),
        ([], ONE, Created.OTHER, Kind.WRONG),
        ([_written(ONE, Told.UNKNOWN)], ONE, Created.OTHER, Kind.WRONG),
    ],
)
def test_a_wrong_answer_to_a_create_is_found(
    acts: list[Callable[[OwnKey], object]], content: bytes, found: Created, kind: Kind
) -> None:
    assert [one.kind for one in _own(*acts).created(content, found)] == [kind]


@pytest.mark.parametrize("found", Created)
def test_a_create_that_is_repeated_may_get_each_answer(found: Created) -> None:
    asked = {Created.NEW: ONE, Created.EQUAL: ONE, Created.OTHER: TWO}[found]
    key = _own(_written(ONE, Told.UNKNOWN, creates=True))
    assert list(key.created(asked, found)) == []
    assert key.known == ONE


@pytest.mark.parametrize(
    ("told", "right", "wrong"),
    [
        ({ONE: Told.DONE, TWO: Told.LOST}, [ONE], [TWO, None, THREE]),
        ({ONE: Told.UNKNOWN, TWO: Told.LOST}, [ONE], [TWO, None]),
        ({ONE: Told.UNKNOWN, TWO: Told.REFUSED}, [ONE, None], [TWO]),
        ({ONE: Told.DONE, TWO: Told.DONE}, [], [ONE]),
    ],
)
def test_of_several_that_create_one_is_first_and_knows_it(
    told: dict[bytes, Told], right: list[Digest], wrong: list[Digest]
) -> None:
    for there in right:
        assert list(Raced(told).judged(there)) == []
    for there in wrong:
        assert list(Raced(told).judged(there)), there


def test_a_number_is_exchanged_once() -> None:
    told = {(1, "a"): Told.DONE, (2, "a"): Told.UNKNOWN, (2, "b"): Told.LOST, (3, "c"): Told.DONE}
    assert list(Counted(dict(told), {(0, "nobody"), (1, "a"), (2, "a")}).judged((3, "c"))) == []

    def kinds(changed: dict[tuple[int, str], Told], there: tuple[int, str]) -> set[Kind]:
        return {one.kind for one in Counted(told | changed, {(2, "a")}).judged(there)}

    assert kinds({}, (2, "a")) == {Kind.MISSING}
    assert kinds({(2, "a"): Told.REFUSED}, (3, "c")) == {Kind.WRONG}
    assert kinds({(1, "b"): Told.DONE}, (3, "c")) == {Kind.DOUBLED}
    assert kinds({(1, "a"): Told.REFUSED}, (3, "c")) == {Kind.WRONG}
    assert kinds({(2, "b"): Told.DONE}, (3, "c")) == {Kind.DOUBLED}
    assert kinds({}, (4, "d")) == {Kind.WRONG}


def test_all_keys_are_judged() -> None:
    def found(there: dict[str, bytes], numbers: dict[str, tuple[int, str]]) -> list[str]:
        record = Record()
        record.own["own"] = _own(_created(ONE))
        record.raced["raced"] = Raced({TWO: Told.DONE})
        record.counted["counted"] = Counted({(1, "a"): Told.DONE})
        return [one.text for one in judged(record, there, numbers)]

    there = {"own": ONE, "raced": TWO, "counted": THREE}
    assert found(there, {"counted": number_of(b"1 a")}) == []
    assert len(found({**there, "own": TWO, "raced": ONE}, {})) == 3
    assert found({**there, "more": ONE, ".incoming/x": ONE}, {"counted": (1, "a")}) == [
        "more: nobody wrote it"
    ]
