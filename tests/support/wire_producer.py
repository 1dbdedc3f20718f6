"""A transactional producer over the wire, which sends exactly what a test says."""

from __future__ import annotations

from typing import Any

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster
from tests.support.served import batch, find_coordinator, new_name, produce
from tests.support.wire_client import WireClient

E = ErrorCode


class WireProducer:
    """A transactional producer that says exactly what a test wants."""

    def __init__(self, kafka: ServedCluster, client: WireClient, name: str | None = None) -> None:
        self.kafka, self.client = kafka, client
        self.name = name or new_name("id")
        find_coordinator(client, self.name, 1)
        self.producer_id, self.epoch = -1, -1

    def init(self, version: int = 4, *, timeout_ms: int = 60_000, again: bool = False) -> int:
        own = (self.producer_id, self.epoch) if again else (-1, -1)
        request = wire.InitProducerIdRequest(self.name, timeout_ms, *own)
        response = self._settled(ApiKey.INIT_PRODUCER_ID, version, request)
        if response.error_code == E.NONE:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return int(response.error_code)

    def _settled(self, key: ApiKey, version: int, request: Any) -> Any:
        """The answer once the transaction before it has ended."""
        found: list[Any] = []

        def ends() -> bool:
            found.append(self.client.ask(key, version, request))
            code = getattr(found[-1], "error_code", E.NONE)
            return code not in (E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_LOAD_IN_PROGRESS)

        self.kafka.wait_until(ends, "the transaction before it ends")
        return found[-1]

    def add(self, *tps: TopicPartition, version: int = 3) -> list[int]:
        """From version 4 on as the leader of a partition does, which adds under protocol 2."""
        request = self.asked_to_add(*tps, version=version)
        codes: list[int] = []

        def ends() -> bool:
            response = self.client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request)
            if version >= 4:
                assert response.error_code == E.NONE
                ((_, topics),) = response.results_by_transaction
            else:
                topics = response.results_by_topic_v3_and_below
            codes[:] = [
                part.partition_error_code for topic in topics for part in topic.results_by_partition
            ]
            return E.CONCURRENT_TRANSACTIONS not in codes

        self.kafka.wait_until(ends, "the transaction before it ends")
        return codes

    def asked_to_add(
        self, *tps: TopicPartition, version: int, verify_only: bool = False
    ) -> wire.AddPartitionsToTxnRequest:
        kind = wire.AddPartitionsToTxnRequest
        topics = tuple(kind.AddPartitionsToTxnTopic(tp.topic, (tp.partition,)) for tp in tps)
        producer = self.name, self.producer_id, self.epoch
        if version < 4:
            return kind((), *producer, topics)
        return kind((kind.AddPartitionsToTxnTransaction(*producer, verify_only, topics),))

    def add_offsets(self, group: str, version: int = 3) -> int:
        request = wire.AddOffsetsToTxnRequest(self.name, self.producer_id, self.epoch, group)
        return int(self.client.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, request).error_code)

    def end(self, committed: bool = True, version: int = 3) -> int:
        request = wire.EndTxnRequest(self.name, self.producer_id, self.epoch, committed)
        response = self.client.ask(ApiKey.END_TXN, version, request)
        if version >= 5 and response.error_code == E.NONE:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        return int(response.error_code)

    def records(self, sequence: int = 0) -> bytes:
        """A batch of its transaction."""
        return batch(
            b"%s-%d" % (self.name.encode(), sequence),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )

    def send(self, tp: TopicPartition, sequence: int = 0, version: int = 9) -> int:
        records = self.records(sequence)
        part = produce(self.client, tp, records, version, transactional_id=self.name)
        return int(part.error_code)
