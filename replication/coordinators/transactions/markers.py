"""Has the ends of transactions written into their partitions, each through its leader, until all
have it (Kafka's ``TransactionMarkerChannelManager``).

Each broker gets one request at a time, with all markers that came since the last one. A partition
that has no leader now, or whose leader refused, is tried again after a pause. It may have another
leader by then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from itertools import islice

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.gathering import Gathering
from replication.common.limited_log import LimitedLogger
from replication.common.messages import (
    Response,
    TxnMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from replication.common.retrying import reactions
from replication.common.runtime import Runtime
from replication.common.transport import DEFAULT_TIMEOUT_MS, Transport
from replication.replica_manager.metadata_cache import MetadataCache

logger = get_logger(__name__)

RETRY_MS = 100
DELETED_AFTER_MS = 5_000
"""A partition that this broker does not know for so long is deleted. Not at once: a broker that has
just become coordinator may learn of a new topic a moment later."""
AT_ONCE = 500  # transactions in one request
PARTITIONS_AT_ONCE = 10_000
"""Partitions in one request, each of which gets a batch before the answer comes. With the longest
names of topics that is 3 MB."""


class MarkerReaction(Enum):
    """The reaction to a leader's answer for one partition."""

    WRITTEN = "written"
    AGAIN = "again"  # after a pause, from the leader that it has then
    FENCED = "fenced"  # a later coordinator, or a later producer, is at work: stop


