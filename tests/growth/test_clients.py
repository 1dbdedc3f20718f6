"""Clients: what their partitions cost them, each and beside so many."""

from __future__ import annotations

import uuid

from checkpoints.types import TopicPartition
from replication.client.metadata import Metadata
from replication.client.receiving import ConsumerConfig, ConsumerCore
from replication.client.sending import ProducerConfig, ProducerCore
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
    TopicPartitionMetadata,
)
from replication.common.state import BrokerRegistration, LiveBroker
from tests.growth.work import Act, Case, Per, check, for_cases
from tests.support.builders import batch
from tests.support.replication import ManualRuntime, RecordingTransport

BROKERS = (1, 2, 3)
LIVE = tuple(LiveBroker(BrokerRegistration(n), n) for n in BROKERS)
RECORDS = batch()


def named(count: int) -> list[TopicPartition]:
    return [TopicPartition("orders", number) for number in range(count)]


class Talk:
    """Three brokers that lead so many partitions and answer everything; ``news``: of which of them
    there are records."""

    def __init__(self, partitions: int) -> None:
        self.runtime, self.transport = ManualRuntime(), RecordingTransport()
        self.metadata = Metadata(self.runtime, self.transport, lambda: BROKERS)
        self.tps = named(partitions)
        self.news = set(self.tps)
        self.metadata.refresh(lambda answered: None)
        self.settle()

    def settle(self) -> None:
        self.runtime.run_until_idle()
        while self.transport.sent:
            sent = self.transport.take()
            sent.reply(self._answer(sent.request))
            self.runtime.run_until_idle()

    def _answer(self, request: Request) -> Response:
        match request:
            case MetadataRequest():
                return self._described()
            case ProduceRequest():
                return ProduceResponse(
                    tuple(
                        ProducePartitionResponse(each.tp, ErrorCode.NONE, 0)
                        for each in request.partitions
                    )
                )
            case FetchRequest():
                return FetchResponse(
                    tuple(
                        FetchPartitionResponse(
                            each.tp,
                            high_watermark=1,
                            records=RECORDS if each.tp in self.news else b"",
                        )
                        for each in request.partitions
                    )
                )
        raise AssertionError(request)

    def _described(self) -> MetadataResponse:
        parts = tuple(
            TopicPartitionMetadata(
                tp, ErrorCode.NONE, BROKERS[tp.partition % 3], 0, BROKERS, BROKERS, ()
            )
            for tp in self.tps
        )
        return MetadataResponse(LIVE, 1, parts, {"orders": uuid.UUID(int=7)})


def refresh(size: int) -> Act:
    talk = Talk(size)

    def act() -> None:
        talk.metadata.refresh(lambda answered: None)
        talk.settle()

    return act


def send_to(talk: Talk, tps: list[TopicPartition]) -> Act:
    core = ProducerCore(talk.runtime, talk.transport, talk.metadata, ProducerConfig())

    def act() -> None:
        for tp in tps:
            core.send_encoded(tp, RECORDS, 1, lambda result: None)
        talk.settle()

    return act


def send_each(size: int) -> Act:
    return send_to(Talk(size), named(size))


def send_beside(size: int) -> Act:
    return send_to(Talk(size), named(size)[-1:])


def send_again(size: int) -> Act:
    return send_to(Talk(1), named(1) * size)


def poll(size: int) -> Act:
    talk = Talk(size)
    core = ConsumerCore(
        talk.runtime, talk.transport, talk.metadata, talk.tps, ConsumerConfig(reset=None)
    )
    for tp in talk.tps:
        core.seek(tp, 0)

    def act() -> None:
        core.poll(0, lambda result: None)
        talk.settle()

    return act


@for_cases(
    Case("metadata of partitions", refresh),
    Case("send to partitions", send_each),
    Case("send beside partitions", send_beside, Per.ONE),
    Case("send to a partition again", send_again),
    Case("poll partitions", poll),
)
def test_a_client_costs_what_it_does(case: Case) -> None:
    check(case)
