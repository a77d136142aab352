"""A node asks to be admitted when it is at rest, and does not wait for ever (P21)."""

from __future__ import annotations

from sparktxlog.runtime.membership.join_steps import QuietMoment


def test_it_asks_at_a_moment_of_rest() -> None:
    busy = True
    quiet = QuietMoment(lambda: busy, lambda: 0.0)
    assert not quiet.may_ask()
    busy = False
    assert quiet.may_ask()


def test_it_does_not_wait_for_ever() -> None:
    """Each time that it is no member any more it waits anew."""
    now = 10.0
    quiet = QuietMoment(lambda: True, lambda: now)
    assert not quiet.may_ask()
    now += 1.49
    assert not quiet.may_ask()
    now += 0.01
    assert quiet.may_ask()
    quiet.begin()
    assert not quiet.may_ask()
