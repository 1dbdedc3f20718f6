"""Fetch sessions of a leader (KIP-227): what did not change is not asked, looked at or answered.

A session knows the partitions that its owner fetches, and what it told of each. A partition
*rests* where its answer would be what was told last. It is then not looked at until its log or its
role say that something changed; its follower's fetches are noted by the one time of the session
(``isr.IdleFetch``). All others are *active*, and each fetch looks at them.

Locks: cache, then session, then partition and log. News come under the locks of a log or a
partition, so what they call takes no lock: it enters the partition in a dict, which is one
operation of the interpreter.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from checkpoints.types import TopicPartition
from logstore.log import ReplicaLog
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
"""A session that nobody used for so long may go; a younger one not because of its size."""
MAX_PARTITIONS = 200_000
"""Of one session: who asks for more is answered without one."""

Key = tuple[TopicPartition, uuid.UUID | None]
"""A topic's second life is another partition."""


class CachedPartition:
    """One partition of a session; ``isr.IdleFetch`` of its follower while it rests."""

    __slots__ = (
        "_hears_role",
        "_log",
        "_log_start",
        "_on_log",
        "_on_role",
        "_partition",
        "_session",
        "_told",
        "part",
    )

    def __init__(self, session: FetchSession, part: FetchPartition) -> None:
        self.part = part
        self._session = session
        self._told: tuple[int, int, int] | None = None  # high watermark, stable offset, log start
        self._partition: Partition | None = None  # as it was found last
        self._log: ReplicaLog | None = None  # whose next change we hear
        self._hears_role = False
        self._on_log, self._on_role = self._log_changed, self._role_changed  # found by identity

    @property
    def fetched_ms(self) -> int:
        return self._session.fetched_ms

    # -- news: under locks of others ---------------------------------------------------------------

    def wake(self) -> None:
        """It does not rest any more."""
        session = self._session
        session.active[self] = None
        session.stir()

    def _log_changed(self) -> None:
        self._log = None
        self.wake()

    def _role_changed(self) -> None:
        self._hears_role = False
        self.wake()

    # -- under the lock of the session -------------------------------------------------------------

    def ask(self, part: FetchPartition) -> None:
        """What a request names is answered, new or not: its owner may have dropped an answer."""
        self.part, self._told = part, None

    def watch(self, read: PartitionRead | None) -> None:
        """Hear of the next change of what was found, or of what was found before."""
        if read is not None and read.partition is not self._partition:
            self.let_go()
            self._partition = read.partition
        partition = self._partition
        if partition is None:
            return
        if not self._hears_role:
            self._hears_role = True
            partition.news.add(self._on_role)
        log = partition.log if read is None else read.log
        if log is not None and log is not self._log:
            if self._log is not None:
                self._log.news.discard(self._on_log)
            self._log = log
            log.news.add(self._on_log)

    def note_by(self, partition: Partition) -> bool:
        """From now on the fetches of its follower are noted by the session; False: not in sync."""
        session = self._session
        if session.replica_id < 0:
            return True
        return partition.rest_follower(session.replica_id, self.part.fetch_offset, self)

    def stop_noting(self) -> None:
        """Its follower's progress is what the session noted of it so far."""
        if self._partition is not None and self._session.replica_id >= 0:
            self._partition.rouse_follower(self._session.replica_id, self)

    def let_go(self) -> None:
        """Of all who know us."""
        partition, log = self._partition, self._log
        if partition is not None:
            self.stop_noting()
            partition.news.discard(self._on_role)
        if log is not None:
            log.news.discard(self._on_log)
        self._partition, self._log, self._hears_role = None, None, False

    def is_told(self, response: FetchPartitionResponse) -> bool:
        """Whether an answer would say nothing new."""
        return (
            not len(response.records)
            and response.error_code is ErrorCode.NONE
            and response.diverging_epoch is None
            and response.preferred_read_replica < 0
            and self._told == _watermarks(response)
        )

    def tell(self, response: FetchPartitionResponse) -> None:
        ends = response.error_code is ErrorCode.NONE and response.diverging_epoch is None
        self._told = _watermarks(response) if ends else None


def _watermarks(response: FetchPartitionResponse) -> tuple[int, int, int]:
    return response.high_watermark, response.last_stable_offset, response.log_start_offset


class Look(NamedTuple):
    """A partition to look at; ``read``: what was found before; ``cached``: None without session."""

    part: FetchPartition
    read: PartitionRead | None
    cached: CachedPartition | None = None


