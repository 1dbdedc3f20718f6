"""``logstore serve`` as a process: started, killed, started again; its client and its files."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

from checkpoints.offset_checkpoint import OffsetCheckpoint
from checkpoints.types import TopicPartition
from logstore.common.types import Record
from logstore.format.reader import read_records
from logstore.storage.local import LocalStorage
from replication.common.error_codes import ErrorCode
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from tests.support.served import batch, fetch, produce
from tests.support.until import patience, until
from tests.support.wire_client import WireClient

ROOT = Path(__file__).resolve().parents[2]
SOON: Mapping[str, int] = {
    "log.initial.task.delay.ms": 0,
    "log.retention.check.interval.ms": 100,
    "log.cleaner.backoff.ms": 100,
    "log.flush.offset.checkpoint.interval.ms": 100,
    "log.flush.start.offset.checkpoint.interval.ms": 100,
    "log.segment.delete.delay.ms": 100,
    "replica.high.watermark.checkpoint.interval.ms": 100,
    "producer.id.expiration.check.interval.ms": 100,
    "offsets.retention.check.interval.ms": 100,
    "offsets.topic.segment.bytes": 2000,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 100,
}
"""All periods are short. What a duty does when it is due is as a broker has it by default."""
BIG = b"x" * 400_000  # three of them fill the smallest segment that Kafka allows
SEGMENT = {"segment.bytes": 1 << 20}


class Server:
    """One broker. Ends with the block; it must have had nothing to say by then."""

    def __init__(self, path: Path, *, descriptors: int | None = None, **config: object) -> None:
        self.path = path
        self.data = path / "data" / "broker-0"
        self._config = {**SOON, **{key.replace("_", "."): value for key, value in config.items()}}
        self._descriptors = descriptors
        self._log = path / "stderr"
        self.start()

    def start(self) -> None:
        """Start it, or start it again on the same files."""
        pairs = [f"--config={key}={value}" for key, value in self._config.items()]
        command = [sys.executable, "-m", "logstore", "serve", f"--dir={self.data.parent}"]
        limit = None
        if self._descriptors is not None:
            both = self._descriptors, self._descriptors
            limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, both)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--listen=127.0.0.1:0", "--json", *pairs],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                preexec_fn=limit,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.said
        host, port = json.loads(line)["bootstrapServers"][0].rsplit(":", 1)
        self.client = WireClient(host, int(port))

    @property
    def said(self) -> str:
        return self._log.read_text()

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        assert self._end(signal.SIGTERM) == 0, self.said

    def _end(self, number: int) -> int:
        self.client.close()
        self.process.send_signal(number)
        code = self.process.wait(patience())
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if self.process.poll() is None:
            self.kill() if kind is not None else self.stop()
        assert kind is not None or self.said == ""

    # -- topics --------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int = 1, **config: object) -> TopicPartition:
        kind = wire.CreateTopicsRequest
        keys = {key.replace("_", "."): str(value) for key, value in config.items()}
        configs = tuple(kind.CreatableTopicConfig(*pair) for pair in keys.items())
        asked = kind.CreatableTopic(topic, partitions, 1, (), configs)
        answer = self.client.ask(ApiKey.CREATE_TOPICS, 5, kind((asked,), 30_000))
        assert [each.error_code for each in answer.topics] == [0], answer
        return TopicPartition(topic, 0)

    def produce(
        self,
        tp: TopicPartition,
        key: bytes,
        value: bytes | None,
        transactional_id: str | None = None,
        **fields: Any,
    ) -> None:
        """A batch of one record. ``fields`` are those of a batch."""
        records = batch(value, key=key, transactional=transactional_id is not None, **fields)
        answer = produce(self.client, tp, records, transactional_id=transactional_id)
        assert answer.error_code == 0, answer

    def bounds(self, tp: TopicPartition) -> tuple[int, int]:
        """Log start and log end."""
        kind = wire.ListOffsetsRequest
        found = []
        for timestamp in (-2, -1):
            part = kind.ListOffsetsPartition(tp.partition, -1, timestamp)
            request = kind(-1, 0, (kind.ListOffsetsTopic(tp.topic, (part,)),))
            ((answer,),) = (
                topic.partitions
                for topic in self.client.ask(ApiKey.LIST_OFFSETS, 5, request).topics
            )
            found.append(answer.offset)
        return found[0], found[1]

    def fetched(self, tp: TopicPartition) -> list[Record]:
        """What a consumer reads from the log start on."""
        found: list[Record] = []
        offset, end = self.bounds(tp)
        while offset < end:
            records = cast(bytes | None, fetch(self.client, tp, offset).records)
            piece = list(read_records(records or b""))
            assert piece, offset
            found += [record for record in piece if record.offset >= offset]
            offset = piece[-1].offset + 1
        return found

    # -- coordinators --------------------------------------------------------------------------

    def find_coordinator(self, key: str, kind: int) -> None:
        """0: of a group, 1: of a transactional id."""
        request = wire.FindCoordinatorRequest(key, kind)
        until(lambda: not self.client.ask(ApiKey.FIND_COORDINATOR, 3, request).error_code)

    def commit(self, group: str, tp: TopicPartition, offset: int, keep_ms: int = -1) -> None:
        kind = wire.OffsetCommitRequest
        part = kind.OffsetCommitRequestPartition(tp.partition, offset)
        topic = kind.OffsetCommitRequestTopic(tp.topic, partitions=(part,))
        request = kind(group, retention_time_ms=keep_ms, topics=(topic,))

        def done() -> bool:
            answer = self.client.ask(ApiKey.OFFSET_COMMIT, 4, request)
            (code,) = {part.error_code for topic in answer.topics for part in topic.partitions}
            assert code in (
                ErrorCode.NONE,
                ErrorCode.NOT_COORDINATOR,
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            )
            return not code

        until(done)

    def committed(self, group: str, tp: TopicPartition) -> int:
        kind = wire.OffsetFetchRequest
        topic = kind.OffsetFetchRequestTopic(tp.topic, (tp.partition,))

        def ask() -> wire.OffsetFetchResponse | None:
            answer: wire.OffsetFetchResponse
            answer = self.client.ask(ApiKey.OFFSET_FETCH, 5, kind(group, (topic,)))
            return None if answer.error_code else answer

        answer = until(ask)
        assert answer is not None
        return answer.topics[0].partitions[0].committed_offset

    @property
    def groups(self) -> set[str]:
        answer = self.client.ask(ApiKey.LIST_GROUPS, 3, wire.ListGroupsRequest())
        return {group.group_id for group in answer.groups}

    def begin(self, transactional_id: str | None, timeout_ms: int = 60_000) -> tuple[int, int]:
        """The producer id and its epoch."""
        request = wire.InitProducerIdRequest(transactional_id, timeout_ms)
        answer = until(
            lambda: (
                found
                if not (found := self.client.ask(ApiKey.INIT_PRODUCER_ID, 2, request)).error_code
                else None
            )
        )
        assert answer is not None
        return answer.producer_id, answer.producer_epoch

    def transaction(self, transactional_id: str) -> tuple[ErrorCode, str]:
        request = wire.DescribeTransactionsRequest((transactional_id,))
        (state,) = self.client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request).transaction_states
        return ErrorCode(state.error_code), state.transaction_state

    def producers(self, tp: TopicPartition) -> list[int]:
        kind = wire.DescribeProducersRequest
        request = kind((kind.TopicRequest(tp.topic, (tp.partition,)),))
        (topic,) = self.client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, request).topics
        (part,) = topic.partitions
        assert not part.error_code
        return [each.producer_id for each in part.active_producers]

    # -- files ---------------------------------------------------------------------------------

    def size(self, tp: TopicPartition) -> int:
        """Bytes of all segments."""
        return sum(len(data) for data in self._segments(tp))

    def on_disk(self, tp: TopicPartition) -> list[Record]:
        return [record for data in self._segments(tp) for record in read_records(data)]

    def _segments(self, tp: TopicPartition) -> list[bytes]:
        """The contents, once no segment was replaced while they were read."""

        def read() -> list[bytes] | None:
            paths = sorted((self.data / str(tp)).glob("*.log"))
            try:
                found = [path.read_bytes() for path in paths]
            except FileNotFoundError:
                return None
            return found if paths == sorted((self.data / str(tp)).glob("*.log")) else None

        found = until(lambda: (read(),))[0]
        return self._segments(tp) if found is None else found

    def names(self, pattern: str) -> list[str]:
        return sorted(path.name for path in self.data.glob(pattern))

    def checkpoint(self, name: str) -> dict[TopicPartition, int]:
        return OffsetCheckpoint(str(self.data / name), LocalStorage()).read() or {}
