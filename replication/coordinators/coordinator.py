"""The coordinator of an internal topic on one broker: it has the shards of the partitions that the
broker leads. A key, such as the name of a group, has its partition, and so its coordinator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import ClientRequest, ShardFactory
from replication.coordinators.internal_topic import InternalTopic
from replication.coordinators.runtime import CarryOut, CoordinatorRuntime, OnAnswer


class TopicCoordinator:
    """Safe from any thread.

    Args:
        name, partitions, replication_factor, config: of the topic, as ``InternalTopic``.
        others: as ``CoordinatorRuntime``.
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        partitions: int,
        replication_factor: int,
        config: dict[str, str],
        make_shard: ShardFactory,
        carry_out: CarryOut | None = None,
        **others: int,
    ) -> None:
        self._broker = broker
        self.runtime = CoordinatorRuntime(
            name, broker.runtime, broker.replica_manager, make_shard, carry_out, **others
        )
        self.topic = InternalTopic(
            broker,
            name,
            partitions,
            replication_factor,
            {"cleanup.policy": "compact", **config},
            lambda partition: partition in self.runtime.active,
        )

    def startup(self) -> None:
        """Coordinate what the broker leads, now and from now on."""
        self.runtime.startup()

    def close(self) -> None:
        """Answer all requests that wait with NOT_COORDINATOR."""
        self.runtime.close()

    @property
    def states(self) -> Counter[Any]:
        """What is coordinated here, by state; from any thread."""
        found: Counter[Any] = Counter()
        for shard in self.runtime.active_shards:
            found.update(shard.states)
        return found

    def request(self, key: str, request: ClientRequest, answer: OnAnswer) -> None:
        """Put a request to the shard of a key, which says more of it. ``answer`` as in
        ``CoordinatorRuntime.request``."""
        partition = self.topic.partition_of(key)
        if partition is None:
            answer(ErrorCode.NOT_COORDINATOR)
        else:
            self.runtime.request(partition, request, answer)

    def list_all(
        self, request: ClientRequest, answer: Callable[[ErrorCode, list[Any]], None]
    ) -> None:
        """What all shards of this broker list. While a partition is not loaded the list would not
        be whole, so the answer is an error."""

        def listed(answers: list[object]) -> None:
            found: list[Any] = []
            for each in answers:
                if isinstance(each, list):
                    found += each
                elif isinstance(each, ErrorCode) and each is not ErrorCode.NOT_COORDINATOR:
                    answer(each, [])
                    return
            answer(ErrorCode.NONE, found)

        self.runtime.request_all(request, listed)
