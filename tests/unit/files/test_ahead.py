from __future__ import annotations

import threading

import pytest

from sparktxlog.files.ahead import read_ahead


def test_results_come_in_order_though_the_first_is_read_last() -> None:
    last_is_read = threading.Event()

    def read(number: int) -> int:
        if number == 0:
            assert last_is_read.wait(10)
        elif number == 2:
            last_is_read.set()
        return 10 * number

    assert list(read_ahead(read, range(5), at_once=3, name="ahead")) == [0, 10, 20, 30, 40]


def test_no_more_are_asked_for_than_may_wait() -> None:
    asked: list[int] = []
    numbers = (asked.append(one) or one for one in range(100))  # type: ignore[func-returns-value]
    found = read_ahead(str, numbers, at_once=3, name="ahead")
    assert asked == []
    assert next(found) == "0" and asked == [0, 1, 2]
    assert next(found) == "1" and asked == [0, 1, 2, 3]
    assert len(list(found)) == 98


def test_an_error_is_raised_in_its_turn() -> None:
    def read(number: int) -> int:
        if number == 1:
            raise OSError("damaged")
        return number

    found = read_ahead(read, range(3), at_once=3, name="ahead")
    assert next(found) == 0
    with pytest.raises(OSError, match="damaged"):
        next(found)
