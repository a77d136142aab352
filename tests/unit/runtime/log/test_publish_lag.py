"""Back-pressure of a late publisher, with a clock of its own."""

from __future__ import annotations

import asyncio

import pytest

from sparktxlog.errors import BusyError, DiskFullError, StorageError, TxLogError
from sparktxlog.runtime.log import publish_lag
from sparktxlog.runtime.log.publish_lag import PublishLag

SECOND_US = 1_000_000


class Site:
    """A queue that grows, and what is published of it."""

    def __init__(self, limit_s: float = 10.0) -> None:
        self.now, self.limit_s = 0, limit_s
        self.failure: TxLogError | None = None
        self.lag = PublishLag(lambda: self.now, lambda: self.limit_s, lambda: self.failure, 0.5)


def test_the_age_is_that_of_the_oldest_run_that_is_not_published() -> None:
    site = Site()
    assert site.lag.age_us == 0
    for position in range(1, 6):
        site.lag.ordered(position)
        site.now += SECOND_US
    assert site.lag.age_us == 5 * SECOND_US
    site.lag.published(3)
    assert site.lag.age_us == 2 * SECOND_US
    site.lag.published(9)
    site.now += 60 * SECOND_US
    assert site.lag.age_us == 0 and site.lag.warnings() == []


def test_many_runs_of_one_moment_are_one_step_and_none_is_forgotten() -> None:
    site = Site()
    for position in range(1, 1_001):
        site.lag.ordered(position)
        site.now += 1_000
    assert len(site.lag._steps) == 10
    site.lag.published(999)
    assert 0 < site.lag.age_us <= 100_000


def test_a_submit_waits_until_publishing_has_caught_up() -> None:
    async def main() -> None:
        site = Site()
        site.lag.ordered(1)
        site.now += SECOND_US
        assert await site.lag.admit(60) == 0
        site.lag.ordered(2)
        site.now += 9 * SECOND_US + 1
        waits = asyncio.create_task(site.lag.admit(60))
        while not site.lag.waiting:
            await asyncio.sleep(0)
        assert not waits.done()
        (warning,) = site.lag.warnings()
        assert warning["code"] == "publishing-late"
        assert "has waited 10.0 s to be published, 10 s are allowed" in warning["text"]
        site.lag.published(1)
        assert await waits >= 0
        assert (site.lag.waiting, site.lag.warnings()) == (0, [])

    asyncio.run(main())


def test_writers_are_held_up_before_they_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        site = Site()
        site.lag.ordered(1)
        site.now += SECOND_US * 3 // 2
        assert await site.lag.admit(60) == 0, "it may take its time"
        site.now += 1
        waits = asyncio.create_task(site.lag.admit(60))
        while not site.lag.waiting:
            await asyncio.sleep(0)
        assert site.lag.warnings() == [], "it is not late"
        site.lag.published(1)
        assert await waits >= 0
        site.lag.ordered(2)
        site.now += 2 * SECOND_US
        monkeypatch.setattr(publish_lag, "_PATIENCE_S", 0.01)
        assert await site.lag.admit(60) > 0, "it goes on, though publishing did not"
        monkeypatch.setattr(publish_lag, "_PATIENCE_S", 3_600.0)
        site.failure = StorageError("no answer")
        assert await site.lag.admit(3_600) == 0, "nobody waits for what fails"
        site.failure = None
        monkeypatch.setattr(publish_lag, "_MOST_WAITING", 0)
        assert await site.lag.admit(3_600) == 0

    asyncio.run(main())


def test_what_waits_too_long_is_refused_and_nothing_happened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publish_lag, "_PATIENCE_S", 0.01)

    async def main() -> None:
        site = Site(limit_s=0.5)
        site.lag.ordered(1)
        site.now += 34 * SECOND_US
        with pytest.raises(BusyError, match=r"34\.0 s to be published, 0\.5 s are") as refused:
            await site.lag.admit(60)
        assert refused.value.definite and refused.value.retryable
        assert refused.value.fields == {"lag_s": 34.0, "limit_s": 0.5}
        monkeypatch.setattr(publish_lag, "_MOST_WAITING", 0)
        monkeypatch.setattr(publish_lag, "_PATIENCE_S", 3_600.0)
        with pytest.raises(BusyError):
            await site.lag.admit(3_600)
        site.limit_s = 60
        assert await site.lag.admit(60) == 0

    asyncio.run(main())


@pytest.mark.parametrize("kind", [DiskFullError, StorageError])
def test_a_publisher_that_fails_says_so_and_nobody_waits_for_it(kind: type[TxLogError]) -> None:
    async def main() -> None:
        site = Site()
        site.lag.ordered(1)
        site.failure = kind("no space left")
        assert await site.lag.admit(60) == 0, "it may be over soon"
        site.now += 11 * SECOND_US
        wanted = DiskFullError if kind is DiskFullError else BusyError
        with pytest.raises(wanted, match="publishing fails: no space left"):
            await site.lag.admit(3_600)

    asyncio.run(main())