_FENCING = (
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
)
REACTIONS = reactions(
    {
        MarkerReaction.WRITTEN: (ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        MarkerReaction.FENCED: _FENCING,
    },
    otherwise=MarkerReaction.AGAIN,
)


class EndingTransaction:
    """A transaction that is being ended; ``missing`` are the partitions without the marker."""

    __slots__ = ("is_current", "marker", "missing", "on_end", "unknown_since_ms")

    def __init__(
        self,
        marker: TxnMarker,
        is_current: Callable[[], bool],
        on_end: Callable[[ErrorCode], None],
    ) -> None:
        self.marker = marker._replace(partitions=())
        self.is_current, self.on_end = is_current, on_end
        self.missing = set(marker.partitions)
        self.unknown_since_ms: dict[TopicPartition, int] = {}


Waiting = dict[EndingTransaction, dict[TopicPartition, None]]


class BrokerQueue:
    """The markers that go to one broker with its next request."""

    __slots__ = ("in_flight", "waiting")

    def __init__(self) -> None:
        self.waiting: Waiting = {}
        self.in_flight = False


class TransactionMarkerChannelManager:
    """Sends the markers of one broker's shards. Safe from any thread. Nothing here waits, and no
    callback is called under the lock.

    Args:
        transport, metadata: the way to the leaders, and who they are.
    """

    def __init__(
        self,
        runtime: Runtime,
        transport: Transport,
        metadata: MetadataCache,
        *,
        request_timeout_ms: int = DEFAULT_TIMEOUT_MS,
        deleted_after_ms: int = DELETED_AFTER_MS,
    ) -> None:
        self._runtime = runtime
        self._log = LimitedLogger(logger, runtime.clock)
        self._transport = transport
        self._metadata = metadata
        self._timeout_ms = request_timeout_ms
        self._deleted_after_ms = deleted_after_ms
        self._lock = threading.Lock()
        self._queues: dict[int, BrokerQueue] = {}
        self._later: Waiting = {}  # without a leader to ask now
        self._is_armed = False

    def write(
        self,
        marker: TxnMarker,
        is_current: Callable[[], bool],
        on_end: Callable[[ErrorCode], None],
    ) -> None:
        """Begin. ``on_end`` is called once: NONE when every partition has the marker or is deleted,
        else why this coordinator is not the one to end it. Not called any more when ``is_current``
        says that the shard which asked for it no longer counts."""
        ending = EndingTransaction(marker, is_current, on_end)
        if not ending.missing:
            on_end(ErrorCode.NONE)
            return
        self._route({ending: dict.fromkeys(marker.partitions)})

    # -- who is asked ----------------------------------------------------------------------------

    def _route(self, waiting: Waiting) -> None:
        """Put each partition into the queue of its leader, and send."""
        now_ms = self._runtime.now_ms()
        brokers: dict[int, None] = {}
        ended: list[EndingTransaction] = []
        with self._lock:
            for ending, tps in waiting.items():
                if not ending.missing or not ending.is_current():
                    continue
                for tp in tps:
                    if self._is_deleted(ending, tp, now_ms):
                        logger.info("%s is deleted: it gets no marker", tp)
                        ending.missing.discard(tp)
                        continue
                    broker = self._leader_of(tp)
                    if broker is None:
                        self._later.setdefault(ending, {})[tp] = None
                    else:
                        queue = self._queues.setdefault(broker, BrokerQueue())
                        queue.waiting.setdefault(ending, {})[tp] = None
                        brokers[broker] = None
                if not ending.missing:
                    ended.append(ending)
        for ending in ended:
            ending.on_end(ErrorCode.NONE)
        for broker in brokers:
            self._send(broker)
        self._arm()

    def _leader_of(self, tp: TopicPartition) -> int | None:
        """The leader of a partition; None if there is none to ask now."""
        known = self._metadata.registration(tp)
        return known.leader if known and self._metadata.is_alive(known.leader) else None

    def _is_deleted(self, ending: EndingTransaction, tp: TopicPartition, now_ms: int) -> bool:
        if self._metadata.registration(tp) is not None:
            ending.unknown_since_ms.pop(tp, None)
            return False
        since_ms = ending.unknown_since_ms.setdefault(tp, now_ms)
        return self._metadata.is_complete and now_ms - since_ms >= self._deleted_after_ms

    def _arm(self) -> None:
        with self._lock:
            if self._is_armed or not self._later:
                return
            self._is_armed = True
        self._runtime.call_later(RETRY_MS, self._look_again)

    def _look_again(self) -> None:
        with self._lock:
            self._is_armed = False
            waiting, self._later = self._later, {}
        self._route(waiting)

    # -- requests --------------------------------------------------------------------------------

    def _send(self, broker: int) -> None:
        with self._lock:
            queue = self._queues[broker]
            if queue.in_flight or not queue.waiting:
                return
            sent: Waiting = {}
            room = PARTITIONS_AT_ONCE
            for ending in list(queue.waiting):
                if len(sent) == AT_ONCE or not room:
                    break
                tps = queue.waiting.pop(ending)
                if ending.is_current():
                    sent[ending] = dict.fromkeys(islice(tps, room))
                    room -= len(sent[ending])
                    if len(sent[ending]) < len(tps):
                        queue.waiting[ending] = dict.fromkeys(islice(tps, len(sent[ending]), None))
            if not sent:
                return
            queue.in_flight = True
        request = WriteTxnMarkersRequest(
            tuple(ending.marker._replace(partitions=tuple(tps)) for ending, tps in sent.items())
        )

        # An answer counts when ``send`` has returned, too. A broker of this process carries out a
        # request within ``send``. Its link may be cut during the call, which counts as an answer.
        # If the markers were sent again at once, the first copy could still be appended after the
        # second one, and end the next transaction of the producer (protocol 1).
        call: Gathering[Response | None] = Gathering(
            2, lambda answers: self._answered(broker, sent, answers[0])
        )
        try:
            answer = partial(call.take_answer, 0)
            self._transport.send(broker, request, answer, self._timeout_ms)
        except Exception:
            self._log.exception("markers cannot be sent to broker %d", broker, about=broker)
            call.take_answer(0, None)
        call.take_answer(1, None)

    def _answered(self, broker: int, sent: Waiting, response: Response | None) -> None:
        codes: Iterable[dict[TopicPartition, ErrorCode]] = [{} for _ in sent]
        if isinstance(response, WriteTxnMarkersResponse) and len(response.markers) == len(sent):
            codes = [dict(answer) for answer in response.markers]
        ended: list[tuple[EndingTransaction, ErrorCode]] = []
        with self._lock:
            self._queues[broker].in_flight = False
            for (ending, tps), answer in zip(sent.items(), codes, strict=True):
                end = self._apply_answer(ending, tps, answer)
                if end is not None:
                    ended.append((ending, end))
        for ending, code in ended:
            ending.on_end(code)
        self._send(broker)
        self._arm()

    def _apply_answer(
        self,
        ending: EndingTransaction,
        tps: Iterable[TopicPartition],
        answer: dict[TopicPartition, ErrorCode],
    ) -> ErrorCode | None:
        """Take an answer in. Returns how the whole ended, if it has now. The caller holds the
        lock."""
        if not ending.missing:  # another broker has refused it
            return None
        for tp in tps:
            code = answer.get(tp, ErrorCode.NETWORK_EXCEPTION)
            match REACTIONS[code]:
                case MarkerReaction.WRITTEN:
                    ending.missing.discard(tp)
                case MarkerReaction.AGAIN:
                    self._later.setdefault(ending, {})[tp] = None
                case MarkerReaction.FENCED:
                    self._log.warning("%s refused a marker: %s", tp, code.name, about=tp)
                    ending.missing.clear()
                    return code
        return None if ending.missing else ErrorCode.NONE
