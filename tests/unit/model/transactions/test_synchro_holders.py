"""Expressions of the holders of synchronous transactions (P34)."""

from __future__ import annotations

import pytest

from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.transactions.synchro_holders import (
    DEFAULT_EXPRESSION,
    check_expression,
    holders_of,
)


@pytest.mark.parametrize(
    ("text", "places", "holders"),
    [
        (DEFAULT_EXPRESSION, 3, 2),
        (DEFAULT_EXPRESSION, 4, 3),
        (DEFAULT_EXPRESSION, 5, 3),
        ("2", 3, 2),
        ("7", 3, 3),
        ("0", 3, 1),
        ("N-5", 3, 1),
        (" N - 1 ", 4, 3),
        ("N-1-1", 5, 3),
        ("12/2/3", 9, 2),
        ("2*(N+1)/3", 5, 4),
        ("1+N/2*1", 3, 2),
        ("((N))", 2, 2),
    ],
)
def test_a_count_or_an_expression_gives_so_many_holders(
    text: str, places: int, holders: int
) -> None:
    assert holders_of(text, places) == holders
    assert check_expression(text) == text.strip()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", 1),
        ("  ", 1),
        ("N/2+", 5),
        ("N//2", 3),
        ("N 2", 3),
        ("(N+1", 5),
        ("N)", 2),
        ("-1", 1),
        ("n/2", 1),
        ("N**2", 3),
        ("__import__('os')", 1),
        ("N/(N-N)", 3),
        ("3/0", 3),
        ("1234567", 7),
        ("N+1.5", 4),
        ("x" * 65, 65),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(text: str, place: int) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        holders_of(text, 3)
    assert refused.value.fields["place"] == place
    if len(text) <= 64 and text.strip():
        assert f"character {place}" in str(refused.value)


def test_an_expression_must_have_a_value_for_every_log() -> None:
    assert holders_of("N/(N-2)", 3) == 3
    with pytest.raises(InvalidRequestError, match="N = 2") as refused:
        check_expression("N/(N-2)")
    assert refused.value.fields["place"] == 3


def test_deep_brackets_are_read() -> None:
    assert check_expression("(" * 31 + "N" + ")" * 31) == "(" * 31 + "N" + ")" * 31
