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
from sparktxlog.model.answers import SettingValue
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
_PREFIX = "setting:"
_BY_KEY: dict[str, Setting] = {s.key: s for s in SETTINGS if s.key in RUN_TIME_KEYS}


class RunTimeSettings:
    """Values in force of the settings in `RUN_TIME_KEYS`."""

    def __init__(self, config: NodeConfig, saved: Mapping[str, bytes]) -> None:
        self._config = config
        #: The configuration, with what was set at run time.
        self.in_force = config
        self._set: dict[str, Any] = {}
        for key, setting in _BY_KEY.items():
            if text := saved.get(_PREFIX + key):
                try:
                    self._set[key] = setting.read(msgspec.json.decode(text))
                except (msgspec.MsgspecError, ValueError) as error:
                    _log.warning("a saved setting is no longer valid", key=key, why=str(error))
        self._apply()

    def _apply(self) -> None:
        changed = {_BY_KEY[key].attribute: value for key, value in self._set.items()}
        self.in_force = replace(self._config, **changed)

    def value(self, key: str) -> Any:
        """Return the value in force of one of `RUN_TIME_KEYS`."""
        return getattr(self.in_force, _BY_KEY[key].attribute)

    def show(self) -> dict[str, SettingValue]:
        """Return name → value and origin: default, where it was configured, or set at run time."""
        return {
            key: {"value": self.value(key), "origin": self._origin(key)} for key in RUN_TIME_KEYS
        }

    def _origin(self, key: str) -> str:
        return SET_AT_RUN_TIME if key in self._set else self._config.origins.get(key, "default")

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
        if read:
            await write(
                [
                    PutValue(
                        name=_PREFIX + key,
                        value=b"" if value is None else msgspec.json.encode(value),
                    )
                    for key, value in read.items()
                ]
            )
        for key, value in read.items():
            before = self.value(key)
            if value is None:
                self._set.pop(key, None)
            else:
                self._set[key] = value
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
