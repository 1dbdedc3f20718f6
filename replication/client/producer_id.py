"""Producer ids assigned by brokers (``InitProducerId``)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from replication.client.metadata import Metadata, tell_all
from replication.client.reactions import INIT_PRODUCER_ID, AskReaction
from replication.common.errors import BrokerUnavailableError, ReplicationError, error_for
from replication.common.messages import InitProducerIdRequest, InitProducerIdResponse, Response
from replication.common.runtime import Runtime
from replication.common.transport import Transport

ANSWER_TIMEOUT_MS = 5000  # the broker may need the coordinator

OnProducerId = Callable[["int | ReplicationError"], None]


class ProducerIds:
    """The id of one producer, requested at its first use and again when all its epochs are used.

    A lost answer only wastes an id. Thread-safe; ``on_done`` is called on any thread.
    """

    def __init__(self, runtime: Runtime, transport: Transport, metadata: Metadata) -> None:
        self._actor = runtime.actor("client-producer-id")
        self._transport, self._metadata = transport, metadata
        self._current: int | None = None
        self._waiting: deque[OnProducerId] = deque()
        self._asked = 0

    def get(self, on_done: OnProducerId, *, used_up: int | None = None) -> None:
        """Get an id other than ``used_up``, or the reason why there is none now."""
        self._actor.post(partial(self._get, on_done, used_up))

    def _get(self, on_done: OnProducerId, used_up: int | None) -> None:
        if self._current is not None and self._current != used_up:
            on_done(self._current)
            return
        self._waiting.append(on_done)
        if len(self._waiting) > 1:
            return
        brokers = self._metadata.brokers()
        if not brokers:
            self._finish(BrokerUnavailableError("no broker is known"))
            return
        broker_id = brokers[self._asked % len(brokers)]
        self._asked += 1

        def on_reply(response: Response | None) -> None:
            self._actor.post(partial(self._answered, broker_id, response))

        self._transport.send(broker_id, InitProducerIdRequest(), on_reply, ANSWER_TIMEOUT_MS)

    def _answered(self, broker_id: int, response: Response | None) -> None:
        if not isinstance(response, InitProducerIdResponse):
            self._finish(BrokerUnavailableError(f"no answer of broker {broker_id}"))
            return
        reaction = INIT_PRODUCER_ID[response.error_code]
        if reaction is AskReaction.DONE:
            self._current = response.producer_id
            self._finish(response.producer_id)
        else:
            self._finish(error_for(response.error_code, response.error_message))

    def _finish(self, result: int | ReplicationError) -> None:
        waiting, self._waiting = self._waiting, deque()
        tell_all(self._actor, waiting, result)
