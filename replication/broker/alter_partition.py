"""Carries ISR changes of all partitions of a broker to the controller (Kafka's
``AlterPartitionManager``)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from replication.broker.controller_channel import REACTIONS, ControllerChannel
from replication.common.error_codes import ErrorCode
from replication.common.limited_log import LimitedLogger
from replication.common.messages import (
    AlterPartitionItem,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    Response,
)
from replication.common.retrying import Reaction
from replication.common.runtime import Runtime

logger = get_logger(__name__)

OnResult = Callable[[AlterPartitionResult], None]


class _Pending(NamedTuple):
    item: AlterPartitionItem
    on_result: OnResult


class AlterPartitionManager:
    """At most one request in flight, at most one item of each partition (R-34).

    An item is sent again after a pause until the controller decides it: a request may be lost, a
    controller replaced, or a code may mean "not now". Results are delivered on the actor.
    """

    def __init__(
        self,
        broker_id: int,
        runtime: Runtime,
        channel: ControllerChannel,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._broker_id = broker_id
        self._log = LimitedLogger(logger, runtime.clock)
        self._broker_epoch = broker_epoch
        self._actor = runtime.actor(f"alter-partition-{broker_id}")
        self._waiting: dict[TopicPartition, _Pending] = {}
        self._sent: dict[TopicPartition, AlterPartitionItem] = {}  # the items of the latest try
        self._lock = threading.Lock()
        self._call = channel.call(self._actor, self._request, self._reaction_to)

    def submit(self, item: AlterPartitionItem, on_result: OnResult) -> bool:
        """Queue a proposal. False if the same one waits already.

        A proposal from another state of the partition, or for another topic of that name, replaces
        the waiting one, which its leader has given up.
        """
        with self._lock:
            earlier = self._waiting.get(item.tp)
            if earlier is not None and _origin(earlier.item) == _origin(item):
                return False
            self._waiting[item.tp] = _Pending(item, on_result)
        self._actor.post(self._call.renew)
        return True

    def hurry(self) -> None:
        """Send waiting items to a new controller now."""
        self._actor.post(self._call.hurry)

    def close(self) -> None:
        self._actor.close()

    def _request(self) -> AlterPartitionRequest | None:
        with self._lock:
            items = tuple(pending.item for pending in self._waiting.values())
        self._sent = {item.tp: item for item in items}
        if not items:
            return None
        return AlterPartitionRequest(self._broker_id, self._broker_epoch(), items)

    def _reaction_to(self, response: Response) -> Reaction:
        if not isinstance(response, AlterPartitionResponse):
            return Reaction.AGAIN
        if response.error_code is not ErrorCode.NONE:
            code = response.error_code
            self._log.warning("broker %s: ISR changes: %s", self._broker_id, code.name, about=code)
            reaction = REACTIONS[response.error_code]
            # None of them was decided, and the leaders wait for a verdict.
            return Reaction.AGAIN if reaction.ends else reaction
        again = Reaction.DONE
        decided: list[tuple[_Pending, AlterPartitionResult]] = []
        with self._lock:
            for result in response.partitions:
                pending = self._waiting.get(result.tp)
                if pending is None or pending.item is not self._sent.get(result.tp):
                    continue
                reaction = REACTIONS[result.error_code]
                if reaction.ends:
                    decided.append((self._waiting.pop(result.tp), result))
                elif again is not Reaction.FIND_CONTROLLER:
                    again = reaction
            undecided = any(
                tp in self._waiting and self._waiting[tp].item is item
                for tp, item in self._sent.items()
            )
        for pending, result in decided:
            self._deliver(pending, result)
        return Reaction.AGAIN if undecided and again is Reaction.DONE else again

    def _deliver(self, pending: _Pending, result: AlterPartitionResult) -> None:
        """Deliver a verdict. An exception of one callback does not stop the others."""
        try:
            pending.on_result(result)
        except Exception:
            self._log.exception(
                "%s: the verdict on its ISR was not taken over", result.tp, about=result.tp
            )


def _origin(item: AlterPartitionItem) -> tuple[object, ...]:
    return item.topic_id, item.leader_epoch, item.partition_epoch
