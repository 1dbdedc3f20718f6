"""Brokers that wake after the others went on without them (X-85, X-86)."""

from __future__ import annotations

from typing import cast

import pytest

from replication.common.error_codes import ErrorCode
from replication.protocol import ApiKey
from tests.processes.nodes import Nodes
from tests.processes.records import Records
from tests.support.served import batch, fetch, produce_request
from tests.support.until import until
from tests.support.wire_client import WireClient

pytestmark = pytest.mark.slow


def _client(nodes: Nodes, broker_id: int) -> WireClient:
    return WireClient("127.0.0.1", nodes.brokers[broker_id].client_port)


def test_a_leader_that_wakes_acknowledges_nothing_that_is_lost(shared: Nodes) -> None:
    """What lay in its sockets while it slept is the first that it meets: neither is it
    acknowledged with acks=all, nor do others read it."""
    records = Records(shared, 1)
    records.append()
    (tp,) = records.tps
    leader = shared.leader(tp)
    with _client(shared, leader) as writer, _client(shared, leader) as reader:
        fetch(reader, tp)  # it knows both connections
        with shared.asleep(leader):
            request = produce_request(tp, batch(b"late"), acks=-1, timeout_ms=3000)
            writer.send(ApiKey.PRODUCE, 9, request)
            until(lambda: shared.leader(tp) != leader)
            records.append()
        answer = writer.receive(ApiKey.PRODUCE, 9)
        ((part,),) = (topic.partition_responses for topic in answer.responses)
        assert part.error_code != ErrorCode.NONE
        assert b"late" not in bytes(cast(bytes | None, fetch(reader, tp).records) or b"")
    shared.wait_until_whole()
    records.append()
    records.check()


def test_a_controller_that_wakes_changes_nothing(shared: Nodes) -> None:
    """Another one has the term: what the old one had in hand is refused, and it knows so soon."""
    records = Records(shared)
    controller = shared.controller
    with shared.asleep(controller):
        until(lambda: shared.controller not in (-1, controller))
        late = Records(shared, 1, among=set(shared.brokers) - {controller})
        late.append()
        records.append()
    shared.wait_until_whole()
    assert shared.controller != controller
    for broker_id in shared.brokers:

        def agrees(broker_id: int = broker_id) -> bool:
            return shared.leaders(broker_id) == shared.leaders()

        until(agrees, "all brokers know the same leaders")
    for each in (records, late):
        each.append()
        each.check()


@pytest.mark.long
def test_everyone_sleeps_and_wakes(shared: Nodes) -> None:
    """All sessions end; the first who is awake does not lead alone."""
    records = Records(shared)
    records.append()
    for node in shared.brokers.values():
        node.pause()
    shared.outlive_sessions()
    for node in shared.brokers.values():
        node.resume()
    records.append()
    shared.wait_until_whole()
    records.check()
