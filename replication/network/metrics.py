"""Numbers of one network thread (Kafka's ``RequestMetrics`` and ``socket-server-metrics``).

Each network thread has numbers of its own, so it writes them without a lock. Any thread may read
them: a reader may see a request in one number and not in the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from enum import Enum
from itertools import accumulate
from math import inf
from typing import NamedTuple

from replication.network.limits import Refusal
from replication.network.request_channel import Exchange
from replication.network.requests import Send
from replication.protocol import SERVED, ApiKey

BOUNDS_MS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000)
_BOUNDS_NS = [round(bound * 1_000_000) for bound in BOUNDS_MS]
_LEAST_NS = _BOUNDS_NS[0]

OTHER_VERSION = -1
"""Counts all versions of ApiVersions that are not served. Such a request is answered, so a client
that makes up versions would make as many time series."""


class RequestPhase(Enum):
    """Phases in which a request spends its time: Kafka's names, in the order of ``ApiMetrics``."""

    QUEUE = "RequestQueueTimeMs"  # until its handler begins
    LOCAL = "LocalTimeMs"  # on the handler
    REMOTE = "RemoteTimeMs"  # waits for others: followers, records, members of a group
    THROTTLE = "ThrottleTimeMs"  # by a quota, after the answer
    RESPONSE_QUEUE = "ResponseQueueTimeMs"  # until the network thread has the answer
    RESPONSE_SEND = "ResponseSendTimeMs"  # until the socket has all of it
    TOTAL = "TotalTimeMs"  # but the throttling


_QUEUE, _LOCAL, _REMOTE, _THROTTLE, _RESPONSE_QUEUE, _RESPONSE_SEND, _TOTAL = range(
    len(RequestPhase)
)


class CloseReason(Enum):
    """The reason why a connection ended."""

    CLIENT = "client"  # it closed the connection, or cannot be reached
    REFUSED = "refused"  # what it sent is not served, or the answer is to close
    LOGIN = "login"  # it failed
    EXPIRED = "expired"  # idle, or a frame or an answer that does not go on
    FAILURE = "failure"  # of this server
    SHUTDOWN = "shutdown"


class ApiMetrics:
    """The requests of one API. Every number only grows.

    Attributes:
        versions: requests by version, or ``OTHER_VERSION``.
        errors: by code; 0 is not counted.
        sums_ns: by phase.
        fast: requests that took no longer than the first bound in all.
        counts: by phase, how many of the others took longer than ``BOUNDS_MS[at - 1]`` and no
            longer than ``BOUNDS_MS[at]``.
    """

    __slots__ = ("counts", "errors", "fast", "sums_ns", "versions")

    def __init__(self) -> None:
        self.versions: dict[int, int] = {}
        self.errors: dict[int, int] = {}
        self.sums_ns = [0] * len(RequestPhase)
        self.fast = 0
        self.counts = [[0] * (len(BOUNDS_MS) + 1) for _ in RequestPhase]

    def add(self, other: ApiMetrics) -> None:
        """Count what ``other`` has, too."""
        for mine, theirs in ((self.versions, other.versions), (self.errors, other.errors)):
            for key, count in theirs.copy().items():
                mine[key] = mine.get(key, 0) + count
        self.fast += other.fast
        for phase, total_ns in enumerate(other.sums_ns):
            self.sums_ns[phase] += total_ns
            counts = self.counts[phase]
            self.counts[phase] = [a + b for a, b in zip(counts, other.counts[phase], strict=True)]

    def spread(self, *spent_ns: int) -> None:
        """Count a request that was not fast, by the time that it spent in each phase."""
        for counts, ns in zip(self.counts, spent_ns, strict=True):
            counts[0 if ns <= _LEAST_NS else bisect_left(_BOUNDS_NS, ns)] += 1

    def buckets(self, at: int) -> list[tuple[float, int]]:
        """The histogram of a phase: bounds in ms, the last one infinite, and how many requests took
        no longer than each."""
        counts = accumulate(self.counts[at], initial=self.fast)
        next(counts)
        return list(zip((*BOUNDS_MS, inf), counts, strict=True))


