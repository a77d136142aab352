"""A node asks to be admitted when it is at rest, and does not wait for ever (P21)."""

from __future__ import annotations

from sparktxlog.runtime.membership.quiet_moment import Calm


def test_it_asks_at_a_moment_of_rest() -> None:
    busy = True
    calm = Calm(lambda: busy, lambda: 0.0)
    assert not calm.may_ask()
    busy = False
    assert calm.may_ask()


def test_it_does_not_wait_for_ever() -> None:
    """Each time that it is no member any more it waits anew."""
    now = 10.0
    calm = Calm(lambda: True, lambda: now)
    assert not calm.may_ask()
    now += 1.49
    assert not calm.may_ask()
    now += 0.01
    assert calm.may_ask()
    calm.begin()
    assert not calm.may_ask()
