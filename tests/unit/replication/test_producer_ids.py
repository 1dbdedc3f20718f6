"""Blocks of producer ids: never one id twice, whatever the coordinator's answers do."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from typing import Any

import pytest

from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from replication.broker.producer_ids import (
    BLOCK_SIZE,
    RETRY_MS,
    ProducerIdManager,
    reserve_producer_ids,
)
from replication.common.error_codes import ErrorCode
from replication.common.messages import InitProducerIdRequest, InitProducerIdResponse
from replication.coordination import (
    CoordinatorUnavailableError,
    CorruptNodeError,
    SessionState,
    nodes,
)
from replication.coordination.embedded import CoordinatorStore
from tests.support.replication import ManualRuntime


class Session:
    """One whose answers are lost at times, before or after they were carried out."""

    state = SessionState.CONNECTED

    def __init__(self, store: CoordinatorStore, source: random.Random, rate: float) -> None:
        self._real, self._random, self._rate = store.connect(), source, rate

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)

        def call(*arguments: Any, **options: Any) -> Any:
            fate = self._random.random()
            if fate < self._rate / 2:
                raise CoordinatorUnavailableError("not carried out")
            result = real(*arguments, **options)
            if fate < self._rate:
                raise CoordinatorUnavailableError("carried out")
            return result

        return call


class Brokers:
    def __init__(self, count: int, rate: float = 0.0) -> None:
        self.store = CoordinatorStore("/c", MemoryStorage(), ManualClock(), 6000)
        self.random = random.Random(1)
        self.rate = rate
        self.runtime = ManualRuntime()
        self.managers = [self.manager(n) for n in range(count)]

    def session(self) -> Any:
        return Session(self.store, self.random, self.rate)

    def manager(self, broker_id: int) -> ProducerIdManager:
        session = self.session()
        return ProducerIdManager(broker_id, self.runtime, lambda: session)

    def ask(self, manager: ProducerIdManager, above: int = -1) -> InitProducerIdResponse:
        answers: list[Any] = []
        manager.handle(InitProducerIdRequest(above), answers.append)
        self.runtime.run_until_idle()
        (answer,) = answers
        assert isinstance(answer, InitProducerIdResponse)
        return answer

    def node(self) -> Any:
        node = self.store.connect().get(nodes.PRODUCER_IDS)
        assert node is not None
        return json.loads(node.data)


def test_the_node_is_as_kafka_has_it() -> None:
    brokers = Brokers(2)
    assert brokers.ask(brokers.managers[0]) == InitProducerIdResponse(ErrorCode.NONE, 0, 0)
    assert brokers.node() == {"version": 1, "broker": 0, "block_start": "0", "block_end": "999"}
    assert brokers.ask(brokers.managers[1]).producer_id == 1000
    assert brokers.ask(brokers.managers[0]).producer_id == 1
    for _ in range(BLOCK_SIZE - 2):
        brokers.ask(brokers.managers[0])
    assert brokers.ask(brokers.managers[0]).producer_id == 2000


def test_never_twice_though_answers_are_lost_and_brokers_start_anew() -> None:
    brokers = Brokers(3, rate=0.1)
    given: list[int] = []
    for number in range(12_000):
        if number % 50 == 0:
            brokers.managers[number // 50 % 3] = brokers.manager(number // 50 % 3)
        if number % 700 == 0:
            with suppress(CoordinatorUnavailableError):
                reserve_producer_ids(brokers.session(), max(given, default=0) + number)
        answer = brokers.ask(brokers.random.choice(brokers.managers))
        if answer.error_code is ErrorCode.NONE:
            given.append(answer.producer_id)
        else:
            assert answer.error_code is ErrorCode.BROKER_NOT_AVAILABLE
    assert len(given) > 10_000
    assert len(set(given)) == len(given)


def test_ids_of_another_cluster_are_not_given_again() -> None:
    """Logs and transactions that were taken over bring their producers with them."""
    brokers = Brokers(2)
    first, second = brokers.managers
    assert brokers.ask(first).producer_id == 0
    assert brokers.ask(first, above=5000).producer_id == 5001
    assert brokers.ask(first, above=5000).producer_id == 5002
    assert brokers.ask(second).producer_id == 6001
    reserve_producer_ids(brokers.store.connect(), 6005)  # as a broker that joins
    assert brokers.ask(second).producer_id == 6006  # the rest of the block
    assert brokers.ask(first).producer_id == 7001
    second.reserve(9000)
    second.reserve(8000)
    assert brokers.ask(first).producer_id == 9001
    reserve_producer_ids(brokers.store.connect(), -1)
    assert brokers.ask(first).producer_id == 9002


def test_ids_are_reserved_as_soon_as_the_coordinator_answers() -> None:
    brokers = Brokers(1)
    session: Any = Session(brokers.store, brokers.random, 2.0)  # it refuses everything
    late = ProducerIdManager(1, brokers.runtime, lambda: session)
    for through in (50, 20):
        late.reserve(through)
    brokers.runtime.run_until_idle()
    assert brokers.ask(brokers.managers[0]).producer_id == 0
    session._rate = 0.0
    brokers.runtime.advance(RETRY_MS)
    assert brokers.ask(brokers.managers[0]).producer_id == 51


def test_reserved_ids_that_are_damaged_are_not_asked_for_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody gets an id then, so nothing has to be reserved either."""
    brokers = Brokers(1)
    session = brokers.store.connect()
    session.create(nodes.RESERVED_PRODUCER_IDS, b"garbage", parents=True)
    brokers.managers[0].reserve(50)
    brokers.runtime.advance(10 * RETRY_MS)
    assert caplog.text.count("no producer ids are reserved") == 1
    assert "not reserved yet" not in caplog.text
    assert brokers.ask(brokers.managers[0]).error_code is ErrorCode.BROKER_NOT_AVAILABLE


