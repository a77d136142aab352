"""Settings at run time: checked, all or none, durable before they are in force."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from sparktxlog.config import NodeConfig, load_config
from sparktxlog.errors import DiskFullError, InvalidRequestError
from sparktxlog.runtime.settings import RUN_TIME_KEYS, RunTimeSettings
from sparktxlog.storage.interfaces import PutValue, Write

SPEED = "NetSpeedBitsPerSec"


def config(**overrides: Any) -> NodeConfig:
    values = {"node-id": "A", "master-url": "http://127.0.0.1:7001", "data-dir": "d"}
    return load_config(None, values | overrides, {})


class Kept:
    """The journal's named values."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    async def write(self, writes: Sequence[Write]) -> None:
        for write in writes:
            assert isinstance(write, PutValue)
            self.values[write.name] = write.value


def test_values_are_set_shown_with_their_origin_and_survive_a_restart() -> None:
    kept = Kept()
    settings = RunTimeSettings(config(**{"tx-log-max-size": 5}), {})
    assert list(settings.show()) == list(RUN_TIME_KEYS)
    default = {"configured": 104_857_600, "configured_by": "default"}
    given = {"configured": 5, "configured_by": "command line"}
    unset = {"value": 104_857_600, "origin": "default", "since": None, **default}
    assert settings.show()[SPEED] == unset
    assert settings.show()["tx-log-max-size"] == {
        "value": 5,
        "origin": "command line",
        "since": None,
        **given,
    }
    began = time.time_ns() // 1000
    shown = asyncio.run(settings.change({SPEED: "1e9", "tx-log-max-size": 7}, kept.write))
    since = shown[SPEED]["since"]
    assert since is not None and began <= since <= time.time_ns() // 1000
    set_now = {"origin": "set at run time", "since": since}
    assert shown[SPEED] == {"value": 1_000_000_000, **set_now, **default}
    assert shown["tx-log-max-size"] == {"value": 7, **set_now, **given}
    again = RunTimeSettings(config(), kept.values)
    assert again.show()[SPEED] == shown[SPEED]
    assert (again.value(SPEED), again.value("tx-log-max-size")) == (1_000_000_000, 7)
    assert again.in_force.full_replication_time_factor == 1.3
    # Null takes a value back, and that survives as well.
    asyncio.run(again.change({SPEED: None}, kept.write))
    assert RunTimeSettings(config(), kept.values).show()[SPEED] == unset


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        (SPEED, 0, "from 1"),
        (SPEED, 1.5, "whole"),
        (SPEED, "1e999", "expected a number from"),
        (SPEED, "fast", "expected a number"),
        (SPEED, True, "expected a number"),
        (SPEED, [1], "expected a number"),
        ("FullReplicationTimeFactor", -1, "0.01"),
        ("MinTimeToConsiderFullReplicationS", "nan", "expected a number"),
        ("node-id", "B", "cannot be set at run time"),
        ("IncrementalUpdateLimit", 3, "cannot be set at run time"),
    ],
)
def test_one_wrong_value_and_nothing_changes(key: str, value: Any, part: str) -> None:
    kept = Kept()
    settings = RunTimeSettings(config(), {})
    with pytest.raises(InvalidRequestError, match=part) as caught:
        asyncio.run(settings.change({"tx-log-max-depth": 9, key: value}, kept.write))
    assert caught.value.fields["field"] == key
    assert caught.value.fields["value"] == str(value)
    assert caught.value.hint
    assert settings.in_force.tx_log_max_depth == 168
    assert kept.values == {}


def test_what_could_not_be_made_durable_is_not_in_force() -> None:
    async def fails(_: Sequence[Write]) -> None:
        raise DiskFullError("no room")

    settings = RunTimeSettings(config(), {})
    with pytest.raises(DiskFullError):
        asyncio.run(settings.change({SPEED: 5}, fails))
    assert settings.value(SPEED) == 104_857_600


def test_a_saved_value_that_is_not_valid_any_more_is_left_out() -> None:
    saved = {f"setting:{SPEED}": b"-1", "setting:tx-log-max-size": b"{"}
    settings = RunTimeSettings(config(), saved)
    assert settings.value(SPEED) == 104_857_600
    assert settings.in_force.tx_log_max_size == 100_000
