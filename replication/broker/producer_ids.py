"""Producer ids that no other producer has: blocks of them, from the coordinator's tree (Kafka's
``ZkProducerIdManager``)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from checkpoints.loggers import get_logger
from replication.common.error_codes import ErrorCode
from replication.common.messages import InitProducerIdRequest, InitProducerIdResponse, Response
from replication.common.runtime import Runtime
from replication.coordination import (
    BadVersionError,
    CoordinationError,
    Coordinator,
    NodeExistsError,
    SessionState,
    nodes,
)

logger = get_logger(__name__)

BLOCK_SIZE = 1000
TRIES = 10  # other brokers take blocks at the same time


class ProducerIdManager:
    """Hands out the ids of a block, then takes the next block by compare-and-set.

    A block whose taking was not confirmed is left alone: its ids are lost, and never given twice.
    """

    def __init__(
        self, broker_id: int, runtime: Runtime, session: Callable[[], Coordinator | None]
    ) -> None:
        self._broker_id = broker_id
        self._session = session
        self._actor = runtime.actor(f"producer-ids-{broker_id}", may_hang=True)
        self._free = range(0)

    def handle(
        self, request: InitProducerIdRequest, reply: Callable[[Response | None], None]
    ) -> None:
        self._actor.post(partial(self._answer, reply))

    def _answer(self, reply: Callable[[Response | None], None]) -> None:
        try:
            if not self._free:
                self._free = self._take_block()
        except CoordinationError as error:
            logger.warning("broker %s: no producer ids: %s", self._broker_id, error)
            code = ErrorCode.BROKER_NOT_AVAILABLE
            reply(InitProducerIdResponse(code, error_message=str(error)))
            return
        producer_id, self._free = self._free[0], self._free[1:]
        reply(InitProducerIdResponse(ErrorCode.NONE, producer_id, 0))

    def _take_block(self) -> range:
        """
        Raises:
            CoordinationError: none was taken, or nobody knows.
        """
        session = self._session()
        if session is None or session.state is not SessionState.CONNECTED:
            raise CoordinationError("no session with the coordinator")
        path = nodes.PRODUCER_IDS
        for _ in range(TRIES):
            node = session.get(path)
            first = 0 if node is None else nodes.decode_producer_id_block(node.data) + 1
            last = first + BLOCK_SIZE - 1
            data = nodes.encode_producer_id_block(self._broker_id, first, last)
            try:
                if node is None:
                    session.create(path, data)
                else:
                    session.set(path, data, node.version)
            except (BadVersionError, NodeExistsError):
                continue  # somebody else took it
            return range(first, last + 1)
        raise CoordinationError("other brokers were faster each time")