def _known_version(api_key: int, version: int) -> int:
    served = SERVED[ApiKey.API_VERSIONS]
    if api_key == ApiKey.API_VERSIONS and not served.first <= version <= served.last:
        return OTHER_VERSION
    return version


class RequestMetrics:
    """The requests of one network thread, by API."""

    def __init__(self) -> None:
        self.apis: dict[int, ApiMetrics] = {}

    def record(self, exchange: Exchange, sent_ns: int) -> None:
        """Count a request whose answer has left. This runs for every request, so the loops are
        for the slow ones and for those with errors."""
        api = self._counted(exchange.api_key, exchange.api_version)
        answer, throttle_ns = exchange.answer, 0
        if isinstance(answer, Send):
            throttle_ns = answer.throttle_ms * 1_000_000
            for code in answer.errors:
                api.errors[code] = api.errors.get(code, 0) + 1
        received_ns, begun_ns = exchange.received_ns, exchange.begun_ns
        answered_ns, taken_ns = exchange.answered_ns, exchange.taken_ns
        ended_ns = exchange.ended_ns
        if ended_ns == 0 or ended_ns > answered_ns:  # answered before the handler returned
            ended_ns = answered_ns
        queue_ns, remote_ns = begun_ns - received_ns, answered_ns - ended_ns
        total_ns = sent_ns - received_ns
        sums = api.sums_ns
        sums[_LOCAL] += ended_ns - begun_ns
        sums[_RESPONSE_QUEUE] += taken_ns - answered_ns
        sums[_RESPONSE_SEND] += sent_ns - taken_ns
        sums[_TOTAL] += total_ns
        if queue_ns or remote_ns or throttle_ns:
            sums[_QUEUE] += queue_ns
            sums[_REMOTE] += remote_ns
            sums[_THROTTLE] += throttle_ns
        if total_ns <= _LEAST_NS and not throttle_ns:
            api.fast += 1
            return
        api.spread(
            queue_ns,
            ended_ns - begun_ns,
            remote_ns,
            throttle_ns,
            taken_ns - answered_ns,
            sent_ns - taken_ns,
            total_ns,
        )

    def record_fast_path(
        self, key: int, version: int, received_ns: int, answered_ns: int, sent_ns: int
    ) -> None:
        """Count a request that was answered and sent in one go, without an error."""
        api = self._counted(key, version)
        local_ns, send_ns = answered_ns - received_ns, sent_ns - answered_ns
        total_ns = sent_ns - received_ns
        sums = api.sums_ns
        sums[_LOCAL] += local_ns
        sums[_RESPONSE_SEND] += send_ns
        sums[_TOTAL] += total_ns
        if total_ns <= _LEAST_NS:
            api.fast += 1
        else:
            api.spread(0, local_ns, 0, 0, 0, send_ns, total_ns)

    def _counted(self, key: int, version: int) -> ApiMetrics:
        """The numbers of an API, one more request of the version counted."""
        try:
            api = self.apis[key]
            api.versions[version] += 1
        except KeyError:
            api = self.apis.setdefault(key, ApiMetrics())
            known = _known_version(key, version)
            api.versions[known] = api.versions.get(known, 0) + 1
        return api


class ListenerMetrics:
    """The connections of one listener on one network thread."""

    __slots__ = ("bytes_in", "bytes_out", "closed", "opened")

    def __init__(self) -> None:
        self.opened = self.bytes_in = self.bytes_out = 0
        self.closed: Counter[CloseReason] = Counter()

    def add(self, other: ListenerMetrics) -> None:
        """Count what ``other`` has, too."""
        self.closed.update(other.closed.copy())
        self.opened += other.opened
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out


class NetworkMetrics(NamedTuple):
    """The numbers of all threads of a server, and of what it holds now.

    Attributes:
        apis: by key.
        listeners: by name.
        refused: connections that were closed as soon as they came.
        queued: requests in the queue.
        memory_used, memory_bound: bytes of large requests; a bound of 0 is none.
    """

    apis: dict[int, ApiMetrics]
    listeners: dict[str, ListenerMetrics]
    refused: dict[Refusal, int]
    queued: int
    memory_used: int
    memory_bound: int
