"""Answers fetches of followers and consumers, with sessions and without, at once or later."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replication.common.error_codes import ErrorCode
from replication.common.messages import FetchRequest, FetchResponse
from replication.replica_manager.fetch_contexts import FetchContext, open_context
from replication.replica_manager.fetch_reader import FetchReader, PartitionRead, Reads
from replication.replica_manager.fetch_sessions import FetchSessionCache, Look
from replication.replica_manager.purgatory import MAX_WAIT_MS, DelayedOperation
from replication.replica_manager.waiting import BrokerStats, WaitingRequests

Respond = Callable[[FetchResponse], None]


class FetchService:
    """Serves fetches. Thread-safe; the caller holds no lock."""

    def __init__(
        self,
        reader: FetchReader,
        sessions: FetchSessionCache,
        waiting: WaitingRequests,
        stats: BrokerStats,
        now_ms: Callable[[], int],
    ) -> None:
        self.sessions = sessions
        self._reader = reader
        self._waiting = waiting
        self._stats = stats
        self._now_ms = now_ms

    def fetch(self, request: FetchRequest, respond: Respond) -> None:
        """Read for a follower or a consumer, at once or when there is enough (R-92)."""
        if request.min_bytes > request.max_bytes:  # it could never get enough
            request = request._replace(min_bytes=request.max_bytes)
        reader = self._reader
        context = open_context(request, self.sessions, self._now_ms, reader.rack_aware)
        self._waiting.check_sessions()
        if isinstance(context, ErrorCode):
            respond(FetchResponse((), context))
            return
        first = context.first_looks()
        found = reader.read(request, [look.part for look in first])
        context.note(first, found.reads)
        if request.replica_id >= 0:
            self._wake_for_follower(first, found)

        def answer(looks: Sequence[Look], reads: list[PartitionRead]) -> None:
            self._count_reads(request, reads)
            response = context.answer(looks, reads)
            self._waiting.check_sessions()
            respond(response)

        enough = found.size >= request.min_bytes
        nothing_to_wait_for = found.unknown == context.size
        if request.max_wait_ms <= 0 or enough or found.is_final or nothing_to_wait_for:
            answer(first, found.reads)
            return
        operation = DelayedFetch(request, context, reader, answer, self._stats)
        waiting = self._waiting
        purgatory = waiting.follower_fetch if request.replica_id >= 0 else waiting.consumer_fetch
        waiting.add(purgatory, operation, context.keys)

    def _wake_for_follower(self, looks: Sequence[Look], found: Reads) -> None:
        """Check requests that wait for the follower's progress or deletions."""
        for tp in found.hw_moved:
            self._waiting.on_high_watermark(tp)
        if self._waiting.delete_records.delayed:
            for look in looks:
                self._waiting.on_log_start(look.part.tp)

    def _count_reads(self, request: FetchRequest, reads: list[PartitionRead]) -> None:
        size = 0
        for read in reads:
            size += read.size
        if size:
            stats = self._stats
            with stats.lock:
                if request.replica_id >= 0:
                    stats.replication_bytes_out += size
                else:
                    stats.bytes_out += size


class DelayedFetch(DelayedOperation):
    """Waits for ``min_bytes``, or until the requester must be answered (R-93 … R-95).

    Args:
        context: the partitions of the request, and the results of the first read.
    """

    checks_first = False  # it would repeat the read

    def __init__(
        self,
        request: FetchRequest,
        context: FetchContext,
        reader: FetchReader,
        respond: Callable[[Sequence[Look], list[PartitionRead]], None],
        stats: BrokerStats,
    ) -> None:
        super().__init__(min(request.max_wait_ms, MAX_WAIT_MS))
        self._request = request
        self._context = context
        self._reader = reader
        self._respond = respond
        self._stats = stats
        self._looks: Sequence[Look] | None = None  # those that found enough

    def try_complete(self) -> bool:
        if self._context.is_over:
            return self.force_complete()
        request, total = self._request, 0
        looks = self._context.looks()
        for part, read, _ in looks:
            if read is not None and read.is_current():
                total += read.size
                continue
            if read is not None and read.is_unknown and not self._reader.knows(part):
                continue
            available = self._reader.available(request, part)
            if available is None:
                return self.force_complete()
            total += available
        if total < request.min_bytes:
            return False
        self._looks = looks
        return self.force_complete()

    def on_complete(self) -> None:
        looks = self._looks
        if looks is None:
            looks = self._context.looks()
        self._respond(looks, self._reader.read_again(self._request, looks))

    def on_expiration(self) -> None:
        with self._stats.lock:
            if self._request.replica_id >= 0:
                self._stats.follower_fetch_expirations += 1
            else:
                self._stats.consumer_fetch_expirations += 1
