"""Fetch sessions of a leader (KIP-227): partitions without changes are not requested, read or
answered.

A session has the partitions that its owner fetches, and the last answer for each. A partition
*rests* if its answer would be the same as the last one. It is not read until its log or its role
reports a change. The fetches of its follower are noted by one time of the session
(``isr.IdleFetch``). All other partitions are *active*, and each fetch reads them.

Locks: cache, then session, then partition and log. Notifications come under the locks of a log or a
partition, so their callbacks take no lock: they enter the partition in a dict, which is one atomic
operation.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from checkpoints.types import TopicPartition
from logstore.log import PartitionLog
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    INITIAL_SESSION_EPOCH,
    MAX_SESSION_EPOCH,
    NO_SESSION,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    next_session_epoch,
)
from replication.common.state import UNKNOWN_EPOCH
from replication.decisions.isr import NEVER_MS
from replication.partition import Partition
from replication.replica_manager.fetch_reader import PartitionRead
from replication.replica_manager.metadata_cache import MetadataCache

MIN_EVICTION_MS = 120_000
"""A session that was idle for this long may be evicted; a younger one not because of its size."""
MAX_PARTITIONS = 200_000
"""The most partitions of a session. A larger request is answered without a session."""

Key = tuple[int | str, int]
"""With the topic id, because a topic that was created again has other partitions, and because one
that is named by its id may get its name while the session lasts."""


def _key(tp: TopicPartition, topic_id: uuid.UUID | None) -> Key:
    return tp.topic if topic_id is None else topic_id.int, tp.partition


class CachedPartition:
    """One partition of a session; ``isr.IdleFetch`` of its follower while it rests."""

    __slots__ = (
        "_log",
        "_log_start",
        "_on_log",
        "_on_role",
        "_partition",
        "_sent",
        "_session",
        "_watches_role",
        "is_forgotten",
        "key",
        "part",
    )

    def __init__(self, session: FetchSession, part: FetchPartition) -> None:
        self.part, self.key = part, _key(part.tp, part.topic_id)
        self.is_forgotten = False  # not in the session any more
        self._session = session
        self._sent: tuple[int, int, int] | None = None  # high watermark, stable offset, log start
        self._partition: Partition | None = None  # the last read
        self._log: PartitionLog | None = None  # where we wait for the next change
        self._watches_role = False
        self._on_log, self._on_role = self._log_changed, self._role_changed  # hashed by identity

    @property
    def fetched_ms(self) -> int:
        return self._session.fetched_ms

    # -- notifications, under locks of others
    # ---------------------------------------------------------------

    def wake(self) -> None:
        """Make the partition active again."""
        session = self._session
        session.active[self] = None
        session.stir()

    def _log_changed(self) -> None:
        self._log, session = None, self._session
        session.active[self] = None  # as ``wake``: this is called at each append
        if session.waits:
            session.waits = False
            session.stirred.append(session)

    def _role_changed(self) -> None:
        self._watches_role = False
        self.wake()

    # -- under the lock of the session -------------------------------------------------------------

    def answer_anyway(self, part: FetchPartition) -> None:
        """Answer a partition that a request names, changed or not, because its owner may have
        dropped an answer.
        """
        self.part, self._sent = part, None

    def watch(self, read: PartitionRead | None) -> None:
        """Wait for the next change of a read, or of the previous read."""
        if read is not None and read.partition is not self._partition:
            self.release()
            self._partition = read.partition
        partition = self._partition
        if partition is None:
            return
        if not self._watches_role:
            self._watches_role = True
            partition.listeners.add(self._on_role)
        log = partition.log if read is None else read.log
        if log is not None and log is not self._log:
            if self._log is not None:
                self._log.core.listeners.discard(self._on_log)
            self._log = log
            log.core.listeners.add(self._on_log)

    def note_by(self, partition: Partition) -> bool:
        """Let the session note the fetches of the follower. False if it is not in sync."""
        session = self._session
        if session.replica_id < 0:
            return True
        return partition.isr_changes.let_follower_idle(
            session.replica_id, self.part.fetch_offset, self
        )

    def stop_noting(self) -> None:
        """Stop that, and keep the progress that the session has noted."""
        if self._partition is not None and self._session.replica_id >= 0:
            self._partition.isr_changes.wake_follower(self._session.replica_id, self)

    def release(self) -> None:
        """Unregister from everything that knows this partition."""
        partition, log = self._partition, self._log
        if partition is not None:
            self.stop_noting()
            partition.listeners.discard(self._on_role)
        if log is not None:
            log.core.listeners.discard(self._on_log)
        self._partition, self._log, self._watches_role = None, None, False

    def would_repeat(self, response: FetchPartitionResponse) -> bool:
        """Whether an answer would equal the last one."""
        return (
            not len(response.records)
            and response.error_code is ErrorCode.NONE
            and response.diverging_epoch is None
            and response.preferred_read_replica < 0
            and self._sent
            == (response.high_watermark, response.last_stable_offset, response.log_start_offset)
        )

    def note_answer(self, response: FetchPartitionResponse) -> None:
        self._sent = None
        if response.error_code is ErrorCode.NONE and response.diverging_epoch is None:
            start = response.log_start_offset
            self._sent = response.high_watermark, response.last_stable_offset, start


class Look(NamedTuple):
    """A partition to read. ``read`` is the earlier result; ``cached`` is None without a session."""

    part: FetchPartition
    read: PartitionRead | None
    cached: CachedPartition | None = None


class FetchSession:
    """
    Attributes:
        epoch: the epoch of the next request.
        fetched_ms: the owner's last fetch, which counts for all resting partitions.
        active: partitions to read, in their order.
        waits: whether a fetch of it waits. Then a change enters the session in ``stirred``.
    """

    def __init__(
        self,
        session_id: int,
        request: FetchRequest,
        privileged: bool,
        now_ms: int,
        stirred: deque[FetchSession],
    ) -> None:
        self.id = session_id
        self.replica_id = request.replica_id
        self.replica_epoch = request.replica_epoch
        self.names_by_id = request.names_by_id
        self.privileged = privileged
        self.created_ms = self.used_ms = now_ms
        self.epoch = next_session_epoch(INITIAL_SESSION_EPOCH)
        self.fetched_ms = NEVER_MS
        self.partitions: dict[Key, CachedPartition] = {}
        self.active: dict[CachedPartition, None] = {}
        self.waits = False
        self.stirred = stirred
        self.closed = False
        self.lock = threading.Lock()
        self._manner = _manner(request)

    def __repr__(self) -> str:
        return f"FetchSession({self.id}, of {self.replica_id}, next epoch {self.epoch})"

    def stir(self) -> None:
        """Have a waiting fetch checked again. Takes no lock."""
        if self.waits:
            self.waits = False
            self.stirred.append(self)

    def update(self, request: FetchRequest) -> None:
        """Apply the changes of a request. The lock is held."""
        self.stir()  # a waiting fetch is superseded
        partitions, active = self.partitions, self.active
        for part in request.partitions:
            cached = partitions.get(_key(part.tp, part.topic_id))
            if cached is None:
                cached = CachedPartition(self, part)
                partitions[cached.key] = cached
            else:
                cached.answer_anyway(part)
            active[cached] = None
        for tp, topic_id in request.forgotten:
            gone = partitions.pop(_key(tp, topic_id), None)
            if gone is not None:
                gone.is_forgotten = True
                gone.release()
                active.pop(gone, None)
        manner = _manner(request)
        if manner != self._manner:  # another part of each log may be read
            self._manner = manner
            active.update(dict.fromkeys(partitions.values()))

    def due(self) -> list[CachedPartition]:
        """The partitions to read now. The lock is held."""
        due = []
        for cached in list(self.active):
            if cached.is_forgotten:  # a notification came meanwhile
                del self.active[cached]
            else:
                due.append(cached)
        return due

    def deactivate(self, cached: CachedPartition, read: PartitionRead) -> None:
        """Deactivate a partition whose answer has no changes. The lock is held."""
        partition = read.partition
        if partition is None or self.closed:
            return
        self.active.pop(cached, None)
        # It registers first, and then checks for an earlier change.
        cached.watch(read)
        if not cached.note_by(partition) or not read.is_current():
            self.active[cached] = None

    def close(self) -> None:
        with self.lock:
            self.closed = True
            self.stir()
            for cached in self.partitions.values():
                cached.is_forgotten = True
                cached.release()
            self.partitions.clear()
            self.active.clear()


def _manner(request: FetchRequest) -> tuple[int, str]:
    return request.isolation_level, request.rack_id


class _Worth(NamedTuple):
    """The order of eviction, the least first (R-144)."""

    privileged: bool
    partitions: int
    session_id: int


class FetchSessionCache:
    """All sessions of a broker, at most ``slots``. Thread-safe.

    Attributes:
        stirred: sessions whose waiting fetch must be checked again. The cause of a change processes
            them once it holds no lock.
        evictions: how many sessions were evicted for others.
    """

    def __init__(self, slots: int, metadata: MetadataCache, source: random.Random) -> None:
        self.stirred: deque[FetchSession] = deque()
        self.evictions = 0
        self._slots = slots
        self._metadata = metadata
        # Random, so that a session from before a restart is not taken for a later one.
        self._random = source
        self._sessions: dict[int, FetchSession] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """The number of partitions of all sessions."""
        return sum(len(session.partitions) for session in list(self._sessions.values()))

    def create(
        self, request: FetchRequest, answers: Iterable[FetchPartitionResponse], now_ms: int
    ) -> int:
        """Create a session from a full request and its answers.

        Returns its id; ``NO_SESSION`` if there is no room.
        """
        size = len(request.partitions)
        if not 0 < size <= MAX_PARTITIONS:
            return NO_SESSION
        privileged = request.replica_id >= 0 and self._metadata.is_alive(request.replica_id)
        with self._lock:
            evicted = None
            if len(self._sessions) >= self._slots:
                evicted = self._least(_Worth(privileged, size, 0), now_ms)
                if evicted is None:
                    return NO_SESSION
                del self._sessions[evicted.id]
                self.evictions += 1
            session_id = self._new_id()
            session = FetchSession(session_id, request, privileged, now_ms, self.stirred)
            for part, response in zip(request.partitions, answers, strict=True):
                cached = CachedPartition(session, part)
                cached.note_answer(response)
                session.partitions[cached.key] = cached
                session.active[cached] = None
            self._sessions[session_id] = session
        if evicted is not None:
            evicted.close()
        return session_id

    def _new_id(self) -> int:
        while True:
            session_id = self._random.randrange(1, MAX_SESSION_EPOCH)
            if session_id not in self._sessions:
                return session_id

    def _least(self, worth: _Worth, now_ms: int) -> FetchSession | None:
        """The session that a new one may evict: a stale one, or one of less worth, which must not
        be young unless a broker evicts a consumer (Kafka's ``tryEvict``).
        """
        sessions = self._sessions.values()
        stalest = min(sessions, key=lambda s: s.used_ms, default=None)
        if stalest is None or now_ms - stalest.used_ms > MIN_EVICTION_MS:
            return stalest
        candidates = [
            (_Worth(s.privileged, len(s.partitions), s.id), s)
            for s in sessions
            if now_ms - s.created_ms > MIN_EVICTION_MS or (worth.privileged and not s.privileged)
        ]
        least = min(candidates, key=lambda c: c[0], default=None)
        return None if least is None or worth < least[0] else least[1]

    def close(self, request: FetchRequest) -> None:
        """End the session that a full or last request names, if it is its own."""
        session = self._sessions.get(request.session_id)
        if session is not None and session.replica_id == request.replica_id:
            self.remove(session)

    def remove(self, session: FetchSession) -> None:
        with self._lock:
            if self._sessions.get(session.id) is session:
                del self._sessions[session.id]
        session.close()

    def begin(self, request: FetchRequest, now_ms: int) -> FetchSession | ErrorCode:
        """Begin an incremental request and apply its changes (R-141).

        Returns its session or an error code.
        """
        session = self._sessions.get(request.session_id)
        if session is None or not self._is_owner(session, request):
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        with session.lock:
            if session.closed:
                return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            if request.session_epoch != session.epoch:
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH
            if request.names_by_id is not session.names_by_id:
                return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
            session.epoch = next_session_epoch(session.epoch)
            session.update(request)
            session.used_ms = now_ms
            size = len(session.partitions)
        if size > MAX_PARTITIONS:
            self.remove(session)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if not size:
            self.remove(session)
        return session

    def _is_owner(self, session: FetchSession, request: FetchRequest) -> bool:
        owner = request.replica_id, request.replica_epoch
        if owner != (session.replica_id, session.replica_epoch):
            return False
        if session.replica_id >= 0 and (
            UNKNOWN_EPOCH != session.replica_epoch < self._metadata.broker_epoch(session.replica_id)
        ):
            # The incarnation has ended. Its fetches are not noted any more.
            self.remove(session)
            return False
        return True

    def shutdown(self) -> None:
        with self._lock:
            sessions = list(self._sessions.values())
            self._sessions.clear()
        for session in sessions:
            session.close()
