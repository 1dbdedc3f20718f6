"""A producer in a thread of its own: it sends while brokers come and go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from checkpoints.types import TopicPartition
from examples.demo.flights import Rows
from logstore.common.errors import LogstoreError
from replication.client import Producer

_STALLED_SECONDS = 60.0
_LOOK_SECONDS = 0.02


class StreamError(LogstoreError):
    """The producer ended, or stalled, before its work was done."""


class Stream:
    """Sends the flights, one batch to each partition in turn, and waits for each acknowledgement.

    It runs until ``limit`` records are acknowledged, and continues when the limit is raised. Use it
    as a context manager. The counts may be read on any thread.
    """

    def __init__(
        self, producer: Producer, tps: Sequence[TopicPartition], sent: Sequence[Rows], batch: int
    ) -> None:
        self._producer, self._tps, self._sent, self._batch = producer, tps, sent, batch
        self.acknowledged = [0] * len(tps)
        self.misplaced: list[str] = []  # acknowledged at a wrong offset
        self.seconds = self.slowest_seconds = 0.0
        self._limit, self._next, self._closed = 0, 0, False
        self._error: LogstoreError | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="demo-producer", daemon=True)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def total(self) -> int:
        return sum(self.acknowledged)

    def allow(self, limit: int, first: int | None = None) -> None:
        """Raise the limit.

        ``first`` is the partition to continue with, if the producer is idle now.
        """
        with self._changed:
            self._limit = max(self._limit, limit)
            self._next = self._next if first is None else first
            self._changed.notify_all()

    def lacks(self, number: int) -> bool:
        """Whether there is more to send to a partition."""
        return self.acknowledged[number] < len(self._sent[number])

    def wait_for(self, total: int, advance: Callable[[int], None]) -> None:
        """Wait until ``total`` records are acknowledged. ``advance`` is called with the number.

        Raises:
            StreamError: the producer has ended or stalled.
        """
        before, deadline = -1, 0.0
        while (now := self.total) < total:
            if self._error is not None:
                raise StreamError(f"the producer failed: {self._error}") from self._error
            if now != before:
                before, deadline = now, time.perf_counter() + _STALLED_SECONDS
                advance(now)
            elif time.perf_counter() > deadline:
                raise StreamError(f"nothing acknowledged for {_STALLED_SECONDS:.0f} s")
            with self._changed:
                self._changed.wait(_LOOK_SECONDS)
        advance(self.total)

    def _run(self) -> None:
        try:
            while self._send_next():
                pass
        except LogstoreError as error:
            self._error = error

    def _send_next(self) -> bool:
        """Send one batch to the next partition that lacks records.

        Returns whether there may be more to do.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.total < self._limit)
            number = self._next
            self._next = (number + 1) % len(self._sent)
        if self._closed:
            return False
        if self.lacks(number):
            self._send(number, self._sent[number], self.acknowledged[number])
        return self.total < sum(map(len, self._sent))

    def _send(self, number: int, rows: Rows, start: int) -> None:
        part = slice(start, start + self._batch)
        records = list(zip(rows.keys[part], rows.values[part], rows.timestamps[part], strict=True))
        tp = self._tps[number]
        begun = time.perf_counter()
        info = self._producer.send_batch(tp.topic, tp.partition, records)
        seconds = time.perf_counter() - begun
        if info.base_offset != start:
            self.misplaced.append(f"{tp}: acknowledged at {info.base_offset} in place of {start}")
        with self._changed:
            self.seconds += seconds
            self.slowest_seconds = max(self.slowest_seconds, seconds)
            self.acknowledged[number] += info.record_count
            self._changed.notify_all()
