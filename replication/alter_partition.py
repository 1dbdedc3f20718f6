"""Carries ISR changes of all partitions of a broker to the controller (Kafka's
``AlterPartitionManager``)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from checkpoints.types import TopicPartition
from replication.error_codes import ErrorCode
from replication.messages import (
    AlterPartitionItem,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    Response,
)
from replication.runtime import Runtime
from replication.transport import Transport

RETRY_MS = 50

OnResult = Callable[[AlterPartitionResult], None]


class _Pending(NamedTuple):
    item: AlterPartitionItem
    on_result: OnResult


class AlterPartitionManager:
    """At most one request in flight, at most one item of each partition (R-34).

    An item without an answer is sent again until the controller has judged it: a request may be
    lost, a controller replaced. Results are told on the actor.
    """

    def __init__(
        self,
        broker_id: int,
        runtime: Runtime,
        transport: Transport,
        controller_id: Callable[[], int | None],
        broker_epoch: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._runtime = runtime
        self._transport = transport
        self._controller_id = controller_id
        self._broker_epoch = broker_epoch
        self._actor = runtime.actor(f"alter-partition-{broker_id}")
        self._waiting: dict[TopicPartition, _Pending] = {}
        self._in_flight = False
        self._lock = threading.Lock()

    def submit(self, item: AlterPartitionItem, on_result: OnResult) -> bool:
        with self._lock:
            if item.tp in self._waiting:
                return False
            self._waiting[item.tp] = _Pending(item, on_result)
        self._actor.post(self._send)
        return True

    def close(self) -> None:
        self._actor.close()

    def _send(self) -> None:
        with self._lock:
            if self._in_flight or not self._waiting:
                return
            self._in_flight = True
            items = tuple(pending.item for pending in self._waiting.values())
        controller = self._controller_id()
        if controller is None:
            self._on_reply(items, None)
            return
        request = AlterPartitionRequest(self._broker_id, self._broker_epoch(), items)
        self._transport.send(
            controller, request, lambda r: self._actor.post(lambda: self._on_reply(items, r))
        )

    def _on_reply(self, items: tuple[AlterPartitionItem, ...], response: Response | None) -> None:
        judged: list[tuple[_Pending, AlterPartitionResult]] = []
        with self._lock:
            self._in_flight = False
            if (
                isinstance(response, AlterPartitionResponse)
                and response.error_code is ErrorCode.NONE
            ):
                sent = {item.tp: item for item in items}
                for result in response.partitions:
                    pending = self._waiting.get(result.tp)
                    if pending is not None and pending.item is sent.get(result.tp):
                        judged.append((self._waiting.pop(result.tp), result))
            unanswered = bool(self._waiting)
        for pending, result in judged:
            pending.on_result(result)
        if unanswered and judged:
            self._send()
        elif unanswered:
            self._runtime.call_later(RETRY_MS, lambda: self._actor.post(self._send))
