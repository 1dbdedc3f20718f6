"""What ``logstore verify`` asks of the records of the coordinators' topics (W-100, W-170).

The bytes are decoded by the codecs of the coordinators. Later versions and other kinds of records
are told as information: a newer Kafka wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import gcd
from typing import Any

from logstore.common.errors import LogstoreError
from logstore.common.types import Record
from logstore.format.filenames import partition_dir
from logstore.verify import Severity
from logstore.verify.common.report import Problem
from logstore.verify.segment.content import misplaced, of_content
from replication.common.internal_topics import java_hash, masked_partition_for, partition_for
from replication.coordinators.transactions.state import FROM, TransactionState
from replication.protocol import UnsupportedVersionError
from replication.protocol import messages as wire
from replication.protocol.coordinator_records import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    RecordType,
    decode_key,
    decode_value,
)

_VERSION_SIZE = 2
_KEYS_MAX = 50_000  # kept of a segment, to bound memory


class _Keys:
    """Whether keys belong into a partition of a topic whose number of partitions is not known.

    That number divides what the hash of a key and the partition differ by. Hashes below 0 do not
    help to find it: an earlier version of ours put those keys elsewhere.
    """

    def __init__(self, partition: int, partitions: int) -> None:
        self._partition, self._least = partition, max(partitions, partition + 1)
        self._multiple = 0

    def check(self, key: str) -> Iterator[Problem]:
        both = (partition_for(key, 2**31), masked_partition_for(key, 2**31))
        common = [gcd(self._multiple, abs(one - self._partition)) for one in both]
        if all(0 < each < self._least for each in common):
            message = f"hash {java_hash(key)}: no number of partitions, {self._least} or more, "
            yield misplaced(f"{message}has it and what is before it in {self._partition}")
        elif both[0] == both[1]:
            self._multiple = common[0]


class _Check:
    """The records of one segment, in order. ``_before`` has what was said last of each key, since
    the last gap: there compaction took records out.
    """

    kinds: Mapping[int, RecordType]

    def __init__(self, partition: int, partitions: int) -> None:
        self._keys = _Keys(partition, partitions)
        self._due = -1
        self._before: dict[str, Any] = {}
        self._unknown: set[str] = set()

    def __call__(self, record: Record) -> Iterator[Problem]:
        if record.offset != self._due or len(self._before) >= _KEYS_MAX:
            self._before.clear()
        self._due = record.offset + 1
        if record.key is None:
            yield of_content(Severity.ERROR, "no key: the coordinator does not load it")
            return
        try:
            key = decode_key(self.kinds, record.key)
            if key is None:
                kind = int.from_bytes(record.key[:_VERSION_SIZE], "big", signed=True)
                yield from self._not_decoded(f"keys of type {kind}", kind < 0)
                return
            value = None if record.value is None else decode_value(key, record.value)
        except UnsupportedVersionError as failure:
            yield from self._not_decoded(str(failure), failure.version < 0)
        except LogstoreError as failure:
            yield of_content(Severity.ERROR, str(failure))
        else:
            yield from self._keys.check(key[0])
            for message in self._say(key, value):
                yield of_content(Severity.WARNING, message)

    def _not_decoded(self, what: str, impossible: bool) -> Iterator[Problem]:
        if impossible:
            yield of_content(Severity.ERROR, what)
        elif what not in self._unknown:
            self._unknown.add(what)
            yield of_content(Severity.INFO, f"not decoded: {what}")

    def _say(self, key: Any, value: Any) -> Iterator[str]:
        raise NotImplementedError


class _Offsets(_Check):
    kinds = CONSUMER_OFFSETS

    def _say(self, key: Any, value: Any) -> Iterator[str]:
        if isinstance(key, wire.OffsetCommitKey):
            yield from _impossible(key.topic, (key.partition,))
            if value is not None and min(value.offset, value.leader_epoch) < -1:
                yield f"offset {value.offset}, leader epoch {value.leader_epoch}"
            return
        if value is None:
            self._before.pop(key.group, None)
            return
        before = self._before.get(key.group, 0)
        self._before[key.group] = value.generation
        if value.generation < before and before < 2**31 - 2:
            yield f"generation {value.generation} of a group, after {before}"
        members = [member.member_id for member in value.members]
        if len(set(members)) < len(members):
            yield "a member twice"
        if value.leader and members and value.leader not in members:
            yield "its leader is no member"


class _Transactions(_Check):
    kinds = TRANSACTION_STATE

    def _say(self, key: Any, value: Any) -> Iterator[str]:
        before = self._before.pop(key.transactional_id, ())
        if value is None:
            return
        state = value.transaction_status
        if state not in _WRITTEN:
            yield f"state {state}, which is never written"
            return
        if min(value.producer_id, value.producer_epoch, value.transaction_timeout_ms) < 0:
            yield f"producer {value.producer_id}, epoch {value.producer_epoch}, "
            yield f"time-out {value.transaction_timeout_ms} ms"
        topics = value.transaction_partitions or ()
        if topics and state == TransactionState.EMPTY:
            yield "partitions in an empty transaction"
        for topic in topics:
            yield from _impossible(topic.topic, topic.partition_ids)
        # An append that was answered with an error may be in the log, and did not count: so what
        # follows may follow the record before it, or repeat it.
        now = state, value.producer_id, value.producer_epoch
        if before and not {each[0] for each in before} & {state, *FROM[TransactionState(state)]}:
            yield f"state {state} after {before[-1][0]}"
        if before and before[-1][1] == now[1] and now[2] < before[-1][2]:
            yield f"producer epoch {now[2]} after {before[-1][2]}"
        self._before[key.transactional_id] = (*before[-1:], now)


_WRITTEN = frozenset(TransactionState) - {
    TransactionState.DEAD,
    TransactionState.PREPARE_EPOCH_FENCE,
}


def _impossible(topic: str, partitions: Iterable[int]) -> Iterator[str]:
    for partition in partitions:
        if partition < 0 or partition_dir(f"{topic}-{partition}") is None:
            yield f"partition {partition} of topic {topic!r}, which cannot be"


offsets, transactions = _Offsets, _Transactions
"""Entry points: see ``logstore.verify.segment.content``."""