class FetchSession:
    """
    Attributes:
        epoch: of the request that comes next.
        fetched_ms: when its owner fetched last, and with that all partitions that rest.
        active: partitions to look at, in the order in which they come to their turn.
        waits: a fetch of it waits; what stirs it is entered in ``stirred``.
    """

    def __init__(
        self, session_id: int, request: FetchRequest, privileged: bool, now_ms: int,
        stirred: deque[FetchSession],
    ) -> None:  # fmt: skip
        self.id = session_id
        self.replica_id = request.replica_id
        self.replica_epoch = request.replica_epoch
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
        """Let a fetch that waits look again. It takes no lock."""
        if self.waits:
            self.waits = False
            self.stirred.append(self)

    def update(self, request: FetchRequest) -> None:
        """What the owner changes; the caller holds the lock."""
        self.stir()  # a fetch that waits is overtaken
        partitions, active = self.partitions, self.active
        for part in request.partitions:
            key = part.tp, part.topic_id
            cached = partitions.get(key)
            if cached is None:
                cached = partitions[key] = CachedPartition(self, part)
            else:
                cached.ask(part)
            active[cached] = None
        for key in request.forgotten:
            gone = partitions.pop(key, None)
            if gone is not None:
                gone.let_go()
                active.pop(gone, None)
        manner = _manner(request)
        if manner != self._manner:  # what may be read is another part of each log
            self._manner = manner
            active.update(dict.fromkeys(partitions.values()))

    def due(self) -> list[CachedPartition]:
        """Whom to look at now; the caller holds the lock."""
        due = []
        for cached in list(self.active):
            part = cached.part
            if self.partitions.get((part.tp, part.topic_id)) is cached:
                due.append(cached)
            else:  # news of it were on their way when it was forgotten
                del self.active[cached]
        return due

    def rest(self, cached: CachedPartition, read: PartitionRead) -> None:
        """Let a partition rest whose answer says nothing new. The caller holds the lock."""
        partition = read.partition
        if partition is None or self.closed:
            return
        self.active.pop(cached, None)
        # First it hears, then it looks whether something was said before it could.
        cached.watch(read)
        if not cached.note_by(partition) or not read.is_current():
            self.active[cached] = None

    def close(self) -> None:
        with self.lock:
            self.closed = True
            self.stir()
            for cached in self.partitions.values():
                cached.let_go()
            self.partitions.clear()
            self.active.clear()


def _manner(request: FetchRequest) -> tuple[int, str]:
    return request.isolation_level, request.rack_id


class _Worth(NamedTuple):
    """The least goes first (R-144)."""

    privileged: bool
    partitions: int
    session_id: int


class FetchSessionCache:
    """All sessions of a broker, at most ``slots``. Safe from any thread.

    Attributes:
        stirred: sessions whose waiting fetch should look again; whoever causes news takes them out
            when it holds no lock any more.
        evictions: sessions that had to go for others.
    """

    def __init__(self, slots: int, metadata: MetadataCache, source: random.Random) -> None:
        self.stirred: deque[FetchSession] = deque()
        self.evictions = 0
        self._slots = slots
        self._metadata = metadata
        # Random, so that a session of before a restart is not taken for another one of after it.
        self._random = source
        self._sessions: dict[int, FetchSession] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions(self) -> int:
        """Of all sessions together."""
        return sum(len(session.partitions) for session in list(self._sessions.values()))

    def create(
        self, request: FetchRequest, told: Iterable[FetchPartitionResponse], now_ms: int
    ) -> int:
        """The id of a new session with the partitions of a full request and what was answered to
        it; ``NO_SESSION`` if there is no room."""
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
            for part, response in zip(request.partitions, told, strict=True):
                cached = CachedPartition(session, part)
                cached.tell(response)
                session.partitions[part.tp, part.topic_id] = cached
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
        """Whom a new session may push out: one that is stale; or one of less worth, which is not
        new unless a broker pushes out a consumer (Kafka's ``tryEvict``)."""
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
        """The session of an incremental request, with what the request changes (R-141)."""
        session = self._sessions.get(request.session_id)
        if session is None or not self._is_owner(session, request):
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        with session.lock:
            if session.closed:
                return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            if request.session_epoch != session.epoch:
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH
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
            # An incarnation that is over. Nothing of it is noted as a fetch any more.
            self.remove(session)
            return False
        return True

    def shutdown(self) -> None:
        with self._lock:
            sessions = list(self._sessions.values())
            self._sessions.clear()
        for session in sessions:
            session.close()
