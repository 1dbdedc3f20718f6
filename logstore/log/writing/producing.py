"""Appends that may be retried, because the log recognises those it has (F-182 … F-186)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from logstore.common.config import MAX_LONG
from logstore.common.errors import InvalidProducerEpochError, InvalidRecordError
from logstore.common.locks import Rank, make_lock
from logstore.common.shield import shielded
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.format.header import add_sequence
from logstore.kernels import AppendInfo
from logstore.log.core import LogCore
from logstore.log.writing.flushing import LogFlusher
from logstore.log.writing.state import LogState
from logstore.log.writing.writer import LogWriter
from logstore.segments.producer_state import (
    MAX_EPOCH,
    ProducerEntry,
    ProducerStateManager,
    VerificationStateEntry,
)

_NAMED = 1 << 62  # ids of names lie above those that a Kafka cluster hands out


def id_of_name(name: str) -> int:
    """The producer id of a name. It is always the same, and far from ids that a cluster assigns."""
    import hashlib  # OpenSSL with it: 4 MB, and a tenth of a second, that few processes need

    digest = hashlib.sha256(name.encode()).digest()
    return _NAMED | (int.from_bytes(digest[:8], "big") & (_NAMED - 1))


def is_id_of_name(producer_id: int) -> bool:
    """Whether it lies among the ids of names."""
    return producer_id >= _NAMED


class LogProducer:
    """Appends of one producer. Each is in the log at most once.

    The sequence number of a batch is that of its first record, counted from 0 over the producer's
    life. If one of the last five batches has the same sequence and number of records, the batch is
    not appended again: the result has the old offsets and ``duplicate``. To retry after an error
    with an unknown outcome, give the ``sequence`` of the first attempt.

    Any thread may call. A newer producer of the same id fences this one. A log of a manager forgets
    a producer that is silent for ``producer.id.expiration.ms``.
    """

    def __init__(
        self,
        core: LogCore,
        state: LogState,
        writer: LogWriter,
        flusher: LogFlusher,
        producer_id: int,
        older: LogProducer | None,
    ) -> None:
        """``older`` is the producer that this one fences."""
        self.producer_id = producer_id
        self._core = core
        self._state = state
        self._writer = writer
        self._flusher = flusher
        self._lock = make_lock(Rank.PRODUCER)
        self._fenced = False
        self.epoch: int
        epoch = 0
        if older is not None:
            older._fence()
        with state.lock:
            known = state.producers.producers.get(producer_id)
            if known is not None:
                epoch = max(known.producer_epoch, 0)
        if older is not None:
            epoch = max(epoch, older.epoch) + 1
        if epoch > MAX_EPOCH:
            raise InvalidProducerEpochError(
                f"producer {producer_id} has used all epochs up to {MAX_EPOCH}"
            )
        self.epoch = epoch
        self._next = 0  # after the last append, if the log has forgotten the producer

    def __repr__(self) -> str:
        return f"LogProducer({self.producer_id}, epoch={self.epoch}, next={self.next_sequence})"

    def _fence(self) -> None:
        with self._lock:
            self._fenced = True

    @property
    def next_sequence(self) -> int:
        """The number of records appended since the epoch began, modulo 2³¹.

        Those that retention has deleted count too. It is the sequence of the next record. After a
        restart a producer that was not fenced continues where the log ends.
        """
        with self._state.lock:
            known = self._state.producers.producers.get(self.producer_id)
            if known is None:
                return self._next
            if known.producer_epoch != self.epoch or not known.batches:
                return 0
            return add_sequence(known.last_sequence, 1)

    def append(
        self,
        records: Sequence[tuple[Any, ...]],
        *,
        sequence: int | None = None,
        sync: bool = False,
        compression: Compression = Compression.NONE,
    ) -> AppendInfo:
        """Append records as one batch, unless the log has it already.

        Args:
            sequence: of the first record; ``next_sequence`` by default.
            sync: wait until the batch is durable, also if it was appended before.
        Raises:
            InvalidProducerEpochError: a newer producer of this id has taken over.
            OutOfOrderSequenceError: the sequence leaves a gap, or belongs to a batch so old that
                the log does not remember it.
            RecordRejectedError: a record breaks a rule. After these three errors nothing was
            appended.
            StorageFailedError, ResourceBusyError: the outcome may be unknown.
        """
        if sequence is not None and not 0 <= sequence < 2**31:
            raise InvalidRecordError(f"sequence {sequence} is not in [0, 2^31)")
        with self._lock:
            if self._fenced:
                raise InvalidProducerEpochError(
                    f"producer {self.producer_id} epoch {self.epoch} was fenced by a newer one"
                )
            first = self.next_sequence if sequence is None else sequence
            batch = encode_batch(
                records,
                compression=compression,
                default_timestamp=self._core.clock.wall_ms(),
                keys_required=self._core.config.compact,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=first,
            )
            info = self._writer.append_own(batch, None)
            if not info.duplicate:
                self._next = add_sequence(first, info.record_count)
        self._flusher.after_append(info.last_offset, sync=sync)
        return info


class LogProducers:
    """The producers of a log: what it knows of each, and handles that append as one of them."""

    def __init__(
        self, core: LogCore, state: LogState, writer: LogWriter, flusher: LogFlusher
    ) -> None:
        self._core = core
        self._state = state
        self._writer = writer
        self._flusher = flusher
        self._lock = make_lock(Rank.PRODUCERS)
        # Made with the first handle, as most logs have none.
        self._handles: WeakValueDictionary[int, LogProducer] | None = None

    @shielded
    def open(self, producer: int | str) -> LogProducer:
        """Open a handle, as `PartitionLog.producer`."""
        producer_id = check_producer_id(producer)
        with self._lock:
            self._core.check()
            if self._handles is None:
                self._handles = WeakValueDictionary()
            older = self._handles.get(producer_id)
            made = LogProducer(
                self._core, self._state, self._writer, self._flusher, producer_id, older
            )
            self._handles[producer_id] = made
        return made

    @property
    def known(self) -> ProducerStateManager:
        """The state of all producers of the log; another object after a truncation."""
        return self._state.producers

    def entries(self) -> list[ProducerEntry]:
        """Copies of the state of each producer, by producer id."""
        with self._state.lock:
            known = self._state.producers.producers
            return [known[producer_id].copy() for producer_id in sorted(known)]

    def largest_id(self) -> int:
        """Return the largest id of those that a cluster hands out; −1 without any."""
        with self._state.lock:
            known = self._state.producers.producers
            return max((each for each in known if not is_id_of_name(each)), default=-1)

    def largest_coordinator_epoch(self) -> int:
        """Return the largest coordinator epoch of the producers' last markers; −1 without any."""
        with self._state.lock:
            known = self._state.producers.producers.values()
            return max((each.coordinator_epoch for each in known), default=-1)

    def begin_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, *, bumps_epoch: bool
    ) -> VerificationStateEntry | None:
        """See ``ProducerStateManager.begin_verification``."""
        with self._state.lock:
            return self._state.producers.begin_verification(
                producer_id,
                producer_epoch,
                sequence,
                bumps_epoch=bumps_epoch,
                now_ms=self._core.clock.wall_ms(),
            )

    def remove_expired(self) -> int:
        with self._state.lock:
            return self._state.producers.remove_expired(self._core.clock.wall_ms())


def check_producer_id(producer: int | str) -> int:
    """The producer id: the given one, or that of the name.

    Raises:
        InvalidRecordError: it is negative, above 2^63-1, or an empty name.
    """
    if isinstance(producer, str) and producer:
        return id_of_name(producer)
    if isinstance(producer, int) and 0 <= producer <= MAX_LONG:
        return producer
    raise InvalidRecordError(f"{producer!r} is neither a producer id nor a name")
