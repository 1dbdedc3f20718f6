"""Unique producer ids, taken in blocks from the coordinator's tree (Kafka's
``ZkProducerIdManager``).

Logs that were taken over from another cluster bring its producers with them. So each broker
reserves the ids that it finds, and none of these is assigned from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from checkpoints.loggers import get_logger
from replication.common.error_codes import ErrorCode
from replication.common.limited_log import LimitedLogger
from replication.common.messages import (
    AllocateProducerIdsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    Response,
)
from replication.common.runtime import Runtime
from replication.coordination import (
    BadVersionError,
    CoordinationError,
    Coordinator,
    CorruptNodeError,
    NodeExistsError,
    SessionState,
    nodes,
)

logger = get_logger(__name__)

BLOCK_SIZE = 1000
TRIES = 10  # retries, since other brokers take blocks at the same time
RETRY_MS = 1000


class ProducerIdManager:
    """Assigns the ids of a block, then takes the next block by compare-and-set.

    A block whose write was not confirmed is not used, so its ids are lost and never assigned twice.

    Args:
        session: the present one, None without.
    """

    def __init__(
        self, broker_id: int, runtime: Runtime, session: Callable[[], Coordinator | None]
    ) -> None:
        self._broker_id = broker_id
        self._runtime = runtime
        self._log = LimitedLogger(logger, runtime.clock)
        self._session = session
        self._actor = runtime.actor(f"producer-ids-{broker_id}", may_hang=True)
        self._free = range(0)
        self._through = -1  # the largest id to be reserved
        self._retries = False

    def handle(
        self, request: InitProducerIdRequest, reply: Callable[[Response | None], None]
    ) -> None:
        self._actor.post(partial(self._answer, request.above, reply))

    def allocate(self, broker_id: int, reply: Callable[[Response | None], None]) -> None:
        """Take a block for another broker, which asks the controller for it (KIP-730)."""
        self._actor.post(partial(self._allocate, broker_id, reply))

    def _allocate(self, broker_id: int, reply: Callable[[Response | None], None]) -> None:
        try:
            session = self._living()
            block = self._take_block(session, _reserved(session), broker_id)
        except CoordinationError as error:
            self._log.warning("broker %s: no block of ids: %s", broker_id, error)
            reply(AllocateProducerIdsResponse(ErrorCode.BROKER_NOT_AVAILABLE))
            return
        reply(AllocateProducerIdsResponse(ErrorCode.NONE, block.start, len(block)))

    def reserve(self, through: int) -> None:
        """Have no id up to ``through`` assigned any more, as soon as the coordinator answers."""
        self._actor.post(partial(self._reserve, through))

    def _reserve(self, through: int) -> None:
        self._through = max(self._through, through)
        if self._retries:
            return
        try:
            reserve_producer_ids(self._living(), self._through)
        except CorruptNodeError as error:  # because of which no id is assigned either
            self._log.error("broker %s: no producer ids are reserved: %s", self._broker_id, error)
        except CoordinationError as error:
            self._log.warning("broker %s: ids are not reserved yet: %s", self._broker_id, error)
            self._retries = True
            self._runtime.call_later(RETRY_MS, lambda: self._actor.post(self._reserve_again))

    def _reserve_again(self) -> None:
        self._retries = False
        self._reserve(self._through)

    def _answer(self, above: int, reply: Callable[[Response | None], None]) -> None:
        try:
            session = self._living()
            last = max(above, _reserved(session))  # again each time: a broker may have joined
            free = self._free
            self._free = range(max(free.start, last + 1), free.stop) or self._take_block(
                session, last, self._broker_id
            )
        except CoordinationError as error:
            self._log.warning("broker %s: no producer ids: %s", self._broker_id, error)
            code = ErrorCode.BROKER_NOT_AVAILABLE
            reply(InitProducerIdResponse(code, error_message=str(error)))
            return
        producer_id, self._free = self._free[0], self._free[1:]
        reply(InitProducerIdResponse(ErrorCode.NONE, producer_id, 0))

    def _living(self) -> Coordinator:
        session = self._session()
        if session is None or session.state is not SessionState.CONNECTED:
            raise CoordinationError("no session with the coordinator")
        return session

    @staticmethod
    def _take_block(session: Coordinator, above: int, broker_id: int) -> range:
        """
        Raises:
            CoordinationError: no block was taken, or the outcome is unknown.
        """
        taken = range(0)

        def next_block(data: bytes | None) -> bytes:
            nonlocal taken
            last = -1 if data is None else nodes.decode_producer_id_block(data)
            first = max(last, above) + 1
            taken = range(first, first + BLOCK_SIZE)
            return nodes.encode_producer_id_block(broker_id, first, taken[-1])

        _change(session, nodes.PRODUCER_IDS, next_block)
        return taken


def reserve_producer_ids(session: Coordinator, through: int) -> None:
    """Have no broker of the cluster assign an id up to ``through`` from now on.

    Raises:
        CoordinationError: they are not reserved, or the outcome is unknown.
    """

    def raised(data: bytes | None) -> bytes | None:
        is_done = (
            data is not None and nodes.decode_number(nodes.RESERVED_PRODUCER_IDS, data) >= through
        )
        return None if is_done else nodes.encode_number(through)

    if through >= 0:
        _change(session, nodes.RESERVED_PRODUCER_IDS, raised)


def _reserved(session: Coordinator) -> int:
    node = session.get(nodes.RESERVED_PRODUCER_IDS)
    return -1 if node is None else nodes.decode_number(nodes.RESERVED_PRODUCER_IDS, node.data)


def _change(
    session: Coordinator, path: str, change: Callable[[bytes | None], bytes | None]
) -> None:
    """Compare and set: ``change`` gets what a node holds, None without it, and gives what it is to
    hold, None for no change."""
    for _ in range(TRIES):
        node = session.get(path)
        data = change(None if node is None else node.data)
        if data is None:
            return
        try:
            if node is None:
                session.create(path, data, parents=True)
            else:
                session.set(path, data, node.version)
        except (BadVersionError, NodeExistsError):
            continue  # another broker was faster
        return
    raise CoordinationError("other brokers were faster each time")
