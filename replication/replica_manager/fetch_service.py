"""Answers fetches of followers and consumers, with sessions and without, at once or later."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replication.common.error_codes import ErrorCode
from replication.common.messages import FetchRequest, FetchResponse
from replication.replica_manager.delayed import DelayedFetch
from replication.replica_manager.fetch_contexts import open_context
from replication.replica_manager.fetch_reader import FetchReader, PartitionRead, Reads
from replication.replica_manager.fetch_sessions import FetchSessionCache, Look
from replication.replica_manager.stats import BrokerStats
from replication.replica_manager.waiting import WaitingRequests

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
        first = context.take()
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
        self._waiting.add_fetch(operation, context.keys)

    def _wake_for_follower(self, looks: Sequence[Look], found: Reads) -> None:
        """Check requests that wait for the follower's progress or deletions."""
        for tp in found.hw_moved:
            self._waiting.on_high_watermark(tp)
        if self._waiting.delete_records.delayed:
            for look in looks:
                self._waiting.on_log_start(look.part.tp)

    def _count_reads(self, request: FetchRequest, reads: list[PartitionRead]) -> None:
        size = sum([read.size for read in reads])
        if size:
            stats = self._stats
            with stats.lock:
                if request.replica_id >= 0:
                    stats.replication_bytes_out += size
                else:
                    stats.bytes_out += size
