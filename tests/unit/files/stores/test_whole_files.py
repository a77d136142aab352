"""Several files at a time: all of them, or the first failure, and nobody waits for what hangs."""

from __future__ import annotations

import threading

import pytest

from sparktxlog.files.stores.whole_files import AT_ONCE, in_parallel


@pytest.mark.parametrize("count", [0, 1, 2, 3 * AT_ONCE])
def test_each_item_is_done_once(count: int) -> None:
    done = list[int]()
    in_parallel(done.append, iter(range(count)))
    assert sorted(done) == [*range(count)]


def test_some_are_done_at_the_same_time() -> None:
    together = threading.Barrier(AT_ONCE, timeout=10)
    in_parallel(lambda _: together.wait(), range(AT_ONCE))


def test_of_failures_the_first_in_order_is_raised_and_no_further_item_is_begun() -> None:
    together, begun = threading.Barrier(AT_ONCE, timeout=10), list[int]()

    def act(number: int) -> None:
        begun.append(number)
        together.wait()
        if number in (1, 3):
            raise ValueError(f"item {number}")

    with pytest.raises(ValueError, match="item 1"):
        in_parallel(act, range(AT_ONCE))
    begun.clear()

    def fail(number: int) -> None:
        begun.append(number)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_parallel(fail, range(1_000))
    assert len(begun) <= AT_ONCE


def test_a_process_that_ends_waits_for_none() -> None:
    hangs, found = threading.Event(), list[threading.Thread]()
    both = threading.Barrier(3, timeout=10)

    def hang(_: int) -> None:
        found.append(threading.current_thread())
        both.wait()
        hangs.wait(10)

    caller = threading.Thread(target=in_parallel, args=(hang, range(2)))
    caller.start()
    both.wait()
    assert all(thread.daemon for thread in found)
    hangs.set()
    caller.join(10)
