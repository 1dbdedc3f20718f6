"""Replication quotas: which replicas are throttled, and at what byte rate (R-145, R-146).

Leader and follower have one each, with the same rule: a replica waits if it is listed, the rate is
exceeded, and it is not in sync. Moves between directories have a third, which is for all of them.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Iterable

from checkpoints.types import TopicPartition
from logstore.common.config import MAX_LONG
from logstore.common.errors import ConfigError

_REPLICAS = re.compile(r"(\d+:\d+(,\d+:\d+)*)?", re.ASCII)


class SampledRate:
    """Units a second over the last ``samples`` windows (Kafka's ``SimpleRate``). Not thread-safe.

    A window begins with an event and takes the events of the next ``window_ms``. It counts until
    its last event is older than all windows together. The time is at least one window.
    """

    __slots__ = ("_samples", "_span_ms", "_window_ms")

    def __init__(self, samples: int = 11, window_ms: int = 1000) -> None:
        self._window_ms = window_ms
        self._span_ms = samples * window_ms
        # [first event, last event, sum]; one window more than counted may still overlap the span.
        self._samples: deque[list[int]] = deque(maxlen=samples + 1)

    def record(self, units: int, now_ms: int) -> None:
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._window_ms:
            samples.append([now_ms, now_ms, units])
        else:
            newest = samples[-1]
            newest[1] = now_ms
            newest[2] += units

    def per_second(self, now_ms: int) -> float:
        samples = self._samples
        while samples and now_ms - samples[0][1] >= self._span_ms:
            samples.popleft()
        if not samples:
            return 0.0
        elapsed_ms = max(now_ms - samples[0][0], self._window_ms)
        return sum(sample[2] for sample in samples) * 1000 / elapsed_ms


def parse_throttled_replicas(value: str, broker_id: int) -> tuple[int, ...] | None:
    """The throttled partitions of a topic on a broker; None for all.

    Args:
        value: the topic's ``leader.replication.throttled.replicas`` or
            ``follower.replication.throttled.replicas``: ``*``, or ``partition:broker`` pairs.

    Raises:
        ConfigError: the value is neither.
    """
    value = value.strip()
    if value == "*":
        return None
    if not _REPLICAS.fullmatch(value):
        raise ConfigError(f"throttled replicas {value!r}: neither * nor partition:broker pairs")
    pairs = (pair.split(":") for pair in value.split(",") if pair)
    return tuple(int(partition) for partition, broker in pairs if int(broker) == broker_id)


class ReplicationQuota:
    """The quota of one direction on one broker. Thread-safe.

    Args:
        rate: bytes a second; Kafka's ``MAX_LONG`` is no limit.
        now_ms: monotonic ms.
        lists_all: list all partitions of all topics.
    Attributes:
        is_set: whether another rate was set since.
        lists_any: whether any partition is listed. If none is, no fetch need look further.
    """

    def __init__(self, rate: int, now_ms: Callable[[], int], *, lists_all: bool = False) -> None:
        self.is_set = False
        self.lists_any = self._lists_all = lists_all
        self._configured = self._rate = rate
        self._now_ms = now_ms
        self._listed: dict[str, frozenset[int] | None] = {}
        self._measured = SampledRate()
        self._lock = threading.Lock()

    @property
    def rate(self) -> int:
        return self._rate

    def set_rate(self, rate: int | None) -> None:
        """Change the rate; None is that of the configuration again."""
        self.is_set = rate is not None
        self._rate = self._configured if rate is None else rate

    def throttle(self, topic: str, partitions: Iterable[int] | None) -> None:
        """Replace the listed partitions of a topic; None lists all."""
        listed = None if partitions is None else frozenset(partitions)
        with self._lock:
            if listed is not None and not listed:
                self._listed.pop(topic, None)
            else:
                self._listed[topic] = listed
            self.lists_any = self._lists_all or bool(self._listed)

    def is_throttled(self, tp: TopicPartition) -> bool:
        """Whether the partition's replica here is listed."""
        if self._lists_all:
            return True
        listed = self._listed
        if not listed or tp.topic not in listed:
            return False
        partitions = listed.get(tp.topic, frozenset())
        return partitions is None or tp.partition in partitions

    def record(self, tp: TopicPartition, size: int) -> None:
        """Count bytes of a listed replica, in sync or not. Bytes of others are free."""
        if self.is_throttled(tp):
            with self._lock:
                self._measured.record(size, self._now_ms())

    def is_exceeded(self) -> bool:
        return self._rate < MAX_LONG and self.lists_any and self.byte_rate > self._rate

    @property
    def byte_rate(self) -> float:
        """Bytes a second of listed replicas (R-167)."""
        with self._lock:
            return self._measured.per_second(self._now_ms())

    def must_wait(self, tp: TopicPartition, in_sync: bool) -> bool:
        """Whether a replica waits: it is listed, not in sync, and the rate is exceeded (R-145)."""
        return not in_sync and self.is_throttled(tp) and self.is_exceeded()
