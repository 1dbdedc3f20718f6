"""A topic on up to three brokers, beside the topics of a schedule."""

from __future__ import annotations

from collections.abc import Mapping

from replication.common.error_codes import ErrorCode
from replication.common.messages import CreateTopicRequest, Response, TopicResponse
from replication.simulator.workload.clients import ClientWorld
from replication.simulator.world.scheduler import US_PER_MS

AGAIN_MS = 60


class SharedTopic:
    """Asked for once, and then again until the controller has made it.

    With three brokers and more, two replicas have to be in sync.

    Attributes:
        wanted: it was asked for.
        exists: the controller has said so.
    """

    def __init__(
        self, world: ClientWorld, name: str, config: Mapping[str, str], partitions: int = 1
    ) -> None:
        self.wanted = self.exists = False
        self.name = name
        self._world = world
        self._config, self._partitions = config, partitions

    def want(self) -> bool:
        """True for the first call, which asks for the topic."""
        if self.wanted:
            return False
        self.wanted = True
        self._create()
        return True

    def _create(self) -> None:
        replicas = tuple(range(min(3, len(self._world.cluster.machines))))
        config = {"min.insync.replicas": str(min(2, len(replicas))), **self._config}
        assignment = tuple(
            (*replicas[first:], *replicas[:first])
            for first in (number % len(replicas) for number in range(self._partitions))
        )
        request = CreateTopicRequest(self.name, self._partitions, len(replicas), assignment, config)
        self._world.admin.ask_controller(request, self._created)

    def _created(self, response: Response | None) -> None:
        """Note the creation. TOPIC_ALREADY_EXISTS means that an answer was lost."""
        code = response.error_code if isinstance(response, TopicResponse) else None
        if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self.exists = True
            return
        admin = self._world.admin
        self._world.scheduler.after(AGAIN_MS * US_PER_MS, admin.process, "admin", self._create)