def test_ids_go_on_after_the_largest_that_a_log_can_have() -> None:
    """A client may write under any id. It must not end the ids of all others."""
    brokers = Brokers(2)
    largest = 2**62 - 1  # above it are ids of names
    reserve_producer_ids(brokers.store.connect(), largest)
    answers = [brokers.ask(manager) for manager in brokers.managers]
    assert [each.error_code for each in answers] == [ErrorCode.NONE, ErrorCode.NONE]
    assert [each.producer_id - largest for each in answers] == [1, BLOCK_SIZE + 1]


def test_a_plain_number_is_the_next_id() -> None:
    """As versions before blocks wrote it."""
    brokers = Brokers(1)
    brokers.store.connect().create(nodes.PRODUCER_IDS, b"17")
    assert brokers.ask(brokers.managers[0]).producer_id == 17
    assert brokers.node()["block_start"] == "17"


def test_without_a_session_nobody_waits() -> None:
    runtime = ManualRuntime()
    answers: list[Any] = []
    ProducerIdManager(1, runtime, lambda: None).handle(InitProducerIdRequest(), answers.append)
    runtime.run_until_idle()
    assert answers[0].error_code is ErrorCode.BROKER_NOT_AVAILABLE


def test_clients_that_ask_ten_thousand_times_are_two_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runtime = ManualRuntime()
    answers: list[Any] = []
    manager = ProducerIdManager(1, runtime, lambda: None)
    for _ in range(10_000):
        manager.handle(InitProducerIdRequest(), answers.append)
    runtime.run_until_idle()
    assert len(answers) == 10_000
    runtime.advance(60_000)
    manager.handle(InitProducerIdRequest(), answers.append)
    runtime.run_until_idle()
    said = "broker 1: no producer ids: no session with the coordinator"
    assert caplog.messages == [said, f"{said} (9999 such lines were left out)"]


@pytest.mark.parametrize(
    "data",
    [
        b"9" * 20,
        b'{"version":1,"broker":1,"block_start":"5","block_end":"4"}',
        b'{"version":1,"broker":1,"block_start":5,"block_end":9}',
        b'{"version":2,"broker":1,"block_start":"0","block_end":"9"}',
        b'{"version":1,"broker":1,"block_start":"0"}',
        b'{"version":1,"broker":1,"block_start":"0","block_end":"-1"}',
        b'{"version":1,"broker":1,"block_start":"0","block_end":"9223372036854775808"}',
    ],
)
def test_a_node_that_is_not_a_block(data: bytes) -> None:
    with pytest.raises(CorruptNodeError):
        nodes.decode_producer_id_block(data)
    brokers = Brokers(1)
    brokers.store.connect().create(nodes.PRODUCER_IDS, data)
    assert brokers.ask(brokers.managers[0]).error_code is ErrorCode.BROKER_NOT_AVAILABLE
