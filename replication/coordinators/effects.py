"""Events that a shard of a coordinator is given, and effects that it asks for: values only.

A shard holds the state of one partition of an internal topic. It has no thread, no clock and no
log of its own. An event comes in, effects go out, and the runtime carries these out in their order.
So the same shard runs under threads, under the simulator and under a test that plays the runtime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol, TypeAlias

from replication.common.error_codes import ErrorCode
from replication.common.messages import TxnMarker

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
LAST_VERSION = 2**15 - 1  # of a client that knows all that there is


class CoordinatorRecord(NamedTuple):
    """One record of the internal topic, as bytes of Kafka's schemas; no value deletes the key."""

    key: bytes
    value: bytes | None


# -- events: what happened ----------------------------------------------------------------------


class ClientRequest(NamedTuple):
    """A message of the protocol, with what its header and its connection say."""

    message: Any
    version: int = LAST_VERSION
    client_id: str = ""
    client_host: str = ""


class RequestReceived(NamedTuple):
    """A request for this shard. Exactly one ``Reply`` names ``to``, now or later."""

    to: Hashable  # opaque: names the request that waits
    request: object  # a value whose type the shard knows


class AppendDone(NamedTuple):
    """An ``Append`` has ended. The appends end in the order in which they were asked for.

    Without an error all records are committed: they are below the high watermark. With one, nothing
    was written. There is nothing in between: if it is not known whether the records will stay, the
    runtime throws the shard away and loads it again from the log.
    """

    token: Hashable
    error_code: ErrorCode


class AppendTimedOut(NamedTuple):
    """An ``Append`` is written and not committed yet; its ``AppendDone`` still follows.

    The shard may answer a request that waits for it, and must keep the state that the records need.
    """

    token: Hashable


class TimerFired(NamedTuple):
    key: Hashable


class MarkerWritten(NamedTuple):
    """The marker that ends a transaction in this partition is committed."""

    producer_id: int
    producer_epoch: int
    is_commit: bool


class ProducerIdAllocated(NamedTuple):
    """An ``AllocateProducerId`` has ended."""

    token: Hashable
    error_code: ErrorCode
    producer_id: int = NO_PRODUCER_ID


class MarkersWritten(NamedTuple):
    """A ``WriteMarkers`` has ended: every partition has its marker, or is deleted.

    An error means that this one's markers are refused, because a later coordinator is at work.
    """

    token: Hashable
    error_code: ErrorCode


Event: TypeAlias = (
    RequestReceived
    | AppendDone
    | AppendTimedOut
    | TimerFired
    | MarkerWritten
    | ProducerIdAllocated
    | MarkersWritten
)


# -- effects: what is to be done ----------------------------------------------------------------


class Reply(NamedTuple):
    """The one answer to a ``RequestReceived``."""

    to: Hashable
    response: object


class Append(NamedTuple):
    """Write ``records`` as one batch: all of them or none. ``AppendDone`` follows exactly once,
    unless the shard is forgotten before.

    With a producer id the batch belongs to that producer's transaction.
    """

    records: tuple[CoordinatorRecord, ...]
    token: Hashable
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class StartTimer(NamedTuple):
    """``TimerFired(key)`` after ``delay_ms``; a timer of this key that runs already is replaced."""

    key: Hashable
    delay_ms: int


class StopTimer(NamedTuple):
    """No ``TimerFired(key)`` follows any more; a key without a timer is no error."""

    key: Hashable


class AllocateProducerId(NamedTuple):
    """An id that no producer of the cluster has had, and larger than ``above``.
    ``ProducerIdAllocated`` follows exactly once, unless the shard is forgotten before."""

    token: Hashable
    above: int = NO_PRODUCER_ID


class ReserveProducerIds(NamedTuple):
    """No producer may get an id up to ``through``. These ids have owners, perhaps of another
    cluster."""

    through: int


class WriteMarkers(NamedTuple):
    """End a transaction in each of its partitions, again and again until all have it.
    ``MarkersWritten`` follows exactly once, unless the shard is unloaded before."""

    token: Hashable
    marker: TxnMarker


Outward: TypeAlias = AllocateProducerId | ReserveProducerIds | WriteMarkers
"""Effects that a runtime has its owner carry out."""

Effect: TypeAlias = Reply | Append | StartTimer | StopTimer | Outward


class Shard(Protocol):
    """The state of one partition of an internal topic, as the runtime sees it.

    The runtime makes one for each election that this broker wins. Its factory takes the number of
    the partition and the leader epoch, which is the coordinator epoch of markers. Then come
    ``replay`` of all that is committed, ``on_loaded``, and events. When another broker leads, the
    runtime answers all that wait with NOT_COORDINATOR and forgets the shard.
    All calls come one after the other.

    Attributes:
        states: what it coordinates, by state; from any thread.
    """

    @property
    def states(self) -> Counter[Any]: ...

    def replay(self, key: bytes, value: bytes | None, *, producer_id: int = NO_PRODUCER_ID) -> None:
        """Take over one record of the log. ``producer_id`` is that of the transaction that wrote
        it: the record counts only once the marker comes.

        Raises:
            LogstoreError: the record cannot be read. The runtime says so and goes on.
        """
        ...

    def replay_marker(self, producer_id: int, producer_epoch: int, is_commit: bool) -> None:
        """The transaction of ``producer_id`` ends here."""
        ...

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """The log is read; serving begins. ``now_ms``: ms since 1970, here and below."""
        ...

    def on_event(self, event: Event, now_ms: int) -> list[Effect]: ...


ShardFactory: TypeAlias = Callable[[int, int], Shard]  # of the partition and its leader epoch
