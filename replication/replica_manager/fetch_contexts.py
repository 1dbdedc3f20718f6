"""The context of a fetch request: which partitions to read, and which of them to answer (Kafka's
``FetchContext``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    CONSUMER,
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    NO_SESSION,
    FetchRequest,
    FetchResponse,
    IsolationLevel,
    next_session_epoch,
)
from replication.replica_manager.fetch_reader import PartitionRead
from replication.replica_manager.fetch_sessions import (
    CachedPartition,
    FetchSession,
    FetchSessionCache,
    Look,
)


class FetchContext:
    """One request from its arrival to its answer.

    Without a session: all partitions are in the request, and in the answer.

    Attributes:
        is_over: whether its session has continued or ended without it, so that it need not wait.
    """

    is_over = False

    def __init__(self, request: FetchRequest) -> None:
        self._request = request
        self._looks: list[Look] = []

    @property
    def keys(self) -> Sequence[Hashable]:
        """The keys under which it waits."""
        return [part.tp for part in self._request.partitions]

    @property
    def size(self) -> int:
        """The number of partitions it is about, also those of its session that need no read."""
        return len(self._request.partitions)

    def first_looks(self) -> list[Look]:
        """The partitions to read first."""
        return [Look(part, None) for part in self._request.partitions]

    def note(self, looks: Sequence[Look], reads: Sequence[PartitionRead]) -> None:
        """Note the results of a read."""
        self._looks = [Look(look.part, read) for look, read in zip(looks, reads, strict=True)]

    def looks(self) -> list[Look]:
        """The partitions to answer after a wait, with the earlier results.

        From now on waiters under ``keys`` are notified of changes.
        """
        return self._looks

    def answer(self, looks: Sequence[Look], reads: Sequence[PartitionRead]) -> FetchResponse:
        return FetchResponse(tuple([read.response for read in reads]))


class FullFetch(FetchContext):
    """Opens a session."""

    def __init__(
        self, request: FetchRequest, sessions: FetchSessionCache, now_ms: Callable[[], int]
    ) -> None:
        super().__init__(request)
        self._sessions = sessions
        self._now_ms = now_ms

    def answer(self, looks: Sequence[Look], reads: Sequence[PartitionRead]) -> FetchResponse:
        parts = tuple([read.response for read in reads])
        session_id = self._sessions.create(self._request, parts, self._now_ms())
        return FetchResponse(parts, session_id=session_id)


class IncrementalFetch(FetchContext):
    """Reads the active partitions of a session, and answers those with changes (R-142)."""

    def __init__(
        self, request: FetchRequest, session: FetchSession, now_ms: int, may_redirect: bool
    ) -> None:
        super().__init__(request)
        self._session = session
        self._epoch = next_session_epoch(request.session_epoch)  # while none came after it
        self._now_ms = now_ms
        # The preferred replica may change without a change of the partition.
        self._may_idle = not (may_redirect and session.replica_id == CONSUMER and request.rack_id)
        self._found: dict[CachedPartition, Look] = {}

    @property
    def keys(self) -> Sequence[Hashable]:
        return (self._session,)

    @property
    def size(self) -> int:
        return len(self._session.partitions)

    @property
    def is_over(self) -> bool:  # type: ignore[override]
        session = self._session
        return session.closed or session.epoch != self._epoch

    def first_looks(self) -> list[Look]:
        session = self._session
        with session.lock:
            active = session.due()
            for cached in active:
                cached.stop_noting()
        return [Look(cached.part, None, cached) for cached in active]

    def note(self, looks: Sequence[Look], reads: Sequence[PartitionRead]) -> None:
        session, found = self._session, self._found
        with session.lock:
            if self.is_over:
                return
            for (part, _, cached), read in zip(looks, reads, strict=True):
                assert cached is not None
                found[cached] = Look(part, read, cached)
                if cached.would_repeat(read.response) and self._is_at_the_end(cached, read):
                    session.deactivate(cached, read)
            # All resting partitions were fetched, too, at the time before these reads.
            session.fetched_ms = max(session.fetched_ms, self._now_ms)

    def _is_at_the_end(self, cached: CachedPartition, read: PartitionRead) -> bool:
        if not self._may_idle or read.partition is None:
            return False
        response = read.response
        if self._request.replica_id >= 0:
            limit = read.log_end
        elif self._request.isolation_level is IsolationLevel.READ_COMMITTED:
            limit = response.last_stable_offset
        else:
            limit = response.high_watermark
        return cached.part.fetch_offset >= limit

    def looks(self) -> list[Look]:
        session, found = self._session, self._found
        with session.lock:
            if self.is_over:
                return []
            session.waits = True  # first, so that changes from now on wake us
            looks = []
            for cached in session.due():
                look = found.get(cached) or Look(cached.part, None, cached)
                cached.watch(look.read)
                looks.append(look)
            return looks

    def answer(self, looks: Sequence[Look], reads: Sequence[PartitionRead]) -> FetchResponse:
        session = self._session
        parts = []
        with session.lock:
            if session.closed:
                return FetchResponse((), ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            if self.is_over:  # another request of the session overtook this one
                return FetchResponse((), ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            session.waits = False
            for (_, _, cached), read in zip(looks, reads, strict=True):
                assert cached is not None
                if not cached.would_repeat(read.response):
                    cached.note_answer(read.response)
                    parts.append(read.response)
                    if read.size and cached in session.active:
                        del session.active[cached]  # it comes last next time
                        session.active[cached] = None
                elif self._is_at_the_end(cached, read):
                    session.deactivate(cached, read)
        return FetchResponse(tuple(parts), session_id=session.id)


def open_context(
    request: FetchRequest,
    sessions: FetchSessionCache,
    now_ms: Callable[[], int],
    may_redirect: bool,
) -> FetchContext | ErrorCode:
    """The context of a request (R-141), or an error code if its session does not match."""
    if request.session_epoch in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
        if request.session_id != NO_SESSION:
            sessions.close(request)
        if request.session_epoch == FINAL_SESSION_EPOCH:
            return FetchContext(request)
        return FullFetch(request, sessions, now_ms)
    now = now_ms()
    session = sessions.begin(request, now)
    if isinstance(session, ErrorCode):
        return session
    if session.closed:  # its last partition was forgotten
        return FetchContext(request)
    return IncrementalFetch(request, session, now, may_redirect)
