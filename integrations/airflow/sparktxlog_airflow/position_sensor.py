"""Airflow waits for a position of the log, or until sites are in sync, without a worker slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseHook, BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from sparktxlog import Client
from sparktxlog.errors import TransportError
from sparktxlog.health.site_progress import SiteProgress, progress_of
from sparktxlog_airflow.site_hook import DEFAULT_CONNECTION, TxLogHook, client_of


def _asked(client: Client, position: int | None) -> SiteProgress:
    with client:
        return progress_of(client.status(), position)


class PositionTrigger(BaseTrigger):
    """Asks a node's status every `interval` seconds; a node that does not answer is asked again."""

    def __init__(self, txlog_conn_id: str, position: int | None, interval: float) -> None:
        super().__init__()
        self.txlog_conn_id = txlog_conn_id
        self.position = position
        self.interval = interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return how the triggerer makes it again."""
        arguments = {
            "txlog_conn_id": self.txlog_conn_id,
            "position": self.position,
            "interval": self.interval,
        }
        return f"{__name__}.{type(self).__name__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event: the progress, when it is reached, or waiting does not help."""
        connection = await BaseHook.aget_connection(self.txlog_conn_id)
        while True:
            try:
                found = await asyncio.to_thread(_asked, client_of(connection), self.position)
            except TransportError as error:
                self.log.warning("%s", error)
            else:
                if found.differs or not found.waits_for:
                    yield TriggerEvent(asdict(found))
                    return
                self.log.info("%s", found.waits_for)
            await asyncio.sleep(self.interval)


class PositionSensor(BaseSensorOperator):
    """Waits until the site's replica has applied a position, or until all sites are in sync.

    Its result is a dict with `applied` and `position`.  It fails at once if replicas differ.

    Args:
        position: Position that must be applied, such as the result of another task; None = all
            replicas of all sites have applied the whole log and are equal.
        deferrable: False = ask from the worker, as other sensors do.
    """

    template_fields = ("position", "txlog_conn_id")

    def __init__(
        self,
        *,
        position: int | str | None = None,
        txlog_conn_id: str = DEFAULT_CONNECTION,
        deferrable: bool = True,
        poke_interval: float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.position = position
        self.txlog_conn_id = txlog_conn_id
        self.deferrable = deferrable

    def _wanted(self) -> int | None:
        return None if self.position is None else int(self.position)

    def poke(self, context: Mapping[str, Any]) -> PokeReturnValue:
        """Ask once."""
        found = _asked(TxLogHook(self.txlog_conn_id).get_conn(), self._wanted())
        if found.waits_for:
            self.log.info("%s", found.waits_for)
        done = bool(found.differs) or not found.waits_for
        return PokeReturnValue(done, self._result(asdict(found)) if done else None)

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Ask once, then leave the waiting to the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        try:
            asked = self.poke(context)
        except TransportError as error:
            self.log.warning("%s", error)
        else:
            if asked.is_done:
                return asked.xcom_value
        self.defer(
            trigger=PositionTrigger(self.txlog_conn_id, self._wanted(), self.poke_interval),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )
        return None  # never reached: `defer` raises

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """Take over from the triggerer."""
        return self._result(event)

    def _result(self, found: Mapping[str, Any]) -> dict[str, Any]:
        if found["differs"]:
            raise AirflowException(
                f"{found['differs']}.  Waiting does not mend that: see `sparktxlog status`."
            )
        return {"applied": found["applied"], "position": found["position"]}
