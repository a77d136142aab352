"""Settings that can be changed while the node runs; the journal keeps them over a restart.

A value set at run time overrides command line, environment and file, until it is set to null; then
the configured value is in force again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import structlog

from sparktxlog.config import SETTINGS, NodeConfig, Setting
from sparktxlog.errors import InvalidRequestError
from sparktxlog.model.administration_answers import SettingValue
from sparktxlog.runtime.clock import wall_us
from sparktxlog.storage.interfaces import PutValue, Write

_log = structlog.get_logger("sparktxlog.settings")

#: Keys that can be set at run time: the planner's three, how much log is kept, how long synchronous
#: transactions wait, how long publishing may take before all do, how slow the disk may be, whether
#: the node takes any, and when it is maintained.
RUN_TIME_KEYS = (
    "NetSpeedBitsPerSec",
    "FullReplicationTimeFactor",
    "MinTimeToConsiderFullReplicationS",
    "tx-log-max-size",
    "tx-log-max-depth",
    "tx-log-max-bytes",
    "synchro-timeout",
    "publish-lag-limit",
    "slow-write-limit",
    "paused",
    "maintenance-windows",
    "maintenance-until",
)
#: Origin of a value that was set at run time.
SET_AT_RUN_TIME = "set at run time"
#: Names in the journal: of a value, and of when it was set, microseconds since 1970 UTC.
_PREFIX, _SINCE = "setting:", "setting-since:"
_BY_KEY: dict[str, Setting] = {s.key: s for s in SETTINGS if s.key in RUN_TIME_KEYS}


class RunTimeSettings:
    """Values in force of the settings in `RUN_TIME_KEYS`."""

    def __init__(self, config: NodeConfig, saved: Mapping[str, bytes]) -> None:
        self._config = config
        #: The configuration, with what was set at run time.
        self.in_force = config
        self._set: dict[str, Any] = {}
        #: When each of them was set.
        self._since: dict[str, int] = {}
        for key, setting in _BY_KEY.items():
            if text := saved.get(_PREFIX + key):
                try:
                    self._set[key] = setting.read(msgspec.json.decode(text))
                except (msgspec.MsgspecError, ValueError) as error:
                    _log.warning("a saved setting is no longer valid", key=key, why=str(error))
                    continue
                self._since[key] = int(saved.get(_SINCE + key) or 0)
        self._apply()

    def _apply(self) -> None:
        changed = {_BY_KEY[key].attribute: value for key, value in self._set.items()}
        self.in_force = replace(self._config, **changed)

    def value(self, key: str) -> Any:
        """Return the value in force of one of `RUN_TIME_KEYS`."""
        return getattr(self.in_force, _BY_KEY[key].attribute)

    def show(self) -> dict[str, SettingValue]:
        """Return name → its value in force, its origin, and what is configured beside that."""
        return {key: self._shown(key) for key in RUN_TIME_KEYS}

    def _shown(self, key: str) -> SettingValue:
        configured = self._config.origins.get(key, "default")
        return {
            "value": self.value(key),
            "origin": SET_AT_RUN_TIME if key in self._set else configured,
            "configured": getattr(self._config, _BY_KEY[key].attribute),
            "configured_by": configured,
            "since": self._since.get(key) or None,
        }

    # -- changes -----------------------------------------------------------------------------------

    async def change(
        self, changes: Mapping[str, Any], write: Callable[[Sequence[Write]], Awaitable[None]]
    ) -> dict[str, SettingValue]:
        """Set values, all or none; they are in force once they are durable.  Return as `show`.

        Args:
            changes: Key → value; None returns to the configured value.

        Raises:
            InvalidRequestError: Unknown key or wrong value, in the fields `field` and `value`;
                nothing was changed (definite).
        """
        read = {key: _read(key, value) for key, value in changes.items()}
        now, writes = wall_us(), list[Write]()
        for key, value in read.items():
            text = b"" if value is None else msgspec.json.encode(value)
            since = b"" if value is None else str(now).encode()
            writes.append(PutValue(name=_PREFIX + key, value=text))
            writes.append(PutValue(name=_SINCE + key, value=since))
        if writes:
            await write(writes)
        for key, value in read.items():
            before = self.value(key)
            if value is None:
                self._set.pop(key, None)
                self._since.pop(key, None)
            else:
                self._set[key], self._since[key] = value, now
            self._apply()
            _log.info("setting changed", key=key, value=self.value(key), before=before)
        return self.show()


def _read(key: str, value: Any) -> Any:
    setting = _BY_KEY.get(key)
    if setting is None:
        raise InvalidRequestError(
            f"{str(key)[:80]!r} cannot be set at run time",
            hint=f"Settable: {', '.join(RUN_TIME_KEYS)}.",
            field=str(key)[:80],
            value=str(value)[:120],
        )
    if value is None:
        return None
    try:
        return setting.read(value)
    except ValueError as error:
        raise InvalidRequestError(
            f"{key} = {str(value)[:120]!r}: {error}",
            hint=setting.description,
            field=key,
            value=str(value)[:120],
        ) from error
